"""How fast every GPU is: against what its kind reaches, and against its equals in the same machine.

A rate is judged only where there is something to judge it by. A GPU that is not in references.py, and a slice of one
(MIG, vGPU), is measured and told; that check is skipped then, which counts neither as good nor as bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high

from torchtap.selftest.check import Check, Judged, Scope, UnreadableError, failed, passed, skipped, warned
from torchtap.selftest.checks.which import READS, Numbering, numbering
from torchtap.selftest.facts import Facts, Step
from torchtap.selftest.limits import (
    BANDWIDTH_FAIL,
    BANDWIDTH_WARN,
    CLOCK_WARN,
    HW_SLOWDOWN,
    HW_THERMAL,
    PCIE_GENERATIONS_FAIL,
    PCIE_LANE_GB_S,
    POWER_BRAKE,
    POWER_CAP,
    SLOWER_FAIL,
    SLOWER_WARN,
    SPEED_FAIL,
    SPEED_WARN,
    SW_THERMAL,
    TRANSFER_FAIL,
    TRANSFER_WARN,
)
from torchtap.selftest.references import Reference, reference_of
from torchtap.selftest.status import Level, Status
from torchtap.selftest.words import count

# (torch's index, what, measured, what it should be or None, unit)
Rate = tuple[int, str, float, "float | None", str]


def rate(record: Step, key: str) -> float:
    """A measured rate. Raises `UnreadableError` for anything that is none: zero, infinity, no number."""
    value = record.value.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise UnreadableError(f"{record.name}: {key} is {value!r}, not a rate")
    return float(value)


def judge_rates(
    rates: Sequence[Rate],
    numbers: Numbering,
    *,
    warn: float,
    fail: float,
    cause: str,
    from_table: bool = True,
    note: str = "",
) -> Judged:
    """Each rate against its reference: at least `warn` of it passes, less than `fail` fails.

    A number of the table that is not verified only warns: nobody's GPU is broken because of it.
    """
    values: dict[str, object] = {
        "measured": [numbers.measured(index, value, unit, what) for index, what, value, _, unit in rates],
        "numbers": numbers.by,
    }
    judged = [
        (value / best, index, what, value, best, unit) for index, what, value, best, unit in rates if best
    ]
    if not judged:
        names = " and ".join(dict.fromkeys(numbers.names.values()))
        return skipped("no_reference", f"{_slowest(rates)}; no reference for {names}", **values, names=names)
    share, index, what, value, best, unit = min(judged)
    worst = f"{what + ' ' if what else ''}{value:,.4g} {unit}, {share:.0%} of {best:,.4g}"
    if share >= warn:
        rest = (
            ""
            if len(judged) == len(rates)
            else f"; {count(len(rates) - len(judged), 'rate')} without a reference"
        )
        least = "at least " if len(judged) > 1 else ""
        return passed(f"{least}{worst}{rest}{note}", **values, share=round(share, 3))
    slow = [each[1] for each in judged if each[0] < warn]
    texts = {
        "gpus": numbers.name(slow),
        "index": numbers.index(index),
        "worst": worst,
        "limit": f"{warn:.0%}",
    }
    known = _reference(numbers, index) if from_table else None
    say = failed if share < fail and (known is None or known.verified) else warned
    return say(cause, f"{numbers.name([index])}: {worst}{note}", **values, **texts, share=round(share, 3))


def _slowest(rates: Sequence[Rate]) -> str:
    """Each kind of rate once, with the least of all GPUs."""
    least: dict[tuple[str, str], float] = {}
    for _, what, value, _, unit in rates:
        least[what, unit] = min(value, least.get((what, unit), value))
    return ", ".join(
        f"{what + ' ' if what else ''}{value:,.4g} {unit}" for (what, unit), value in least.items()
    )


def _reference(numbers: Numbering, index: int) -> Reference | None:
    return reference_of(numbers.names.get(index, ""), numbers.memory_mib.get(index, 0))


def _bandwidths(facts: Facts, numbers: Numbering) -> list[Rate]:
    rates: list[Rate] = []
    for record in facts.need_child.done("gpu.bandwidth").records("gpus"):
        index = record.whole("index")
        known = _reference(numbers, index)
        rates.append((index, "", rate(record, "gb_s"), known.bandwidth if known else None, "GB/s"))
    return rates


def _transfers(facts: Facts, _: Numbering) -> list[Rate]:
    rates: list[Rate] = []
    for record in facts.need_child.done("gpu.transfer").records("gpus"):
        link = (record.value.get("pcie_gen"), record.value.get("pcie_width"))
        best = None
        if link != (None, None):  # the driver tells it: then it must be readable
            lane = PCIE_LANE_GB_S.get(record.whole("pcie_gen"))
            best = lane * record.whole("pcie_width") if lane and record.whole("pcie_width") > 0 else None
        for key, what in (("to_gpu", "to GPU"), ("from_gpu", "from GPU")):
            rates.append((record.whole("index"), what, rate(record, key), best, "GB/s"))
    return rates


def _slow_links(facts: Facts) -> dict[int, tuple[int, int]]:
    """torch's index -> (PCIe generation under load, highest of GPU and slot), where it is lower than that."""
    found = {}
    for record in facts.need_child.done("gpu.transfer").records("gpus"):
        if record.value.get("pcie_gen") is None or record.value.get("max_pcie_gen") is None:
            continue
        gen, most = record.whole("pcie_gen"), record.whole("max_pcie_gen")
        if min(gen, most) <= 0:
            raise UnreadableError(f"gpu.transfer: PCIe generation {gen} of {most}")
        if gen < most:
            found[record.whole("index")] = (gen, most)
    return found


def _clocks(facts: Facts) -> dict[int, tuple[int, int, int]]:
    """torch's index -> (SM clock under load, highest one, reasons; 0 where they are not told); only where told."""
    clocks: dict[int, tuple[int, int, int]] = {}
    for record in facts.need_child.done("gpu.speed").records("gpus"):
        if all(record.value.get(key) is None for key in ("sm_mhz", "max_sm_mhz")):
            continue
        reasons = 0 if record.value.get("reasons") is None else record.whole("reasons")
        now, most = record.whole("sm_mhz"), record.whole("max_sm_mhz")
        if min(now, most) <= 0:
            raise UnreadableError(f"gpu.speed: clocks are {now} of {most} MHz")
        clocks[record.whole("index")] = (now, most, reasons)
    return clocks


def _capped(facts: Facts) -> dict[int, float]:
    """Which share of the highest clock a GPU's power limit leaves it, for those that it holds."""
    return {
        index: min(now / most, 1.0)
        for index, (now, most, reasons) in _clocks(facts).items()
        if reasons & POWER_CAP
    }


def _speeds(facts: Facts, numbers: Numbering) -> list[Rate]:
    rates: list[Rate] = []
    capped = _capped(facts)  # a data sheet's peak is that of the highest clock
    for record in facts.need_child.done("gpu.speed").records("gpus"):
        index, known = record.whole("index"), _reference(numbers, record.whole("index"))
        found = record.value.get("tflops")
        if not isinstance(found, dict) or not found:
            raise UnreadableError(f"gpu.speed: tflops is {found!r}")
        peaks = known.tflops if known else {}
        by_type = Step(name=record.name, state=record.state, value=found)
        rates += [
            (
                index,
                what,
                rate(by_type, what),
                peaks[what] * capped.get(index, 1.0) if what in peaks else None,
                "TFLOP/s",
            )
            for what in found
        ]
    return rates


def judge_bandwidth(facts: Facts) -> Judged:
    """A copy within the GPU against the data sheet."""
    numbers = numbering(facts)
    rates = _bandwidths(facts, numbers)
    return judge_rates(rates, numbers, warn=BANDWIDTH_WARN, fail=BANDWIDTH_FAIL, cause="bandwidth_low")


def judge_transfer(facts: Facts) -> Judged:
    """Copies between host and GPU against what the link, as it was meanwhile, can carry; then the link itself."""
    numbers = numbering(facts)
    rates = _transfers(facts, numbers)
    judged = judge_rates(
        rates, numbers, warn=TRANSFER_WARN, fail=TRANSFER_FAIL, cause="transfer_low", from_table=False
    )
    slow = _slow_links(facts)
    if not slow or judged.status is Status.FAIL:
        return judged
    index = max(slow, key=lambda each: slow[each][1] - slow[each][0])
    gen, most = slow[index]
    say = failed if most - gen >= PCIE_GENERATIONS_FAIL else warned
    seen = f"{numbers.name([index])}: generation {gen} of {most} under load; {judged.seen}"
    texts = {"gpus": numbers.name(slow), "index": numbers.index(index), "generation": gen, "most": most}
    return say("pcie_slow", seen, **{**judged.values, **texts})


def judge_speed(facts: Facts) -> Judged:
    """Large products: right first, then fast."""
    numbers = numbering(facts)
    rates = _speeds(facts, numbers)
    records = facts.need_child.done("gpu.speed").records("gpus")
    checked, wrong = (sum(each.whole(key) for each in records) for key in ("checked", "wrong"))
    if any(each.whole("checked") <= 0 or each.whole("wrong") < 0 for each in records):
        raise UnreadableError("gpu.speed compares nothing")
    if wrong:
        bad = [each.whole("index") for each in records if each.whole("wrong")]
        texts = {"wrong": f"{wrong:,}", "checked": f"{checked:,}", "check": "gpu.speed"}
        seen = f"{wrong:,} of {count(checked, 'row')} wrong"
        return failed("wrong_numbers", seen, **texts, gpus=numbers.name(bad), index=numbers.index(bad[0]))
    capped = _capped(facts)
    note = f" (clocks at {min(capped.values()):.0%}, by the power limit)" if capped else ""
    return judge_rates(rates, numbers, warn=SPEED_WARN, fail=SPEED_FAIL, cause="speed_low", note=note)


def judge_throttle(facts: Facts) -> Judged:
    """Clocks in the middle of products, and why they are held back. A power cap is normal there."""
    numbers = numbering(facts)
    causes = (
        (HW_THERMAL | SW_THERMAL, "thermal_slowdown"),
        (POWER_BRAKE, "power_brake"),
        (HW_SLOWDOWN, "hw_slowdown"),
    )
    clocks = _clocks(facts)
    if not clocks:
        return skipped("not_reported", "the driver tells no clocks")
    values: dict[str, object] = {
        "measured": [numbers.measured(index, mhz, "MHz", "SM") for index, (mhz, _, _) in clocks.items()]
    }
    index = min(clocks, key=lambda each: clocks[each][0] / clocks[each][1])
    mhz, most, _ = clocks[index]
    seen = f"{'at least ' if len(clocks) > 1 else ''}{mhz} of {most} MHz under load"
    for bits, cause in causes:
        held = [each for each, (_, _, reasons) in clocks.items() if reasons & bits]
        if held:
            texts = {"gpus": numbers.name(held), "index": numbers.index(held[0])}
            return failed(cause, f"{seen}; reasons {clocks[held[0]][2]:#x}", **values, **texts)
    capped = [each for each, (_, _, reasons) in clocks.items() if reasons & POWER_CAP]
    slow = [each for each, (now, best, _) in clocks.items() if now < CLOCK_WARN * best and each not in capped]
    if slow:
        texts = {"gpus": numbers.name(slow), "index": numbers.index(slow[0]), "clock": f"{mhz} of {most} MHz"}
        return warned("clocks_low", seen, **values, **texts)
    return passed(f"{seen}{', by the power limit' if index in capped else ''}", **values)


def judge_equals(facts: Facts) -> Judged:
    """Each rate of each GPU against the median of its equals in this machine."""
    numbers = numbering(facts)
    groups: dict[tuple[str, str, str], dict[int, float]] = {}
    for rates in (_bandwidths, _transfers, _speeds):
        for index, what, value, _, unit in rates(facts, numbers):
            groups.setdefault((numbers.names.get(index, ""), what, unit), {})[index] = value
    compared = [(key, found) for key, found in groups.items() if len(found) > 1]
    if not compared:
        return skipped("not_applicable", "no two GPUs of one kind")
    behind = sorted(
        (
            (1 - value / median_high(found.values()), index, key)
            for key, found in compared
            for index, value in found.items()
        ),
        reverse=True,
    )
    share, index, (name, what, unit) = behind[0]
    worst = f"{share:.0%} less {what + ' ' if what else ''}{unit} than the median of its equals"
    gpus = {index for found in groups.values() for index in found}
    if share <= SLOWER_WARN:
        return passed(
            f"{count(len(gpus), 'GPU')}, at most {max(share, 0):.0%} below the median of their equals"
        )
    slow = [each[1] for each in behind if each[0] > SLOWER_WARN]
    texts = {"gpus": numbers.name(slow), "index": numbers.index(index), "name": name, "worst": worst}
    say = failed if share > SLOWER_FAIL else warned
    return say("slower_than_equals", f"{numbers.name([index])}: {worst}", **texts, limit=f"{SLOWER_WARN:.0%}")


CHECKS = (
    Check(
        id="gpu.bandwidth",
        title="Is every GPU's memory as fast as its kind should be?",
        reads=("child:gpu.bandwidth", *READS),
        needs=("gpu.matmul",),
        judge=judge_bandwidth,
        causes=("bandwidth_low", "kernel_failed", "gpu_memory_full"),
        on_error="kernel_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="references.py: a 1 GiB copy, both directions counted; less than 70 % warns, less than 50 % fails",
    ),
    Check(
        id="gpu.transfer",
        title="Do copies between host and GPU use what the PCIe link can carry?",
        reads=("child:gpu.transfer", *READS),
        needs=("gpu.matmul",),
        judge=judge_transfer,
        causes=("transfer_low", "pcie_slow", "kernel_failed", "gpu_memory_full"),
        on_error="kernel_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="PCI-SIG's rates for generation and lanes under load: less than 70 % warns, less than 50 % fails; "
        "one generation below the highest warns, two fail",
        see="nvidia-smi -q -d PCIE",
    ),
    Check(
        id="gpu.throttle",
        title="Does every GPU keep its clocks under load?",
        reads=("child:gpu.speed", *READS),
        needs=("gpu.matmul",),
        judge=judge_throttle,
        causes=("thermal_slowdown", "power_brake", "hw_slowdown", "clocks_low", "kernel_failed"),
        on_error="kernel_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="the four clock reasons of DCGM's diagnostic; 80 % of the highest clock, power limits aside",
        see="nvidia-smi -q -d PERFORMANCE,CLOCK",
    ),
    Check(
        id="gpu.speed",
        title="Are large matrix products right, and as fast as this kind of GPU should be?",
        reads=("child:gpu.speed", *READS),
        needs=("gpu.throttle",),
        judge=judge_speed,
        causes=("wrong_numbers", "speed_low", "kernel_failed", "gpu_memory_full"),
        on_error="kernel_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="references.py: the dense peak of each type; less than 60 % warns, less than 45 % fails",
    ),
    Check(
        id="gpu.equals",
        title="Are GPUs of one kind equally fast?",
        reads=("child:gpu.bandwidth", "child:gpu.transfer", "child:gpu.speed", *READS),
        needs=("gpu.bandwidth", "gpu.transfer", "gpu.speed"),
        judge=judge_equals,
        causes=("slower_than_equals",),
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="limits.py: 10 % below the median of its equals warns, 25 % fails",
    ),
)
