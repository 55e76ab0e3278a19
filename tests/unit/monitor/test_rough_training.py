"""Trainings that are not as the textbook has them: what is seen of them, and that nothing of them breaks."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from torchtap.monitor import find_nan, watch
from torchtap.monitor._watch import WatchWarning


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.tanh(self.a(x)))
        return out


class Own(torch.optim.Optimizer):
    """Knows its rate by itself."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                each.data.sub_(each.grad, alpha=0.01)


@pytest.mark.parametrize("look_closer", [True, False])
def test_compiled_code_is_made_once_and_not_for_each_batch(look_closer: bool) -> None:
    """Once more in the second step, where hooks of the first are gone."""
    torch._dynamo.reset()
    counters.clear()
    model = Net()
    graphs = []
    with watch(model, look_closer=look_closer) as w:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(24):
            compiled(torch.randn(4, 8)).sum().backward()
            w.step()
            graphs.append(counters["stats"]["unique_graphs"])
        assert graphs[-1] == graphs[1] == graphs[0] + look_closer
        assert len(w.series("a")) > 10
    torch._dynamo.reset()


def test_a_compiled_child_is_no_list() -> None:
    """The truth of an OptimizedModule is its length, and a Linear has none."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0] = torch.compile(model[0], backend="eager")  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    assert w.steps == 2


@pytest.mark.parametrize(
    "add",
    [
        lambda model: model.register_parameter("wide", nn.Parameter(torch.ones(3, dtype=torch.float64))),
        lambda model: model.register_parameter("sixteen", nn.Parameter(torch.ones(3, dtype=torch.bfloat16))),
        lambda model: model.register_parameter(
            "eight", nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
        ),
        lambda model: model.add_module("lazy", nn.LazyLinear(2)),
        lambda model: model.add_module("empty", nn.Linear(4, 0)),
    ],
    ids=["float64", "bfloat16", "float8", "lazy", "empty"],
)
@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:Initializing zero-element")
def test_parameters_of_any_kind(add: Any) -> None:
    model = Net()
    add(model)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    with watch(model, optimizer) as w:
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        w.diagnose()
    assert w.steps == 3


def test_an_optimizer_without_a_learning_rate() -> None:
    """As Adafactor of transformers with its defaults."""
    model = Net()
    optimizer = Own(model.parameters(), {"lr": None})
    with watch(model, optimizer) as w:
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        w.diagnose()
    assert w.steps == 3


def test_closing_takes_the_hooks_off_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()

    def fails(*_: object) -> None:
        raise RuntimeError("no run can be made of this")

    monkeypatch.setattr("torchtap.monitor._watch.run_of", fails)
    w = watch(model)
    model(torch.randn(4, 8)).sum().backward()
    w.step()
    with pytest.raises(RuntimeError, match="no run"):
        w.close()
    assert not w.is_open
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_a_loop_that_stops_at_nan_has_its_first_value() -> None:
    """The usual guard raises before the optimizer steps."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for step in range(5):
            x = torch.randn(4, 8)
            with torch.no_grad():
                if step == 3:
                    model.b.weight.fill_(float("nan"))
            loss = model(x).sum()
            if not torch.isfinite(loss):
                raise FloatingPointError
            loss.backward()
            optimizer.step()

    w = watch(model, optimizer)
    with pytest.raises(FloatingPointError):
        train()
    first = w.first_nonfinite()
    assert first is not None
    assert (first.step, first.layer) == (3, "b")
    w.close()
    assert w.first_nonfinite() is not None
    assert [each.id for each in w.diagnose()][:1] == ["nonfinite.first"]


def test_a_watch_without_a_step_says_so_when_it_is_closed() -> None:
    model = Net()
    w = watch(model)
    for _ in range(9):
        model(torch.randn(4, 8)).sum().backward()
    with pytest.warns(WatchWarning, match=r"no step ended in 9 forwards.*w.step\(\) was never called"):
        w.close()
    w = watch(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.randn(4, 8))
        w.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_find_nan_does_not_call_a_loss_good_whose_target_is_bad(value: float) -> None:
    target = torch.ones(4, 2)
    target[1, 1] = value
    report = find_nan(Net(), torch.randn(4, 8), lambda out: nn.functional.mse_loss(out, target))
    assert report
    assert "finite" not in str(report) or "came in from outside" in str(report) or report.origin is not None


def test_find_nan_puts_back_the_random_states_of_python_and_numpy_too() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * random.random() * float(np.random.rand())

    def states() -> object:
        return random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()

    before = states()
    find_nan(Noisy(), torch.ones(2, 2), torch.sum)
    assert states() == before


def test_token_ids_are_no_pixels() -> None:
    """Inputs of whole numbers are measured, and no scale is asked of them."""
    model = nn.Sequential(nn.Embedding(500, 8), nn.Flatten(), nn.Linear(48, 2))
    with watch(model) as w:
        for _ in range(30):
            model(torch.randint(0, 500, (4, 6))).sum().backward()
            w.step()
        assert w.run().inputs == ()
