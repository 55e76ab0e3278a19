"""Simulated hosts: a folder each, `hosts/NAME/host.json`, that says what a GPU host looks like from a container.

    {
      "about": "One idle H200, driver 590: all is well.",          what this host is for
      "driver": "590.48.01", "cuda": "13.1",                       of the driver's libraries
      "gpus": {"recorded": "01_h200_590_idle_csv.txt"},            cells from a recorded query (tests/fixtures/smi),
      "also": {"fan.speed": "[N/A]"},                              more cells for each GPU (a list: for one each)
      "answers": {"all": {"recorded": "32_….txt", "rc": 255}},     instead of an answer to "all" questions, or to
                                                                   "table", "list", "version", "query", "nvlink"
      "cuda_init": 999, "nvml_init": 999                           what cuInit and nvmlInit return
    }

The other keys are those of `Host`. "gpus" may also be a list of cells. A cell not given reads "[N/A]".
Recorded files are read, not copied: one source for the emulator and for the tests of the self-test.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOSTS = HERE / "hosts"
RECORDED = HERE.parents[1] / "fixtures" / "smi"
DEFAULT_HOST = "h200-good"
QUESTIONS = ("all", "table", "list", "version", "query", "nvlink")
NODES = ("ok", "denied", "unreadable")

Cells = Mapping[str, str]
"""One GPU's answers: query field → text, as `--format=csv,noheader,nounits` prints it."""


class HostError(ValueError):
    """A host.json cannot be used. The message names file, key and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What nvidia-smi prints (bytes on stdout) and its exit status."""

    text: bytes
    rc: int


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the simulation puts into a container."""

    name: str
    driver: str
    cuda: str  # newest CUDA of this driver, as in "13.1"
    about: str = ""
    gpus: tuple[Cells, ...] = ()
    mig: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # GPU index → profile, uuid
    nvlink: Mapping[str, tuple[float | None, ...]] = field(
        default_factory=dict
    )  # GPU index → GB/s; None: down
    compute_apps: tuple[Cells, ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    latency_s: float = 0  # before each answer
    hangs: bool = False  # nvidia-smi never answers; SIGKILL ends it
    heeds_sigterm: bool = True  # a hanging one: whether SIGTERM ends it too
    cuda_init: int | None = 0  # None: cuInit never returns
    nvml_init: int = 0
    nodes: str = "ok"  # "denied": as without a device cgroup rule (EPERM); "unreadable": mode 0600 (EACCES)
    missing: tuple[str, ...] = ()  # of nvidia-smi, libcuda, libnvidia-ml, nvidia-uvm, nvidiactl
    kernel_module: str = ""  # version of the loaded module; "": the libraries' own
    hook_error: str = ""  # the toolkit itself fails with this text, and the container does not start

    @property
    def cuda_driver_version(self) -> int:
        """What cuDriverGetVersion returns.

        >>> Host(name="x", driver="590.48.01", cuda="13.1").cuda_driver_version
        13010
        """
        major, minor = self.cuda.split(".")[:2]
        return 1000 * int(major) + 10 * int(minor)


def names(*folders: Path) -> list[str]:
    """The hosts in these folders (default: those of the repository).

    >>> "h200-good" in names()
    True
    """
    return sorted({file.parent.name for folder in folders or (HOSTS,) for file in folder.glob("*/host.json")})


def load(name: str, *folders: Path) -> Host:
    """The host of this name, from the first folder that has it (default: those of the repository).

    Raises `HostError`.

    >>> load("h200-good").gpus[0]["name"]
    'NVIDIA H200'
    """
    for folder in folders or (HOSTS,):
        file = folder / name / "host.json"
        if re.fullmatch(r"\w[\w.-]*", name) and file.is_file():
            try:
                return parse(json.loads(file.read_text()), name, str(file))
            except (json.JSONDecodeError, OSError) as error:
                raise HostError(f"{file}: {error}") from None
    raise HostError(f"no simulated host {name!r}: one of {', '.join(names(*folders))}")


def parse(written: Mapping[str, Any], name: str, file: str = "host.json") -> Host:
    """A `Host` from what host.json says. Raises `HostError`."""
    values = dict(written)
    also = values.pop("also", {})
    known = {each.name: each for each in fields(Host) if each.name != "name"}
    if unknown := sorted(values.keys() - known.keys()):
        raise HostError(f"{file}: unknown key {unknown[0]!r}: one of also, {', '.join(sorted(known))}")
    required = [
        key for key, each in known.items() if each.default is MISSING and each.default_factory is MISSING
    ]
    if missing := [key for key in required if key not in values]:
        raise HostError(f"{file}: {missing[0]!r} is missing")
    for key in ("driver", "cuda"):
        if not re.fullmatch(r"\d+(\.\d+)+", str(values[key])):
            raise HostError(
                f"{file}: {key} is {values[key]!r}, not numbers with dots, as in '590.48.01' or '13.1'"
            )
    if values.get("nodes", "ok") not in NODES:
        raise HostError(f"{file}: nodes is {values['nodes']!r}: one of {', '.join(NODES)}")
    gpus = values.get("gpus", ())
    rows = _recorded_rows(gpus["recorded"]) if isinstance(gpus, Mapping) else gpus
    more = also if isinstance(also, list) else [also] * len(rows)
    if len(more) != len(rows):
        raise HostError(f"{file}: also is a list of {len(more)} for {len(rows)} GPUs")
    # The index is the place in the list, whatever a GPU's other cells say.
    values["gpus"] = tuple(
        {**row, **cells, "index": str(n)} for n, (row, cells) in enumerate(zip(rows, more, strict=True))
    )
    values["mig"] = {
        gpu: tuple((profile, uuid) for profile, uuid in parts) for gpu, parts in values.get("mig", {}).items()
    }
    values["nvlink"] = {gpu: tuple(links) for gpu, links in values.get("nvlink", {}).items()}
    values["answers"] = {
        question: _answer(each, file) for question, each in values.get("answers", {}).items()
    }
    if unknown := sorted(values["answers"].keys() - set(QUESTIONS)):
        raise HostError(f"{file}: answers has {unknown[0]!r}: one of {', '.join(QUESTIONS)}")
    for listed in ("missing", "compute_apps"):
        values[listed] = tuple(values.get(listed, ()))
    return Host(name=name, **values)


def _answer(written: Mapping[str, Any], file: str) -> Answer:
    if "rc" not in written or not {"recorded", "text"} & written.keys():
        raise HostError(f"{file}: an answer needs 'recorded' or 'text', and 'rc'")
    if "recorded" in written:
        return Answer(text=(RECORDED / written["recorded"]).read_bytes(), rc=written["rc"])
    # One character, one byte: so that garbage can be written down too.
    return Answer(text=written["text"].encode("latin-1"), rc=written["rc"])


def _recorded_rows(file: str) -> list[dict[str, str]]:
    """The rows of a recorded csv query, with the columns of the command that manifest.tsv names for it."""
    with (RECORDED / "manifest.tsv").open(newline="") as manifest:
        commands = {
            row["file"]: row["command"]
            for row in csv.DictReader(manifest, delimiter="\t", quoting=csv.QUOTE_NONE)
        }
    asked = re.search(r"--query-gpu=(\S+) --format=csv,noheader,nounits", commands.get(file, ""))
    if asked is None:
        raise HostError(
            f"gpus: {file} is no csv,noheader,nounits query of GPUs in {RECORDED / 'manifest.tsv'}"
        )
    columns = asked[1].split(",")
    lines = (RECORDED / file).read_text().splitlines()
    return [dict(zip(columns, line.split(", "), strict=True)) for line in lines]
