"""How preflight is shown: one line a check, cause and remedy under what is not well, and what to do first."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from host import show
from host.preflight.causes import cause_of
from host.preflight.checks import CHECKS
from host.preflight.facts import Facts
from torchtap.selftest.identity import host_name
from torchtap.selftest.result import Result
from torchtap.selftest.status import COUNTED, Status, worst

SCHEMA = 1
ID_WIDTH = 17
# Where one of these fails make up ends with an error; where another does, it goes on without the GPU.
STOPPING = frozenset(check.id for check in CHECKS if check.stops)


def draw(results: Sequence[Result], *, all_of_them: bool = True) -> None:
    """The table; skips of one kind in one line. `all_of_them` False: only what is not well."""
    skips: dict[str, list[str]] = {}
    for result in results:
        if result.status is Status.SKIP:
            skips.setdefault(result.seen, []).append(result.id)
        elif all_of_them or result.status is not Status.PASS:
            draw_one(result)
    for why, ids in skips.items() if all_of_them else ():
        show.say("skip", f"{', '.join(ids)}: {why}")


def draw_one(result: Result) -> None:
    word = result.status.value
    show.say(word if result.status is Status.PASS else word.upper(), f"{result.id:<{ID_WIDTH}}{result.seen}")
    if result.cause and result.cause != result.seen:
        show.say("cause", result.cause)
    if result.remedy:
        do, _, paste = result.remedy.partition("\n")
        show.say("do", do)
        if paste:
            show.paste(paste)


def verdict(results: Sequence[Result]) -> Status:
    return worst(result.status for result in results)


def counts(results: Sequence[Result]) -> str:
    """In words: "14 passed, 1 warned".

    >>> counts([Result(id="a", status=Status.PASS, seen=""), Result(id="b", status=Status.SKIP, seen="")])
    '1 passed, 1 skipped'
    """
    numbers = {status: sum(result.status is status for result in results) for status in Status}
    return ", ".join(f"{numbers[status]} {word}" for status, word in COUNTED.items() if numbers[status])


def first_of(results: Sequence[Result]) -> Result | None:
    """What to mend first: the earliest of the worst; None where all is well."""
    worst_of_all = verdict(results)
    if worst_of_all is Status.PASS:
        return None
    return next((result for result in results if result.status is worst_of_all), None)


def next_step(facts: Facts, results: Sequence[Result]) -> str:
    """One sentence: what to do first, and what make up would choose as it is."""
    first, now = first_of(results), outcome(facts, results)
    if first is None:
        return f"make up {now}: nothing is in its way."
    if first.status is Status.WARN:
        return f"make up {now}; what is warned of ({first.id}) does not keep it from starting."
    paste = (first.remedy or "").partition("\n")[2]
    return f"First mend {first.id}, as told above{f' ({paste})' if paste else ''}. As it is, make up {now}."


def outcome(facts: Facts, results: Sequence[Result]) -> str:
    """What make up would do with what was found: start in a mode, or stop."""
    failed = {result.id for result in results if result.status is Status.FAIL}
    gpu_failed = failed - STOPPING
    if facts.plan is None or failed & STOPPING or (gpu_failed and facts.must_have_gpu):
        return "would stop"
    mode = "cpu" if gpu_failed and facts.mode == "gpu" else facts.mode
    asked = facts.plan.prove and mode != facts.plan.mode and facts.engine.ready
    likely = " (most likely: Docker is asked for a GPU first)" if asked and not gpu_failed else ""
    return f"would take mode {mode}, variant {facts.plan.variant.name}{likely}"


def document(facts: Facts, results: Sequence[Result], version: str) -> dict[str, object]:
    """preflight.json: results have the keys of the self-test's report (docs/selftest.md)."""
    first = first_of(results)
    chosen = facts.plan
    return {
        "preflight": SCHEMA,  # not "schema": it must not be taken for a self-test's report
        "torchtap": version,
        "host": {"name": host_name(os.environ)},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "verdict": verdict(results).value,
        "first_cause": {"id": first.id, "cause_id": first.cause_id} if first else None,
        "choice": {
            "mode": facts.mode,
            "mode_why": chosen.mode_why,
            "variant": chosen.variant.name,
            "variant_why": chosen.variant_why,
        }
        if chosen
        else None,
        "results": [result.to_dict() for result in results],
    }


def check_table() -> str:
    """The checks as a Markdown table, for docs/host.md."""
    rows = []
    for check in CHECKS:
        causes = ", ".join(f"`{each}`" for each in check.causes if cause_of(each))
        rows.append(f"| `{check.id}` | {check.title} | {causes} | {check.source} |")
    return "\n".join(["| check | question | causes | source |", "|---|---|---|---|", *rows])
