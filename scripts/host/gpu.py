"""The NVIDIA GPUs of this host, as nvidia-smi tells them, and the variant that fits them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from host import proc
from torchtap.variants import (
    PREFERENCE,
    VARIANTS,
    Capability,
    Driver,
    Variant,
    fitting_variant,
    parse_version,
)

SMI_TIMEOUT_S = 20.0  # a healthy host answers in < 1 s; without persistence mode and with 8 GPUs in up to 10
FIELDS = ("index", "uuid", "name", "driver_version")
CAPABILITY = "compute_cap"  # drivers before 510 do not know this field


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `capability` is None when nvidia-smi could not tell."""

    index: str
    uuid: str
    name: str
    capability: Capability | None

    def __str__(self) -> str:
        return f"{self.name} ({'.'.join(map(str, self.capability))})" if self.capability else self.name


@dataclass(frozen=True, slots=True)
class Said:
    """What nvidia-smi answered, and to what; `make preflight` judges it as the self-test would."""

    command: tuple[str, ...] = ()
    done: proc.Done = field(default_factory=lambda: proc.Done(proc.NOT_FOUND))


@dataclass(frozen=True, slots=True)
class HostGpus:
    """What the host knows. `trouble` says briefly why there is no (full) answer; None when all is well."""

    present: bool = False  # a device node or nvidia-smi speaks of an NVIDIA device
    driver: Driver | None = None
    gpus: tuple[Gpu, ...] = ()
    trouble: str | None = None
    said: Said = field(default_factory=Said, compare=False, repr=False)

    @property
    def driver_text(self) -> str:
        return ".".join(map(str, self.driver)) if self.driver else "unknown"

    def __str__(self) -> str:
        """In a few words: "2 x NVIDIA H200 (9.0), driver 590.44.1"."""
        if not self.gpus:
            return self.trouble or "no NVIDIA GPU on this host"
        names = [str(gpu) for gpu in self.gpus]
        counted = {name: names.count(name) for name in names}
        kinds = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in counted.items())
        return f"{kinds}, driver {self.driver_text}" + (f"; {self.trouble}" if self.trouble else "")


def device_nodes(dev: Path = Path("/dev")) -> list[str]:
    """The device nodes through which an NVIDIA GPU is reached: /dev/nvidia0, …, or /dev/dxg under WSL."""
    return sorted(node.name for node in dev.glob("*") if re.fullmatch(r"nvidia\d+|dxg", node.name))


def read_capability(cell: str) -> Capability | None:
    """`"9.0"` → (9, 0); anything else (N/A, an error text) → None."""
    match = re.fullmatch(r"(\d+)\.(\d+)", cell.strip())
    return (int(match[1]), int(match[2])) if match else None


def read_csv(text: str) -> tuple[Driver | None, tuple[Gpu, ...]]:
    """The rows of `nvidia-smi --query-gpu=… --format=csv,noheader`; rows that are none are left out."""
    driver: Driver | None = None
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < len(FIELDS) or not cells[0].isdigit():
            continue
        if re.fullmatch(r"\d+(\.\d+)+", cells[3]):
            driver = parse_version(cells[3])
        capability = read_capability(cells[4]) if len(cells) > len(FIELDS) else None
        gpus.append(Gpu(cells[0], cells[1], cells[2], capability))
    return driver, tuple(gpus)


def look(
    dev: Path = Path("/dev"), timeout_s: float = SMI_TIMEOUT_S, tick: proc.Tick | None = None
) -> HostGpus:
    """Ask the host. Never raises, and ends within about `timeout_s` even when nvidia-smi hangs."""
    nodes = device_nodes(dev)
    said = query((*FIELDS, CAPABILITY), timeout_s, tick)
    answer = said.done
    if not answer.ok and "not a valid field" in answer.out + answer.err:
        said = query(FIELDS, timeout_s, tick)
        answer = said.done
    driver, gpus = read_csv(answer.out)
    if answer.rc == proc.NOT_FOUND:
        trouble = f"{', '.join(nodes)} in /dev, but nvidia-smi is not installed" if nodes else None
        return HostGpus(present=bool(nodes), trouble=trouble)
    if answer.ok and gpus:
        return HostGpus(present=True, driver=driver, gpus=gpus, said=said)
    words = first_line(answer.out) or first_line(answer.err) or f"exit code {answer.rc}"
    trouble = words if words.lower().startswith("nvidia-smi") else f"nvidia-smi: {words}"
    if answer.ok:
        trouble = f"nvidia-smi names no GPU: {words}"
    return HostGpus(present=bool(nodes or gpus), driver=driver, gpus=gpus, trouble=trouble, said=said)


def first_line(text: str) -> str:
    """nvidia-smi says first what is wrong, then versions and advice."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def query(fields: tuple[str, ...], timeout_s: float, tick: proc.Tick | None) -> Said:
    command = ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    return Said(command, proc.ask(command, timeout_s=timeout_s, tick=tick))


def variant_for(host: HostGpus) -> Variant | None:
    """The best variant that runs on every GPU; where none does, the one that serves the most of them.

    None: the driver is unknown, or too old for every variant.

    >>> t4, v100 = Gpu("0", "GPU-a", "Tesla T4", (7, 5)), Gpu("1", "GPU-b", "Tesla V100", (7, 0))
    >>> variant_for(HostGpus(driver=(580, 65, 6), gpus=(t4, v100))).name
    'cu128'
    """
    if host.driver is None:
        return None
    capabilities = [gpu.capability for gpu in host.gpus]
    best = [found.name for each in capabilities if (found := fitting_variant(host.driver, each))]
    if not best:
        return None
    oldest = VARIANTS[
        max(best, key=PREFERENCE.index)
    ]  # holds code for the oldest GPUs, and mostly for the newer too
    if all(each is None or oldest.runs_on(each) for each in capabilities):
        return oldest
    return VARIANTS[max(best, key=lambda name: (best.count(name), -PREFERENCE.index(name)))]
