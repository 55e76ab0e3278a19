"""Every GPU's memory, written and read back."""

from __future__ import annotations

from torchtap.selftest.check import Check, Judged, Scope, UnreadableError, failed, passed, warned
from torchtap.selftest.checks.which import READS, numbering
from torchtap.selftest.facts import Facts
from torchtap.selftest.limits import MEMORY_TESTED_WARN
from torchtap.selftest.status import Level
from torchtap.selftest.words import count


def judge_memory(facts: Facts) -> Judged:
    """What was read back wrong; and how much of the memory could be tested at all."""
    records = facts.need_child.done("gpu.memory").records("gpus")
    numbers = numbering(facts)
    tested = {each.whole("index"): (each.whole("tested_mib"), each.whole("total_mib")) for each in records}
    checked, wrong = (
        sum(each.whole("checked") for each in records),
        sum(each.whole("wrong") for each in records),
    )
    if any(each.whole("wrong") < 0 or each.whole("checked") < 0 for each in records) or not all(
        0 <= mib <= total and total > 0 for mib, total in tested.values()
    ):
        raise UnreadableError(f"gpu.memory: {[dict(each.value) for each in records]!r}")
    parts = [
        f"GPU {numbers.index(index)}: {mib / 1024:.1f} of {total / 1024:.1f} GiB"
        for index, (mib, total) in tested.items()
    ]
    seen = "; ".join(parts)
    values: dict[str, object] = {
        "checked": checked,
        "wrong": wrong,
        "measured": [numbers.measured(index, mib, "MiB", "tested") for index, (mib, _) in tested.items()],
    }
    if wrong:
        bad = [each for each in records if each.whole("wrong")]
        which = [each.whole("index") for each in bad]
        texts = {"wrong": f"{wrong:,}", "checked": f"{checked:,}", "pattern": bad[0].text("worst")}
        values |= {**texts, "gpus": numbers.name(which), "index": numbers.index(which[0])}
        return failed("memory_wrong", f"{wrong:,} of {count(checked, 'number')} wrong; {seen}", **values)
    if not all(each.whole("checked") for each in records):
        none = [index for index, (mib, _) in tested.items() if not mib]
        return failed("gpu_memory_full", f"nothing tested; {seen}", **values, gpus=numbers.name(none))
    # Memory that GPU and CPU share is tested in half on purpose.
    shared = {each.whole("index") for each in records if each.value.get("integrated") is True}
    little = [
        index
        for index, (mib, total) in tested.items()
        if mib < MEMORY_TESTED_WARN * total and index not in shared
    ]
    if little:
        return warned(
            "memory_held", seen, **values, gpus=numbers.name(little), tested=parts[0].partition(": ")[2]
        )
    return passed(f"{seen}, nothing wrong", **values)


CHECKS = (
    Check(
        id="gpu.memory",
        title="Does every GPU's memory give back what is written into it?",
        reads=("child:gpu.memory", *READS),
        needs=("gpu.matmul",),
        judge=judge_memory,
        causes=("memory_wrong", "memory_held", "gpu_memory_full", "kernel_failed"),
        on_error="kernel_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="90 % of what is free, six patterns (child/patterns.py)",
    ),
)
