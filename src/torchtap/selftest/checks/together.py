"""Several GPUs together: copies between each pair, and NCCL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from torchtap.selftest.check import Check, Judged, Scope, UnreadableError, failed, passed, skipped, warned
from torchtap.selftest.checks.speed import rate
from torchtap.selftest.checks.which import READS, numbering
from torchtap.selftest.facts import Facts, NotDoneError, StepState
from torchtap.selftest.limits import NCCL_NVLINK_GB_S, NCCL_NVLINK_GPUS, NCCL_WARN_GB_S
from torchtap.selftest.status import Level
from torchtap.selftest.words import count


def several(step: str, judge: Callable[[Facts], Judged]) -> Callable[[Facts], Judged]:
    """The judge, or a skip where torch sees one GPU only."""

    def judged(facts: Facts) -> Judged:
        gpus = facts.need_child.done("torch.cuda").records("gpus")
        if len(gpus) == 1 and facts.need_child.step(step).state in (
            StepState.LEFT_OUT,
            StepState.NOT_REACHED,
        ):
            return skipped("not_applicable", "one GPU, which has no other to talk to")
        return judge(facts)

    return judged


def judge_peers(facts: Facts) -> Judged:
    """Every pair, both ways: what arrived wrong."""
    numbers = numbering(facts)
    pairs = facts.need_child.done("gpu.peers").records("gpus")
    if any(pair.whole("checked") <= 0 or pair.whole("wrong") < 0 for pair in pairs):
        raise UnreadableError("gpu.peers compares nothing")
    direct = sum(pair.value.get("access") is True for pair in pairs)
    rates = [rate(pair, "gb_s") for pair in pairs]
    values: dict[str, object] = {
        "direct": direct,
        "measured": [
            numbers.measured(pair.whole("from"), gb_s, "GB/s", f"to GPU {numbers.index(pair.whole('to'))}")
            for pair, gb_s in zip(pairs, rates, strict=True)
        ],
    }
    bad = [pair for pair in pairs if pair.whole("wrong")]
    if bad:
        ends = ", ".join(
            f"{numbers.index(pair.whole('from'))} to {numbers.index(pair.whole('to'))}" for pair in bad[:4]
        )
        wrong, checked = (sum(pair.whole(key) for pair in pairs) for key in ("wrong", "checked"))
        texts = {
            "pairs": ends + (", ..." if len(bad) > 4 else ""),
            "wrong": f"{wrong:,}",
            "checked": f"{checked:,}",
        }
        return failed(
            "peer_copy_wrong", f"{len(bad)} of {count(len(pairs), 'copy direction')} wrong", **values, **texts
        )
    return passed(
        f"{len(pairs)} directions right, {direct} of them direct; at least {min(rates):.4g} GB/s", **values
    )


def judge_nccl(facts: Facts) -> Judged:
    """A sum over all GPUs, and its rate. Too little room in /dev/shm and a failing NCCL are told apart."""
    try:
        step = facts.need_child.done("gpu.nccl")
    except NotDoneError as error:
        if error.step.state is StepState.ERROR and "/dev/shm" in error.step.error:  # noqa: S108
            return failed("nccl_shm", error.step.error.strip().splitlines()[-1])
        raise
    gpus, gb_s = step.whole("count"), rate(step, "bus_gb_s")
    checked, wrong = step.whole("checked"), step.whole("wrong")
    if gpus < 2 or checked <= 0 or wrong < 0:
        raise UnreadableError(f"gpu.nccl: {dict(step.value)!r}")
    seen = f"{count(gpus, 'GPU')}, {gb_s:.4g} GB/s on the bus"
    numbers = numbering(facts)
    values: dict[str, object] = {
        "checked": checked,
        "bus_gb_s": gb_s,
        "count": gpus,
        # The rate is that of all together; each GPU has it, so that hosts can be compared.
        "measured": [numbers.measured(index, gb_s, "GB/s", f"over {gpus} GPUs") for index in numbers.names],
    }
    if wrong:
        texts = {"wrong": f"{wrong:,}", "checked": f"{checked:,}"}
        return failed(
            "nccl_wrong", f"{wrong:,} of {count(checked, 'value')} wrong; {seen}", **{**values, **texts}
        )
    least, of_what = least_nccl(gpus, numbers.names.values())
    if gb_s < least:
        return warned("nccl_slow", seen, **values, limit=f"{least:.4g} GB/s is {of_what}")
    return passed(f"sum right; {seen}", **values)


def least_nccl(gpus: int, names: Iterable[str]) -> tuple[float, str]:
    """The bus bandwidth in GB/s below which so many GPUs of these names are slow, and what that is.

    >>> least_nccl(8, ["NVIDIA H200"]), least_nccl(2, ["NVIDIA L40S"])
    ((400.0, 'the least that eight reach over NVLink'), (5.0, 'what a PCIe 3.0 x8 path gives'))
    """
    known = [
        [floors for pattern, floors in NCCL_NVLINK_GB_S.items() if re.search(pattern, name)] for name in names
    ]
    if not known or not all(known):
        return NCCL_WARN_GB_S, "what a PCIe 3.0 x8 path gives"
    eight, fewer = min(found[0] for found in known)
    if gpus < NCCL_NVLINK_GPUS:
        return fewer, "what PCIe could carry at most, without NVLink"
    return eight, "the least that eight reach over NVLink"


CHECKS = (
    Check(
        id="gpu.peers",
        title="Does what one GPU sends to another arrive unchanged?",
        reads=("child:gpu.peers", *READS),
        needs=("gpu.matmul",),
        judge=several("gpu.peers", judge_peers),
        causes=("peer_copy_wrong", "kernel_failed"),
        on_error="kernel_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="numbers that are all different, compared one by one",
        see="nvidia-smi topo -p2p r",
    ),
    Check(
        id="gpu.nccl",
        title="Do all GPUs together add up to the right sum through NCCL?",
        reads=("child:gpu.nccl", *READS),
        needs=("gpu.peers", "host.shm"),
        judge=several("gpu.nccl", judge_nccl),
        causes=("nccl_wrong", "nccl_shm", "nccl_slow", "nccl_failed"),
        on_error="nccl_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="a known sum of whole numbers; limits.NCCL_WARN_GB_S, NCCL_NVLINK_GB_S (unverified, so only warnings)",
        see="NCCL_DEBUG=INFO torchtap selftest --only gpu.nccl",
    ),
)
