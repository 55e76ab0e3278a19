"""Reports for the tests of every form: the recorded ones, each scenario's, and one full of odd characters."""

from __future__ import annotations

from tests.unit.selftest.scenarios import SCENARIOS
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import examples
from torchtap.selftest.identity import Gpu, Identity, identify
from torchtap.selftest.result import Report, Result
from torchtap.selftest.runner import judge_all
from torchtap.selftest.status import Status

# Escapes of a terminal, characters that XML forbids, all that XML, Prometheus and Nagios give a meaning to.
NASTY = "\x1b[31m \x00\x08\ufffe\ud800 <a>&amp;]]> \"quoted\" 'it' back\\slash {x} | new\nline \r\t \u65e5"


def measured(value: float = 4312.0, unit: str = "GB/s", **more: object) -> list[dict[str, object]]:
    return [{"gpu": 0, "name": "NVIDIA H200", "value": value, "unit": unit, **more}]


def nasty() -> Report:
    """Texts that no machine should say, in every place that a machine can fill."""
    results = tuple(
        Result(
            id=f"gpu.{status.value}",
            status=status,
            seen=NASTY,
            cause=NASTY,
            cause_id="x",
            remedy=NASTY,
            remedy_id="run_again",
            evidence=NASTY,
            values={"measured": measured(what="bf16")},
        )
        for status in Status
    )
    return Report(
        results=results,
        device="gpu",
        seconds=1.5,
        torchtap="0.1.0",
        identity=Identity(
            name="node017",
            started="2026-11-30T17:48:17Z",
            kernel="6.8",
            versions={"variant": None, "torch": None, "cuda": None, "cudnn": None, "driver": NASTY},
            gpus=(Gpu(index=0, name=NASTY, uuid="GPU-1"), Gpu()),
        ),
    )


def of_scenarios() -> list[tuple[str, Report]]:
    return [
        (
            each.name,
            Report(
                results=judge_all(CHECKS, each.facts),
                device=each.facts.device.value,
                seconds=3.0,
                torchtap="0.1.0",
                identity=identify(each.facts, {"TORCHTAP_HOST": "node017"}, 1796060897.0),
            ),
        )
        for each in SCENARIOS
    ]


ALL = [*examples(), *of_scenarios(), ("nasty", nasty())]
EXAMPLES = dict(examples())
IDS = [title for title, _ in ALL]
REPORTS = [report for _, report in ALL]
