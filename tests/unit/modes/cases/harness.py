"""How the reproductions of public reports are run, and what is expected of each: one table, `CASES`.

A reproduction is a test function named after its report's number. It is given a `Run`, tells it what to watch and
lets it run backward. Its decorator says what must come out, and makes of it one test for each way of running it:

- `raises`: cuDNN's error, at the backward of that number; foreseen by `check_backward` with module and lines.
- `refuses`: another error of cuDNN's or PyTorch's, which a guard leaves alone.
- `finds`: nothing raises, and a guard has this finding and no other above INFO.
- `quiet`, `works`: nothing raises and nothing is found above INFO.
- `in_source_only`: goes wrong, and nothing that runs can tell; the reason is part of the table.

Lines are looked up by the comments `# eval line` and `# forward line`, in the reproduction or in its helpers.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes
from torchtap.modes._kernels import EVAL_BACKWARD

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Way:
    """One way of running a reproduction."""

    emulated: bool
    guard: str | None = None
    """`on_violation` of the guard around it; None: no guard."""
    stops: bool = False
    """Whether it ends where `check_backward` has found something: a plain CPU goes on without an error."""

    def __str__(self) -> str:
        return ("emulated" if self.emulated else "plain CPU") + (
            f", guard {self.guard}" if self.guard else ""
        )


EMULATED = Way(emulated=True)
FORESEEN = Way(emulated=False, guard="collect", stops=True)
GUARDED = Way(emulated=False, guard="raise")
GUARDED_EMULATED = Way(emulated=True, guard="raise")
COLLECTED = Way(emulated=False, guard="collect")
COLLECTED_EMULATED = Way(emulated=True, guard="collect")


class _Stopped(Exception):  # noqa: N818  no error
    """The run has shown what it was for."""


class Run:
    """What a reproduction is given: it watches models, and runs backward after `check_backward`."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._stack = ExitStack()
        self._models: list[nn.Module] = []
        self.guards: list[modes.Guard] = []
        self.reports: list[dict[str, modes.BackwardReport]] = []

    def __enter__(self) -> Run:
        if self._way.emulated:
            self._stack.enter_context(modes.emulate_cudnn())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def watch(self, model: Model, *more: nn.Module) -> Model:
        """From here on: as `with modes.guard(model):` around the rest."""
        self._models = [model, *more]
        if self._way.guard is not None:
            guard = modes.guard(model, *more, on_violation=self._way.guard)
            self.guards.append(self._stack.enter_context(guard))
        return model

    def backward(self, loss: Tensor, **options: Any) -> None:
        """`loss.backward()`."""
        found = self._foresee(loss)
        loss.backward(**options)
        self._end(found)

    def grad(
        self, outputs: Tensor, inputs: Sequence[Tensor], *args: Any, **options: Any
    ) -> tuple[Tensor, ...]:
        """`torch.autograd.grad(...)`."""
        found = self._foresee(outputs)
        gradients = torch.autograd.grad(outputs, inputs, *args, **options)
        self._end(found)
        return gradients

    @property
    def loud(self) -> list[modes.Finding]:
        """What the guards have found, above INFO."""
        return [
            finding
            for guard in self.guards
            for finding in guard.findings
            if finding.severity is not modes.Severity.INFO
        ]

    def _foresee(self, loss: Tensor) -> bool:
        reports = {str(at): modes.check_backward(loss, model) for at, model in enumerate(self._models)}
        self.reports.append(reports)
        return any(reports.values())

    def _end(self, found: bool) -> None:
        if found and self._way.stops:
            raise _Stopped


Reproduction = Callable[[Run], None]


@dataclass(frozen=True)
class Case:
    """One reproduction and what must come of it."""

    number: str
    name: str
    outcome: str
    """raises, refuses, finds, quiet or source."""
    says: str
    """What Torchtap says, for the table of docs/cases.md."""


CASES: dict[str, Case] = {}
"""By the name of the reproduction; filled as its modules are imported."""


def _test(
    outcome: str, says: str, ways: Sequence[Way], check: Callable[[Reproduction, Way], None]
) -> Callable[[Reproduction], Callable[[Any], None]]:
    def register(reproduction: Reproduction) -> Callable[[Any], None]:
        name = reproduction.__name__
        number = re.match(r"test_(c\d\d+)_", name)
        assert number is not None, f"{name} is not named after its report"
        CASES[name] = Case(number[1].upper(), name, outcome, says)

        @functools.wraps(reproduction)
        def test(run: Way) -> None:
            check(reproduction, run)

        return pytest.mark.parametrize("run", ways, ids=str)(test)

    return register


def lines_of(marker: str, functions: Sequence[Callable[..., Any]]) -> list[str]:
    """`file:line` of each such comment, in the first of the functions that has it."""
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        name = Path(inspect.getfile(function)).name
        found = [
            f"{name}:{first + at}" for at, line in enumerate(lines) if line.rstrip().endswith(f"# {marker}")
        ]
        if found:
            return found
    raise AssertionError(f"no line is marked as {marker!r}")


def raises(
    *where: str, at: int = 1, helpers: Sequence[Callable[..., Any]] = (), before_watch: bool = False
) -> Callable[[Reproduction], Callable[[Any], None]]:
    """cuDNN's error in the backward numbered `at`, by calls of the modules `where`.

    `before_watch`: eval mode was set before the guard was entered, which cannot know who did it.
    """

    def check(reproduction: Reproduction, way: Way) -> None:
        error: BaseException | None = None
        with Run(way) as run:
            try:
                reproduction(run)
            except _Stopped:
                pass
            except RuntimeError as raised:
                error = raised
        functions = (reproduction, *helpers)
        set_by = [] if before_watch and not way.emulated else lines_of("eval line", functions)
        called = lines_of("forward line", functions)
        _well(run.reports[:-1])
        assert len(run.reports) == at, "raised, or foreseen, at another backward than in the report"
        _foreseen(run.reports[-1], where, set_by, called)
        if way.stops:
            assert error is None, "a guard that collects has raised"
            (found,) = {finding.id for finding in run.loud if finding.id.startswith("rnn.")}
            assert found == "rnn.eval_backward"
            return
        assert isinstance(error, RuntimeError)
        _told(str(error), way, where, set_by, called)

    says = f"raises: {', '.join(f'`{each}`' if each else 'the model itself' for each in where)}"
    return _test("raises", says, (EMULATED, FORESEEN, GUARDED, GUARDED_EMULATED), check)


def _well(reports: Sequence[dict[str, modes.BackwardReport]]) -> None:
    for report in reports:
        assert not any(report.values()), "foreseen where all is well"


def _foreseen(
    reports: dict[str, modes.BackwardReport], where: Sequence[str], set_by: list[str], called: list[str]
) -> None:
    findings = [finding for report in reports.values() for finding in report.findings]
    assert findings, "not foreseen"
    places = {finding.where for finding in findings}
    if len(reports) == 1:
        assert places == set(where)
    assert set(where) <= places
    for finding in findings:
        assert _is_one_of(finding.called_from, called) or _is_one_of(finding.forward, called)
        assert _is_one_of(finding.set_by, set_by)


def _is_one_of(place: str | None, lines: list[str]) -> bool:
    return any(line in place for line in lines) if place is not None else not lines


def _told(text: str, way: Way, where: Sequence[str], set_by: list[str], called: list[str]) -> None:
    if way.guard is None:
        assert text == EVAL_BACKWARD
        return
    assert text.startswith(EVAL_BACKWARD)
    for part in (*where, *set_by, *called):
        assert part in text


def refuses(
    error: type[Exception], match: str, *, says: str, ways: Sequence[Way] = (EMULATED, GUARDED_EMULATED)
) -> Callable[[Reproduction], Callable[[Any], None]]:
    """Another error than the one about modes; a guard leaves it as it is."""

    def check(reproduction: Reproduction, way: Way) -> None:
        with Run(way) as run, pytest.raises(error, match=match) as raised:
            reproduction(run)
        assert EVAL_BACKWARD not in str(raised.value)
        assert run.loud == []

    return _test("refuses", says, ways, check)


def finds(*ids: str, where: str | None = None) -> Callable[[Reproduction], Callable[[Any], None]]:
    """Nothing raises; these findings, at `where` if given, and no others above INFO."""

    def check(reproduction: Reproduction, way: Way) -> None:
        with Run(way) as run:
            reproduction(run)
        assert {finding.id for finding in run.loud} == set(ids), run.loud
        if where is not None:
            assert where in {finding.where for finding in run.loud}

    says = ", ".join(f"`{each}`" for each in ids)
    return _test("finds", says, (COLLECTED, COLLECTED_EMULATED), check)


def works(says: str) -> Callable[[Reproduction], Callable[[Any], None]]:
    """Nothing raises and nothing is found above INFO; what there is to say of it is said in the table."""

    def check(reproduction: Reproduction, way: Way) -> None:
        with Run(way) as run:
            reproduction(run)
        assert run.loud == []
        _well(run.reports)

    return _test("quiet", says, (EMULATED, COLLECTED, GUARDED, GUARDED_EMULATED), check)


def quiet(reproduction: Reproduction) -> Callable[[Any], None]:
    """Nothing raises and nothing is found above INFO."""
    return works("nothing")(reproduction)


def in_source_only(reason: str) -> Callable[[Reproduction], Callable[[Any], None]]:
    """It goes wrong, and running it shows nothing that tells it from what is right. Kept true by running it."""

    def check(reproduction: Reproduction, way: Way) -> None:
        with Run(way) as run:
            reproduction(run)
        assert run.loud == [], "found after all: use @finds"

    return _test("source", f"visible only in the source: {reason}", (COLLECTED,), check)


@functools.cache
def all_cases() -> dict[str, Case]:
    """`CASES` when every module of reproductions has been imported."""
    import importlib

    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"{__package__}.{path.stem}")
    return CASES
