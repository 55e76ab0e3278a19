"""The same faults in other networks, with other optimizers, or less plain."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.diagnose.healthy.supervised import Encoder, LanguageModel, resnet
from tests.unit.diagnose.training import broken, classes, fit, images, mlp, numbers, text, token_loss
from torchtap.monitor._watch import Watch


@broken("update.too_large")
def convolutions_killed_by_the_rate() -> Watch:
    """CNN, SGD with momentum, lr=3: units die in the first steps."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 4)
    )
    return fit(model, images(), optimizer=torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9))


@broken("update.too_large")
def transformer_with_a_rate_too_high() -> Watch:
    """Adam with lr=0.5."""
    model = Encoder()
    return fit(model, text(), token_loss, optimizer=torch.optim.Adam(model.parameters(), lr=0.5))


@broken("update.too_large", "gradient.grows", "activation.grows", "loss.diverged")
def targets_not_normalised() -> Watch:
    """Prices of 250,000, MSE, SGD."""
    data = numbers()
    model = mlp(10, 32, 1)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return x, 250_000 + 80_000 * y

    return fit(model, batch, functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@broken("gradients.never_cleared")
def adam_never_cleared() -> Watch:
    """No zero_grad(), Adam, convolutions."""
    model = resnet(2)
    optimizer, data = torch.optim.Adam(model.parameters(), lr=3e-3), images()
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("gradients.never_cleared", "gradients.cleared_rarely")
def cleared_once_an_epoch() -> Watch:
    """zero_grad() outside of the inner loop."""
    model, data = LanguageModel(layers=1), text()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            for step in range(25):
                x, y = data(step)
                loss = token_loss(model(x), y)
                loss.backward()
                watch.log(loss=loss)
                optimizer.step()
    return watch


@broken("gradients.never_cleared")
def another_model_cleared() -> Watch:
    """zero_grad() of a copy."""
    model, other, data = mlp(20, 64, 4), mlp(20, 64, 4), classes()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            other.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("parameter.no_gradient")
def encoder_under_no_grad() -> Watch:
    """torch.no_grad() around an encoder that should train."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                hidden = self.encoder(x)[1][-1]
            return self.head(hidden)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(2, (16,))
        return torch.randn(16, 6, 8) + y[:, None, None], y

    return fit(Net(), batch)


@broken("gradient.vanishing", "activation.vanishing", "init.too_small")
def thirty_relu_layers() -> Watch:
    """PyTorch's default start in a deep ReLU network."""
    model = mlp(20, *[32] * 30, 4)
    return fit(model, classes(), optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@broken("activation.exploding", "init.too_wide")
def residual_branches_too_wide() -> Watch:
    """Twelve residual blocks without normalisation and with gain 4."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)
            nn.init.normal_(self.linear.weight, std=6 / math.sqrt(32))

        def forward(self, x: Tensor) -> Any:
            return x + functional.relu(self.linear(x))

    model = nn.Sequential(nn.Linear(20, 32), *(Residual() for _ in range(12)), nn.Linear(32, 4))
    return fit(model, classes(), optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))


@broken("parameter.equal_units")
def convolution_of_ones() -> Watch:
    """All convolutions begin at 0.1."""
    model: Any = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
    )
    for place in (0, 2, 5):
        nn.init.constant_(model[place].weight, 0.1)
        nn.init.zeros_(model[place].bias)
    return fit(model, images(), optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))


@broken("relu.dead")
def dead_after_batch_norm() -> Watch:
    """Batch norm whose shift begins at -10, then ReLU."""
    model: Any = resnet(1)
    nn.init.constant_(model[1].bias, -10.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return fit(model, images(), optimizer=optimizer)


@broken("relu.dead")
def most_units_dead_in_training() -> Watch:
    """One outlier in the data pushes all biases below 0 in one step."""
    model: Any = mlp(20, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def spoil(step: int) -> None:
        if step == 20:
            with torch.no_grad():
                model[0].bias -= 100.0

    return fit(model, numbers(20), functional.mse_loss, optimizer=optimizer, steps=100, after=spoil)


@broken("activation.saturated", "init.too_wide", "input.unscaled")
def saturated_recurrence() -> Watch:
    """nn.RNN on inputs of deviation 50."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(4, 32, batch_first=True), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.rnn(x)[0][:, -1])

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = 100 * torch.randn(16, 10, 4)
        return x, (x[:, 0, 0] > 0).long()

    model = Net()
    return fit(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))


@broken("optimizer.misses_parameters")
def layer_added_later() -> Watch:
    """A head that is made after the optimizer."""
    model = resnet(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.add_module("extra", nn.Linear(4, 4))
    return fit(model, images(), optimizer=optimizer)


@broken("lr.zero")
def scheduler_has_ended() -> Watch:
    """Linear decay to 0 in three steps, then 80 more."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=3)
    return fit(model, classes(), optimizer=optimizer, steps=80, after=lambda _: schedule.step())


@broken("lr.collapsed")
def steps_of_epochs_in_batches() -> Watch:
    """StepLR(step_size=5) stepped every batch."""
    model = resnet(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    return fit(model, images(), optimizer=optimizer, steps=80, after=lambda _: schedule.step())


@broken("mode.evaluation")
def evaluation_left_on() -> Watch:
    """eval() for a validation at step 20, and no train()."""
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
    return fit(model, classes(), steps=80, after=lambda step: model.eval() if step == 20 else None)


@broken("nonfinite.first")
def division_by_a_deviation_of_zero() -> Watch:
    """A layer divides by the deviation of a row that is constant once."""

    class Standard(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)

    data = classes()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        if step == 15:
            x[0] = 1.0
        return x, y

    return fit(nn.Sequential(Standard(), mlp(20, 32, 4)), batch)


@broken("nonfinite.first")
def every_key_masked() -> Watch:
    """Attention with a row whose keys are all masked."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Any:
            mask = torch.zeros(len(x), x.shape[1], dtype=torch.bool)
            mask[0] = True
            return self.head(self.attention(x, x, x, key_padding_mask=mask)[0].mean(1))

    return fit(Net(), lambda _: (torch.randn(8, 5, 16), torch.randint(2, (8,))), steps=40)


@broken("loss.nonfinite")
def root_of_an_exact_loss() -> Watch:
    """RMSE without eps on one batch that is met exactly."""
    model = nn.Sequential(nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.zero_()  # type: ignore[operator]
        model[0].bias.zero_()  # type: ignore[operator]

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        return torch.randn(16, 4), torch.zeros(16, 1)

    return fit(model, batch, lambda output, y: functional.mse_loss(output, y).sqrt(), steps=30)


@broken("batchnorm.mismatch")
def batches_by_class() -> Watch:
    """Sorted data: each batch is of one class, far from the others."""
    centres = 8 * torch.randn(4, 20)
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        y = torch.full((32,), step // 3 % 4)
        return centres[y] + torch.randn(32, 20), y

    return fit(model, batch, steps=120)


@broken("embedding.untouched")
def indices_cut_off() -> Watch:
    """Hashes taken modulo 8 for a table of 400 rows."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.EmbeddingBag(400, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.table(x))

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(8, (64, 20))
        return x, (x[:, 0] > 3).long()

    return fit(Net(), batch)


@broken("optimizer.frozen_moves")
def frozen_under_adam() -> Watch:
    """Adam's moments move what was frozen after 20 steps; its gradient is 0 and still there."""
    model, data = resnet(1), images()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with Watch(model, optimizer) as watch:
        for step in range(60):
            if step == 20:
                model[0].requires_grad_(False)  # type: ignore[index]
            x, y = data(step)
            optimizer.zero_grad(set_to_none=False)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("batch.same")
def tokens_again_and_again() -> Watch:
    """Integer inputs: the first batch of a loader without shuffling."""
    x, y = text(rows=200)(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        tokens, following = next(iter(loader))
        return tokens, following

    return fit(LanguageModel(layers=1), batch, token_loss)


@broken("parameter.frozen_inside")
def frozen_middle() -> Watch:
    """One layer between others is frozen and never was trained."""
    model = mlp(20, 64, 64, 64, 4)
    model[4].requires_grad_(False)
    return fit(model, classes())


@broken("output.softmax_twice")
def softmax_before_cross_entropy() -> Watch:
    """nn.Softmax as the last layer, and CrossEntropyLoss, which has its own."""
    return fit(nn.Sequential(mlp(20, 64, 4), nn.Softmax(dim=1)), classes())


@broken("output.softmax_twice")
def pixels_with_softmax_before_cross_entropy() -> Watch:
    """Segmentation: nn.Softmax over the channels, and CrossEntropyLoss."""
    data = images(rows=8)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1), nn.Softmax(dim=1))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, _ = data(step)
        return x, (x[:, 0] > -0.5).long() + (x[:, 0] > 0.5).long()

    return fit(model, batch)


@broken("output.sigmoid_twice")
def sigmoid_before_bce_with_logits() -> Watch:
    """nn.Sigmoid as the last layer, and BCEWithLogitsLoss, which has its own."""
    data = classes(number=2)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return x, y.float()[:, None]

    model = nn.Sequential(mlp(20, 64, 1), nn.Sigmoid())
    return fit(model, batch, functional.binary_cross_entropy_with_logits)
