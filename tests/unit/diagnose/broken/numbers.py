"""Faults of scale and precision: rates, decay, NaN, bytes, half floats."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.diagnose.training import broken, classes, fit, mlp, numbers
from torchtap.monitor._watch import Watch


@broken("update.too_large")
def learning_rate_far_too_high() -> Watch:
    """SGD with lr=50."""
    model = mlp(20, 64, 64, 4)
    return fit(model, classes(), optimizer=torch.optim.SGD(model.parameters(), lr=50.0))


@broken("update.too_large")
def adam_with_the_rate_of_sgd() -> Watch:
    """Adam with lr=1."""
    model = mlp(20, 64, 64, 64, 4)
    return fit(model, classes(spread=3.0), optimizer=torch.optim.Adam(model.parameters(), lr=1.0))


@broken("update.too_small")
def learning_rate_far_too_low() -> Watch:
    """SGD with lr=1e-7."""
    model = mlp(20, 64, 4)
    return fit(model, classes(), optimizer=torch.optim.SGD(model.parameters(), lr=1e-7))


@broken("weight_decay.too_large")
def weight_decay_instead_of_rate() -> Watch:
    """weight_decay=10 with lr 0.05."""
    model = mlp(20, 64, 64, 4)
    return fit(model, classes(), optimizer=torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=10.0))


@broken("nonfinite.input")
def missing_values() -> Watch:
    """NaN in one row of one batch."""
    data = classes()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        if step == 12:
            x[3, 5] = float("nan")
        return x, y

    return fit(mlp(20, 64, 4), batch)


class Own(nn.Module):
    """Applies a function, so that it is a layer with a name."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)  # type: ignore[operator]


@broken("nonfinite.first")
def logarithm_of_what_may_be_negative() -> Watch:
    """torch.log inside the model."""
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), Own(torch.log), nn.Linear(16, 1))
    return fit(model, numbers(), functional.mse_loss)


@broken("nonfinite.first")
def root_at_zero() -> Watch:
    """Distance of a row to itself: the forward is finite, the derivative of sqrt at 0 is not."""
    distance = Own(lambda x: ((x - x[:1]) ** 2).sum(1, keepdim=True).sqrt())
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 16), distance, nn.Linear(1, 1))
    return fit(model, numbers(), functional.mse_loss)


@broken("loss.nonfinite")
def logarithm_of_zero_in_the_loss() -> Watch:
    """-log(p) of probabilities that are 0."""

    def loss(output: Tensor, y: Tensor) -> Tensor:
        p = output.relu() / output.relu().sum(1, keepdim=True)
        return functional.nll_loss(p.log(), y)

    return fit(mlp(20, 64, 4), classes(), loss)


@broken("input.constant")
def input_lost() -> Watch:
    """A normalisation that takes everything away."""
    data = classes()
    model = mlp(20, 64, 4)
    return fit(
        model,
        lambda step: ((each := data(step))[0] * 0, each[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )


@broken("input.unscaled")
def bytes_as_inputs() -> Watch:
    """0 to 255 into a regression by SGD."""
    data = numbers()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return 128 + 40 * x, y

    model = mlp(10, 64, 1)
    return fit(model, batch, functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@broken("fp16.overflow")
def half_overflows() -> Watch:
    """float16 autocast: a product beyond 65504."""
    model = mlp(10, 64, 64, 1)
    data = numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with Watch(model, optimizer) as watch:
        for step in range(40):
            x, y = data(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(x * (2e5 if step == 20 else 1.0) * 0.99)
                loss = functional.mse_loss(output.float(), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("fp16.underflow")
def half_underflows() -> Watch:
    """float16 without a GradScaler, gradients of 1e-8."""
    model = mlp(20, 64, 64, 4)
    data = classes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(x)
            loss = functional.cross_entropy(logits.float(), y) * 1e-6
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("parameter.rounded")
def bfloat16_weights_lose_updates() -> Watch:
    """All in bfloat16, SGD with small steps."""
    model = mlp(20, 64, 4).to(torch.bfloat16)
    data = classes()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return x.to(torch.bfloat16), y

    return fit(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=1e-6))


@broken("loss.diverged", "update.too_large", "gradient.grows")
def wrong_sign() -> Watch:
    """The loss is maximised."""
    model, data = mlp(20, 64, 4), classes()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    with Watch(model, optimizer) as watch:
        for step in range(80):
            x, y = data(step)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            (-loss).backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("gradient.exploding", "gradient.grows", "recurrence.exploding")
def recurrence_that_explodes() -> Watch:
    """A recurrence without a squashing, its matrix of gain 2, over 40 steps."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.again, self.leave = (
                nn.Linear(4, 16),
                nn.Linear(16, 16, bias=False),
                nn.Linear(16, 1),
            )
            nn.init.orthogonal_(self.again.weight, gain=2.0)

        def forward(self, x: Tensor) -> Any:
            hidden = torch.zeros(x.shape[0], 16)
            for time in range(x.shape[1]):
                hidden = self.enter(x[:, time]) + self.again(hidden)
            return self.leave(hidden)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 40, 4)
        return x, x[:, -1, :1]

    model = Recurrent()
    return fit(model, batch, functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=1e-2))
