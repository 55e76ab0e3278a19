"""What each driver's nvidia-smi can be asked (`--query-gpu`), and the units it prints.

smi_fields.tsv was read from `--help-query-gpu` of real nvidia-smi binaries: 390 to 550 are Debian's packages; 590,
595 and 610 are public captures (utkuozdemir/nvidia_gpu_exporter@e656cd8). Drivers between two columns are taken for
the older one: when a field came exactly is not known.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

TABLE = Path(__file__).with_name("smi_fields.tsv")
# Other names for the same field. `--query-gpu` heads its columns with the second one.
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "used_memory": "used_gpu_memory",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}
RENAMED = (
    "clocks_throttle_reasons.",
    "clocks_event_reasons.",
)  # in 530; the old prefix was put back as alias in 535
UNITS = (  # first match counts; sh patterns too, so only * is used
    ("clocks_event_reasons_counters.*", "us"),
    ("clocks_event_reasons.*", ""),
    ("clocks.*", "MHz"),
    ("memory.*", "MiB"),
    ("protected_memory.*", "MiB"),
    ("used_gpu_memory", "MiB"),
    ("utilization.*", "%"),
    ("fan.speed", "%"),
    ("power.management", ""),
    ("power.*", "W"),
    ("gpu.power.*", "W"),
    ("module.power.*", "W"),
    ("module.enforced.power.limit", "W"),
    ("enforced.power.limit", "W"),
)


@functools.cache
def valid(driver: str) -> frozenset[str]:
    """The fields that this driver's nvidia-smi accepts.

    >>> "remapped_rows.pending" in valid("550.163.01"), "remapped_rows.pending" in valid("590.48.01")
    (False, True)
    >>> valid("580.126.09") == valid("550.163.01")     # the nearest column at or below
    True
    """
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    columns = [numbers(text) for text in lines[0][1:]]
    at_or_below = [place for place, column in enumerate(columns) if column <= numbers(driver)]
    place = (at_or_below[-1] if at_or_below else 0) + 1
    return frozenset(line[0] for line in lines[1:] if line[place] == "1")


def canonical(name: str) -> str:
    """The name that a field's value is kept under.

    >>> canonical("gpu_uuid"), canonical("clocks_throttle_reasons.active")
    ('uuid', 'clocks_event_reasons.active')
    """
    old, new = RENAMED
    return ALIASES.get(name) or (new + name.removeprefix(old) if name.startswith(old) else name)


def numbers(version: str) -> tuple[int, ...]:
    """The parts of a version, to compare.

    >>> numbers("13.0.1") > numbers("9")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", version))
