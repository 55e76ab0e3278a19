"""Programs that are right, or mean what they do: not one finding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint

from tests.unit.modes.silent.nets import Net, X, evaluate, found, sgd, step, watch
from torchtap import modes

Program = Callable[[], modes.Guard]
PROGRAMS: list[Program] = []


def innocent(program: Program) -> Program:
    """One more."""
    PROGRAMS.append(program)
    return program


def forward_only(net: nn.Module) -> None:
    """Without gradients, in whatever mode."""
    with torch.no_grad():
        net(X)


@innocent
def teacher_in_eval_that_is_not_frozen() -> modes.Guard:
    """Its output is a target without detach: gradients reach it, and no optimizer holds it."""
    student, teacher = Net(), Net().eval()
    optimizer = sgd(student)
    with watch(student, teacher) as guard:
        for _ in range(3):
            optimizer.zero_grad()
            (student(X) - teacher(X)).square().mean().backward()
            optimizer.step()
    return guard


@innocent
def the_same_without_an_optimizer() -> modes.Guard:
    """Steps by hand, for the student alone."""
    student, teacher = Net(), Net().eval()
    with watch(student, teacher) as guard:
        for _ in range(3):
            (student(X) - teacher(X)).square().mean().backward()
            with torch.no_grad():
                for each in student.parameters():
                    each.sub_(each.grad if each.grad is not None else 0, alpha=0.1)
                    each.grad = None
    return guard


@innocent
def cycle_gan() -> modes.Guard:
    """The critic's gradients are off for the generator's step; one line sets the modes of both."""
    generator, critic = Net(), Net()
    optimizers = sgd(generator), sgd(critic)
    with watch(generator, critic) as guard:
        for _ in range(2):
            for net in (generator, critic):
                net.train()
            for _ in range(2):
                critic.requires_grad_(False)
                optimizers[0].zero_grad()
                critic(X + generator(X).mean()).sum().backward()
                optimizers[0].step()
                critic.requires_grad_(True)
                optimizers[1].zero_grad()
                critic(X).sum().backward()
                optimizers[1].step()
            for net in (generator, critic):
                net.eval()
            with torch.no_grad():
                critic(X + generator(X).mean())
    return guard


@innocent
def imagenet_example() -> modes.Guard:
    """S05: train() at the top of each epoch, eval() at the top of validate."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            for _ in range(2):
                step(net, optimizer)
            evaluate(net)
    return guard


@innocent
def phases() -> modes.Guard:
    """The transfer-learning tutorial: one loop, two phases."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            for phase in ("train", "val"):
                net.train(phase == "train")
                with torch.set_grad_enabled(phase == "train"):
                    loss = net(X).sum()
                    if phase == "train":
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
    return guard


@innocent
def restore_by_flag() -> modes.Guard:
    """S07: was = training; eval(); train(was)."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            step(net, optimizer)
            was = net.training
            evaluate(net)
            net.train(was)
    return guard


@innocent
def restore_after_an_exception() -> modes.Guard:
    """try, finally."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            step(net, optimizer)
            try:
                evaluate(net)
                raise KeyError
            except KeyError:
                pass
            finally:
                net.train()
    return guard


@innocent
def our_context_managers() -> modes.Guard:
    """S26, with a frozen part that they keep."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.encoder[1].eval()
        for _ in range(3):
            step(net, optimizer)
            with modes.eval_mode(net):
                net(X)
            with modes.preserve_modes(net):
                evaluate(net)
            with modes.differentiable_eval(net):
                net(X.clone().requires_grad_()).sum().backward()
            with modes.eval_mode(net, inference=True):
                net(X)
    return guard


@innocent
def evaluations_that_restore_under_their_own_guard() -> modes.Guard:
    """Decorated, nothing trains inside."""
    net = Net()
    step(net, sgd(net))
    guard = watch(net)

    @guard
    def validate() -> None:
        with modes.eval_mode(net):
            net(X)

    validate()
    validate()
    return guard


@innocent
def prediction() -> modes.Guard:
    """A script that only predicts."""
    net = Net()
    with watch(net) as guard:
        net.eval()
        for _ in range(20):
            forward_only(net)
    return guard


@innocent
def lightning_like() -> modes.Guard:
    """Each module's mode is kept and written back; training does not call train() again."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.encoder.eval()
        for _ in range(3):
            for _ in range(2):
                step(net, optimizer)
            kept = {module: module.training for module in net.modules()}
            evaluate(net)
            for module, training in kept.items():
                module.training = training
    return guard


@innocent
def frozen_batch_norm_by_override() -> modes.Guard:
    """S18, the right way: super().train(mode), then eval() on the part."""

    class Frozen(Net):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.encoder[1].eval()
            return self

    net = Frozen()
    net.encoder[1].requires_grad_(False)
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            step(net, optimizer)
            evaluate(net)
    return guard


@innocent
def batch_norm_frozen_late() -> modes.Guard:
    """Statistics are frozen from the second epoch on, again after each train()."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for epoch in range(4):
            net.train()
            if epoch > 1:
                for module in net.modules():
                    if isinstance(module, nn.BatchNorm1d):
                        module.eval()
            step(net, optimizer)
            evaluate(net)
    return guard


@innocent
def frozen_backbone_in_eval_mode() -> modes.Guard:
    """A head trains on a backbone without gradients."""
    net = Net()
    net.encoder.requires_grad_(False)
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            net.encoder.eval()
            step(net, optimizer)
            evaluate(net)
    return guard


@innocent
def frozen_backbone_set_once() -> modes.Guard:
    """The pretrained model is in eval mode; only the head is put in train mode."""
    net = Net().eval()
    net.encoder.requires_grad_(False)
    optimizer = sgd(net)
    with watch(net) as guard:
        net.head.train()
        for _ in range(3):
            step(net, optimizer)
    return guard


@innocent
def gradient_accumulation() -> modes.Guard:
    """An evaluation between two backward passes, before the step."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            net(X).sum().backward()
            with modes.eval_mode(net):
                net(X)
            net(X).sum().backward()
            evaluate(net)
            optimizer.step()
            optimizer.zero_grad()
    return guard


@innocent
def metrics_with_gradients() -> modes.Guard:
    """C101: eval() without no_grad. Costs memory, no mode is wrong."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            step(net, optimizer)
            net.eval()
            net(X)
    return guard


@innocent
def c67_evaluation_builds_a_new_net() -> modes.Guard:
    """And train and eval are methods of something that is no module."""

    class Execution:
        def __init__(self) -> None:
            self.net = Net()
            self.optimizer = sgd(self.net)

        def train(self) -> None:
            self.net.train()
            for _ in range(3):
                step(self.net, self.optimizer)
                self.eval()

        def eval(self) -> None:
            fresh = Net()
            fresh.load_state_dict(self.net.state_dict())
            evaluate(fresh)

    execution = Execution()
    with watch(execution.net) as guard:
        execution.train()
    return guard


@innocent
def c68_nothing_reads_its_mode() -> modes.Guard:
    """eval() is not undone, and it does not matter."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)
            self.out = nn.Sequential(nn.GroupNorm(2, 4), nn.Dropout(0.0), nn.Linear(4, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.cell(x)))  # type: ignore[no-any-return]

    net = Plain()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            step(net, optimizer)
            evaluate(net)
            net.train()
            forward_only(net)
            net.eval()
    return guard


@innocent
def c70_train_mode_in_the_evaluation_on_purpose() -> modes.Guard:
    """The statistics of the batch are wanted."""
    net = Net()
    optimizer = sgd(net)

    def evaluate_in_train_mode() -> None:
        net.train()
        for _ in range(10):
            forward_only(net)

    with watch(net) as guard:
        for _ in range(3):
            net.train()
            step(net, optimizer)
            evaluate_in_train_mode()
    return guard


@innocent
def c73_dropout_always_on() -> modes.Guard:
    """Tacotron's prenet: training=True is a constant."""

    class Prenet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(self.linear(x), 0.5, training=True)

    net = Prenet()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            step(net, optimizer)
            forward_only(net)
    return guard


@innocent
def monte_carlo_dropout() -> modes.Guard:
    """eval() on the model, train() on its dropout."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.train()
        step(net, optimizer)
        net.eval()
        for module in net.modules():
            if isinstance(module, nn.Dropout):
                module.train()
        for _ in range(10):
            forward_only(net)
    return guard


@innocent
def monte_carlo_dropout_by_write() -> modes.Guard:
    """The same, written."""
    net = Net()
    with watch(net) as guard:
        net.eval()
        for module in net.modules():
            if isinstance(module, nn.Dropout):
                module.training = True
        for _ in range(10):
            forward_only(net)
        net.eval()
    return guard


@innocent
def weight_averaging() -> modes.Guard:
    """update_bn sets train mode and runs without gradients, after an evaluation too."""
    net = Net()
    average = AveragedModel(net)
    optimizer = sgd(net)
    with watch(net, average) as guard:
        for _ in range(2):
            net.train()
            step(net, optimizer)
            average.update_parameters(net)
            update_bn([X, X], average)
            evaluate(average)
            update_bn([X, X], net)
    return guard


@innocent
def recalibration_by_hand() -> modes.Guard:
    """After an evaluation; train() and the forwards in one function."""
    net = Net()
    optimizer = sgd(net)

    def recalibrate() -> None:
        net.train()
        for _ in range(10):
            with torch.no_grad():
                net(X)

    with watch(net) as guard:
        net.train()
        step(net, optimizer)
        evaluate(net)
        recalibrate()
    return guard


@innocent
def dry_run() -> modes.Guard:
    """Lazy modules, shapes, parameters counted, before training."""
    net = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Dropout(0.5))
    with watch(net) as guard:
        forward_only(net)
        step(net, sgd(net))
    return guard


@innocent
def checkpointing() -> modes.Guard:
    """The reentrant kind runs the forward without gradients and again with them."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            for reentrant in (True, False):
                optimizer.zero_grad()
                x = X.clone().requires_grad_()
                checkpoint(net, x, use_reentrant=reentrant).sum().backward()
                optimizer.step()
    return guard


@innocent
def gan() -> modes.Guard:
    """Two nets, two optimizers; the generator is sampled in eval mode and restored."""
    generator, critic = (
        Net(),
        nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1)),
    )
    of_generator, of_critic = sgd(generator), sgd(critic)
    with watch(generator, critic) as guard:
        for _ in range(3):
            of_critic.zero_grad()
            critic(generator(X).detach()).sum().backward()
            of_critic.step()
            of_generator.zero_grad()
            critic(generator(X)).sum().backward()
            of_generator.step()
            evaluate(generator)
            generator.train()
    return guard


@innocent
def actor_critic() -> modes.Guard:
    """Acts in eval mode before each update; targets stay in eval mode."""
    actor, critic = Net(), Net()
    target = copy.deepcopy(critic).requires_grad_(False).eval()
    of_actor, of_critic = sgd(actor), sgd(critic)
    with watch(actor, critic, target) as guard:
        for _ in range(3):
            evaluate(actor)
            actor.train()
            with torch.no_grad():
                wanted = target(X)
            of_critic.zero_grad()
            (critic(X) - wanted).pow(2).sum().backward()
            of_critic.step()
            of_actor.zero_grad()
            actor(X).sum().backward()
            of_actor.step()
    return guard


@innocent
def teacher_in_the_model() -> modes.Guard:
    """Kept in eval mode by an override."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = Net()
            self.teacher = Net().requires_grad_(False)
            self.train()

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.teacher.eval()
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                wanted = self.teacher(x)
            return (self.student(x) - wanted).pow(2)  # type: ignore[no-any-return]

    net = Pair()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            step(net, optimizer)
            evaluate(net)
    return guard


@innocent
def moving_average() -> modes.Guard:
    """EMA in eval mode, evaluated instead of the model."""
    net = Net()
    ema = copy.deepcopy(net).requires_grad_(False).eval()
    optimizer = sgd(net)
    with watch(net, ema) as guard:
        for _ in range(3):
            step(net, optimizer)
            for mine, theirs in zip(ema.state_dict().values(), net.state_dict().values(), strict=True):
                mine.copy_(theirs)
            evaluate(ema)
    return guard


@innocent
def early_stopping() -> modes.Guard:
    """The loop is left with the model in eval mode, and a last test follows."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            step(net, optimizer)
            evaluate(net)
            break
        evaluate(net)
    return guard


@innocent
def attack_in_eval_mode() -> modes.Guard:
    """An optimizer over the input; the model does not train."""
    net = Net().eval()
    delta = torch.zeros_like(X, requires_grad=True)
    optimizer = torch.optim.Adam([delta])
    with watch(net) as guard:
        for _ in range(3):
            optimizer.zero_grad()
            net(X + delta).sum().backward()
            optimizer.step()
    return guard


@innocent
def fast_gradient_sign_training() -> modes.Guard:
    """Adversarial examples in eval mode inside each step, then train()."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.eval()
            x = X.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(net(x).sum(), [x])
            net.train()
            optimizer.zero_grad()
            net(X + 0.1 * gradient.sign()).sum().backward()
            optimizer.step()
    return guard


@innocent
def scheduled_parts() -> modes.Guard:
    """Gradual unfreezing: a part in eval mode until it trains."""
    net = Net()
    with watch(net) as guard:
        for epoch in range(3):
            net.train()
            net.encoder.requires_grad_(epoch > 0)
            net.encoder.train(epoch > 0)
            step(net, sgd(net))
            evaluate(net)
    return guard


@innocent
def inside_threads_of_data_parallel() -> modes.Guard:
    """Wrapped; the modes are set on the wrapper."""
    net = Net()
    wrapped = nn.DataParallel(net)
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            wrapped.train()
            step(wrapped, optimizer)
            evaluate(wrapped)
    return guard


@innocent
def another_model_in_the_process() -> modes.Guard:
    """Only what is guarded is judged."""
    net, other = Net(), Net()
    optimizers = sgd(net), sgd(other)
    with watch(net) as guard:
        for _ in range(2):
            step(other, optimizers[1])
            forward_only(other)
            step(net, optimizers[0])
            evaluate(other)
    return guard


@innocent
def closure_of_lbfgs() -> modes.Guard:
    """The optimizer calls forward and backward itself."""
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(X).pow(2).sum()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    with watch(net) as guard:
        for _ in range(2):
            net.train()
            optimizer.step(closure)  # type: ignore[no-untyped-call]
            evaluate(net)
    return guard


@innocent
def batch_norm_frozen_late_beside_a_teacher() -> modes.Guard:
    """Whose forward without gradients is no evaluation of the model."""
    net, teacher = Net(), Net().eval()
    optimizer = sgd(net)
    with watch(net) as guard:
        for epoch in range(3):
            net.train()
            if epoch > 0:
                net.encoder[1].eval()
            forward_only(teacher)
            step(net, optimizer)
    return guard


@innocent
def compiled() -> modes.Guard:
    """By the eager backend: what torch.compile puts around a model does not matter."""
    net = Net()
    fast: Any = torch.compile(net, backend="eager")
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            fast.train()
            optimizer.zero_grad()
            fast(X).sum().backward()
            optimizer.step()
            fast.eval()
            with torch.no_grad():
                fast(X)
    return guard


@innocent
def fakes_without_gradients() -> modes.Guard:
    """What a GAN's critic learns from, five times for each step of the generator."""
    generator, critic = Net(), nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    of_generator, of_critic = sgd(generator), sgd(critic)
    with watch(generator, critic) as guard:
        for _ in range(3):
            for _ in range(5):
                with torch.no_grad():
                    fake = generator(X)
                of_critic.zero_grad()
                critic(fake).sum().backward()
                of_critic.step()
            of_generator.zero_grad()
            critic(generator(X)).sum().backward()
            of_generator.step()
    return guard


@innocent
def saliency_in_eval_mode() -> modes.Guard:
    """Nothing else; the model stays in eval mode."""
    net = Net()
    with watch(net) as guard:
        net.eval()
        net(X.clone().requires_grad_()).sum().backward()
    return guard


@innocent
def updates_by_autograd_grad() -> modes.Guard:
    """Training without backward() and without an optimizer, with an evaluation at its end."""
    net = Net()
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            gradients = torch.autograd.grad(net(X).sum(), list(net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.01)
            evaluate(net)
    return guard


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_yields_no_finding(program: Program):
    """Not even an information."""
    assert found(program()) == []
