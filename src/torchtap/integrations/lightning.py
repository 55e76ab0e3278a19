"""`torchtap.watch` as a callback of Lightning, `lightning` or `pytorch_lightning`, whichever the program uses."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from torchtap.monitor import Watch, watch

_OLDER = "pytorch_lightning"
if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:  # a trainer of one refuses nothing of the other, but would import it
    _USED = _OLDER if _OLDER in sys.modules or find_spec("lightning") is None else "lightning.pytorch"
    Callback = import_module("lightning.pytorch" if "lightning.pytorch" in sys.modules else _USED).Callback


class WatchCallback(Callback):
    """Watches the LightningModule while `Trainer.fit` trains it.

    Takes what `torchtap.watch` takes, but for the model, its optimizer and its GradScaler, which the trainer has. The
    loss is logged by itself. A step is a step of the optimizer; with several optimizers it is a batch, and norms of
    updates are not measured. Gradients of parameters are those before Lightning clips them.

    On each rank it watches that rank: `torchtap.monitor.gather(callback.watch)` after `fit` brings them together.

    >>> callback = WatchCallback(every=10)
    >>> callback.watch is None  # until fit() trains; afterwards it is closed, and holds what was measured
    True
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Watch, anew for each `fit`."""
        self._close()
        optimizers = trainer.optimizers
        self.watch = watch(
            pl_module,
            optimizers[0] if len(optimizers) == 1 else None,
            scaler=_scaler(trainer),
            **self.options,
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """`training_step` may call parts of the module and never its forward, so a pass begins here."""
        if self.watch is not None:
            self.watch._state.begin_pass(training=True)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:  # noqa: ARG002
        """The loss comes scaled, and divided by the number of batches that are accumulated."""
        if self.watch is not None:
            scale = getattr(_scaler(trainer), "_scale", None)
            scaled = loss.detach() * trainer.accumulate_grad_batches
            self.watch.log(loss=scaled if scale is None else scaled / scale)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Lightning runs the backward within `optimizer.step(closure)`: only here gradients are there."""
        if self.watch is not None and len(trainer.optimizers) == 1:
            self.watch.before_step()

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """With several optimizers a step ends here."""
        if self.watch is not None and len(trainer.optimizers) != 1:
            self.watch.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """What follows without gradients is no checkpointed part of a training forward."""
        if self.watch is not None:
            self.watch._state.begin_pass(training=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Take the hooks off."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Take the hooks off; what was measured until then stays."""
        self._close()

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()


def _scaler(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)
