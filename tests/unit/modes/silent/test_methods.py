"""Methods that run a model without gradients, or change its mode, in the middle of training: not one finding."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

from tests.unit.modes.silent.nets import Net, X, evaluate, found, sgd, step, watch
from torchtap import modes

# mypy: disable-error-code="no-untyped-call"

Program = Callable[[], modes.Guard]
PROGRAMS: list[Program] = []


def right(program: Program) -> Program:
    """One more."""
    PROGRAMS.append(program)
    return program


class Siamese(nn.Module):
    """A trained encoder, and one that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.query = Net()
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def follow(self) -> None:
        """In place."""
        with torch.no_grad():
            for mine, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.lerp_(other, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        query = self.query(x)
        with torch.no_grad():
            self.follow()
            key = self.key(x.flip(0))
        return (query - key).square().mean()  # type: ignore[no-any-return]


class MoCo(Siamese):
    """As facebookresearch/moco has it: a new tensor in each step."""

    def follow(self) -> None:
        """By `.data`."""
        for mine, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
            mine.data = mine.data * 0.99 + other.data * 0.01


class Byol(Siamese):
    """As lucidrains/byol-pytorch has it."""

    def follow(self) -> None:
        """In place, past autograd's own count of writes."""
        for mine, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
            mine.data.mul_(0.99).add_(other.data, alpha=0.01)


class Unfrozen(Siamese):
    """Its key encoder asks for gradients, and gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.key.requires_grad_(True)


@pytest.mark.parametrize("kind", [Siamese, MoCo, Byol, Unfrozen])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_momentum_encoder_runs_in_train_mode(kind: type[Siamese], epochs: int) -> None:
    """Standard: its batch norm uses the batch."""
    net = kind()
    optimizer = sgd(net.query)
    with watch(net) as guard:
        for _ in range(epochs):
            net.train()
            for _ in range(15):
                optimizer.zero_grad()
                net(X).backward()
                optimizer.step()
            evaluate(net.query)
    assert found(guard) == []


@right
def momentum_encoder_called_by_the_loop() -> modes.Guard:
    """Moved after each step."""
    net = Siamese()
    optimizer = sgd(net.query)
    with watch(net) as guard:
        for _ in range(30):
            net.train()
            with torch.no_grad():
                key = net.key(X)
            optimizer.zero_grad()
            (net.query(X) - key).square().mean().backward()
            optimizer.step()
            net.follow()
    return guard


@right
def target_that_is_copied_now_and_then() -> modes.Guard:
    """By load_state_dict(), every third step."""
    net = Siamese()
    optimizer = sgd(net.query)
    with watch(net) as guard:
        for at in range(10):
            net.train()
            with torch.no_grad():
                key = net.key(X)
            optimizer.zero_grad()
            (net.query(X) - key).square().mean().backward()
            optimizer.step()
            if at % 3 == 2:
                net.key.load_state_dict(net.query.state_dict())
    return guard


@right
def momentum_encoder_without_an_optimizer() -> modes.Guard:
    """Steps by hand."""
    net = Siamese()
    with watch(net) as guard:
        for _ in range(30):
            net(X).backward()
            with torch.no_grad():
                for each in net.query.parameters():
                    if each.grad is not None:
                        each.sub_(each.grad, alpha=0.01)
                        each.grad = None
    return guard


def lowered(*, after_evaluation: bool, last: float = 0.0) -> modes.Guard:
    """Dropout that is lowered from epoch to epoch."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for p in (0.5, 0.3, last, last):
            if after_evaluation:
                set_all(net, p)
            net.train()
            step(net, optimizer)
            if not after_evaluation:
                set_all(net, p)
            evaluate(net)
    return guard


def set_all(net: nn.Module, p: float) -> None:
    """Of each dropout."""
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = p


@right
def dropout_schedule_at_the_head_of_an_epoch() -> modes.Guard:
    """Ends at 0."""
    return lowered(after_evaluation=True)


@right
def dropout_schedule_at_the_end_of_an_epoch() -> modes.Guard:
    """Before the evaluation."""
    return lowered(after_evaluation=False)


@right
def early_dropout() -> modes.Guard:
    """On for the first epochs, then off: one jump."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for epoch in range(4):
            set_all(net, 0.1 if epoch < 2 else 0.0)
            net.train()
            for _ in range(2):
                step(net, optimizer)
            evaluate(net)
    return guard


class DropPath(nn.Module):
    """Stochastic depth by hand: nothing of PyTorch's is called."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.2
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4) -> (n, 4)."""
        y = self.inner(x)
        if self.training and self.drop_prob > 0:
            y = y * (torch.rand(len(x), 1) > self.drop_prob)
        return x + y  # type: ignore[no-any-return]


@right
def drop_path_schedule() -> modes.Guard:
    """A number of the user's own."""
    path = DropPath()
    net = nn.Sequential(path, nn.Dropout(0.1), nn.Linear(4, 1))
    optimizer = sgd(net)
    with watch(net) as guard:
        for epoch in range(4):
            path.drop_prob = 0.2 if epoch < 2 else 0.0
            net.train()
            step(net, optimizer)
            evaluate(net)
    return guard


@right
def gradient_cache() -> modes.Guard:
    """GradCache: all chunks without gradients, the loss on what they gave, then each chunk again."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            for _ in range(3):
                optimizer.zero_grad()
                chunks = X.split(2)
                with torch.no_grad():
                    cached = [net(chunk) for chunk in chunks]
                outputs = torch.cat(cached).requires_grad_()
                outputs.square().mean().backward()
                assert outputs.grad is not None
                for chunk, gradient in zip(chunks, outputs.grad.split(2), strict=True):
                    net(chunk).backward(gradient)
                optimizer.step()
            evaluate(net)
    return guard


@right
def gradient_cache_in_functions() -> modes.Guard:
    """As luyug/GradCache has it."""
    net = Net()
    optimizer = sgd(net)

    def call(chunk: Tensor) -> Tensor:
        return net(chunk)  # type: ignore[no-any-return]

    def forward_no_grad(chunks: list[Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.cat([call(chunk) for chunk in chunks])

    def build_cache(outputs: Tensor) -> Tensor:
        outputs = outputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(outputs.square().mean(), [outputs])
        return gradient

    def forward_backward(chunks: list[Tensor], gradient: Tensor) -> None:
        for chunk, part in zip(chunks, gradient.split(2), strict=True):
            torch.dot(call(chunk).flatten(), part.flatten()).backward()

    def cache_step() -> None:
        chunks = list(X.split(2))
        forward_backward(chunks, build_cache(forward_no_grad(chunks)))

    with watch(net) as guard:
        for _ in range(4):
            net.train()
            optimizer.zero_grad()
            cache_step()
            optimizer.step()
            evaluate(net)
    return guard


def virtual_adversarial_loss(net: nn.Module, x: Tensor) -> Tensor:
    """Miyato et al.; as lyakaap/VAT-pytorch has it."""
    with torch.no_grad():
        wanted = net(x)
    d = torch.rand_like(x) - 0.5
    d = d / d.norm()
    d.requires_grad_()
    (net(x + d) - wanted).square().mean().backward()
    assert d.grad is not None
    found_d = d.grad / (d.grad.norm() + 1e-8)
    net.zero_grad()
    return (net(x + found_d) - wanted).square().mean()  # type: ignore[no-any-return]


@right
def virtual_adversarial_training() -> modes.Guard:
    """In train mode throughout."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            for _ in range(2):
                optimizer.zero_grad()
                loss = virtual_adversarial_loss(net, X)
                (net(X).square().mean() + loss).backward()
                optimizer.step()
            evaluate(net)
    return guard


@contextlib.contextmanager
def in_eval(net: nn.Module) -> Iterator[None]:
    """Everybody's own."""
    was = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(was)


class InEval:
    """The same as a class."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __enter__(self) -> None:
        self.was = {each: each.training for each in self.net.modules()}
        self.net.eval()

    def __exit__(self, *_: object) -> None:
        for each, was in self.was.items():
            each.train(was)


class InEvalByWrites(InEval):
    """And by writes."""

    def __exit__(self, *_: object) -> None:
        for each, was in self.was.items():
            each.training = was


@pytest.mark.parametrize("scope", [in_eval, InEval, InEvalByWrites])
@pytest.mark.parametrize("optimized", [True, False])
def test_a_scope_of_the_users_own_may_end_before_the_backward(scope: Any, optimized: bool) -> None:
    """Adversarial examples and saliency: eval outputs are wanted, and the mode is given back."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            if optimized:
                step(net, optimizer)
            x = X.clone().requires_grad_()
            with scope(net):
                loss = net(x).sum()
            loss.backward()
            net.zero_grad()
            if optimized:
                step(net, optimizer)
    assert found(guard) == []


@right
def a_function_that_runs_a_model_in_eval_mode() -> modes.Guard:
    """And puts it back, before the backward of its caller."""
    net = Net()
    optimizer = sgd(net)

    def frozen_forward(x: Tensor) -> Tensor:
        was = net.training
        net.eval()
        result = net(x)
        net.train(was)
        return result  # type: ignore[no-any-return]

    with watch(net) as guard:
        for _ in range(3):
            step(net, optimizer)
            x = X.clone().requires_grad_()
            frozen_forward(x).sum().backward()
            net.zero_grad()
            step(net, optimizer)
    return guard


@right
def a_scope_within_one_function() -> modes.Guard:
    """try, finally; the backward follows in the same function."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            step(net, optimizer)
            x = X.clone().requires_grad_()
            net.eval()
            try:
                loss = net(x).sum()
            finally:
                net.train()
            loss.backward()
            net.zero_grad()
            was = net.training
            net.eval()
            loss = net(x).sum()
            net.train(was)
            loss.backward()
            net.zero_grad()
            with contextlib.ExitStack() as stack:
                net.eval()
                stack.callback(net.train)
                loss = net(x).sum()
            loss.backward()
    return guard


@right
def one_helper_for_training_and_for_saliency() -> modes.Guard:
    """Without an optimizer: the gradients of the eval run are not used."""
    net = Net()

    def gradients(x: Tensor) -> Tensor | None:
        net.zero_grad()
        net(x).sum().backward()
        return x.grad

    with watch(net) as guard:
        for _ in range(3):
            net.train()
            gradients(X)
            with torch.no_grad():
                for each in net.parameters():
                    if each.grad is not None:
                        each.sub_(each.grad, alpha=0.01)
            net.eval()
            gradients(X.clone().requires_grad_())
    return guard


@right
def one_helper_that_asks_for_the_gradient_of_its_input_always() -> modes.Guard:
    """The same, of all inputs."""
    net = Net()

    def gradients(x: Tensor) -> Tensor | None:
        x = x.clone().requires_grad_()
        net.zero_grad()
        net(x).sum().backward()
        return x.grad

    with watch(net) as guard:
        for _ in range(3):
            net.train()
            gradients(X)
            with torch.no_grad():
                for each in net.parameters():
                    if each.grad is not None:
                        each.sub_(each.grad, alpha=0.01)
            net.eval()
            gradients(X)
    return guard


def adversarial(nets: dict[str, nn.Module], guard: modes.Guard, *, fakes: int = 1, critics: int = 1) -> None:
    """A GAN whose critic learns from fakes that were made without gradients."""
    generator, critic = nets["generator"], nets["critic"]
    of_generator, of_critic = sgd(generator), sgd(critic)
    with guard:
        for _ in range(3):
            for _ in range(critics):
                with torch.no_grad():
                    made = [generator(X) for _ in range(fakes)]
                of_critic.zero_grad()
                sum(critic(each).sum() for each in made).backward()
                of_critic.step()
            of_generator.zero_grad()
            critic(generator(X)).sum().backward()
            of_generator.step()
        evaluate(generator)
        generator.train()


def pair() -> dict[str, nn.Module]:
    """A generator, and a critic with dropout."""
    critic = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    return {"generator": Net(), "critic": critic}


@pytest.mark.parametrize("together", [True, False], ids=["one model", "two models"])
@pytest.mark.parametrize(("fakes", "critics"), [(1, 1), (2, 1), (2, 5)])
def test_fakes_without_gradients_are_a_part_of_training(together: bool, fakes: int, critics: int) -> None:
    """Two for one step, too."""
    nets = pair()
    whole = nn.ModuleDict(nets)
    guard = watch(whole) if together else watch(*nets.values())
    adversarial(nets, guard, fakes=fakes, critics=critics)
    assert found(guard) == []


@right
def a_gan_in_one_module() -> modes.Guard:
    """Its methods give the losses, as a Lightning module's."""

    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = Net(), nn.Sequential(nn.Linear(1, 4), nn.Dropout(), nn.Linear(4, 1))

        def training_step(self, x: Tensor, which: int) -> Tensor:
            if which == 0:
                return self.critic(self.generator(x)).mean()  # type: ignore[no-any-return]
            with torch.no_grad():
                fake = self.generator(x)
            return -self.critic(fake).mean()  # type: ignore[no-any-return]

    gan = Gan()
    optimizers = sgd(gan.generator), sgd(gan.critic)
    with watch(gan) as guard:
        for _ in range(4):
            for which, optimizer in enumerate(optimizers):
                optimizer.zero_grad()
                gan.training_step(X, which).backward()
                optimizer.step()
    return guard


@right
def distillation() -> modes.Guard:
    """The teacher in eval mode, inside the module and beside it."""
    student, teacher = Net(), Net().eval()
    whole = nn.ModuleDict({"student": student, "teacher": teacher})
    optimizer = sgd(student)
    with watch(whole) as guard:
        for _ in range(3):
            whole.train()
            teacher.eval()
            with torch.no_grad():
                wanted = teacher(X)
            optimizer.zero_grad()
            (student(X) - wanted).square().mean().backward()
            optimizer.step()
    return guard


@right
def learning_rate_finder() -> modes.Guard:
    """Some steps on a copy of the state, before the training; weights put back."""
    net = Net()
    with watch(net) as guard:
        kept = copy.deepcopy(net.state_dict())
        optimizer = sgd(net)
        net.train()
        for factor in (1e-5, 1e-3, 1e-1):
            optimizer.param_groups[0]["lr"] = factor
            step(net, optimizer)
        net.load_state_dict(kept)
        optimizer = sgd(net)
        for _ in range(2):
            net.train()
            step(net, optimizer)
            evaluate(net)
    return guard


@right
def head_alone_trained_on_an_eval_model() -> modes.Guard:
    """model.eval() on purpose, head.train()."""
    net = Net()
    net.encoder.requires_grad_(False)
    optimizer = sgd(net.head)
    with watch(net) as guard:
        for _ in range(3):
            net.eval()
            net.head.train()
            step(net, optimizer)
            evaluate(net)
    return guard


@right
def features_of_a_backbone() -> modes.Guard:
    """In eval mode, without gradients, before a head of its own."""
    backbone, head = Net(), nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = sgd(head)
    with watch(backbone, head) as guard:
        backbone.eval()
        for _ in range(3):
            head.train()
            with torch.no_grad():
                features = backbone.encoder(X)
            optimizer.zero_grad()
            head(features).sum().backward()
            optimizer.step()
            head.eval()
            with torch.no_grad():
                head(features)
    return guard


@right
def stochastic_weight_averaging() -> modes.Guard:
    """Its statistics are made anew at the end."""
    net = Net()
    average = AveragedModel(net)
    optimizer = sgd(net)
    with watch(net, average) as guard:
        for _ in range(3):
            net.train()
            step(net, optimizer)
            average.update_parameters(net)
        update_bn([X, X], average)
        evaluate(average)
    return guard


@right
def sharpness_aware() -> modes.Guard:
    """SAM: two forwards with gradients a step; the statistics are frozen for the second by a written momentum."""
    net = Net()
    optimizer = sgd(net)

    def set_momentum(momentum: float) -> None:
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = momentum

    with watch(net) as guard:
        for _ in range(3):
            net.train()
            net(X).sum().backward()
            set_momentum(0.0)
            optimizer.zero_grad()
            net(X).sum().backward()
            set_momentum(0.1)
            optimizer.step()
            evaluate(net)
    return guard


@right
def dropout_alone_in_train_mode_by_a_helper() -> modes.Guard:
    """Monte Carlo dropout between epochs."""
    net = Net()
    optimizer = sgd(net)

    def uncertainty() -> Tensor:
        net.eval()
        for module in net.modules():
            if module.__class__.__name__.startswith("Dropout"):
                module.train()
        with torch.no_grad():
            return torch.stack([net(X) for _ in range(5)]).std(0)

    with watch(net) as guard:
        for _ in range(3):
            net.train()
            step(net, optimizer)
            uncertainty()
    return guard


@right
def self_critical() -> modes.Guard:
    """A greedy baseline in eval mode in each step, then train()."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.eval()
            with torch.no_grad():
                greedy = net(X)
            net.train()
            optimizer.zero_grad()
            (net(X) - greedy).sum().backward()
            optimizer.step()
    return guard


@right
def q_learning_without_anything_that_reads_its_mode() -> modes.Guard:
    """Acts and trains in train mode; nothing depends on it."""
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = sgd(net)
    with watch(net, target) as guard:
        for _ in range(3):
            with torch.no_grad():
                net(X).argmax(1)
                wanted = target(X)
            optimizer.zero_grad()
            (net(X) - wanted).square().mean().backward()
            optimizer.step()
            target.load_state_dict(net.state_dict())
    return guard


@right
def data_dependent_initialisation() -> modes.Guard:
    """One forward without gradients before training: weight norm, LSUV, ActNorm."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        with torch.no_grad():
            for _ in range(3):
                net(X)
        for _ in range(2):
            net.train()
            step(net, optimizer)
            evaluate(net)
    return guard


@right
def calibration_of_a_pruned_model() -> modes.Guard:
    """After training: the statistics of batch norm are made anew, train() right before."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.train()
        step(net, optimizer)
        evaluate(net)
        net.train()
        with torch.no_grad():
            for _ in range(4):
                net(X)
        evaluate(net)
    return guard


@right
def attention_by_hand_in_a_function_told_the_mode() -> modes.Guard:
    """F.dropout outside modules, with the model's own flag."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            for training in (True, False):
                net.train(training)
                with torch.set_grad_enabled(training):
                    out = functional.dropout(net(X), 0.5, training=net.training)
                if training:
                    optimizer.zero_grad()
                    out.sum().backward()
                    optimizer.step()
    return guard


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_yields_no_finding(program: Program) -> None:
    """Not even an information."""
    assert found(program()) == []
