"""`torchtap.watch` as a callback of Hugging Face's `Trainer`."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from transformers import TrainerCallback

from torchtap.monitor import Watch, watch


class WatchCallback(TrainerCallback):
    """Watches the model while `Trainer.train` trains it.

    Takes what `torchtap.watch` takes, but for the model, its optimizer and its GradScaler, which the trainer has. A
    step is a step of the optimizer. The loss is what the trainer logs, mean of its `logging_steps`, and stands at the
    step that follows; with `logging_steps=1` each step has one. Gradients of parameters are those after clipping.

    On each rank it watches that rank: `torchtap.monitor.gather(callback.watch)` after `train()` brings them together.

    >>> callback = WatchCallback(every=10)
    >>> callback.watch is None  # until train(); afterwards it is closed, and holds what was measured
    True
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Watch, anew for each `train()`; one that ended by an exception told nobody."""
        self._close()
        optimizer = given["optimizer"]
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it, and has no hooks
        self.watch = watch(
            given["model"],
            inner if isinstance(inner, Optimizer) else None,
            scaler=getattr(optimizer, "scaler", None),
            **self.options,
        )

    def on_log(
        self,
        args: Any,  # noqa: ARG002
        state: Any,  # noqa: ARG002
        control: Any,  # noqa: ARG002
        logs: dict[str, Any] | None = None,
        **given: Any,  # noqa: ARG002
    ) -> None:
        """The loss of the steps until now."""
        if self.watch is not None and logs and "loss" in logs:
            self.watch.log(loss=float(logs["loss"]))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Take the hooks off."""
        self._close()

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()
