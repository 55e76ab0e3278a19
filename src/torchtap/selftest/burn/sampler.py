"""Ask nvidia-smi once a second while the GPUs are under load, one process at a time, each with a time-out.

What cannot be read is counted as unread and never as good. Memory is bounded: sums and extremes, and a thinned course.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torchtap.selftest.burn.records import Readings, Watch, WatchedGpu
from torchtap.selftest.burn.series import Course, Series
from torchtap.selftest.limits import (
    BURN_COURSE_POINTS,
    BURN_SAMPLE_EVERY_S,
    BURN_TIMEOUTS_IN_A_ROW,
    HW_THERMAL,
    POWER_BRAKE,
    SMI_TIMEOUT_S,
    SW_THERMAL,
)
from torchtap.selftest.process import Answer, ask
from torchtap.selftest.query import judge_answer
from torchtap.selftest.smi import CellState, Row, Verdict
from torchtap.selftest.smi.fields import NotThisFormError
from torchtap.selftest.smi.forms import read_query

# power.draw is the mean over a second on Ampere and newer, as often as it is asked for; all drivers have it.
CLOCKS = "clocks_throttle_reasons.active"
ECC = "ecc.errors.uncorrected.volatile.total"
TEMPERATURE, POWER, SM_CLOCK, BUSY = "temperature.gpu", "power.draw", "clocks.sm", "utilization.gpu"
NAMES = ("index", "uuid", "name", "pci.bus_id")
MEASURED = (TEMPERATURE, POWER, SM_CLOCK, BUSY, CLOCKS, ECC)
# Driver 530 knows this one by its new name alone.
INSTEAD = {CLOCKS: "clocks_event_reasons.active"}
# No --query-gpu field holds it; plain -q has it on every driver.
REPLAYS = "replays since reset"
# What slows a GPU down -> bits of the clock reasons.
HEAT, BRAKE = "heat", "power brake"
SLOWED = {HEAT: SW_THERMAL | HW_THERMAL, BRAKE: POWER_BRAKE}
_GONE = {CellState.LOST: "[GPU is lost]", CellState.NEEDS_RESET: "[GPU requires reset]"}


class Sampler:
    """Watches every GPU from `start` to `stop`; readings count as under load from `loaded` on."""

    def __init__(
        self,
        path: str,
        *,
        timeout_s: float = SMI_TIMEOUT_S,
        every_s: float = BURN_SAMPLE_EVERY_S,
        stop: Callable[[], bool] = lambda: False,
        run: Callable[..., Answer] = ask,
    ) -> None:
        """`stop` says that nothing is wanted any more, not even an answer that is on its way."""
        self._path = path
        self._timeout_s = timeout_s
        self._every_s = every_s
        self._stop = threading.Event()
        self._run = partial(run, timeout_s=timeout_s, stop=lambda: self._stop.is_set() or stop())
        self._fields = [*NAMES, *MEASURED]
        self._gpus: dict[int, _Gpu] = {}
        self._before: Mapping[int, int] = {}
        self._thread = threading.Thread(target=self._watch, name="nvidia-smi", daemon=True)
        self._asked = self._unread = self._late = 0
        self._why = self._gone = ""
        self._loaded_at: float | None = None
        self._ended = False

    def start(self) -> None:
        """Read the counters as they are before the load, then go on every second in a thread."""
        self._before = self._replays()
        self._sample()
        self._thread.start()

    def loaded(self) -> None:
        """The load has begun. Called as often as wanted."""
        if self._loaded_at is None:
            self._loaded_at = time.monotonic()

    def now(self) -> dict[int, Mapping[str, float]]:
        """GPU index -> its newest readings."""
        return {index: gpu.now for index, gpu in list(self._gpus.items())}

    def stop(self, *, at_once: bool = False) -> Watch:
        """End it; a running nvidia-smi is ended too. Counters are read once more, unless it is to be `at_once`."""
        self._stop.set()
        self._thread.join()
        self._stop.clear()
        self._ended = True
        after: Mapping[int, int] = {}
        if not at_once and not self._hung:
            self._sample()
            after = self._replays()
        return Watch(
            asked=self._asked,
            unread=self._unread,
            why=self._why,
            hung=self._hung,
            waited_s=self._timeout_s,
            gone=self._gone,
            gpus=tuple(
                gpu.watched(index, (self._before.get(index), after.get(index)))
                for index, gpu in sorted(self._gpus.items())
            ),
        )

    @property
    def _hung(self) -> bool:
        return self._late >= BURN_TIMEOUTS_IN_A_ROW

    def _watch(self) -> None:
        try:
            while not self._stop.is_set() and not self._hung:
                began = time.monotonic()
                self._sample()
                self._stop.wait(max(0.0, self._every_s - (time.monotonic() - began)))
        except (
            Exception
        ) as error:  # an error of ours: what was read before it must not stand for the whole load
            self._asked = self._unread = max(self._asked, 1)
            self._why = f"{type(error).__name__}: {error}"

    def _sample(self) -> None:
        """One reading of all GPUs."""
        answer = self._query()
        if answer.stopped:
            return
        loaded = self._loaded_at is not None and not self._ended
        self._asked += loaded
        # One that survives SIGKILL still runs: a second one beside it would hang as well.
        self._late = BURN_TIMEOUTS_IN_A_ROW if answer.stuck_pid else self._late + 1 if answer.timed_out else 0
        judged = judge_answer(answer)
        problem = next((each for each in judged.findings if each.cause in _UNREADABLE), None)
        if judged.rows and problem is None:
            self._gone = ""
            self._take(judged.rows, loaded=loaded)
            return
        self._unread += loaded
        said = next((line for line in answer.text.splitlines() if line.strip()), "")
        late = f"no answer in {answer.seconds:.0f} s" if answer.timed_out else ""
        self._why = late or answer.not_started or said or "it said nothing"
        failing = any(each.verdict is Verdict.FAIL for each in judged.findings)
        self._gone = said if failing and not answer.timed_out and self._gpus else ""

    def _query(self) -> Answer:
        """Ask; a field that this driver refuses is asked by its other name, or no more."""
        while True:
            query = f"--query-gpu={','.join(self._fields)}"
            answer = self._run([self._path, query, "--format=csv,noheader,nounits"])
            findings = judge_answer(answer).findings
            refused = next(
                (each.values.get("field") for each in findings if each.cause == "field_refused"), None
            )
            if refused not in self._fields or refused in NAMES:
                return answer
            at = self._fields.index(str(refused))
            self._fields[at : at + 1] = [INSTEAD[refused]] if refused in INSTEAD else []

    def _take(self, rows: Sequence[Row], *, loaded: bool) -> None:
        after_s = time.monotonic() - self._loaded_at if self._loaded_at is not None else 0.0
        seen = {row.gpu: row for row in rows if row.gpu is not None}
        if not self._gpus:  # the first answer says which there are
            self._gpus = {index: _Gpu(row) for index, row in seen.items()}
        for index, gpu in self._gpus.items():
            gpu.take(seen.get(index), after_s, loaded=loaded)

    def _replays(self) -> dict[int, int]:
        """GPU index -> PCIe replays, for those that report them; `-q` lists GPUs in the order of their indexes."""
        answer = self._run([self._path, "-q"])
        if answer.stuck_pid:
            self._late = BURN_TIMEOUTS_IN_A_ROW
        if answer.rc != 0:
            return {}
        found: dict[int, int] = {}
        for position, (path, value) in read_query(answer.text):
            if path[-1].casefold() == REPLAYS and value.isascii() and value.isdigit():
                found[position] = int(value)
        return found


# Findings that leave open what the rows are worth.
_UNREADABLE = frozenset({"smi_unreadable", "smi_exit_code", "smi_hung", "smi_broken", "smi_crashed"})


class _Gpu:
    """What is kept of one GPU."""

    def __init__(self, row: Row) -> None:
        self._name = row.text("name") or ""
        self._bus = (row.text("pci.bus_id") or "").lower()
        self._uuid = row.text("uuid")
        self._lost, self._lost_after_s = "", 0.0
        self._series: dict[str, Series] = defaultdict(Series)
        self._unread: Counter[str] = Counter()
        self._slowed: Counter[str] = Counter()
        self._course = Course(BURN_COURSE_POINTS)
        self.now: Mapping[str, float] = {}

    def take(self, row: Row | None, after_s: float, *, loaded: bool) -> None:
        """One reading; counters count before the load too, the rest only under it."""
        if lost := self._how_lost(row):
            self._lost, self._lost_after_s = self._lost or lost, self._lost_after_s or after_s
            return
        assert row is not None
        moment = {
            name: value for name in MEASURED if (value := self._read(row, name, loaded=loaded)) is not None
        }
        self.now = moment
        if loaded:
            self._course.add({"s": round(after_s, 1), **moment})

    def _how_lost(self, row: Row | None) -> str:
        if row is None:
            return "not listed any more"
        states = {cell.state for cell in row.cells.values()}
        if (uuid := row.text("uuid")) and self._uuid and uuid != self._uuid:
            return "another GPU in its place"
        return next((words for state, words in _GONE.items() if state in states), "")

    def _read(self, row: Row, name: str, *, loaded: bool) -> float | None:
        asked = name if name in row.cells else INSTEAD.get(name, name)
        cell = row.cells.get(asked)
        if cell is None or cell.state in (CellState.NOT_REPORTED, CellState.NOT_PERMITTED):
            return None
        try:
            value = row.number(asked)
        except NotThisFormError:
            value = None
        counts = loaded or name == ECC
        if value is None:
            self._unread[name] += counts
            return None
        if counts:
            self._series[name].add(value)
            if name == CLOCKS:
                for why, bits in SLOWED.items():
                    self._slowed[why] += bool(int(value) & bits)
        return value

    def watched(self, index: int, replays: tuple[int | None, int | None]) -> WatchedGpu:
        """What is known of it."""
        readings: dict[str, Readings] = {
            name: series.readings() for name, series in self._series.items() if series.count
        }
        return WatchedGpu(
            index=index,
            name=self._name,
            bus=self._bus,
            lost=self._lost,
            lost_after_s=self._lost_after_s,
            readings=readings,
            unread={name: number for name, number in self._unread.items() if number},
            slowed={why: number for why, number in self._slowed.items() if number},
            replays=replays,
            course=self._course.moments,
        )
