"""`find_nan`: the operation, its module, its line and a remedy that mends it."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from torchtap.monitor import find_nan


class Step(nn.Module):
    """A linear layer, then `function` of its output."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.linear.weight)
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self.linear(x))


def find(*given: Any) -> Any:
    return find_nan(*given)


def net(function: Any) -> Any:
    return nn.Sequential(nn.Identity(), Step(function))


ZEROS, ONES = torch.zeros(2, 4), torch.ones(2, 4)
# function, batch, operator, direction, a piece of the remedy
CASES = {
    "log of zero": (lambda h: h.log(), ZEROS, "aten.log", "forward", "clamp_min"),
    "log of a negative": (lambda h: h.log(), -ONES, "aten.log", "forward", "clamp_min"),
    "exp overflows": (lambda h: h.exp(), 100 * ONES, "aten.exp", "forward", "logsumexp"),
    "exp overflows, then NaN": (
        lambda h: h.exp() / h.exp().sum(),
        100 * ONES,
        "aten.exp",
        "forward",
        "logsumexp",
    ),
    "division by zero": (lambda h: 1 / h, ZEROS, "aten.reciprocal", "forward", "divisor"),
    "zero by zero": (lambda h: h / h.sum(), ZEROS, "aten.div", "forward", "divisor"),
    "root of a negative": (lambda h: h.sqrt(), -ONES, "aten.sqrt", "forward", "clamp"),
    "root at zero": (lambda h: h.square().sum(-1).sqrt(), ZEROS, "aten.div", "backward", "1e-8"),
    "power at zero": (lambda h: h.pow(0.5), ZEROS, "aten.pow", "backward", "root"),
    "acos at one": (torch.acos, ONES, "aten.rsqrt", "backward", "clamp"),
    "where takes both": (lambda h: torch.where(h > 0, h.sqrt(), h), ZEROS, "aten.div", "backward", "root"),
    "all is masked": (
        lambda h: torch.softmax(h.masked_fill(torch.ones_like(h, dtype=torch.bool), -torch.inf), -1),
        ONES,
        "aten._softmax",
        "forward",
        "unmasked",
    ),
    "float16 overflows": (lambda h: h.half() * 2**10, 1000 * ONES, "aten.mul", "forward", "bfloat16"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_operation_is_named(name):
    function, batch, operator, direction, remedy = CASES[name]
    report: Any = find_nan(net(function), batch)
    assert report
    origin = report.origin
    assert (origin.operator, origin.direction) == (operator, direction), str(report)
    assert (origin.where.module, origin.where.kind) == ("1", "Step")
    assert origin.where.place.file == __file__
    assert remedy in str(report)


def test_the_line_is_the_users():
    def function(h: Any) -> Any:
        h = h + 1
        return (h - 1).log()

    _, first = inspect.getsourcelines(function)
    report: Any = find_nan(net(function), ZEROS)
    assert report.origin.where.place.lineno == first + 2
    assert "return (h - 1).log()" in str(report)


def test_what_came_of_an_infinity_is_told():
    report: Any = find_nan(net(lambda h: h.exp() - h.exp()), 100 * ONES)
    assert report.origin.operator == "aten.exp"
    assert report.became_nan.operator == "aten.sub"
    assert "and NaN came of it in aten.sub" in str(report)


HEALTHY = {
    "plain": lambda h: h.tanh(),
    "a mask of -Inf": lambda h: torch.softmax(torch.cat([h.masked_fill(h > 0, -torch.inf), h], -1), -1),
    "causal attention": lambda h: scaled_dot_product_attention(h[None], h[None], h[None], is_causal=True),
    "a mask that is a tensor": lambda h: torch.softmax(h + torch.full((4, 4), -torch.inf).triu(1)[:2], -1),
    "unwritten memory": lambda h: torch.empty_like(h).copy_(h),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_masks_and_the_like_are_no_fault(name):
    report: Any = find_nan(net(HEALTHY[name]), torch.rand(2, 4))
    assert not report
    assert str(report).startswith("all values and gradients are finite")


def test_an_infinity_that_does_no_harm_is_said_to_be_so():
    report: Any = find_nan(net(lambda h: h.exp().detach().clamp(max=1) + h), 100 * ONES)
    assert not report
    assert "did no harm: aten.exp" in str(report)


def test_what_was_there_before_is_named_first():
    model = net(lambda h: h)
    with torch.no_grad():
        model[1].linear.weight[0, 0] = torch.nan
    report: Any = find_nan(model, ONES)
    assert report.given[0][0] == "parameter 1.linear.weight"
    assert "1 NaN" in str(report)
    report = find_nan(net(lambda h: h), torch.tensor([[1.0, 2.0, torch.nan, torch.inf]]))
    assert [name for name, _ in report.given] == ["input 0"]


def test_calls_of_one_module_are_told_apart():
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = Step(lambda h: h * 1e15)

        def forward(self, x: Any) -> Any:
            for _ in range(4):
                x = self.step(x)
            return x

    report: Any = find_nan(Loop(), ONES)
    assert (report.origin.where.module, report.origin.where.call) == ("step", 2)
    assert "call 3" in str(report)


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpointing(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.step = Step(lambda h: (h * 0).sqrt())

        def forward(self, x: Any) -> Any:
            return checkpoint(self.step, self.first(x), use_reentrant=reentrant)

    report: Any = find_nan(Checkpointed(), ONES)
    assert report.origin.direction == "backward"
    assert report.origin.where.module == "step"


def test_the_model_is_afterwards_as_it_was():
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.LSTM(4, 4))
    model(ONES)[0].sum().backward()
    before, gradients = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    batch = torch.randn(3, 4)
    state = torch.get_rng_state()
    assert not find_nan(model, batch, lambda output: output[0].square().mean())
    assert torch.equal(state, torch.get_rng_state())
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_also_after_an_error_in_the_model():
    def broken(h: Any) -> Any:
        raise KeyError("users")

    model = net(broken)
    with pytest.raises(KeyError, match="users"):
        find_nan(model, ONES)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_batches_by_position_and_by_name():
    class Two(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return {"loss": (a - b).log().sum()}

    assert find(Two(), (ONES, ONES)).origin.operator == "aten.log"
    assert find(Two(), {"a": ONES, "b": ONES}).origin.operator == "aten.log"


def test_a_loss_that_is_no_tensor():
    with pytest.raises(TypeError, match="makes a tensor of the output; it gave a float"):
        find(net(lambda h: h), ONES, lambda output: 1.0)


def test_a_line_whose_source_is_gone_is_named_without_it(tmp_path: Path) -> None:
    space: dict[str, Any] = {"nn": nn}
    code = "class Log(nn.Module):\n    def forward(self, x):\n        return x.log()\n"
    exec(compile(code, str(tmp_path / "gone.py"), "exec"), space)
    told = str(find_nan(space["Log"](), torch.tensor([-1.0]), torch.sum)).splitlines()[0]
    assert told.startswith("NaN first in aten.log of the model itself (Log), at ")
    assert told.endswith("gone.py:3")
