"""Section 4e: partial freezing, and BatchNorm."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from tests.unit.modes.cases.harness import COLLECTED, GUARDED, Run, finds, in_source_only, quiet, refuses
from tests.unit.modes.cases.nets import Classifier, rows, step


def trainable(net: nn.Module) -> Iterator[nn.Parameter]:
    return (each for each in net.parameters() if each.requires_grad)


@finds("batchnorm.frozen_updates", where="body.1")
def test_c82_freeze_that_the_next_train_undoes(run: Run) -> None:
    """gt-pyg#112: freeze() evals BatchNorm once; model.train() of the next epoch wakes it."""
    net = run.watch(Classifier())
    net.body.requires_grad_(False)
    net.body.eval()
    optimizer = SGD(trainable(net), 0.01)
    for _ in range(2):
        net.train()
        step(run, net, optimizer)


@quiet
def test_c82_freeze_after_each_train(run: Run) -> None:
    """What would have been right."""
    net = run.watch(Classifier())
    net.body.requires_grad_(False)
    optimizer = SGD(trainable(net), 0.01)
    for _ in range(2):
        net.train()
        net.body.eval()
        step(run, net, optimizer)


class Matting(Classifier):
    """Has a method to freeze its BatchNorm, as many repositories have."""

    def freeze_bn(self) -> None:
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


@finds("batchnorm.frozen_updates", where="body.1")
def test_c83_freeze_bn_called_once(run: Run) -> None:
    """indexnet_matting#35: freeze_bn() after the model is made, train() in the loop."""
    net = run.watch(Matting())
    net.freeze_bn()
    for _ in range(2):
        net.train()
        step(run, net)


class Frozen(Matting):
    """The idiom that holds."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.freeze_bn()
        return self


@quiet
def test_c83_freeze_bn_in_an_overridden_train(run: Run) -> None:
    """Its remedy."""
    net = run.watch(Frozen())
    for _ in range(2):
        net.train()
        step(run, net)


@finds("batchnorm.frozen_updates", where="body.1")
def test_c85_only_requires_grad_is_switched_off(run: Run) -> None:
    """chemprop PR#952: the statistics of a frozen part go on moving."""
    net = run.watch(Classifier())
    net.body.requires_grad_(False)
    net.train()
    optimizer = SGD(trainable(net), 0.01)
    for _ in range(2):
        step(run, net, optimizer)


@finds("batchnorm.frozen_updates", "mode.train_in_evaluation", where="body.1")
def test_c85_frozen_backbone_under_no_grad(run: Run) -> None:
    """ultralytics PR#8753; no_grad does not keep them either."""

    class Transfer(Classifier):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.body(x)
            result: Tensor = self.head(features)
            return result

    net = run.watch(Transfer())
    net.body.requires_grad_(False)
    net.train()
    optimizer = SGD(trainable(net), 0.01)
    for _ in range(2):
        step(run, net, optimizer)


@finds("module.train_overridden", "mode.unreached")
def test_c86_overridden_train_that_reaches_some_children(run: Run) -> None:
    """Detectron.pytorch#104: train() goes on to the heads only, so that the rest never leaves train mode."""

    class Detector(Classifier):
        def train(self, mode: bool = True) -> Detector:
            self.training = mode
            self.head.train(mode)
            return self

    net = run.watch(Detector())
    step(run, net)
    net.eval()
    with torch.no_grad():
        net(rows())
    net.train()


def distil(run: Run, student: nn.Module, teacher: nn.Module, *, steps: int = 3) -> None:
    """The teacher's outputs are the targets."""
    optimizer = SGD(student.parameters(), 0.01)
    for _ in range(steps):
        batch = rows()
        with torch.no_grad():
            wanted = teacher(batch)
        optimizer.zero_grad()
        run.backward((student(batch) - wanted).square().mean())
        optimizer.step()
        with torch.no_grad():
            for mine, hers in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(hers, 0.01)


@finds("mode.train_in_evaluation")
def test_c88_teacher_in_train_mode_under_no_grad(run: Run) -> None:
    """unbiased-teacher#47: a copy of the student, never set to eval mode; BatchNorm moves under no_grad."""
    student = Classifier()
    teacher = copy.deepcopy(student)
    run.watch(student, teacher)
    distil(run, student, teacher)


@finds("mode.frozen_in_train", "mode.train_in_evaluation")
def test_c88_teacher_and_student_set_to_train_mode_together(run: Run) -> None:
    """U2PL#64: both get train() at the head of each epoch, though the teacher is frozen."""
    student = Classifier()
    teacher = copy.deepcopy(student).requires_grad_(False)
    run.watch(student, teacher)
    for _ in range(2):
        for net in (student, teacher):
            net.train()
        distil(run, student, teacher)


@in_source_only(
    "the teacher runs in eval mode, as it should; that its running statistics are old is in no mode"
)
def test_c88_teacher_gets_parameters_and_no_buffers(run: Run) -> None:
    """cosmix-uda#21: the moving average copies parameters; running statistics stay those of the start."""
    student = Classifier()
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    run.watch(student, teacher)
    distil(run, student, teacher)


@refuses(
    ValueError,
    "Expected more than 1 value per channel when training",
    says="raises PyTorch's own error",
    ways=(COLLECTED, GUARDED),
)
def test_c89_batch_of_one_in_train_mode(run: Run) -> None:
    """pytorch#7716 and six like it."""
    run.watch(Classifier()).train()(rows(1))
