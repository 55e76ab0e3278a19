"""`guard(model)`: watches the modes of a model while it trains, and says who was wrong where, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from types import TracebackType

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.modes._doors import GUARD, RNN, opened
from torchtap.modes._findings import Finding
from torchtap.modes._kernels import EVAL_BACKWARD
from torchtap.modes._observer import OBSERVER, Backward, Listener, ModeChange, Ran, RnnCall
from torchtap.modes._watched import Watched
from torchtap.modes.silent import RULES


class OnViolation(str, Enum):
    """What a guard does with what it finds."""

    RAISE = "raise"  # cuDNN's rule raises, also on a plain CPU; silent mistakes warn
    WARN = "warn"  # all warn; what raises by itself still does
    COLLECT = "collect"  # nothing but guard.findings


class Guard(Listener):
    """See `guard`."""

    def __init__(self, *models: nn.Module, on_violation: str = "raise") -> None:
        self.on_violation = OnViolation(on_violation)
        self.findings: list[Finding] = []
        self._watched = Watched(models, self._report)
        self._rules = [rule(self._watched) for rule in RULES]
        self._doors = opened(RNN, GUARD)

    def __enter__(self) -> Guard:
        self._doors.__enter__()
        OBSERVER.listen(self)
        for rule in self._rules:
            rule.entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rule in self._rules:
            rule.left()
        OBSERVER.unlisten(self)
        self._doors.__exit__(kind, error, trace)

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        for rule in self._rules:
            rule.changed(module, change)

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:
        for rule in self._rules:
            rule.ran_rnn(call, outputs)
        if call.breaks_backward and not call.enforced:
            for tensor in outputs:
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(self._refuse)

    def _refuse(self, gradients: tuple[Tensor | None, ...]) -> None:
        if any(each is not None for each in gradients):
            raise RuntimeError(EVAL_BACKWARD)

    @contextmanager
    def backward(self, run: Backward) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if EVAL_BACKWARD not in str(error):
                raise
            raise RuntimeError(f"{error}\n  where and why") from error

    def ran(self, what: Ran) -> None:
        for rule in self._rules:
            rule.ran(what)

    def stepped(self, optimizer: Optimizer) -> None:
        for rule in self._rules:
            rule.stepped(optimizer)

    def _report(self, finding: Finding) -> None:
        self.findings.append(finding)


def guard(model: nn.Module, *more: nn.Module, on_violation: str = "raise") -> Guard:
    """Watch the modes of `model` (and `more`) inside the context or the decorated function."""
    return Guard(model, *more, on_violation=on_violation)
