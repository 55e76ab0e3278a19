"""`guard(model)`: watches the modes of a model while it trains, and says who was wrong where, and what to do."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from enum import Enum
from html import escape
from types import TracebackType
from typing import Any, NoReturn, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes import _changes
from torchtap.modes._blame import blame
from torchtap.modes._by_module import ByModule
from torchtap.modes._changes import RecordedChange
from torchtap.modes._doors import GUARD, RNN, opened
from torchtap.modes._findings import CallFinding
from torchtap.modes._given import Function, decorated, models_given
from torchtap.modes._graph import nodes
from torchtap.modes._observer import OBSERVER, Backward, Listener, ModeChange, Ran, RnnCall
from torchtap.modes._refusal import explained, is_explained, is_refusal, refusal, refused_call
from torchtap.modes._walk import named_modules
from torchtap.modes._warn import ModeWarning, warn
from torchtap.modes._watched import Watched
from torchtap.modes.silent import RULES
from torchtap.modes.silent._rule import Rule

_KEPT_CHANGES = 1000  # of single modules; a train() of a large model makes some hundred


class OnViolation(str, Enum):
    """What a guard does with what it finds."""

    RAISE = "raise"  # cuDNN's rule raises, also on a plain CPU; silent mistakes warn
    WARN = "warn"  # all warn; what raises by itself still does
    COLLECT = "collect"  # nothing but guard.findings


class Guard(Listener):
    """What `guard` returns: context manager and decorator, and what it has found."""

    def __init__(self, *models: nn.Module, on_violation: str = "raise") -> None:
        self.on_violation = _chosen(on_violation)
        self._watched = Watched(models_given("guard", *models), self._found)
        self._rules = tuple(rule(self._watched) for rule in RULES)
        self._on_changed = _overriding(self._rules, "changed")
        self._on_rnn = _overriding(self._rules, "ran_rnn")
        self._on_ran = _overriding(self._rules, "ran")
        self._on_backward = _overriding(self._rules, "backward")
        self._on_step = _overriding(self._rules, "stepped")
        self._findings: dict[tuple[str, str, str | None], Finding] = {}
        self._changes: deque[RecordedChange] = deque(maxlen=_KEPT_CHANGES)
        self._known = ByModule[ModeChange]()  # who had set the modes when it was left
        self._runs: list[_Explaining] = []  # of autograd, in whatever threads
        self._inside = 0  # so often entered and not yet left, in whatever thread
        self._entering = threading.RLock()
        self._finding = threading.Lock()
        self._opened: ExitStack | None = None

    @property
    def findings(self) -> list[Finding]:
        """What was found until now, in the order of finding; each once. Also after the guard is left."""
        return list(self._findings.values())

    @property
    def changes(self) -> list[RecordedChange]:
        """The last mode changes of the guarded models' modules, oldest first."""
        return list(self._changes)

    def to_dict(self) -> dict[str, Any]:
        """Findings and changes as JSON types."""
        return {
            "schema": 1,
            "findings": [finding.to_dict() for finding in self.findings],
            "changes": [change.to_dict() for change in self.changes],
        }

    def __str__(self) -> str:
        findings = self.findings
        changes = [f"  {line}" for line in _changes.lines(self.changes)]
        return "\n".join(
            [
                f"guard, {'open' if self._inside else 'closed'}: {_counted(len(findings), 'finding')}",
                *(str(finding) for finding in findings),
                _counted(len(changes), "mode change") + ":" * bool(changes),
                *changes,
            ]
        )

    __repr__ = __str__  # so that a console shows it, as Jupyter does

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __enter__(self) -> Guard:
        with self._entering:
            if self._inside == 0:
                self._opened = self._open()
            self._inside += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._entering:
            if not self._inside:
                raise RuntimeError("guard: left, but not entered. Open it with `with modes.guard(model):`")
            self._inside -= 1
            if self._inside:
                return
            closing, self._opened = cast(ExitStack, self._opened), None
            # Where warnings are errors, what the user's code raised goes first.
            with suppress(*([] if error is None else [ModeWarning])):
                closing.close()

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError(
            "a guard cannot be copied or pickled: it watches models of this process. Keep it out of what is copied or "
            "saved, and make another one: modes.guard(model)"
        )

    def __call__(self, function: Function) -> Function:
        """Open the guard while `function` runs; of an `async def` too, until its coroutine ends."""
        return decorated("guard(model)", function, lambda: self, coroutines=True)

    def _open(self) -> ExitStack:
        if not self._watched.models:
            raise RuntimeError(
                "guard: the model is gone. A guard keeps no model alive: keep it in a variable of your own"
            )
        with ExitStack() as stack:
            stack.enter_context(opened(RNN, GUARD))
            OBSERVER.recall(self._known)
            stack.callback(self._remember)
            self._watched.entered()
            for rule in self._rules:
                rule.entered()
                stack.callback(rule.left)
            OBSERVER.listen(self)
            stack.callback(OBSERVER.unlisten, self)
            return stack.pop_all()

    def _remember(self) -> None:
        """The observer forgets when nobody watches, and this guard may be entered again: once an epoch."""
        self._known = OBSERVER.known(
            each for model in self._watched.models for _, each in named_modules(model)
        )

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        """After a write to `training`."""
        setter = change.setter
        if change.before is not None and change.before != setter.training:
            path = self._watched.path(module)
            if path is not None:
                place = str(setter.stack.here or "")
                self._changes.append(RecordedChange(path, setter.training, setter.by, place, setter.serial))
        for heard in self._on_changed:
            heard(module, change)

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:
        """After an RNN's forward."""
        for heard in self._on_rnn:
            heard(call, outputs)
        if call.breaks_backward and not call.enforced and call.grad and self._concerns(call):
            hook = _prehook(self, call)
            for tensor in outputs:
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(hook)

    def ran(self, what: Ran) -> None:
        """After another function whose result depends on the mode."""
        for heard in self._on_ran:
            heard(what)

    def stepped(self, optimizer: Optimizer) -> None:
        """After an optimizer's step."""
        self._watched.forget_strangers()
        for heard in self._on_step:
            heard(optimizer)

    def backward(self, run: Backward) -> AbstractContextManager[object]:
        """Around autograd."""
        contexts = [context for heard in self._on_backward if type(context := heard(run)) is not nullcontext]
        explaining = _Explaining(self, run)
        return _all_of([*contexts, explaining]) if contexts else explaining

    def explain(self, error: RuntimeError, run: Backward) -> None:
        """Keep why cuDNN refused, and raise the error again with it, unless another guard inside has done so."""
        call = refused_call(error)
        hidden = [] if call is None else [call]  # a custom Function can hide it
        findings = self._blame(run, hidden)
        aloud = self.on_violation is OnViolation.WARN and not is_explained(error)
        for finding in findings:
            self._found(finding) if aloud else self._keep(finding)
        if self.on_violation is OnViolation.RAISE and not is_explained(error):
            raise explained(error, findings) from error

    def _concerns(self, call: RnnCall) -> bool:
        """Whether the call is of a guarded model, or could be: what torch.jit runs has no module."""
        module = call.module() if call.module is not None else None
        return module is None or self._watched.owns(module)

    def refused(self, call: RnnCall) -> None:
        """A gradient has reached a call that cuDNN would refuse and this device does not."""
        if not self._inside:
            return
        if self.on_violation is OnViolation.RAISE:
            raise refusal(call)
        # Told when autograd is done, as then the whole graph is at hand; a device's own thread knows of no run.
        here = threading.get_ident()
        runs = self._runs[::-1]
        run = next((each for each in runs if each.thread == here), runs[0] if runs else None)
        if run is not None:
            run.refused.append(call)
        else:
            for finding in blame([call], self._watched.models):
                self._found(finding)

    def ran_backward(self, run: Backward, refused: Sequence[RnnCall]) -> None:
        """Tell of the calls that a gradient has reached while autograd ran, if cuDNN would have refused them."""
        for finding in self._blame(run, refused):
            self._found(finding)

    def _blame(self, run: Backward, calls: Sequence[RnnCall]) -> list[CallFinding]:
        reached = [*nodes(run.tensors, run.inputs), *calls]
        return blame(reached, self._watched.models, inputs=run.inputs)

    def _found(self, finding: Finding) -> None:
        """Keep what a rule has found, and say so."""
        aloud = self.on_violation is not OnViolation.COLLECT and finding.severity is not Severity.INFO
        if self._keep(finding) and aloud:
            warn(finding)

    def _keep(self, finding: Finding) -> bool:
        """Whether it is new, or worse than what was found there before."""
        key = finding.id, finding.where, getattr(finding, "set_by", None)
        with self._finding:
            before = self._findings.get(key)
            if before is not None and _RANKS[before.severity] >= _RANKS[finding.severity]:
                return False
            self._findings[key] = finding
            return True


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


def _chosen(on_violation: str) -> OnViolation:
    try:
        return OnViolation(on_violation)
    except ValueError:
        names = ", ".join(repr(each.value) for each in OnViolation)
        raise ValueError(f"guard(on_violation=...) is one of {names}; got {on_violation!r}") from None


class _Explaining:
    """Around one run of autograd. A class of its own, for one runs in every step."""

    __slots__ = ("_guard", "_run", "refused", "thread")

    def __init__(self, guard: Guard, run: Backward) -> None:
        self._guard = guard
        self._run = run
        self.refused: list[RnnCall] = []
        """Calls that cuDNN would have refused in this run, and that went on."""
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        self._guard._runs.append(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guard._runs.remove(self)
        if self.refused:
            # Where warnings are errors, what autograd raised goes first.
            with suppress(*([] if error is None else [ModeWarning])):
                self._guard.ran_backward(self._run, self.refused)
        if isinstance(error, RuntimeError) and is_refusal(error):
            self._guard.explain(error, self._run)


@contextmanager
def _all_of(contexts: Sequence[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _overriding(rules: Sequence[Rule], event: str) -> tuple[Callable[..., Any], ...]:
    """That method of the rules that have one of their own: the others cost nothing."""
    return tuple(
        getattr(rule, event) for rule in rules if getattr(type(rule), event) is not getattr(Listener, event)
    )


def _prehook(guard: Guard, call: RnnCall) -> Callable[[tuple[Tensor | None, ...]], None]:
    """A hook for the nodes of a call; they outlive the guard, so it keeps nothing alive."""
    watching = weakref.ref(guard)

    def refuse(gradients: tuple[Tensor | None, ...]) -> None:
        guard = watching()
        if guard is not None and any(each is not None for each in gradients):
            guard.refused(call)

    return refuse


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"


def guard(model: nn.Module, *more: nn.Module, on_violation: str = "raise") -> Guard:
    """Watch the modes of `model` (and `more`) while it trains: errors that say where, and findings.

    Context manager, and decorator of functions and coroutine functions (open until the coroutine ends; other tasks
    that run meanwhile are watched too). Nothing is put on the model and no hook is registered: outputs, gradients,
    random numbers, checkpoints and lifetimes are what they are without it, on any device. Keep it open around the
    whole training; entered again while it is open, the same guard goes on. Guards may be nested and opened in
    several threads; they watch all threads. A guard keeps no model alive, and its findings stay after it.

    **cuDNN's refusal.** When backward raises "cudnn RNN backward can only be called in training mode" (on a GPU or
    under `emulate_cudnn()`), the error is raised again with its text first, then which call of which module, the
    line of its forward, the line that had set eval, and what to do: same class, `from` the original, with
    `.findings`. A call that the guard did not see (made before it, or by what torch.jit compiled) is said to be
    so. On a plain CPU nothing raises by itself, so the guard does when a gradient reaches an RNN call that cuDNN
    would refuse; only for RNNs of the guarded models, also those that they keep in a plain list, tuple or
    dict. RNNs of other models are none of its business there: guard them too.

    **Silent mistakes** (a mode not restored after an evaluation, dropout that eval() does not reach, ...) are
    found when they do harm: see docs/modes.md.

    `on_violation`: "raise", as above, and silent mistakes warn with `ModeWarning` at your line; "warn": all warn,
    and backward goes on as it would alone; "collect": nothing is said, see `.findings`. Each finding is told
    once; those of severity INFO are only kept.

    The guard has `findings`, `changes` (the last mode changes, with their lines), `to_dict()`, and prints both.

    It costs next to nothing in a step (benchmarks/guard.py). A model that torch.compile compiled before is compiled
    again at its first call inside, and inside at its first call after: enter the guard first.

    Raises `TypeError` for what is not an `nn.Module`, for a model of which a part is half made (`super().__init__()`
    was not called) and for generators to decorate, `ValueError` for another `on_violation`, and on entering
    `RuntimeError` where the model is gone.

    >>> net = nn.LSTM(4, 3)
    >>> x = Tensor(5, 2, 4).zero_()  # steps, batch, features
    >>> with guard(net, on_violation="collect") as watch:
    ...     _ = net.eval()
    ...     net(x)[0].sum().backward()
    >>> [(finding.id, finding.class_name, finding.set_how) for finding in watch.findings]
    [('rnn.eval_backward', 'LSTM', 'model.eval()')]
    """
    return Guard(model, *more, on_violation=on_violation)
