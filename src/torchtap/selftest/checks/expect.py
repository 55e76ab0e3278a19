"""What somebody expects of a machine: how many GPUs, of which name, with which driver. For bringing up equal hosts.

Only what is expected becomes a check: `expectations` makes them for one run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torchtap.selftest.check import Check, Judged, UnreadableError, failed, passed
from torchtap.selftest.checks.driver import driver_of
from torchtap.selftest.facts import Facts, StepState
from torchtap.selftest.status import Device
from torchtap.selftest.words import and_list, count, name_gpus, version
from torchtap.variants import Driver, parse_version

ALL_VISIBLE = ("all", "void", "none", "")  # values of NVIDIA_VISIBLE_DEVICES that do not pick some of many


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is expected; None: nothing. `driver`: at least this version."""

    gpus: int | None = None
    name: str | None = None
    driver: Driver | None = None


class ExpectationError(ValueError):
    """An expectation that cannot be used: which option or variable, what it must be, what it is."""


# What is expected, in the order of the options: the option, the variable, what reads a value (ValueError: no such one).
SETTINGS: Mapping[str, tuple[str, str, str]] = {
    "gpus": ("--expect-gpus", "TORCHTAP_EXPECT_GPUS", "a number of GPUs, 1 or more"),
    "name": ("--expect-name", "TORCHTAP_EXPECT_NAME", 'a GPU\'s name or a part of it, as in "H200"'),
    "driver": ("--expect-driver-min", "TORCHTAP_EXPECT_DRIVER_MIN", 'a version, as in "580.65.06"'),
}


def read_expected(given: Mapping[str, str | None], env: Mapping[str, str], device: Device) -> Expected:
    """What the options say (`given`, by the keys of `SETTINGS`), else the variables. Raises `ExpectationError`.

    >>> read_expected({"gpus": "8"}, {"TORCHTAP_EXPECT_DRIVER_MIN": "580"}, Device.GPU)
    Expected(gpus=8, name=None, driver=(580,))
    """
    values: dict[str, object] = {}
    for key, (option, variable, form) in SETTINGS.items():
        text, source = given.get(key), option
        if text is None:
            text, source = env.get(variable) or None, variable
        if text is None:
            continue
        value = _READERS[key](text.strip())
        if value is None:
            raise ExpectationError(f"{source} must be {form}; it is {text!r}")
        if device is Device.CPU:
            raise ExpectationError(
                f"{source} expects a GPU, and this machine is meant to have none (--device cpu or "
                "TORCHTAP_DEVICE=cpu): leave one of them out"
            )
        values[key] = value
    return Expected(**values)  # type: ignore[arg-type]


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII) else None


def _words(text: str) -> str | None:
    return text if re.search(r"[A-Za-z0-9]", text) else None


def _driver(text: str) -> Driver | None:
    return parse_version(text) if re.fullmatch(r"\d{3}(\.\d{1,4}){0,2}", text, re.ASCII) else None


_READERS: Mapping[str, Callable[[str], object]] = {"gpus": _number, "name": _words, "driver": _driver}


def expectations(expected: Expected) -> tuple[Check, ...]:
    """A check for everything that is expected, to be judged after all others."""
    return tuple(
        each
        for each, wanted in (
            (_count_check(expected.gpus or 1), expected.gpus),
            (_name_check(expected.name or ""), expected.name),
            (_driver_check(expected.driver or ()), expected.driver),
        )
        if wanted is not None
    )


def _names(facts: Facts) -> list[str | None]:
    """The name of every GPU that is here: by nvidia-smi, else by PyTorch. Raises `UnreadableError`."""
    rows = facts.smi.rows if facts.smi is not None else ()
    if rows:
        return [row.text("name") for row in rows]
    step = facts.need_child.step("torch.cuda")
    if step.state is not StepState.DONE:
        raise UnreadableError("neither nvidia-smi nor PyTorch says which GPUs are here")
    return [gpu.text("name") for gpu in step.records("gpus")]


def judge_count(facts: Facts, *, expected: int) -> Judged:
    """How many GPUs are here; fewer are named by what is known of the others: hidden, dark, or not there."""
    names = _names(facts)
    have = and_list([f"{number} x {name or 'unnamed'}" for name, number in Counter(names).items()])
    seen = f"{have} (expected: {count(expected, 'GPU')})"
    values: dict[str, object] = {"found": len(names), "expected": expected, "names": names}
    if len(names) == expected:
        return passed(seen, **values)
    if len(names) > expected:
        return failed("gpus_too_many", seen, **values)
    host = facts.host
    visible = host.env.get("NVIDIA_VISIBLE_DEVICES", "")
    if host.container and visible not in ALL_VISIBLE:
        return failed("gpus_not_given", seen, **values, visible=visible)
    answering = {_bus(row.text("pci.bus_id")) for row in (facts.smi.rows if facts.smi is not None else ())}
    dark = [gpu.address for gpu in host.pci or () if _bus(gpu.address) not in answering]
    if dark and answering:
        return failed("gpus_dark", f"{seen}; silent: {', '.join(dark)}", **values, addresses=and_list(dark))
    bus = "cannot be read" if host.pci is None else f"shows {count(len(host.pci), 'NVIDIA GPU')}"
    return failed("gpus_missing", seen, **values, bus=bus)


def _bus(address: str | None) -> str:
    """A PCI address in one spelling.

    >>> _bus("00000000:5E:00.0") == _bus("0000:5e:00.0")
    True
    """
    return (address or "").lower()[-12:]


def judge_name(facts: Facts, *, expected: str) -> Judged:
    """The expected words, whole, in the name of every GPU: H200 is not in GH200."""
    names = _names(facts)
    if None in names:
        raise UnreadableError("the name of a GPU cannot be read")
    words = re.compile(rf"(?<![A-Za-z0-9]){re.escape(expected)}(?![A-Za-z0-9])", re.IGNORECASE)
    others = [at for at, name in enumerate(names) if not words.search(str(name))]
    seen = and_list([f"{number} x {name}" for name, number in Counter(names).items()])
    values: dict[str, object] = {"names": names, "expected": expected}
    if not others:
        return passed(f"{seen} (expected: {expected})", **values)
    wrong = and_list(list(dict.fromkeys(str(names[at]) for at in others)))
    return failed(
        "gpu_name_unexpected", f"{seen} (expected: {expected})", **values, gpus=name_gpus(others), name=wrong
    )


def judge_driver(facts: Facts, *, expected: Driver) -> Judged:
    """The driver's version, at least the expected one."""
    driver = driver_of(facts)
    if driver is None:
        raise UnreadableError("the driver's version cannot be read")
    values = {"driver": version(driver), "expected": version(expected)}
    seen = f"{version(driver)} (expected: {version(expected)} or newer)"
    return (
        passed(seen, **values) if driver >= expected else failed("driver_older_than_expected", seen, **values)
    )


def _count_check(expected: int) -> Check:
    return Check(
        id="expect.gpus",
        title="Are there as many GPUs as expected?",
        reads=(
            *("smi:index", "smi:name", "smi:pci.bus_id", "child:torch.cuda", "/sys/bus/pci/devices"),
            *("env:NVIDIA_VISIBLE_DEVICES", "env:TORCHTAP_EXPECT_GPUS"),
        ),
        needs=("driver.smi",),
        judge=partial(judge_count, expected=expected),
        causes=("gpus_not_given", "gpus_dark", "gpus_missing", "gpus_too_many"),
        source="--expect-gpus or TORCHTAP_EXPECT_GPUS; MIG instances do not count",
        see="nvidia-smi -L; lspci -d 10de:",
    )


def _name_check(expected: str) -> Check:
    return Check(
        id="expect.name",
        title="Is every GPU of the expected kind?",
        reads=("smi:name", "child:torch.cuda", "env:TORCHTAP_EXPECT_NAME"),
        needs=("driver.smi",),
        judge=partial(judge_name, expected=expected),
        causes=("gpu_name_unexpected",),
        source="--expect-name or TORCHTAP_EXPECT_NAME: whole words, in any case",
        see="nvidia-smi --query-gpu=name --format=csv,noheader",
    )


def _driver_check(expected: Driver) -> Check:
    return Check(
        id="expect.driver",
        title="Is the driver at least the expected one?",
        reads=(
            *(
                "smi:driver_version",
                "smi:kmd_version",
                "/proc/driver/nvidia/version",
                "/sys/module/nvidia/version",
            ),
            "env:TORCHTAP_EXPECT_DRIVER_MIN",
        ),
        needs=("driver.smi",),
        judge=partial(judge_driver, expected=expected),
        causes=("driver_older_than_expected",),
        source="--expect-driver-min or TORCHTAP_EXPECT_DRIVER_MIN",
        see="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
    )


# All of them, for the table and for names.
EXPECTATIONS = expectations(Expected(gpus=1, name="?", driver=(0,)))
