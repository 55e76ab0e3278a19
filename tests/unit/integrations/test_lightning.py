"""The callback in real trainings by Lightning, on a CPU."""

# mypy: disallow-untyped-calls=False, disallow-subclassing-any=False

from __future__ import annotations

import logging
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchtap.integrations.lightning import WatchCallback
from torchtap.monitor import gather


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Net(pl.LightningModule):
    """Its training_step calls a part, never its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
        self.losses: list[float] = []
        self.norms: list[float] = []

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.losses.append(float(loss))
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradient: Any = self.net[0].weight.grad
        self.norms.append(float(gradient.square().mean().sqrt()))

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Gan(Net):
    """Two optimizers, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 1)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:
        for part, optimizer in zip((self.net, self.other), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(part(batch[0]).square().mean())
            optimizer.step()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.net, self.other)]


class Breaks(Net):
    def training_step(self, batch: list[Tensor], index: int) -> Any:
        if index == 3:
            raise ZeroDivisionError
        return super().training_step(batch, index)


def loader() -> DataLoader[Any]:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(48, 4, generator=made)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6)


def fit(model: Net, *callbacks: Any, epochs: int = 2, **options: Any) -> pl.Trainer:
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )
    torch.manual_seed(3)
    trainer.fit(model, loader(), loader())
    return trainer


def seeded(of: type[Net] = Net) -> Net:
    torch.manual_seed(1)
    return of()


def test_each_step_is_measured_and_nothing_is_changed() -> None:
    """8 batches an epoch, 2 epochs; validations are not measured. Weights and random numbers as without."""
    bare, model, callback = seeded(), seeded(), WatchCallback(parameters_every=1)
    fit(bare)
    numbers = torch.get_rng_state()
    fit(model, callback)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), model.parameters(), strict=True))
    w = callback.watch
    assert w is not None
    assert (w.steps, w.is_open) == (16, False)
    assert [layer.name for layer in w.layers] == ["net.0", "net.1", "net.2", "net.3"]
    assert w.series("net.0")["count"].tolist() == [6 * 8] * 16, "one call a step, though the module never ran"
    assert len(w.series("net.3", "gradient")) == 16
    assert not any(module._forward_hooks for module in model.modules())


def test_loss_learning_rate_and_gradients_are_those_of_the_step() -> None:
    """Though Lightning runs the backward within optimizer.step()."""
    model, callback = seeded(), WatchCallback(parameters_every=1)
    fit(model, callback)
    w = callback.watch
    assert w is not None
    np.testing.assert_allclose(w.scalars("loss")["mean"], model.losses, rtol=1e-6)
    assert set(w.scalars("lr")["mean"].tolist()) == {np.float32(0.01).item()}
    parameter = gather(w)[0].parameters["net.0.weight"]
    np.testing.assert_allclose(parameter.gradient[-1], model.norms[-1], rtol=1e-5)
    assert (parameter.update > 0).all()
    assert gather(w).diagnose() == []


def test_accumulated_batches_are_one_step() -> None:
    """The loss that Lightning divides by their number is told undivided."""
    model, callback = seeded(), WatchCallback()
    fit(model, callback, accumulate_grad_batches=4)
    w = callback.watch
    assert w is not None
    assert w.steps == 4
    assert w.series("net.0")["count"].sum() == 16 * 6 * 8
    np.testing.assert_allclose(w.scalars("loss")["mean"], model.losses[3::4], rtol=1e-6)


def test_with_two_optimizers_a_batch_is_a_step() -> None:
    callback = WatchCallback()
    fit(seeded(Gan), callback)
    w = callback.watch
    assert w is not None
    assert w.steps == 16
    assert len(w.series("other", "gradient")) == 16


def test_hooks_go_when_training_raises() -> None:
    """What was measured until then stays; fit() can begin anew."""
    model, callback = seeded(Breaks), WatchCallback()
    with pytest.raises(ZeroDivisionError):
        fit(model, callback)
    assert callback.watch is not None
    assert (callback.watch.steps, callback.watch.is_open) == (3, False)
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(ZeroDivisionError):
        fit(model, callback)
    assert callback.watch.steps == 3


def test_options_are_those_of_watch() -> None:
    callback = WatchCallback(layers=nn.Linear, every=4)
    fit(seeded(), callback, epochs=1)
    assert callback.watch is not None
    assert [layer.name for layer in callback.watch.layers] == ["net.0", "net.3"]
    assert callback.watch.series("net.0").first_step.tolist() == [0, 4]


TWO_RANKS = """
import sys, warnings, logging
warnings.simplefilter("ignore")
from tests.unit.integrations.test_lightning import Net, WatchCallback, loader, pl, torch
from torchtap.monitor import gather

class Spoiled(Net):
    def training_step(self, batch, index):
        if self.global_rank == 1 and index == 2:
            batch[0][0, 0] = float("nan")
        return super().training_step(batch, index)

torch.manual_seed(1)
model = Spoiled()
callback = WatchCallback()

class Ends(pl.Callback):
    def on_train_end(self, trainer, pl_module):
        ranks = gather(callback.watch)
        [finding] = ranks.diagnose()
        names = list(ranks[0].parameters)
        with open(f"{sys.argv[1]}/{trainer.global_rank}", "w") as out:
            print(len(ranks), finding.where, finding.seen, names[0], file=out)

trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[callback, Ends()])
trainer.fit(model, loader())
"""


def test_two_ranks_of_lightnings_ddp(tmp_path: Path) -> None:
    """NaN in one rank's batch is named by rank and step."""
    root = Path(__file__).resolve().parents[3]
    program = tmp_path / "train.py"
    program.write_text(TWO_RANKS)
    path = f"{root / 'src'}:{root}"
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": ""}
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [(tmp_path / str(rank)).read_text().strip() for rank in range(2)]
    assert told[0] == told[1]
    assert told[0].startswith("2 net.0 rank 1 first, in step 2: "), told
    assert told[0].endswith("net.0.weight"), told


def test_a_loss_under_a_scale_is_told_unscaled() -> None:
    """As with precision="16-mixed" on a GPU, whose plugin hands the callback the scaled loss."""

    class Plugin:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    class Trainer:
        optimizers = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1),)
        precision_plugin = Plugin()
        accumulate_grad_batches = 2

    net, callback = nn.Linear(1, 1), WatchCallback()
    callback.on_train_start(Trainer(), net)
    loss = Plugin.scaler.scale(torch.tensor(3.0) / 2)
    callback.on_before_backward(Trainer(), net, loss)
    w = callback.watch
    assert w is not None
    w.step()
    callback.on_train_end(Trainer(), net)
    assert math.isclose(w.scalars("loss")["mean"][0], 3.0)
