"""Section 4f: dropout outside modules, and `train` that means something else."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as everybody writes it
from torch.optim import SGD

from tests.unit.modes.cases.harness import COLLECTED, Run, finds, in_source_only, quiet, refuses
from tests.unit.modes.cases.nets import Classifier, rows, step


def evaluated(run: Run, net: nn.Module) -> None:
    """A step, an evaluation as it should be, a step."""
    net.train()
    step(run, net)
    net.eval()
    with torch.no_grad():
        net(rows())
    net.train()
    step(run, net)


class Plain(nn.Module):
    """A linear layer, to be dropped on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)


@finds("dropout.active_in_eval")
def test_c91_functional_dropout_without_training(run: Run) -> None:
    """pytorch#26338: the default of F.dropout is training=True."""

    class Net(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.inner(x))

    evaluated(run, run.watch(Net()))


@finds("dropout.active_in_eval")
def test_c91_functional_dropout_of_images(run: Run) -> None:
    """pytorch#11999: the same of F.dropout2d."""

    class Net(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout2d(self.inner(x)[..., None, None], 0.5).flatten(1)

    evaluated(run, run.watch(Net()))


@finds("dropout.active_in_eval")
def test_c91_functional_dropout_in_a_part_of_the_model(run: Run) -> None:
    """PyTorchNLPBook#28: `F.dropout(F.relu(self.fc1(x)), p=0.5)` in an inner module."""

    class Inner(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(F.relu(self.inner(x)), p=0.5)

    evaluated(run, run.watch(nn.Sequential(Inner(), nn.Linear(3, 3))))


@finds("dropout.active_in_eval")
def test_c91_functional_dropout_with_a_probability_of_its_own(run: Run) -> None:
    """pytorch-fm#21: `F.dropout(scores, p=self.dropouts[0])`."""

    class Net(Plain):
        dropouts = (0.2, 0.4)

        def forward(self, x: Tensor) -> Tensor:
            scores = F.softmax(self.inner(x), dim=-1)
            return F.dropout(scores, p=self.dropouts[0])

    evaluated(run, run.watch(Net()))


@finds("dropout.active_in_eval")
def test_c91_functional_dropout_outside_of_modules(run: Run) -> None:
    """A function of the user's own drops on what the network gave, in training and evaluation alike."""
    net = run.watch(Classifier())
    optimizer = SGD(net.parameters(), 0.01)

    def scores() -> Tensor:
        return F.dropout(net(rows()), 0.2)

    for _ in range(2):
        net.train()
        optimizer.zero_grad()
        run.backward(scores().square().mean())
        optimizer.step()
        net.eval()
        with torch.no_grad():
            scores()


@in_source_only(
    "a call in no module may be noise that the evaluation is meant to have; one that trains too is found"
)
def test_c91_functional_dropout_outside_of_modules_in_the_evaluation_alone(run: Run) -> None:
    """The same in two loops: nothing tells this call from `noisy = F.dropout(image)` of a denoising network's test."""
    net = run.watch(Classifier())
    for _ in range(2):
        net.train()
        step(run, net)
        net.eval()
        with torch.no_grad():
            F.dropout(net(rows()), 0.2)


@quiet
def test_c91_functional_dropout_that_is_told_the_mode(run: Run) -> None:
    """The remedy."""

    class Net(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.inner(x), 0.5, self.training)

    evaluated(run, run.watch(Net()))


@finds("module.built_in_forward")
def test_c92_dropout_made_in_forward(run: Run) -> None:
    """NTS-Net#14: nn.Dropout(p=0.5)(x) within forward() is new each time, in train mode."""

    class Net(Plain):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = nn.Dropout(p=0.5)(self.inner(x))
            return result

    evaluated(run, run.watch(Net()))


@finds("mode.dropout_changed")
def test_c94_eval_branch_that_sets_the_probability_to_zero(run: Run) -> None:
    """Megatron-LM PR#411: `self.dropout_p = 0` where not self.training, and nobody sets it again."""

    class Attention(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.dropout_p = 0.3

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                self.dropout_p = 0.0
            return F.dropout(self.inner(x), self.dropout_p, self.training)

    evaluated(run, run.watch(Attention()))


class LoopWithoutArguments(Classifier):
    """DA-RNN#21: train() is the training loop."""

    def train(self) -> None:  # type: ignore[override]
        raise AssertionError("the loop runs")


@refuses(
    TypeError,
    "takes 1 positional argument but 2 were given",
    says="raises PyTorch's own error",
    ways=(COLLECTED,),
)
def test_c95_eval_of_a_model_whose_train_takes_nothing(run: Run) -> None:
    """DA-RNN#21: eval() calls train(False)."""
    LoopWithoutArguments().eval()


@finds("module.train_overridden", where="0")
def test_c95_part_whose_train_takes_nothing(run: Run) -> None:
    """The same, seen before anybody calls it."""
    run.watch(nn.Sequential(LoopWithoutArguments()))


@finds("module.train_overridden", where="")
def test_c95_loop_that_swallows_the_mode(run: Run) -> None:
    """minimalRL#2: train(memory, ...) runs with False for its memory, and no mode changes."""

    class Agent(Classifier):
        def train(self, memory: Any, batches: int = 0) -> None:  # type: ignore[override]
            for _ in range(batches):
                memory.sample()

    agent = run.watch(Agent())
    agent.eval()
    assert agent.training


@finds("module.train_overridden", where="")
def test_c95_loop_over_a_dataset_called_with_false(run: Run) -> None:
    """pykan#108: train(dataset, ...) of a network; eval() hands it False for a dataset."""

    class Kan(Classifier):
        def train(self, dataset: dict[str, Tensor], steps: int = 20) -> dict[str, float]:  # type: ignore[override]
            return {"loss": float(dataset["train_input"].mean())}

    net = run.watch(Kan())
    with suppress(TypeError):
        net.eval()


@finds("module.train_overridden", where="")
def test_c95_training_of_an_end_model_under_the_name_of_the_mode(run: Run) -> None:
    """metal PR#71: train() with keywords of its own, and `self.train()` within it meant the mode."""

    class EndModel(Classifier):
        def train(self, *data: Tensor, **options: Any) -> EndModel:  # type: ignore[override]
            self.options = options
            return self

    run.watch(EndModel()).eval()


@finds("module.train_overridden", where="policy")
def test_c95_agent_that_is_a_module_and_trains_itself(run: Run) -> None:
    """foundations-drl#9: the algorithm is a part of a module; eval() of the whole stops there."""

    class Algorithm(Classifier):
        def train(self, episodes: int = 0) -> None:  # type: ignore[override]
            for _ in range(int(episodes)):
                pass

    net = run.watch(nn.ModuleDict({"policy": Algorithm(), "value": Classifier()}))
    net.eval()
    assert net["policy"].training
    assert not net["value"].training
