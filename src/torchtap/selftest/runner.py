"""Run a self-test: choose checks, gather facts, judge in order, make the report."""

from __future__ import annotations

import difflib
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torchtap
from torchtap.selftest.burn.running import add_burn
from torchtap.selftest.causes import CAUSES
from torchtap.selftest.check import (
    SKIP_REASONS,
    Check,
    Judged,
    Scope,
    UnreadableError,
    failed,
    skipped,
    unknown,
)
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.expect import (
    EXPECTATIONS,
    SETTINGS,
    ExpectationError,
    expectations,
    read_expected,
)
from torchtap.selftest.checks.which import numbering_if_known
from torchtap.selftest.codes import BUSY
from torchtap.selftest.endings import judge_end
from torchtap.selftest.facts import Facts, NotDoneError, StepState
from torchtap.selftest.gather import SettingError, gather, smi_timeout
from torchtap.selftest.host import SHARED_MEMORY
from torchtap.selftest.identity import identify
from torchtap.selftest.kernel_log import KMSG
from torchtap.selftest.limits import (
    BURN_MINUTES,
    BURN_MINUTES_RANGE,
    BURN_SILENCE_S,
    MAX_EVIDENCE_CHARS,
    MAX_EVIDENCE_LINES,
)
from torchtap.selftest.needs import with_needed as needed
from torchtap.selftest.result import Report, Result, Selection
from torchtap.selftest.smi.fields import NotThisFormError
from torchtap.selftest.status import Device, Level, Status
from torchtap.selftest.words import shorten, waited

DEVICE_VARIABLE = "TORCHTAP_DEVICE"
# What torch's and CUDA's own words mean, before a check's own `on_error`. Searched in the text of the exception.
ERROR_TEXTS: tuple[tuple[str, str], ...] = (
    (r"no kernel image is available", "kernel_missing"),
    (r"SUBLIBRARY_VERSION_MISMATCH|cuDNN version incompatibility", "cudnn_mixed"),
    (r"not compatible with devices with SM", "cudnn_refuses_gpu"),
    (r"out of memory", "gpu_memory_full"),
    (r"busy or unavailable", "gpu_busy"),
    (r"^StalledError", "load_stalled"),
)


class UnknownCheckError(SettingError):
    """A check was named that does not exist."""


def run(
    device: Device | str | None = None,
    *,
    level: Level | str = Level.QUICK,
    minutes: float | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    expect: Mapping[str, str | int | None] | None = None,
    timeout_s: float | None = None,
    on_step: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Report:
    """Test this machine. Imports no torch into this process; takes a few seconds, more only where something hangs.

    `device`: "gpu", "cpu" (no GPU by design: its checks are skipped), or None or "auto" for what TORCHTAP_DEVICE
    says, else "gpu". `level`: "quick", "full" (minutes) or "burn". `only`: these checks and what they need, whatever
    their level. `skip`: leave these out; checks that need them are judged all the same. `timeout_s`: seconds for each
    nvidia-smi and for each step of the test process (default 20, and what child/steps.py says).
    `minutes`: how long the level burn loads the machine (default 10).
    `expect`: what this machine must have, as in {"gpus": 8, "name": "H200", "driver": "580"}; the rest is read from
    TORCHTAP_EXPECT_GPUS, _NAME and _DRIVER_MIN. Each is a check, run whatever `only` says.
    `on_step` hears in words what is being done. `stop` is asked several times a second whether to end with what was
    found so far; what was not reached is then unknown.

    Raises `SettingError` for a setting that cannot be used (`UnknownCheckError` for a check that does not exist), and
    for nothing that the machine does.

    >>> report = run("cpu", only=["cpu.matmul"])
    >>> [(result.id, result.status.value) for result in report.results]
    [('torch.build', 'pass'), ('cpu.matmul', 'pass')]
    """
    only, skip = ([names] if isinstance(names, str) else names for names in (only, skip))
    chosen_device = choose_device(device, os.environ)
    if timeout_s is not None and not 0 < timeout_s <= 86_400:
        raise SettingError(f"the time-out must be seconds, above 0 and at most 86400; it is {timeout_s:g}")
    chosen_level = choose_level(level)
    seconds = 60 * choose_minutes(minutes, chosen_level)
    every = (*CHECKS, *choose_expectations(expect or {}, chosen_device, (*only, *skip)))
    checks = choose(every, [*only, *(check.id for check in every[len(CHECKS) :])] if only else ())
    if not only:
        checks = tuple(check for check in checks if chosen_level.includes(check.level))
    left_out = {check.id for check in choose(every, skip, with_needs=False)} if skip else set()
    began, started = time.monotonic(), time.time()
    wanted = [check for check in checks if check.id not in left_out]
    facts = gather(wanted, chosen_device, timeout_s=timeout_s, on_step=on_step, stop=stop)
    if waits_for_load(checks, facts, left_out):
        smi_timeout_s = timeout_s if timeout_s is not None else smi_timeout(os.environ)
        facts = add_burn(
            facts,
            seconds,
            smi_timeout_s=smi_timeout_s,
            silence_s=max(BURN_SILENCE_S, timeout_s or 0.0),
            on_step=on_step,
            stop=stop,
        )
    results = judge_all(checks, facts, left_out)
    return Report(
        results=results,
        device=chosen_device.value,
        level=chosen_level.value,
        selection=Selection(only=tuple(dict.fromkeys(only)), skip=tuple(dict.fromkeys(skip))),
        seconds=time.monotonic() - began,
        torchtap=torchtap.__version__,
        identity=identify(facts, os.environ, started),
    )


def choose_device(device: Device | str | None, env: Mapping[str, str]) -> Device:
    """What `--device` and TORCHTAP_DEVICE say together. Raises `SettingError`.

    >>> choose_device("auto", {"TORCHTAP_DEVICE": "cpu"}).value
    'cpu'
    """
    asked, name = (str(getattr(device, "value", device) or "auto"), "device")
    if asked == "auto":
        asked, name = env.get(DEVICE_VARIABLE, "") or "gpu", DEVICE_VARIABLE
    try:
        return Device("gpu" if asked == "auto" else asked)
    except ValueError:
        raise SettingError(f"{name} must be auto, gpu or cpu; it is {asked!r}") from None


def choose_expectations(
    expect: Mapping[str, str | int | None], device: Device, named: Collection[str]
) -> tuple[Check, ...]:
    """The checks of what is expected. `named`: checks that are asked for by name. Raises `SettingError`."""
    given = {key: None if value is None else str(value) for key, value in expect.items()}
    if odd := set(given) - set(SETTINGS):
        raise SettingError(f"nothing like {min(odd)!r} can be expected; only {', '.join(SETTINGS)}")
    try:
        checks = expectations(read_expected(given, os.environ, device))
    except ExpectationError as error:
        raise SettingError(str(error)) from None
    for key, check in zip(SETTINGS, EXPECTATIONS, strict=True):
        if check.id in named and check.id not in {each.id for each in checks}:
            option, variable, form = SETTINGS[key]
            raise SettingError(f"{check.id} has nothing to expect: give {option} or {variable}, {form}")
    return checks


def choose_level(level: Level | str) -> Level:
    """The level of this name. Raises `SettingError`, with the nearest one.

    >>> choose_level("full").value
    'full'
    """
    try:
        return Level(level)
    except ValueError:
        names = [each.value for each in Level]
        near = difflib.get_close_matches(str(level), names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingError(
            f"level must be {', '.join(names[:-1])} or {names[-1]}; it is {level!r}{hint}"
        ) from None


def choose_minutes(minutes: float | None, level: Level) -> float:
    """How long to burn. Raises `SettingError`.

    >>> choose_minutes(None, Level.BURN), choose_minutes(0.5, Level.BURN)
    (10.0, 0.5)
    """
    if minutes is None:
        return BURN_MINUTES
    if level is not Level.BURN:
        raise SettingError(
            f"minutes are for the level burn only; the level is {level.value}: add --level burn"
        )
    least, most = BURN_MINUTES_RANGE
    if not least <= minutes <= most:
        raise SettingError(f"minutes must be from {least:g} to {most:g}; it is {minutes:g}")
    return minutes


def choose(checks: Sequence[Check], names: Collection[str], *, with_needs: bool = True) -> tuple[Check, ...]:
    """The checks of these names in their order, with what they need; all where no name is given.

    Raises `UnknownCheckError`, with the nearest name.
    """
    by_id = {check.id: check for check in checks}
    for name in names:
        if name not in by_id:
            near = difflib.get_close_matches(name, by_id, n=1)
            hint = f"the nearest is {near[0]}" if near else "none is like it"
            raise UnknownCheckError(f"there is no check {name!r}: {hint}. All: {', '.join(by_id)}")
    if not names:
        return tuple(checks)
    wanted = needed(names, lambda name: by_id[name].needs) if with_needs else set(names)
    return tuple(check for check in checks if check.id in wanted)


def judge_all(checks: Sequence[Check], facts: Facts, left_out: Collection[str] = ()) -> tuple[Result, ...]:
    """Judge the checks in order. Pure: facts in, results out."""
    results: dict[str, Result] = {}
    charged: set[str] = set()
    for check in checks:
        judged = _judge(check, facts, results, left_out)
        result = _result(check, judged, facts)
        # Reading is paid once: by the first check that reads it.
        sources = {_source(read) for read in check.reads} - charged
        charged |= sources
        results[check.id] = replace(result, seconds=sum(facts.seconds.get(source, 0.0) for source in sources))
    return tuple(results.values())


def waits_for_load(checks: Sequence[Check], facts: Facts, left_out: Collection[str]) -> bool:
    """Whether a check of the load is left to judge: nothing that it needs has failed, and nothing has ended."""
    broken = facts.child is not None and facts.child.broken_step is not None
    loads = {check.id for check in checks if any(read.startswith("load:") for read in check.reads)}
    if not loads or broken or facts.interrupted:
        return False
    return any(
        each.id in loads and each.status is not Status.SKIP for each in judge_all(checks, facts, left_out)
    )


def _source(read: str) -> str:
    """What a read is charged to: a step by its name, all fields together, everything else to the host."""
    if read.startswith("child:"):
        return read
    if read.startswith("load:"):
        return "load"
    return "smi" if read.startswith(("smi:", "ask:")) else "host"


def _judge(check: Check, facts: Facts, before: Mapping[str, Result], left_out: Collection[str]) -> Judged:
    if check.id in left_out:
        return skipped("left_out", "left out")
    if check.scope is not Scope.ANY and facts.device is Device.CPU:
        return skipped("by_design", "no GPU by design")
    if check.scope is Scope.REAL_GPU and facts.simulated:
        return skipped("simulated", "simulated")
    for need in check.needs:
        if need in before and _blocks(before[need]):
            root = before[need].values.get(
                "need", need
            )  # the check that failed, not one that was skipped for it
            return skipped("needs", f"needs {root}", need=root)
    try:
        return check.judge(facts)
    except NotDoneError as error:
        return _not_done(check, error, facts)
    except (UnreadableError, NotThisFormError) as error:
        if facts.interrupted:
            return unknown("interrupted", "not reached")
        return unknown("unreadable", str(error), what=str(error))
    except Exception as error:  # one broken check must not take the report away, nor pass
        said = f"{type(error).__name__}: {error}"
        return unknown("check_broke", said, error=said, traceback=traceback.format_exc())


def _blocks(result: Result) -> bool:
    """Whether checks that need this one are skipped. What was left out or does not apply here blocks nothing."""
    if result.status is Status.SKIP:
        return result.cause_id in ("needs", "simulated")
    return result.status not in (Status.PASS, Status.WARN)


def _not_done(check: Check, error: NotDoneError, facts: Facts) -> Judged:
    """What it means that a step gave no result."""
    step, answer = error.step, error.step.end or error.child.answer
    if step.state is StepState.STOPPED or (facts.interrupted and step.state is StepState.NOT_REACHED):
        return unknown("interrupted", "not reached")
    where = numbering_if_known(facts).where(step.where)
    name = f"{step.name} ({where})" if where else step.name
    if (ended := judge_end(step, answer, facts, name)) is not None:
        return ended
    values = {"step": name, "waited_s": waited(step.seconds), "rc": answer.rc}
    if step.state is StepState.ERROR:
        first = step.error.splitlines()[0] if step.error else "an exception without a text"
        cause = next((cause for text, cause in ERROR_TEXTS if re.search(text, step.error)), check.on_error)
        cause = BUSY.cause(facts) if cause == "gpu_busy" else cause
        return failed(cause, first, **values, error=first, gpus=where or "the GPU")
    if facts.smi is not None and facts.smi.hung and error.child.finished:
        return skipped("left_alone", "not tried")
    broken = error.child.broken_step
    reason = f"it ended in {broken.name}" if broken is not None else step.error or "it was not started"
    return unknown("not_reached", f"not reached: {reason}", **values, reason=reason)


def _result(check: Check, judged: Judged, facts: Facts) -> Result:
    says: str | None = None
    remedy: str | None = None
    act: str | None = None
    if judged.status is Status.SKIP:
        says = SKIP_REASONS[judged.cause_id or "not_applicable"].format_map({"need": "?", **judged.values})
    elif judged.cause_id is not None:
        says, remedy, act = CAUSES[judged.cause_id].told(check.id, judged.values)
    evidence = (
        "" if judged.status is Status.SKIP else shorten(_evidence(check, judged, facts), MAX_EVIDENCE_CHARS)
    )
    return Result(
        id=check.id,
        status=judged.status,
        seen=judged.seen,
        cause=says,
        cause_id=judged.cause_id,
        remedy=remedy,
        remedy_id=act,
        evidence=evidence,
        values={key: value for key, value in judged.values.items() if key != "traceback"},
    )


def _evidence(check: Check, judged: Judged, facts: Facts) -> str:
    """The raw text behind a judgement: the picture of the host, nvidia-smi's words, what the steps said."""
    parts: list[str] = []
    if any(read.startswith(("/dev/nvidia", "/sys/bus", SHARED_MEMORY, "ulimit")) for read in check.reads):
        parts.append(facts.host.describe())
    if check.id == "driver.smi" and facts.smi is not None:
        parts.append(facts.smi.raw)
    elif facts.smi is not None:  # whole once; for the others their own cells
        fields = [read.removeprefix("smi:") for read in check.reads if read.startswith("smi:")]
        cells = {
            name: [row.cells[name].text or "-" for row in facts.smi.rows if name in row.cells]
            for name in fields
        }
        parts.append("\n".join(f"{name}: {', '.join(texts)}" for name, texts in cells.items() if texts))
    # A witness where something is wrong; in kernel.log itself always.
    if (
        KMSG in (check.reads if judged.status is not Status.PASS else check.reads[:1])
        and facts.kernel is not None
    ):
        parts.append("\n".join(line.text for line in facts.kernel.lines[-MAX_EVIDENCE_LINES:]))
    for name in (read.removeprefix("ask:") for read in check.reads if read.startswith("ask:")):
        if facts.smi is not None and (answer := facts.smi.also.get(name)) is not None:
            parts.append(f"$ {' '.join(answer.command)}\n{answer.text}")
    for name in (read.removeprefix("child:") for read in check.reads if read.startswith("child:")):
        step = facts.child.step(name) if facts.child is not None else None
        if step is not None and step.state is not StepState.NOT_REACHED:
            said = step.error or json.dumps(dict(step.value), default=str)
            parts.append(f"{name}: {step.state.value} {said}")
        if step is not None and step.end is not None:
            parts.append(step.end.errors.strip())
    if facts.burn is not None and any(read.startswith("load:") for read in check.reads):
        parts.append(facts.burn.describe())
    if "traceback" in judged.values:
        parts.append(str(judged.values["traceback"]))
    return "\n".join(part for part in dict.fromkeys(parts) if part)
