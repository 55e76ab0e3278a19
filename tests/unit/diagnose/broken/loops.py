"""Faults in the loop: optimizer, gradients, schedules, batches."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.diagnose.training import broken, classes, fit, images, mlp
from torchtap.monitor._watch import Watch


@broken("optimizer.other_parameters")
def optimizer_of_a_copy() -> Watch:
    """The model is copied after the optimizer was built."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return fit(copy.deepcopy(model), classes(), optimizer=optimizer)


@broken("optimizer.other_parameters")
def optimizer_before_the_head_was_replaced() -> Watch:
    """All parameters are made anew after the optimizer was built."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name in ("weight", "bias"):
        for layer in (model[0], model[2]):
            setattr(layer, name, nn.Parameter(getattr(layer, name).detach().clone()))
    return fit(model, classes(), optimizer=optimizer)


@broken("optimizer.misses_parameters")
def head_not_in_the_optimizer() -> Watch:
    """The optimizer is given the trunk only."""
    model = mlp(20, 64, 64, 4)
    return fit(
        model,
        classes(),
        optimizer=torch.optim.Adam([*model[0].parameters(), *model[2].parameters()], lr=3e-3),
    )


@broken("lr.zero")
def learning_rate_zero() -> Watch:
    """LambdaLR with an integer division that gives 0."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // 1000)
    return fit(model, classes(), optimizer=optimizer, after=lambda _: schedule.step())


@broken("lr.zero")
def learning_rate_zero_in_one_group() -> Watch:
    """One of two groups has lr 0."""
    model = mlp(20, 64, 4)
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    return fit(model, classes(), optimizer=torch.optim.Adam(groups, lr=3e-3))


@broken("lr.collapsed")
def scheduler_stepped_every_batch() -> Watch:
    """ExponentialLR of 0.8, meant for epochs."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    return fit(model, classes(), optimizer=optimizer, steps=100, after=lambda _: schedule.step())


@broken("lr.bounces")
def cosine_beyond_its_end() -> Watch:
    """T_max in epochs, stepped every batch."""
    model = mlp(20, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)
    return fit(model, classes(), optimizer=optimizer, steps=100, after=lambda _: schedule.step())


@broken("gradients.never_cleared")
def never_cleared() -> Watch:
    """No zero_grad()."""
    model = mlp(20, 64, 64, 4)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.05), classes()
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("gradients.cleared_rarely")
def accumulated_but_stepped_each_time() -> Watch:
    """zero_grad() every fourth batch, step() at each."""
    model = mlp(20, 64, 64, 4)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.02), classes()
    with Watch(model, optimizer) as watch:
        for step in range(80):
            x, y = data(step)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
            if step % 4 == 3:
                optimizer.zero_grad()
    return watch


@broken("gradients.cleared_before_step")
def cleared_between_backward_and_step() -> Watch:
    """backward(), zero_grad(), step()."""
    model = mlp(20, 64, 4)
    optimizer, data = torch.optim.Adam(model.parameters(), lr=3e-3), classes()
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.zero_grad()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("gradients.cleared_before_step")
def zeroed_between_backward_and_step() -> Watch:
    """The same with set_to_none=False."""
    model = mlp(20, 64, 4)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), classes()
    with Watch(model, optimizer) as watch:
        for step in range(60):
            x, y = data(step)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.zero_grad(set_to_none=False)
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("parameter.undone")
def loaded_in_every_step() -> Watch:
    """The checkpoint is loaded inside the loop."""
    model, data = mlp(20, 64, 4), classes()
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer) as watch:
        for step in range(60):
            model.load_state_dict(start)
            x, y = data(step)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("optimizer.frozen_moves")
def frozen_in_training_and_moves_on() -> Watch:
    """requires_grad_(False) after ten steps; momentum and a zero gradient carry on."""
    model, data = mlp(20, 64, 64, 4), classes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    with Watch(model, optimizer) as watch:
        for step in range(60):
            if step == 10:
                model[0].requires_grad_(False)
            x, y = data(step)
            optimizer.zero_grad(set_to_none=False)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@broken("batch.same")
def first_batch_again_and_again() -> Watch:
    """next(iter(loader)) inside the loop."""
    data = classes(rows=512)(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=16)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x, y = next(iter(loader))
        return x, y

    return fit(mlp(20, 64, 4), batch)


@broken("batch.same")
def index_that_does_not_advance() -> Watch:
    """The first 32 images of the data set, always."""
    x, y = images(rows=400)(0)
    model = nn.Sequential(nn.Flatten(), mlp(144, 32, 4))
    return fit(model, lambda _: (x[:32], y[:32]))


@broken("batch.same")
def seed_set_in_every_step() -> Watch:
    """torch.manual_seed inside the loop, so the data's noise is the same."""
    data = classes()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return data(step)

    return fit(mlp(20, 64, 4), batch)


@broken("mode.evaluation")
def trained_in_evaluation() -> Watch:
    """model.eval() before the loop and never undone."""
    model = nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
    ).eval()
    return fit(model, classes())


@broken("loss.flat")
def labels_of_other_rows() -> Watch:
    """Labels are shuffled: nothing measured can tell."""
    data = classes(rows=64)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return x, y[torch.randperm(64)]

    model = mlp(20, 64, 4)
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return fit(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), steps=150)


@broken("optimizer.no_effect", "parameter.rounded")
def step_that_does_nothing() -> Watch:
    """A subclass whose step() forgets to call the real one."""

    class Clipped(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                nn.utils.clip_grad_norm_(group["params"], 1.0)

    model = mlp(20, 64, 4)
    return fit(model, classes(), optimizer=Clipped(model.parameters(), lr=0.1))


@broken("optimizer.never_steps")
def no_step_at_all() -> Watch:
    """optimizer.step() is forgotten."""
    model, data = mlp(20, 64, 4), classes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer) as w, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(40):
            x, y = data(step)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            w.log(loss=loss)
            loss.backward()
        w.close()
    return w


@broken("parameter.no_gradient")
def loss_that_is_made_a_leaf() -> Watch:
    """loss.detach().requires_grad_() silences the error of a backward that would reach nothing."""
    model, data = mlp(20, 64, 4), classes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer) as w:
        for step in range(60):
            x, y = data(step)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y).detach().requires_grad_()
            w.log(loss=loss)
            loss.backward()
            optimizer.step()
    return w


@broken("relu.dead", "output.constant", "parameter.never_updated", "loss.flat")
def last_relu_that_dies() -> Watch:
    """A ReLU after the last layer gives 0 for nearly all rows; the loop itself is in order."""
    last = nn.Linear(32, 8)
    nn.init.constant_(last.bias, -8.0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), last, nn.ReLU())
    target = torch.randn(64, 8)
    return fit(
        model,
        lambda _: (torch.randn(64, 20), target),
        loss=functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        steps=100,
    )
