"""Which machine a report is of: its name, its GPUs, its versions. So that many reports can be told apart and compared.

Nothing here is judged: what cannot be read is None, and the checks say so where it matters.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from torchtap.selftest.check import UnreadableError
from torchtap.selftest.facts import Facts, Step, StepState
from torchtap.selftest.process import visible
from torchtap.selftest.words import cudnn_version

# In the order in which they are asked. A container's own host name is its id, which says nothing about the node.
NAME_VARIABLES = ("TORCHTAP_HOST", "NODE_NAME", "SLURMD_NODENAME")
GPU_FIELDS = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, by nvidia-smi, else by PyTorch."""

    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    driver: str | None = None
    memory_mib: int | None = None

    def to_dict(self) -> dict[str, object]:
        """For JSON, keys in the order of the schema."""
        return {
            name: getattr(self, name) for name in ("index", "name", "uuid", "bus_id", "driver", "memory_mib")
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a report is of. `started` is UTC, as in 2026-11-30T19:48:17Z."""

    name: str = ""
    started: str = ""
    kernel: str = ""
    container: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()

    def host(self) -> dict[str, object]:
        """The key "host" of the JSON."""
        return {"name": self.name, "kernel": self.kernel, "container": self.container}


def host_name(env: Mapping[str, str]) -> str:
    """What this host is called: by a variable of `NAME_VARIABLES`, else by itself. One word, always.

    >>> host_name({"TORCHTAP_HOST": "node 17"})
    'node_17'
    """
    said = next((env[name] for name in NAME_VARIABLES if env.get(name)), "") or socket.gethostname()
    return re.sub(r"\s+", "_", visible(os.fsencode(said)).strip()) or "unnamed"


def identify(facts: Facts, env: Mapping[str, str], started: float) -> Identity:
    """The identity of the machine with these facts. `started`: seconds since 1970. Never raises."""
    moment = datetime.fromtimestamp(started, timezone.utc)
    return Identity(
        name=host_name(env),
        started=moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        kernel=os.uname().release,
        container=facts.host.container,
        versions=_versions(facts),
        gpus=_gpus(facts),
    )


def _versions(facts: Facts) -> dict[str, str | None]:
    """What was built and what runs; the driver is in nvidia-smi's rows or the kernel's files."""
    torch, cudnn = _done(facts, "torch.import"), _done(facts, "torch.cudnn")
    number = cudnn.get("version")
    rows = facts.smi.rows if facts.smi is not None else ()
    drivers = [text for row in rows if (text := row.text("driver_version"))]
    return {
        "variant": (facts.manifest.variant or None) if facts.manifest is not None else None,
        "torch": _text(torch.get("version")),
        "cuda": _text(torch.get("cuda")),
        "cudnn": cudnn_version(number) if isinstance(number, int) and number > 0 else None,
        "driver": drivers[0] if drivers else facts.host.kernel_driver,
    }


def _gpus(facts: Facts) -> tuple[Gpu, ...]:
    if facts.smi is not None and facts.smi.rows:
        return tuple(
            Gpu(
                index=row.gpu,
                name=row.text("name"),
                uuid=row.text("uuid"),
                bus_id=row.text("pci.bus_id"),
                driver=row.text("driver_version"),
                memory_mib=_whole(row.text("memory.total")),
            )
            for row in facts.smi.rows
        )
    try:
        seen = Step(name="torch.cuda", state=StepState.DONE, value=_done(facts, "torch.cuda")).records("gpus")
    except UnreadableError:
        return ()
    return tuple(Gpu(index=_index(gpu), name=_text(gpu.value.get("name"))) for gpu in seen)


def _done(facts: Facts, name: str) -> Mapping[str, object]:
    """The values of a step, none where it gave no result."""
    if facts.child is None or facts.child.step(name).state is not StepState.DONE:
        return {}
    return facts.child.step(name).value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _index(gpu: Step) -> int | None:
    index = gpu.value.get("index")
    return index if isinstance(index, int) else None


def _whole(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None
