"""`module.train_overridden`: what keeps train() and eval() from setting modes below."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes

# mypy: disable-error-code="override,no-untyped-def,no-untyped-call,call-arg,misc,assignment,method-assign"


def found(module: nn.Module, *, child: bool = False) -> list[tuple[str, str, str]]:
    """(severity, where, seen) of what a guard finds when it is entered, and describe() alike."""
    net = nn.Sequential(module) if child else module
    with modes.guard(net, on_violation="collect") as guard:
        pass
    seen = [each for each in guard.findings if each.id == "module.train_overridden"]
    assert seen == [each for each in modes.describe(net).findings if each.id == "module.train_overridden"]
    return [(each.severity.value, each.where, each.seen) for each in seen]


class Net(nn.Module):
    """A backbone with BatchNorm, a head with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(2, 1))


# --- mistaken programs ---


class Loop(Net):
    """C95 (DA-RNN#21): the training loop is called train."""

    def train(self, loader, epochs):
        for _ in range(epochs):
            for batch in loader:
                self.head(self.backbone(batch)).sum().backward()


class NoArguments(Net):
    """minimalRL#2: train(self) of an actor-critic."""

    def train(self):
        self.head(self.backbone(torch.ones(2, 2))).sum().backward()


class SwallowsFalse(Net):
    """pykan#108: all arguments have defaults, so that eval() runs the loop with False."""

    def train(self, dataset=None, steps=100):
        for _ in range(steps):
            pass


class SomeChildren(Net):
    """C86 (Detectron.pytorch#104): hands the mode to some of its children."""

    def train(self, mode=True):
        self.training = mode
        self.head.train(mode)
        return self


class OwnOnly(Net):
    """S18: sets its own flag only."""

    def train(self, mode=True):
        self.training = mode
        return self


class ForgetsTheMode(Net):
    """eval() puts it in train mode."""

    def train(self, mode=True):
        super().train()
        self.backbone.eval()
        return self


class AlwaysTrue(Net):
    def train(self, mode=True):
        super().train(True)
        return self


class DoesNothing(Net):
    def train(self, mode=True):
        return self


class Attribute(Net):
    """deepinv#257: a setting called train."""

    def __init__(self) -> None:
        super().__init__()
        self.train = True


class ClassAttribute(Net):
    train = False


class EvalAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.eval = {"every": 10}


class TrainingSetting(Net):
    """C96: a setting called training."""

    def __init__(self) -> None:
        super().__init__()
        self.training = {"lr": 0.1}


class TrainingNumber(Net):
    def __init__(self) -> None:
        super().__init__()
        self.training = 0


class EvalIsEvaluation(Net):
    def eval(self):
        return self.head(self.backbone(torch.ones(2, 2))).mean()


class Parent(Loop):
    """The mistake is in a class above."""

    def train(self, mode=True):
        return super().train(mode)


WARNED = [
    (Loop, "Loop.train(loader, epochs) cannot be called as train(mode)"),
    (NoArguments, "NoArguments.train() cannot be called as train(mode)"),
    (SwallowsFalse, "SwallowsFalse.train is redefined and sets no mode"),
    (
        SomeChildren,
        "SomeChildren.train does not call super().train(mode), nor names backbone: their modes stay",
    ),
    (OwnOnly, "OwnOnly.train does not call super().train(mode), nor names backbone, head: their modes stay"),
    (ForgetsTheMode, "ForgetsTheMode.train calls the train() it overrides without its own mode"),
    (AlwaysTrue, "AlwaysTrue.train calls the train() it overrides without its own mode"),
    (DoesNothing, "DoesNothing.train does nothing"),
    (Attribute, "attribute train = True hides Attribute.train()"),
    (ClassAttribute, "attribute train = False hides ClassAttribute.train()"),
    (EvalAttribute, "attribute eval = {'every': 10} hides EvalAttribute.eval()"),
    (TrainingSetting, "training is dict, {'lr': 0.1}, not a bool"),
    (TrainingNumber, "training is int, 0, not a bool"),
    (EvalIsEvaluation, "EvalIsEvaluation.eval is redefined and sets no mode"),
    (Parent, "Loop.train(loader, epochs) cannot be called as train(mode)"),
]


@pytest.mark.parametrize(("make", "seen"), WARNED, ids=[make.__name__ for make, _ in WARNED])
@pytest.mark.parametrize("child", [False, True], ids=["model", "child"])
def test_what_keeps_the_mode_from_what_is_below_is_found(
    make: type[nn.Module], seen: str, child: bool
) -> None:
    ((severity, where, text),) = found(make(), child=child)
    assert (severity, where) == ("warn", "0" if child else "")
    assert text.startswith(seen)


@pytest.mark.parametrize(
    "make", [SwallowsFalse, SomeChildren, OwnOnly, ForgetsTheMode, AlwaysTrue, DoesNothing]
)
def test_it_is_true_some_module_stays_in_train_mode(make: type[nn.Module]) -> None:
    net = nn.Sequential(make()).eval()
    assert any(module.training for module in net.modules())


class EvalOnly(Net):
    """S19: a parent's eval() calls train(False) on it, never this."""

    def eval(self):
        super().eval()
        self.threshold = 0.5
        return self


class EvalByTrain(Net):
    def eval(self):
        self.threshold = 0.5
        return self.train(False)


@pytest.mark.parametrize("make", [EvalOnly, EvalByTrain])
def test_an_eval_of_its_own_matters_only_below_a_parent(make: type[nn.Module]) -> None:
    seen = f"{make.__name__} defines eval() and not train(): a parent's eval() does not call it"
    assert found(make(), child=True) == [("warn", "0", seen)]
    assert found(make()) == [("info", "", seen)]


def test_an_eval_with_arguments_of_its_own_is_no_mode_switch() -> None:
    class Evaluates(Net):
        def eval(self, dataset):
            return dataset

    assert found(Evaluates()) == [("info", "", "Evaluates.eval(dataset) is no mode switch")]


def test_returning_none_is_told() -> None:
    """S18: model = model.eval() is None."""

    class ReturnsNone(Net):
        def train(self, mode=True):
            super().train(mode)
            self.backbone.eval()

    assert ReturnsNone().eval() is None
    assert found(ReturnsNone()) == [("info", "", "ReturnsNone.train returns None")]


# --- innocent programs ---


class Frozen(Net):
    """The right idiom."""

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self


class FrozenReturned(Net):
    def train(self, mode: bool = True) -> FrozenReturned:
        result = super().train(mode)
        if mode:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
        return result


class OldStyle(Net):
    def train(self, mode=True):
        return super(OldStyle, self).train(mode)  # noqa: UP008


class ByClass(Net):
    def train(self, mode=True):
        nn.Module.train(self, mode)
        return self


class Stars(Net):
    def train(self, *args, **kwargs):
        return super().train(*args, **kwargs)


class ByKeyword(Net):
    def train(self, mode: bool = True):
        super().train(mode=mode and not self.frozen)
        return self

    frozen = False


class ByHand(Net):
    def train(self, mode=True):
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self


class AllNamed(Net):
    def train(self, mode=True):
        self.training = mode
        for part in (self.backbone, self.head):
            part.train(mode)
        return self


class Flags(Net):
    def train(self, mode=True):
        for module in self.modules():
            module.training = mode
        return self


class Helper(Net):
    def train(self, mode=True):
        return self.set_mode(mode)

    def set_mode(self, mode):
        super().train(mode)
        return self


class AlwaysEval(Net):
    """A frozen encoder that stays in eval, whoever calls train()."""

    def train(self, mode=True):
        return super().train(False)


class Branches(Net):
    def train(self, mode=True):
        if mode:
            super().train(True)
        else:
            super().train(False)
        return self


class Leaf(nn.Module):
    def train(self, mode=True):
        self.training = mode
        return self


class Both(Net):
    def train(self, mode=True):
        super().train(mode)
        return self

    def eval(self):
        return self.train(False)


class More(Net):
    def train(self, mode=True, *, deep=True):
        return super().train(mode)


class Above(Frozen):
    def train(self, mode=True):
        return super().train(mode)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    from functools import wraps

    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


class Decorated(Net):
    @decorated
    def train(self, mode=True):
        return super().train(mode)


INNOCENT = [
    Net, Frozen, FrozenReturned, OldStyle, ByClass, Stars, ByKeyword, ByHand, AllNamed, Flags, Helper, AlwaysEval,
    Branches, Leaf, Both, More, Above, Decorated,
]  # fmt: skip


@pytest.mark.parametrize("make", INNOCENT)
@pytest.mark.parametrize("child", [False, True], ids=["model", "child"])
def test_what_hands_the_mode_on_is_not_found(make: type[nn.Module], child: bool) -> None:
    assert found(make(), child=child) == []


def test_a_trainer_that_is_no_module_may_call_its_methods_as_it_likes() -> None:
    """C67, S16."""

    class Trainer:
        def __init__(self) -> None:
            self.net = Net()

        def train(self, data: Any) -> None: ...

        def eval(self, data: Any) -> None: ...

    assert found(Trainer().net) == []


def test_classes_of_torch_are_never_found() -> None:
    import torch.ao.nn.intrinsic.qat  # its ConvBn2d defines train

    assert found(nn.parallel.DataParallel(Net())) == []
    assert found(torch.optim.swa_utils.AveragedModel(Net())) == []


def disabled_train(self: Any, mode: bool = True) -> Any:
    """Latent diffusion's way to keep a model in eval."""
    return self


@pytest.mark.parametrize("bind", [lambda net: disabled_train, lambda net: MethodType(disabled_train, net)])
def test_a_train_switched_off_on_the_instance_is_meant_while_it_is_in_eval(
    bind: Callable[[nn.Module], Any],
) -> None:
    net = Net().eval()
    net.train = bind(net)
    ((severity, _, seen),) = found(net, child=True)
    assert (severity, seen) == (
        "info",
        "train set on the instance does nothing: the mode here and below stays as it is",
    )
    net.backbone.train()
    ((severity, _, _),) = found(net, child=True)
    assert severity == "warn"


def test_children_that_stay_in_eval_for_good_are_told_as_meant() -> None:
    net = SomeChildren()
    net.backbone.eval()
    ((severity, _, _),) = found(net)
    assert severity == "info"


def test_without_source_the_bytecode_is_read() -> None:
    names: dict[str, Any] = {"Net": Net}
    exec(  # no file, no line
        "class Own(Net):\n def train(self, mode=True):\n  self.training = mode\n  return self\n"
        "class Right(Net):\n def train(self, mode=True):\n  super().train(mode)\n  return self\n",
        names,
    )
    assert [severity for severity, _, _ in found(names["Own"]())] == ["warn"]
    assert found(names["Right"]()) == []


def test_an_exported_module_whose_mode_is_fixed_is_told() -> None:
    """C97 (pytorch#151726): train() and eval() raise."""
    exported = torch.export.export(nn.Sequential(nn.Dropout()).eval(), (torch.ones(2),)).module()
    assert [(severity, seen) for severity, _, seen in found(exported)] == [
        (
            "info",
            f"train() and eval() of {type(exported).__name__} raise: the mode was fixed when it was exported",
        )
    ]


def test_nothing_is_run() -> None:
    class Raises(nn.Module):
        def train(self, mode=True):
            raise AssertionError(mode)

        @property
        def secret(self) -> Tensor:
            raise AssertionError

    assert len(found(Raises())) == 1
