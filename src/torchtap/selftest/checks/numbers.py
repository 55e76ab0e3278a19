"""Judging of computations: how many values were compared, how many were wrong, on which GPU."""

from __future__ import annotations

from collections.abc import Callable

from torchtap.selftest.check import Judged, UnreadableError, failed, passed
from torchtap.selftest.checks.which import numbering
from torchtap.selftest.facts import Facts
from torchtap.selftest.words import count


def compared(step_name: str, cause: str) -> Callable[[Facts], Judged]:
    """A judge for a step that compares: passes where every record compared something and found nothing wrong."""

    def judge(facts: Facts) -> Judged:
        records = facts.need_child.done(step_name).records("gpus")
        checked = wrong = 0
        bad: list[int] = []
        for record in records:
            if record.whole("checked") <= 0 or record.whole("wrong") < 0:
                raise UnreadableError(f"{step_name}: {record.value!r} compares nothing")
            checked += record.whole("checked")
            wrong += record.whole("wrong")
            if record.whole("wrong"):
                bad.append(record.whole("index"))
        on_gpus = [index for record in records if (index := record.whole("index")) >= 0]
        where = f" on {count(len(on_gpus), 'GPU')}" if on_gpus else ""
        if not wrong:
            return passed(f"{count(checked, 'value')} right{where}", checked=checked, wrong=0)
        if on_gpus:
            numbers = numbering(facts)
            names, first = numbers.name(bad), numbers.index(bad[0])
        else:
            names, first = "the CPU", -1
        return failed(
            cause,
            f"{wrong:,} of {count(checked, 'value')} wrong{where}",
            checked=f"{checked:,}",
            wrong=f"{wrong:,}",
            gpus=names,
            index=first,
            check=step_name,
        )

    return judge
