"""The level burn: what a load of minutes or hours shows. Facts in, judgements out, as everywhere.

A pass needs a load that came to its end. Where it was interrupted, a limit that was broken until then still fails; the
rest is unknown. One fault is named once: what follows from it is skipped for the check that names it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from torchtap.selftest.burn.records import Burn, Readings, Watch, WatchedGpu
from torchtap.selftest.burn.sampler import BRAKE, CLOCKS, ECC, HEAT, POWER, SM_CLOCK, TEMPERATURE
from torchtap.selftest.check import (
    Check,
    Judged,
    Scope,
    UnreadableError,
    failed,
    passed,
    skipped,
    unknown,
    warned,
)
from torchtap.selftest.checks.which import numbering_if_known
from torchtap.selftest.codes import BUSY_CAUSES
from torchtap.selftest.facts import Facts, NotDoneError, Step, StepState
from torchtap.selftest.limits import (
    BURN_ENDS,
    BURN_LEAST_SAMPLES,
    BURN_READABLE_SHARE,
    BURN_REPLAYS_FAIL,
    BURN_SLICES,
    BURN_THERMAL_SHARE,
    SLOWER_FAIL,
    SLOWER_WARN,
    XIDS_OF_PROGRAMS,
)
from torchtap.selftest.references import REFERENCES
from torchtap.selftest.status import Level, Status
from torchtap.selftest.words import age as duration
from torchtap.selftest.words import count, name_gpus, waited

JudgeLoad = Callable[[Burn, Watch], Judged]


# -- What holds for all of them --------------------------------------------------------------------------------------
def watching(judge: JudgeLoad) -> Callable[[Facts], Judged]:
    """A judge of what nvidia-smi said under load."""

    def whole(facts: Facts) -> Judged:
        burn = facts.need_burn
        if burn.watch is None:
            return skipped("not_reported", "there is no nvidia-smi to ask")
        judged = _if_it_ended(burn, judge(burn, burn.watch))
        if judged.status is Status.PASS and judge is not judge_lost and _too_few(burn.watch):
            return skipped("needs", "needs burn.lost", need="burn.lost")
        return judged

    return whole


def _if_it_ended(burn: Burn, judged: Judged) -> Judged:
    """A failure stands, whatever happened afterwards; a pass counts only for a whole load."""
    if judged.status is not Status.PASS or burn.step.state is StepState.DONE:
        return judged
    return skipped("needs", "needs burn.numbers", need="burn.numbers")


def _reported(watch: Watch, name: str) -> Iterator[tuple[WatchedGpu, Readings]]:
    """The GPUs that report a field, with their readings. Raises `UnreadableError` where too many could not be read."""
    for gpu in watch.gpus:
        if gpu.lost:  # burn.lost says so, and its readings end there
            continue
        readings, bad = gpu.readings.get(name), gpu.unread.get(name, 0)
        good = readings.count if readings is not None else 0
        wanted = max(good + bad, watch.asked - watch.unread if good else 0)
        if good < BURN_READABLE_SHARE * wanted:
            raise UnreadableError(f"GPU {gpu.index}: {name} was read {good} times of {wanted}")
        if readings is not None:
            yield gpu, readings


def _too_few(watch: Watch) -> str:
    """Why the readings prove nothing; "" where there are enough."""
    good = watch.asked - watch.unread
    if watch.gpus and good >= BURN_LEAST_SAMPLES and good >= BURN_READABLE_SHARE * watch.asked:
        return ""
    why = f", the last one: {watch.why}" if watch.why else ""
    return f"{good} of {count(watch.asked, 'reading')} of nvidia-smi under load could be read{why}"


def _elapsed(burn: Burn) -> str:
    """How far the load came, by its own last word."""
    elapsed = burn.step.value.get("elapsed")
    return (
        duration(float(elapsed)) if isinstance(elapsed, int | float) and 0 <= elapsed < 1e9 else "some time"
    )


def _measured(gpus: Sequence[tuple[int, str, float]], unit: str, what: str) -> list[dict[str, object]]:
    return [
        {"gpu": index, "name": name, "value": value, "unit": unit, "what": what}
        for index, name, value in gpus
    ]


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


# -- Each check ------------------------------------------------------------------------------------------------------
def judge_lost(burn: Burn, watch: Watch) -> Judged:
    """Every GPU answered nvidia-smi to the end."""
    if lost := [gpu for gpu in watch.gpus if gpu.lost]:
        seen = "; ".join(f"GPU {gpu.index}: {gpu.lost}" for gpu in lost)
        return failed(
            "load_gpu_lost",
            seen,
            gpus=name_gpus(gpu.index for gpu in lost),
            index=lost[0].index,
            after=duration(lost[0].lost_after_s),
        )
    if watch.gone:
        elapsed = burn.step.value.get("elapsed")
        after = duration(float(elapsed)) if isinstance(elapsed, int | float) else "some time"
        return failed(
            "load_gpu_lost", watch.gone, gpus=name_gpus(gpu.index for gpu in watch.gpus), after=after
        )
    if watch.hung:
        seconds = waited(watch.waited_s)
        return failed("smi_hung", f"no answer in {seconds} s under load, again and again", waited_s=seconds)
    if burn.step.state is StepState.DONE and (problem := _too_few(watch)):
        raise UnreadableError(problem)
    good = watch.asked - watch.unread
    seen = f"{count(len(watch.gpus), 'GPU')} in reach, {good:,} of {count(watch.asked, 'reading')}"
    return passed(seen, asked=watch.asked, unread=watch.unread)


def judge_ecc(_: Burn, watch: Watch) -> Judged:
    """No uncorrected memory error since the load began."""
    new = {gpu.index: int(ecc.most - ecc.first) for gpu, ecc in _reported(watch, ECC)}
    if not new:
        return skipped("not_reported", "not reported by this GPU")
    if bad := {index: number for index, number in new.items() if number > 0}:
        seen = "; ".join(f"GPU {index}: {number} new" for index, number in bad.items())
        return failed("load_ecc", seen, gpus=name_gpus(bad), index=min(bad), count=max(bad.values()))
    return passed(f"{count(len(new), 'GPU')}, no new error")


def judge_xid(facts: Facts) -> Judged:
    """No new Xid but those that a program causes."""
    burn = facts.need_burn
    rows = {gpu.bus: gpu.index for gpu in burn.watch.gpus} if burn.watch is not None else {}
    if bad := [event for event in burn.xids if event.xid not in XIDS_OF_PROGRAMS]:
        indexes = [next((n for bus, n in rows.items() if event.bus[-10:] in bus), None) for event in bad]
        return failed(
            "load_xid",
            bad[0].line,
            gpus=name_gpus(indexes, bad[0].bus),
            xid=bad[0].xid,
            also=[event.line for event in bad[1:]],
        )
    if burn.log_problem and not facts.interrupted:
        return skipped("log_closed", f"not readable: {burn.log_problem}", problem=burn.log_problem)
    seen = f"{count(len(burn.xids), 'Xid')} of programs" if burn.xids else "no new Xid"
    return _if_it_ended(burn, passed(seen))


def judge_numbers(facts: Facts) -> Judged:
    """Every value of every product was right."""
    burn = facts.need_burn
    step = burn.step
    done = step.state is StepState.DONE
    records = step.records("gpus") if done or step.value.get("gpus") else ()
    for record in records:
        if record.whole("wrong") < 0 or record.whole("checked") < 0 or (done and not record.whole("checked")):
            raise UnreadableError(f"{step.name}: {record.value!r} compares nothing")
    checked, wrong = (sum(record.whole(key) for record in records) for key in ("checked", "wrong"))
    on_gpus = [index for record in records if (index := record.whole("index")) >= 0]
    where = f" on {count(len(on_gpus), 'GPU')}" if on_gpus else ""
    numbers = numbering_if_known(facts)
    speeds = [
        (numbers.index(record.whole("index")), record.text("name"), _speed(record)) for record in records
    ]
    products = sum(record.whole("products") for record in records)
    what = records[0].text("type") if records else ""
    values: dict[str, object] = {
        "products": products,
        "measured": _measured(speeds, "TFLOP/s", what),
    }
    if wrong:
        bad = [record.whole("index") for record in records if record.whole("wrong")]
        return failed(
            "wrong_numbers" if on_gpus else "wrong_numbers_cpu",
            f"{wrong:,} of {count(checked, 'value')} wrong{where}",
            **values,
            checked=f"{checked:,}",
            wrong=f"{wrong:,}",
            gpus=numbers.name(bad),
            index=numbers.index(bad[0]),
            check="burn.numbers",
        )
    rate = f", {sum(speed for _, _, speed in speeds):,.4g} TFLOP/s"
    seen = f"{count(products, 'product')} right{where}{rate}" if products else "no product yet"
    if done:
        return passed(f"{seen} in {duration(burn.seconds)}", **values, checked=checked, wrong=0)
    if facts.interrupted:
        elapsed = _elapsed(burn)
        seen = f"{seen}, until it was interrupted"
        return unknown("load_interrupted", seen, **values, elapsed=elapsed, asked=duration(burn.seconds))
    for check_id, named in (("burn.lost", _is_lost), ("burn.ecc", _has_ecc), ("burn.xid", _has_xid)):
        if named(facts):
            return skipped("needs", f"needs {check_id}", need=check_id)
    raise NotDoneError(step, burn.child)


def _speed(record: Step) -> float:
    value = record.value.get("tflops")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise UnreadableError(f"{record.name}: tflops is {value!r}, not a speed")
    return float(value)


def _failed(judge: Callable[[Facts], Judged]) -> Callable[[Facts], bool]:
    """Whether that check fails on these facts; no where nobody can say."""

    def fails(facts: Facts) -> bool:
        try:
            return judge(facts).status is Status.FAIL
        except UnreadableError:
            return False

    return fails


_is_lost, _has_ecc, _has_xid = (
    _failed(judge) for judge in (watching(judge_lost), watching(judge_ecc), judge_xid)
)


def judge_heat(_: Burn, watch: Watch) -> Judged:
    """No GPU is slowed down by heat for more than a small part of the time."""
    shares = {gpu.index: gpu.slowed.get(HEAT, 0) / clocks.count for gpu, clocks in _reported(watch, CLOCKS)}
    hottest = {gpu.index: readings.most for gpu, readings in _reported(watch, TEMPERATURE)}
    names = {gpu.index: gpu.name for gpu in watch.gpus}
    values: dict[str, object] = {
        "measured": _measured([(n, names[n], most) for n, most in hottest.items()], "C", "hottest"),
        "course": {gpu.index: _course(gpu) for gpu in watch.gpus},
    }
    if not shares:
        return skipped("not_reported", "not reported by this GPU")
    hot = f"{max(hottest.values()):.0f} C" if hottest else "not reported"
    bad = {index: share for index, share in shares.items() if share > BURN_THERMAL_SHARE}
    if bad:
        worst = max(bad.values())
        return failed(
            "load_hot",
            "; ".join(f"GPU {index}: {_percent(share)} of the time" for index, share in bad.items()),
            **values,
            gpus=name_gpus(bad),
            index=min(bad),
            share=_percent(worst),
            limit=_percent(BURN_THERMAL_SHARE),
            temperature=hot,
        )
    return passed(f"slowed down in {_percent(max(shares.values()))} of the time, hottest {hot}", **values)


def _course(gpu: WatchedGpu) -> list[list[float | None]]:
    """Moments: seconds, degrees, watts, MHz."""
    return [[moment.get(name) for name in ("s", TEMPERATURE, POWER, SM_CLOCK)] for moment in gpu.course]


def judge_power(_: Burn, watch: Watch) -> Judged:
    """The power brake was never on."""
    braked = {gpu.index: gpu.slowed.get(BRAKE, 0) for gpu, _ in _reported(watch, CLOCKS)}
    drawn = [(gpu.index, gpu.name, power.mean) for gpu, power in _reported(watch, POWER)]
    values: dict[str, object] = {"measured": _measured(drawn, "W", "mean")}
    if not braked:
        return skipped("not_reported", "not reported by this GPU")
    if bad := {index: number for index, number in braked.items() if number}:
        seen = "; ".join(f"GPU {index}: in {count(number, 'reading')}" for index, number in bad.items())
        return failed("load_power_brake", seen, **values, gpus=name_gpus(bad), index=min(bad))
    power = f", {sum(mean for _, _, mean in drawn):,.0f} W on average{_target(drawn)}" if drawn else ""
    return passed(f"{count(len(braked), 'GPU')}, no power brake{power}", **values)


def _target(drawn: Sequence[tuple[int, str, float]]) -> str:
    """What DCGM's load reaches on these boards, to compare with; of two kinds with one name, the smaller number."""
    known = [
        [row.watts for row in REFERENCES if row.watts and re.search(row.pattern, name)]
        for _, name, _ in drawn
    ]
    return f" (DCGM's load: {sum(min(found) for found in known):,.0f} W)" if all(known) else ""


def judge_pcie(burn: Burn, watch: Watch) -> Judged:
    """The PCIe links repeated little."""
    grown: dict[int, int] = {}
    for gpu in watch.gpus:
        before, after = gpu.replays
        if before is None:
            continue
        if after is None and burn.step.state is StepState.DONE:
            raise UnreadableError(f"GPU {gpu.index}: PCIe replays after the load")
        # A counter that is smaller than before was set back in between.
        grown[gpu.index] = after - before if after is not None and after >= before else after or 0
    if not grown:
        return skipped("not_reported", "not reported by this GPU")
    if bad := {index: number for index, number in grown.items() if number > BURN_REPLAYS_FAIL}:
        seen = "; ".join(f"GPU {index}: {number:,} more" for index, number in bad.items())
        return failed(
            "load_pcie_replays",
            seen,
            gpus=name_gpus(bad),
            index=min(bad),
            count=f"{max(bad.values()):,}",
            limit=BURN_REPLAYS_FAIL,
        )
    return passed(f"{count(len(grown), 'GPU')}, at most {max(grown.values())} replays")


def judge_steady(facts: Facts) -> Judged:
    """No GPU is much slower than its equals, nor than it was in the beginning."""
    burn = facts.need_burn
    for check_id, named in (("burn.thermal", _is_hot), ("burn.power", _is_braked)):
        if named(facts):
            return skipped("needs", f"needs {check_id}", need=check_id)
    if burn.step.state is not StepState.DONE:
        return _if_it_ended(burn, passed("not compared"))
    numbers = numbering_if_known(facts)
    slower: dict[int, float] = {}
    fading: dict[int, float] = {}
    names: dict[int, str] = {}
    equals: dict[str, dict[int, float]] = defaultdict(dict)
    for record in burn.step.records("gpus"):
        index, names[record.whole("index")] = record.whole("index"), record.text("name")
        if not _speed(record):
            raise UnreadableError(f"{burn.step.name}: GPU {index} has no speed")
        equals[record.text("name")][index] = _speed(record)
        fading[index] = _fading(record)
    for speeds in equals.values():
        # Of two GPUs the faster one: the mean of both would hide half of the distance.
        middle = sorted(speeds.values())[len(speeds) // 2]
        slower |= {index: 1 - speed / middle for index, speed in speeds.items()}
    for cause, shares in (("load_slower", slower), ("load_fading", fading)):
        worst = max(shares, key=lambda index: shares[index])
        if shares[worst] > SLOWER_WARN:
            bad = [index for index, share in shares.items() if share > SLOWER_WARN]
            say = failed if shares[worst] > SLOWER_FAIL else warned
            return say(
                cause,
                "; ".join(f"GPU {numbers.index(each)}: {_percent(shares[each])} slower" for each in bad),
                gpus=numbers.name(bad),
                index=numbers.index(worst),
                share=_percent(shares[worst]),
                limit=_percent(SLOWER_WARN),
                name=names[worst],
            )
    seen = f"at most {_percent(max(0.0, *fading.values()))} slower at the end"
    if len(slower) > 1:
        seen = (
            f"{count(len(slower), 'GPU')}, at most {_percent(max(slower.values()))} below the median; {seen}"
        )
    return passed(seen)


def _fading(record: Step) -> float:
    """By which share it is slower at the end than at the beginning; 0 for a load too short to tell."""
    course = record.value.get("course")
    if not isinstance(course, list) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < 1e9 for each in course
    ):
        raise UnreadableError(f"{record.name}: course is {course!r}, not a list of speeds")
    if len(course) < BURN_SLICES // 2:
        return 0.0
    first, last = sum(course[:BURN_ENDS]), sum(course[-BURN_ENDS:])
    if not first:
        raise UnreadableError(f"{record.name}: no speed at the beginning")
    return 1 - float(last / first)


_is_hot, _is_braked = (_failed(watching(judge)) for judge in (judge_heat, judge_power))


# -- The checks ------------------------------------------------------------------------------------------------------
_GPU_NEEDS = ("gpu.matmul",)


def _check(
    check_id: str,
    title: str,
    reads: tuple[str, ...],
    judge: Callable[[Facts], Judged],
    causes: tuple[str, ...],
    *,
    source: str,
    see: str = "",
    needs: tuple[str, ...] = _GPU_NEEDS,
    scope: Scope = Scope.REAL_GPU,
    on_error: str = "check_broke",
) -> Check:
    return Check(
        id=check_id,
        title=title,
        reads=tuple(f"load:{name}" for name in reads),
        judge=judge,
        causes=causes,
        needs=needs,
        on_error=on_error,
        scope=scope,
        level=Level.BURN,
        source=source,
        see=see,
    )


CHECKS = (
    _check(
        "burn.lost",
        "Does every GPU stay in reach under load?",
        ("index", "uuid"),
        watching(judge_lost),
        ("load_gpu_lost", "smi_hung"),
        source="nvidia-smi every second; unknown with fewer than 10 readings, or less than 90 % of those asked for",
        see="nvidia-smi -L",
    ),
    _check(
        "burn.ecc",
        "Does memory stay sound under load?",
        (ECC,),
        watching(judge_ecc),
        ("load_ecc",),
        source="limits.py: any new uncorrected error",
        see=f"nvidia-smi --query-gpu={ECC} --format=csv",
    ),
    _check(
        "burn.xid",
        "Does the kernel log stay free of Xid errors under load?",
        ("/dev/kmsg",),
        judge_xid,
        ("load_xid",),
        source="NVIDIA's Xid catalogue: any but 13, 31, 43 and 45, which programs cause",
        see="sudo dmesg -T | grep -iE 'nvrm|xid'",
    ),
    _check(
        "burn.numbers",
        "Is every value of every product right, all GPUs at once, nearly all memory in use?",
        ("cpu.burn", "gpu.burn"),
        judge_numbers,
        (
            "wrong_numbers",
            "wrong_numbers_cpu",
            "load_interrupted",
            "load_stalled",
            "kernel_failed",
            "kernel_missing",
            "gpu_memory_full",
            *BUSY_CAUSES,
        ),
        needs=("cpu.matmul", *_GPU_NEEDS),
        scope=Scope.ANY,
        on_error="kernel_failed",
        source="whole numbers, exact in fp32, rounded once (limits.py): no tolerance",
    ),
    _check(
        "burn.thermal",
        "Does cooling keep up?",
        (CLOCKS, TEMPERATURE),
        watching(judge_heat),
        ("load_hot",),
        source="limits.py: a thermal clock reason in more than 5 % of the readings",
        see="nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
    ),
    _check(
        "burn.power",
        "Does the power supply keep up?",
        (CLOCKS, POWER),
        watching(judge_power),
        ("load_power_brake",),
        source="limits.py: the power brake in any reading",
        see="nvidia-smi -q -d PERFORMANCE,POWER",
    ),
    _check(
        "burn.pcie",
        "Do the PCIe links work without repeating?",
        ("PCIe replays",),
        watching(judge_pcie),
        ("load_pcie_replays",),
        source="NVIDIA DCGM: at most 80 replays",
        see="nvidia-smi -q | grep -i replays",
    ),
    _check(
        "burn.steady",
        "Is every GPU as fast as its equals, and as at the beginning?",
        ("gpu.burn",),
        judge_steady,
        ("load_slower", "load_fading"),
        needs=(*_GPU_NEEDS, "burn.numbers"),
        source="limits.py: more than 10 % is a warning, more than 25 % a failure",
    ),
)
