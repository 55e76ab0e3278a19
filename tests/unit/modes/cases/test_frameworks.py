"""Section 4d: what training frameworks do with modes, as the loop that they run, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD

from tests.unit.modes.cases.harness import Run, finds, quiet
from tests.unit.modes.cases.nets import Classifier, rows, step


class Trainer:
    """Lightning's loop since 2.2: fit() calls no train(); validation keeps each module's mode and puts it back."""

    def __init__(self, run: Run, steps: int = 2) -> None:
        self._run, self._steps = run, steps

    def fit(self, net: nn.Module) -> None:
        optimizer = SGD((each for each in net.parameters() if each.requires_grad), 0.01)
        for _ in range(2):
            for _step in range(self._steps):
                step(self._run, net, optimizer)
            self.validate(net)

    def validate(self, net: nn.Module) -> None:
        kept = {module: module.training for module in net.modules()}
        net.eval()
        with torch.no_grad():
            net(rows())
        for module, training in kept.items():
            module.training = training


@quiet
def test_c76_each_submodule_gets_its_mode_back(run: Run) -> None:
    """Lightning PR#18951: a frozen body stays in eval mode over a validation."""
    net = run.watch(Classifier())
    net.train()
    net.body.eval().requires_grad_(False)
    Trainer(run).fit(net)
    assert [net.training, net.body.training, net.drop.training] == [True, False, True]


@finds("mode.not_restored")
def test_c77_own_network_waits_for_a_hook_that_is_not_called(run: Run) -> None:
    """Lightning#20177: on_validation_model_train is not called unless overridden, so train() is not called either."""

    class WithHelper(Classifier):
        """Holds a network outside its tree, and passes modes on to it in train()."""

        def __init__(self, helper: nn.Module) -> None:
            super().__init__()
            self.__dict__["helper"] = helper

        def train(self, mode: bool = True) -> WithHelper:
            self.__dict__["helper"].train(mode)
            return super().train(mode)

    helper = Classifier()
    net = WithHelper(helper)
    run.watch(net, helper)
    trained = SGD(helper.parameters(), 0.01)
    net.train()
    for _ in range(2):
        step(run, helper, trained)
        Trainer(run, steps=1).fit(net)
    step(run, helper, trained)


@finds("mode.trained_in_eval", where="")
def test_c79_model_in_eval_before_fit_stays_so(run: Run) -> None:
    """Lightning#20216: a pretrained model comes in eval mode, and fit() no longer calls train()."""
    Trainer(run).fit(run.watch(Classifier().eval()))


@finds("mode.trained_in_eval", where="")
def test_c79_eval_inside_fit_stays_so(run: Run) -> None:
    """Lightning#20986: eval() in a hook at the start of the training."""
    net = run.watch(Classifier())
    net.train()
    net.eval()
    Trainer(run).fit(net)


@finds("mode.trained_in_eval", where="")
def test_c80_pretrained_model_is_fitted(run: Run) -> None:
    """pytorch-ie#511: from_pretrained() leaves eval mode; before 2.2 fit() put that right."""

    def from_pretrained() -> Classifier:
        net = Classifier()
        net.load_state_dict(Classifier().state_dict())
        return net.eval()

    Trainer(run).fit(run.watch(from_pretrained()))


@quiet
def test_c80_train_before_fit(run: Run) -> None:
    """Its fix."""
    net = run.watch(Classifier().eval())
    net.train()
    Trainer(run).fit(net)
