"""Reports of a fleet to look at and to measure with: recorded hosts under many names, with invented speeds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtap.selftest.examples import examples
from torchtap.selftest.fleet.comparing import Merged, merge
from torchtap.selftest.fleet.reading import Bad, HostReport, report_of

GPUS = 8
SPEEDS = (("gpu.bandwidth", "", "GB/s", 4310.0), ("gpu.speed", "bf16", "TFLOP/s", 775.0))


def host_reports(number: int) -> Iterator[dict[str, Any]]:
    """JSON of so many hosts with 8 GPUs each: one in 100 fails, one in 50 warns, one in 200 has a slow GPU."""
    chance = random.Random(4)  # noqa: S311  # the same fleet every time
    kinds = {title: report.to_dict() for title, report in examples()}
    for at in range(1, number + 1):
        title = "a lost GPU" if at % 100 == 7 else "warnings" if at % 50 == 3 else "all is well"
        written: dict[str, Any] = json.loads(json.dumps(kinds[title]))
        written["host"]["name"] = f"node{at:04d}"
        if at % 250 == 9:
            written["versions"]["driver"] = "590.44.01"
        gpu = written["gpus"][0]
        written["gpus"] = [
            {**gpu, "index": index, "uuid": f"GPU-{at:08x}-0000-0000-0000-{index:012x}"}
            for index in range(GPUS)
        ]
        for check, what, unit, usual in SPEEDS:
            records = [
                {
                    "gpu": index,
                    "name": gpu["name"],
                    **({"what": what} if what else {}),
                    "value": round(
                        usual * chance.uniform(0.98, 1.02) * (0.7 if (at, index) == (11, 3) else 1), 1
                    ),
                    "unit": unit,
                }
                for index in range(GPUS)
            ]
            proto = written["results"][0]
            written["results"].append(
                {**proto, "id": check, "status": "pass", "cause": None, "cause_id": None, "remedy": None}
                | {"remedy_id": None, "seen": f"{usual} {unit}", "values": {"measured": records}}
            )
        yield written


def example() -> Merged:
    """A merge with everything that it can say."""
    reports = [report_of(written, Path(f"{written['host']['name']}.json")) for written in host_reports(60)]
    older = HostReport(
        host=reports[4].host,
        file="old/node0005.json",
        started="2026-11-01T00:00:00Z",
        verdict=reports[4].verdict,
    )
    return merge(
        [*reports, older], [Bad(file="node0061.json", why="cut off: it ends in the middle, in line 3")]
    )
