"""Ways to train: precision, accumulation, averages, freezing, schedules."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.unit.diagnose.healthy.supervised import Encoder, LanguageModel, resnet
from tests.unit.diagnose.training import classes, fit, healthy, images, mlp, numbers, text, token_loss
from torchtap.monitor._watch import Watch


@healthy
def bfloat16_autocast() -> Watch:
    """Mixed precision on the CPU."""
    model = mlp(20, 64, 64, 4)
    optimizer, data = torch.optim.AdamW(model.parameters(), lr=3e-3), classes()
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@healthy
def gradient_accumulation() -> Watch:
    """Four small batches a step."""
    model = mlp(20, 64, 4)
    optimizer, data = torch.optim.Adam(model.parameters(), lr=3e-3), classes(rows=8)
    with Watch(model, optimizer) as watch:
        for step in range(240):
            x, y = data(step)
            loss = functional.cross_entropy(model(x), y) / 4
            loss.backward()
            if step % 4 == 3:
                watch.log(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
    return watch


@healthy
def zeroed_in_place() -> Watch:
    """zero_grad(set_to_none=False) after the forward."""
    model = mlp(20, 64, 4)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), classes()
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@healthy
def checkpointed() -> Watch:
    """Activation checkpointing of every block."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(20, 32)
            self.blocks = nn.ModuleList(mlp(32, 32, 32) for _ in range(3))
            self.last = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            x = self.first(x)
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return self.last(x)

    return fit(Checkpointed(), classes())


@healthy
def moving_average() -> Watch:
    """An EMA of the model beside it."""
    model = mlp(20, 64, 4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    return fit(model, classes(), after=lambda _: average.update_parameters(model))


@healthy
def momentum_encoder() -> Watch:
    """Contrastive learning with a frozen encoder that follows."""

    class Moco(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = mlp(20, 32, 16)
            self.key = copy.deepcopy(self.query).requires_grad_(False)

        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            q = functional.normalize(self.query(pair[0]), dim=1)
            with torch.no_grad():
                k = functional.normalize(self.key(pair[1]), dim=1)
            return q @ k.T / 0.2

    model = Moco()

    @torch.no_grad()
    def follow(_step: int) -> None:
        for slow, quick in zip(model.key.parameters(), model.query.parameters(), strict=True):
            slow.lerp_(quick, 0.05)

    def batch(_step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = torch.randn(32, 20)
        return (x + 0.2 * torch.randn(32, 20), x + 0.2 * torch.randn(32, 20)), torch.arange(32)

    return fit(model, batch, after=follow)


def _pretrained() -> Any:
    model, data = resnet(2), images()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        x, y = data(step)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@healthy
def frozen_backbone() -> Watch:
    """A new head on a trained, frozen network in eval mode."""
    model = _pretrained().requires_grad_(False).eval()
    model[-1] = nn.Linear(12, 4)
    return fit(model, images(), optimizer=torch.optim.Adam(model[-1].parameters(), lr=1e-2))


@healthy
def frozen_backbone_never_trained() -> Watch:
    """A new head on random features; the optimizer is given everything."""
    model = mlp(20, 64, 64, 4)
    for place in (0, 2):
        model[place].requires_grad_(False)
    return fit(model, classes(), optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))


class Adapted(nn.Module):
    """LoRA around a frozen linear layer."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + self.b(self.a(x))


@healthy
def low_rank_adapters() -> Watch:
    """LoRA on every layer, the base frozen; also one that was never trained."""
    model = mlp(20, 64, 64, 4)
    for place in (0, 2, 4):
        model[place] = Adapted(model[place])
    trained = [each for each in model.parameters() if each.requires_grad]
    return fit(model, classes(), optimizer=torch.optim.AdamW(trained, lr=1e-2))


class Experts(nn.Module):
    """A router and four experts; the best two of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(20, 4)
        self.experts = nn.ModuleList(mlp(20, 32, 20) for _ in range(4))
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Any:
        weights = self.router(x).softmax(-1)
        best = weights.topk(2, dim=-1).indices
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (best == number).any(-1)
            if rows.any():
                made[rows] += weights[rows, number, None] * expert(x[rows])
        return self.head(x + made)


@healthy
def mixture_of_experts() -> Watch:
    """Experts that see other rows each step."""
    return fit(Experts(), classes(), steps=80)


@healthy
def heavy_dropout() -> Watch:
    """Dropout of 0.5 after every layer, weight decay."""
    model = nn.Sequential(
        nn.Linear(20, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    return fit(model, classes(), optimizer=optimizer)


@healthy
def truncated_backpropagation() -> Watch:
    """A plain RNN whose state is carried on, detached."""
    cell, head = nn.RNN(4, 32, batch_first=True), nn.Linear(32, 1)
    model = nn.ModuleDict({"cell": cell, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    state: Tensor | None = None
    with Watch(model, optimizer) as watch:
        for _ in range(80):
            x = torch.randn(16, 10, 4)
            y = x[..., :1].cumsum(1) / 3
            optimizer.zero_grad()
            output, state = cell(x, state)
            state = state.detach()
            loss = functional.mse_loss(head(output), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            watch.log(loss=loss)
            optimizer.step()
    return watch


@healthy
def tied_language_model() -> Watch:
    """Head and embedding are one parameter."""
    model = LanguageModel()
    model.head.weight = model.embedding.weight
    nn.init.normal_(model.embedding.weight, std=0.1)
    return fit(model, text(), token_loss, steps=80)


@healthy
def warm_restarts() -> Watch:
    """Cosine with restarts."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 20)
    return fit(model, classes(), optimizer=optimizer, steps=80, after=lambda _: schedule.step())


@healthy
def one_cycle() -> Watch:
    """OneCycleLR, which ends at a hundred-thousandth of its peak."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=101)
    return fit(model, classes(), optimizer=optimizer, steps=100, after=lambda _: schedule.step())


@healthy
def second_order() -> Watch:
    """L-BFGS, whose step runs the backward, on all the data."""
    model = mlp(4, 16, 1, activation=nn.Tanh)
    x = torch.randn(64, 4)
    y = (x[:, :1] * x[:, 1:2]).tanh()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    with Watch(model, optimizer) as watch:
        for _ in range(25):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                watch.log(loss=loss)
                return loss

            optimizer.step(closure)
    return watch


@healthy
def full_batch_regression() -> Watch:
    """All 100 rows in every step."""
    x = torch.linspace(-2, 2, 100)[:, None]
    return fit(
        mlp(1, 32, 32, 1, activation=nn.Tanh), lambda _: (x, torch.sin(2 * x)), functional.mse_loss, steps=100
    )


@healthy
def exclusive_or() -> Watch:
    """Four rows, two inputs."""
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return fit(model, lambda _: (x, y), functional.binary_cross_entropy, optimizer=optimizer, steps=150)


@healthy
def spectral_norm() -> Watch:
    """Parametrised weights."""
    model = mlp(20, 32, 32, 4)
    for place in (0, 2):
        nn.utils.parametrizations.spectral_norm(model[place])
    return fit(model, classes())


@healthy
def every_tenth_step_watched() -> Watch:
    """A sparse watch."""
    return fit(mlp(20, 64, 4), classes(), steps=100, every=10)


@healthy
def nothing_logged() -> Watch:
    """No loss is known."""
    model, data = mlp(10, 32, 1), numbers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            optimizer.zero_grad()
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return watch


@healthy
def small_learning_rate_fine_tuning() -> Watch:
    """A trained model goes on at 1e-5."""
    model = _pretrained()
    return fit(model, images(), optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5))


@healthy
def scheduled_without_optimizer_hooks() -> Watch:
    """The watch knows no optimizer and is told of steps."""
    model, data = Encoder(), text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with Watch(model) as watch:
        for step in range(50):
            x, y = data(step)
            optimizer.zero_grad()
            loss = token_loss(model(x), y)
            loss.backward()
            optimizer.step()
            watch.step(loss)
    return watch
