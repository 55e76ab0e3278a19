"""The `--query-gpu` fields Torchtap reads: what form each has, and which drivers know it.

A value that does not have its field's form is unreadable; that is what keeps garbage from being taken for health.
Drivers: `--help-query-gpu` of 390, 418, 450, 460, 470, 535, 550 (real binaries) and 590, 595, 610 (captures). Between
two drivers that were looked at, the first one that knows a field is not known; there nvidia-smi is simply asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchtap.variants import Driver


class NotThisFormError(ValueError):
    """A cell's text does not have the form of its field."""


def whole(text: str) -> int:
    """`"81559"` or `"81559 MiB"` as a number.

    >>> whole("81559 MiB")
    81559
    """
    found = re.fullmatch(r"(-?\d+)(?: ?(?:MiB|C|%|W|MHz))?", text, re.ASCII)
    if not found:
        raise NotThisFormError(text)
    return int(found[1])


def number(text: str) -> float:
    """`"77.71"` or `"77.71 W"` as a number."""
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)(?: ?(?:MiB|C|%|W|MHz))?", text, re.ASCII)
    if not found:
        raise NotThisFormError(text)
    return float(found[1])


def _within(least: float, most: float = float("inf")) -> Callable[[str], int]:
    """A reader of whole numbers that can be: fewer than no errors, or a memory of 0 MiB, is no reading."""

    def read(text: str) -> int:
        value = whole(text)
        if not least <= value <= most:
            raise NotThisFormError(text)
        return value

    return read


count = _within(0)
# MiB. Least: half of the smallest frame buffer of a virtual GPU (512 MB, profiles "0B"). Most: far above all.
size = _within(256, 1 << 24)
percent = _within(0, 100)
generation = _within(0, 8)  # of PCIe
celsius = _within(-100, 250)  # also the distance to the limit, which is negative above it


def lanes(text: str) -> int:
    """A width that a PCIe link can have, `"16"` of a query or `"16x"` of `-q`; 0 where the link is down."""
    value = whole(text.removesuffix("x"))
    if value not in (0, 1, 2, 4, 8, 12, 16, 32):
        raise NotThisFormError(text)
    return value


def amount(text: str) -> float:
    """Watts, MHz, MiB or per cent: a number that is not negative."""
    value = number(text)
    if value < 0:
        raise NotThisFormError(text)
    return value


def mask(text: str) -> int:
    """`"0x0000000000000001"` as a number."""
    if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        raise NotThisFormError(text)
    return int(text, 16)


def yes_no(text: str) -> bool:
    """`Yes`/`No` of newer drivers, `1`/`0` of older ones."""
    answer = {"yes": True, "1": True, "no": False, "0": False}.get(text.casefold())
    if answer is None:
        raise NotThisFormError(text)
    return answer


def _shaped(pattern: str) -> Callable[[str], str]:
    shape = re.compile(pattern, re.ASCII)

    def read(text: str) -> str:
        if not shape.fullmatch(text):
            raise NotThisFormError(text)
        return text

    return read


version = _shaped(r"\d{3}(\.\d+){1,3}( \[.*\])?")  # 610 adds "[Deprecated; ...]" in some outputs
capability = _shaped(r"\d{1,2}\.\d")
uuid = _shaped(r"((GPU|MIG)-)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
bus_id = _shaped(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
# A positive list, because every error text has the shape of a name: what is no product's name is none. Drivers before
# 465 leave "NVIDIA" out, and write a data-centre board as "A100-SXM4-40GB"; tables may cut a name after the brand.
_BRANDS = "NVIDIA|Tesla|(?:EIZO )?Quadro|GeForce|GRID|TITAN|NVS|RTX|GTX|CMP|Tegra|Jetson|DGX"
name = _shaped(
    rf"(?:(?:{_BRANDS})(?= [A-Z0-9(]|$)|(?!GPU)[A-Z]{{1,3}}\d|Graphics Device$|(?:Orin|Thor|Xavier)(?= |$))"
    r"[\w .,()/+-]{0,90}"
)


def licensed(text: str) -> bool:
    """A virtual GPU's "License Status": whether it may work at its full speed.

    >>> licensed("Licensed (Expiry: 2027-1-1 0:0:0 GMT)"), licensed("Unlicensed (Restricted)"), licensed("Expired")
    (True, False, False)
    """
    answer = {"licensed": True, "unlicensed": False, "expired": False}.get(text.partition(" ")[0].casefold())
    if answer is None:
        raise NotThisFormError(text)
    return answer


active = _shaped(r"Active|Not Active")
switch = _shaped(r"Enabled|Disabled|On|Off")
word = _shaped(r"[A-Za-z][A-Za-z0-9 _/-]{0,60}")
state_word = _shaped(r"[A-Za-z][A-Za-z ]{0,40}")
pstate = _shaped(r"P(?:\d|1[0-5])")
compute_mode = _shaped(r"Default|Prohibited|Exclusive_Process|Exclusive_Thread|E\. (?:Process|Thread)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. `read` gives its value or raises `NotThisFormError`."""

    read: Callable[[str], object]
    unknown_to: Driver = ()  # the newest driver that was seen to refuse it; () for none
    gone_from: Driver = ()  # the oldest driver that was seen to refuse it again; () for none
    vital: bool = False  # an error in this cell means that the GPU is in a bad state, not just a sensor
    deciding: bool = False  # an error in this cell leaves open whether the GPU can be used at all

    def worth_asking(self, driver: Driver | None) -> bool:
        """Whether this driver may know the field; yes where the driver is not known."""
        if driver is None:
            return True
        return driver > self.unknown_to and (not self.gone_from or driver < self.gone_from)


_390, _418 = (390, 157), (418, 226, 0)
_470, _550, _590 = (470, 256, 2), (550, 163, 1), (590, 48, 1)

FIELDS: dict[str, Field] = {
    "index": Field(read=count, vital=True),
    "name": Field(read=name, vital=True),
    "uuid": Field(read=uuid, vital=True),
    "pci.bus_id": Field(read=bus_id, vital=True),
    "driver_version": Field(read=version),
    "kmd_version": Field(read=version, unknown_to=_590),
    "compute_cap": Field(read=capability, unknown_to=_470),
    "inforom.checksum_validation": Field(read=_shaped(r"(?i:valid|invalid)"), unknown_to=_550),
    "inforom.image": Field(read=_shaped(r"[A-Za-z0-9]{1,8}(\.[A-Za-z0-9]{1,8}){1,5}")),
    "vbios_version": Field(read=_shaped(r"[0-9A-Fa-f]{2}(\.[0-9A-Fa-f]{2}){3,5}")),
    "memory.total": Field(read=size, vital=True),
    "memory.used": Field(read=count, vital=True),
    "memory.free": Field(read=count, vital=True),
    "temperature.gpu": Field(read=celsius, vital=True),
    "temperature.gpu.tlimit": Field(read=celsius, unknown_to=_470),
    "temperature.memory": Field(read=celsius, unknown_to=_390),
    "fan.speed": Field(read=count),
    "utilization.gpu": Field(read=percent),
    "utilization.memory": Field(read=percent),
    "power.draw": Field(read=amount),
    "power.limit": Field(read=amount),
    "clocks.sm": Field(read=count),
    "pstate": Field(read=pstate),
    "persistence_mode": Field(read=switch),
    "compute_mode": Field(read=compute_mode, deciding=True),
    "mig.mode.current": Field(read=switch, unknown_to=_418, deciding=True),
    "ecc.mode.current": Field(read=switch),
    "ecc.errors.uncorrected.volatile.total": Field(read=count, vital=True),
    "ecc.errors.uncorrected.aggregate.total": Field(read=count, vital=True),
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": Field(
        read=yes_no, unknown_to=_550, deciding=True
    ),
    "remapped_rows.correctable": Field(read=count, unknown_to=_550),
    "remapped_rows.uncorrectable": Field(read=count, unknown_to=_550, vital=True),
    "remapped_rows.pending": Field(read=yes_no, unknown_to=_550, vital=True),
    "remapped_rows.failure": Field(read=yes_no, unknown_to=_550, vital=True),
    "retired_pages.pending": Field(read=yes_no, vital=True),
    "retired_pages.double_bit.count": Field(read=count, vital=True),
    "gpu_recovery_action": Field(read=word, unknown_to=_550, deciding=True),
    "reset_status.reset_required": Field(read=yes_no, unknown_to=_470, gone_from=_590, deciding=True),
    "reset_status.drain_and_reset_recommended": Field(
        read=yes_no, unknown_to=_470, gone_from=_590, deciding=True
    ),
    # The old name: valid on every driver, as an alias on newer ones; only 530.x refuses it.
    "clocks_throttle_reasons.active": Field(read=mask),
    "clocks_event_reasons.active": Field(read=mask, unknown_to=_470),
    "pcie.link.gen.current": Field(read=generation),
    "pcie.link.gen.max": Field(read=generation),
    "pcie.link.width.current": Field(read=lanes),
    "pcie.link.width.max": Field(read=lanes),
    "fabric.state": Field(read=state_word, unknown_to=_470, deciding=True),
    "fabric.status": Field(read=state_word, unknown_to=_470, deciding=True),
    "fabric.health.summary": Field(read=state_word, unknown_to=_550, deciding=True),
}
# Single clock reasons, by the end of their names: the bit that each is in the mask of all.
CLOCK_REASONS = {
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
CLOCK_PREFIXES = ("clocks_throttle_reasons", "clocks_event_reasons")
FIELDS |= {f"clocks_throttle_reasons.{reason}": Field(read=active) for reason in CLOCK_REASONS}
FIELDS |= {f"clocks_event_reasons.{reason}": Field(read=active, unknown_to=_470) for reason in CLOCK_REASONS}
FIELDS["clocks_throttle_reasons.sw_thermal_slowdown"] = Field(read=active, unknown_to=_390)
# Where uncorrected errors were found. Torchtap asks for the total; others may have asked for these.
ECC_PLACES: Mapping[str, Driver] = {
    **dict.fromkeys(("device_memory", "register_file", "l1_cache", "l2_cache", "texture_memory"), ()),
    **dict.fromkeys(("dram", "sram", "cbu"), _418),
    **dict.fromkeys(("sram.parity", "sram.secded"), _550),
}
SRAM_PLACES = ("sram.l2", "sram.mcu", "sram.other", "sram.pcie", "sram.sm")  # since the GPU was made
FIELDS |= {
    f"ecc.errors.uncorrected.{when}.{place}": Field(read=count, unknown_to=driver, vital=True)
    for when in ("volatile", "aggregate")
    for place, driver in ECC_PLACES.items()
}
FIELDS |= {
    f"ecc.errors.uncorrected.aggregate.{place}": Field(read=count, unknown_to=_550, vital=True)
    for place in SRAM_PLACES
}
# Numbers that others ask for; no rule looks at them, but they are an answer.
_CLOCKS = ("sm", "mem", "gr", "video", "current.sm", "current.memory", "current.graphics", "current.video")
_MOST = ("max.sm", "max.mem", "max.memory", "max.gr", "max.graphics")
_APPLICATIONS = ("applications.gr", "applications.graphics", "applications.mem", "applications.memory")
_LIMITS = ("enforced.power.limit", "power.default_limit", "power.min_limit", "power.max_limit")
_SINCE_535 = (
    *("power.draw.instant", "power.draw.average", "memory.reserved"),
    *(f"utilization.{engine}" for engine in ("encoder", "decoder", "jpeg", "ofa")),
)
FIELDS |= {f"clocks.{name}": Field(read=amount) for name in (*_CLOCKS, *_MOST, *_APPLICATIONS)}
FIELDS |= dict.fromkeys((*_LIMITS, "count", "retired_pages.single_bit_ecc.count"), Field(read=amount))
FIELDS |= dict.fromkeys(_SINCE_535, Field(read=amount, unknown_to=_470))
# Of `-q` alone: repairs that wait for a reset, and what cannot be repaired.
ONLY_IN_Q = {
    "repair.channel": Field(read=yes_no, deciding=True),
    "repair.tpc": Field(read=yes_no, deciding=True),
    "unrepairable_memory": Field(read=yes_no, vital=True),
}
FIELDS |= ONLY_IN_Q
# Other names of the same fields, as nvidia-smi itself accepts them.
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "inforom.img": "inforom.image",
    "temperature.current": "temperature.gpu",
}
