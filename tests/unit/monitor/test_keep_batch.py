"""The first value that was not finite: its layer's weights at that moment, and the batch run again to the operation."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from torchtap.monitor import watch
from torchtap.monitor._first import FirstNonfinite
from torchtap.monitor._watch import Watch, WatchWarning


class Distance(nn.Module):
    """NaN in the backward alone, where both inputs are one and dropout takes nothing away from that."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.inner = nn.Linear(4, 4)

    def forward(self, one: Tensor, *, other: Tensor) -> Tensor:
        difference = self.inner(self.drop(one)) - self.inner(other)
        out: Tensor = difference.square().sum(1).sqrt()
        return out


class Logarithm(nn.Module):
    """NaN in the forward, in the model's own code."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.inner(x))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trained(
    model: nn.Module,
    forward: Callable[[nn.Module, int], Tensor],
    loss: Callable[[Tensor], Tensor] = torch.mean,
    *,
    steps: int = 3,
    **options: Any,
) -> Watch:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, **options) as w:
        for step in range(steps):
            optimizer.zero_grad()
            loss(forward(model, step)).backward()
            optimizer.step()
    return w


def distances(model: nn.Module, step: int) -> Tensor:
    if step == 1:
        return torch.Tensor(model(torch.zeros(3, 4), other=torch.zeros(3, 4)))
    return torch.Tensor(model(torch.randn(3, 4), other=torch.randn(3, 4)))


def first_of(w: Watch) -> FirstNonfinite:
    first = w.first_nonfinite()
    assert first is not None
    return first


def report_of(w: Watch) -> Any:
    rerun = first_of(w).rerun
    assert rerun is not None
    assert rerun.report is not None, rerun.why_not
    return rerun.report


def test_a_backward_is_run_again_down_to_the_operation_and_the_line() -> None:
    w = trained(Distance(), distances, keep_batch=True)
    origin = report_of(w).origin
    assert (origin.direction, origin.node) == ("backward", "SqrtBackward0")
    assert origin.where.place.text.endswith("difference.square().sum(1).sqrt()")
    assert first_of(w).step == 1
    told = str(first_of(w))
    assert "  run again on the kept batch: Inf first in aten.div (backward: SqrtBackward0)" in told
    assert "  do     add a small number under the root" in told


def test_a_forward_is_run_again_and_the_models_own_code_is_seen() -> None:
    w = trained(Logarithm(), lambda model, _: torch.Tensor(model(torch.randn(3, 4))), keep_batch=True)
    assert (first_of(w).step, first_of(w).layer, first_of(w).key.direction) == (0, "", "output")
    assert report_of(w).origin.operator == "aten.log"


@pytest.mark.parametrize(("used", "node"), [(0, "SqrtBackward0"), (1, "PowBackward0")])
def test_the_gradients_that_came_are_those_that_are_used(used: int, node: str) -> None:
    """Of two outputs the loss uses one: a backward from their sum would blame either."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = self.inner(x)
            return z.sum().sqrt(), z.pow(0.5).sum()

    w = trained(Two(), lambda model, _: model(torch.zeros(1, 2))[used], keep_batch=True, steps=1)
    assert report_of(w).origin.node == node


def test_without_the_option_nothing_is_run_again_and_weights_are_those_before_the_step() -> None:
    model = Distance()
    before: list[Tensor] = []

    def forward(model: nn.Module, step: int) -> Tensor:
        before.append(model.inner.weight.detach().clone())  # type: ignore[union-attr,operator]
        return distances(model, step)

    first = first_of(trained(model, forward))
    assert first.rerun is None
    assert first.layer == "inner"
    weights = dict(first.weights)
    assert (weights["weight"].low, weights["weight"].high) == (before[1].min().item(), before[1].max().item())
    assert weights["weight"].nans == 0
    assert bool(model.inner.weight.isnan().all())
    assert "\n  its weight: float32[4, 4] -0." in str(first)


def test_where_nobody_looked_before_the_step_that_is_said() -> None:
    model = Distance()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, keep_batch=True) as w:
        for step in range(2):
            distances(model, step).sum().backward()
            optimizer.step()
            w.step()
    first = first_of(w)
    assert first.weights_of == "now"
    assert dict(first.weights)["weight"].nans == 16
    assert "its weight (now): float32[4, 4] 16 NaN" in str(first)
    assert "not run again: its weights are gone: give the optimizer to watch()" in str(first)


def test_a_loss_that_made_it_is_named() -> None:
    w = trained(
        nn.Sequential(nn.Linear(4, 1)),
        lambda model, _: model(torch.randn(3, 4)),
        lambda out: (out * 0).sqrt().sum(),
        keep_batch=True,
    )
    assert "was not finite already, so the loss made it" in str(first_of(w))


def test_of_several_micro_batches_the_bad_one_is_run_again() -> None:
    model = Logarithm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model.inner.weight.copy_(torch.eye(4))
        model.inner.bias.zero_()
    with watch(model, optimizer, keep_batch=True) as w:
        for sign in (1, -1, 1):
            model(sign * torch.rand(2, 4).add(0.1)).mean().backward()
        optimizer.step()
    assert report_of(w).origin.inputs[0].high < 0


def test_it_runs_under_the_same_autocast_and_random_numbers() -> None:
    class Drops(nn.Module):
        """Infinite only in float16, and where the dropout of that forward leaves it."""

        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.inner = nn.Linear(64, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(self.drop(x))
            return out

    def forward(model: nn.Module, _: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return torch.Tensor(model(torch.full((4, 64), 30000.0)))

    model = Drops()
    nn.init.constant_(model.inner.weight, 1.0)
    w = trained(model, forward, lambda out: out.float().mean(), keep_batch=True, steps=1)
    assert report_of(w).origin.outputs[0].dtype == "float16"
    assert report_of(w).origin.outputs[0].infinities == first_of(w).nonfinite


def test_a_wrapped_model_is_run_again_without_its_wrapper() -> None:
    assert (
        report_of(trained(DataParallel(Distance()), distances, keep_batch=True)).origin.node
        == "SqrtBackward0"
    )


def test_a_model_that_cannot_be_copied_is_told() -> None:
    class Odd(Logarithm):
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise TypeError("I am one of a kind")

    w = trained(Odd(), lambda model, _: model(torch.randn(3, 4)), keep_batch=True)
    assert "not run again: the model cannot be copied: TypeError: I am one of a kind" in str(first_of(w))


def test_nothing_of_the_training_is_changed_by_it() -> None:
    """Weights with their NaN, buffers, gradients, random numbers; and what the watch counts."""
    ends, counts = [], []
    for options in ({}, {"keep_batch": True}, None):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), Logarithm())
        clone = copy.deepcopy(model)
        optimizer = torch.optim.SGD(clone.parameters(), lr=0.1)
        w = watch(clone, optimizer, **options) if options is not None else None  # type: ignore[arg-type]
        for _ in range(4):
            clone(torch.randn(6, 4)).mean().backward()
            optimizer.step()
        if w is not None:
            w.close()
            counts.append(([hook.calls for hook in w.layer_hooks], w.run().passes))
        grads = [each.grad for each in clone.parameters()]
        ends.append([*clone.state_dict().values(), *grads, torch.get_rng_state()])
    assert counts[0] == counts[1]
    for values in zip(*ends, strict=True):
        assert all(torch.equal(values[0].nan_to_num(), each.nan_to_num()) for each in values)


def test_no_batch_and_no_graph_outlives_its_step() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, keep_batch=True) as w:
        batch = torch.randn(3, 4, requires_grad=True)
        given = batch * 2
        there = weakref.ref(given)
        model(given).sum().backward()
        del given
        optimizer.step()
        gc.collect()
        assert there() is None
        assert w._kept is not None
        assert w._kept._inputs is None
        model(batch).sum().backward()
        assert w._kept._inputs is not None
    assert w._kept._inputs is None, "closed"


def test_on_the_device_path_it_belongs_to_its_own_step_though_that_is_read_late() -> None:
    """On CPU tensors, by the code for devices."""
    model = Distance()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer, keep_batch=True, device_path=True) as w:
        for step in range(4):
            optimizer.zero_grad()
            distances(model, step).mean().backward()
            optimizer.step()
    assert first_of(w).step == 1
    assert dict(first_of(w).weights)["weight"].nans == 0
    assert report_of(w).origin.node == "SqrtBackward0"


def test_a_batch_that_holds_it_is_named_by_its_input() -> None:
    def forward(model: nn.Module, step: int) -> Tensor:
        x = torch.randn(3, 4)
        x[1, 2] = torch.nan if step == 1 else 0.0
        return torch.Tensor(model(x))

    w = trained(nn.Sequential(nn.Linear(4, 1)), forward, keep_batch=True)
    assert [name for name, _ in report_of(w).given] == ["input 0"]


def test_an_infinite_input_is_told_as_the_cause() -> None:
    w = trained(
        nn.Sequential(nn.Linear(4, 1)), lambda model, _: model(torch.full((3, 4), torch.inf)), keep_batch=True
    )
    assert "cause  it was given an infinity" in str(first_of(w))


def test_a_compiled_forward_is_one_graph() -> None:
    model = Distance()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch._dynamo.reset()
    with watch(model, optimizer, keep_batch=True) as w:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(2):
            compiled(torch.randn(3, 4), other=torch.randn(3, 4)).sum().backward()
            optimizer.step()
    assert w.steps == 2


@pytest.mark.parametrize("keep_batch", [False, True])
def test_what_traces_or_transforms_the_model_is_left_alone(keep_batch: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(5, 4)
    parameters: dict[str, Tensor] = dict(model.named_parameters())

    def loss(given: dict[str, Tensor]) -> Tensor:
        return torch.Tensor.sum(torch.func.functional_call(model, given, (x,)))

    bare = torch.func.grad(loss)(parameters), torch.func.vmap(model)(x), torch.func.jacrev(model)(x[0])
    with watch(model, keep_batch=keep_batch) as w:
        watched = torch.func.grad(loss)(parameters), torch.func.vmap(model)(x), torch.func.jacrev(model)(x[0])
        traced = torch.jit.trace(model, x)
        exported = torch.export.export(model, (x,)).module()
        w.step()
    torch.testing.assert_close(watched, bare, rtol=0, atol=0)
    assert torch.equal(traced(x), model(x))
    assert torch.equal(exported(x), model(x))
    with pytest.raises(KeyError):
        w.series("0")


def test_a_gpu_that_the_training_does_not_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its random state is not asked for: that would initialise CUDA, and fail where its driver does."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert report_of(trained(Distance(), distances, keep_batch=True)).origin.node == "SqrtBackward0"


def test_a_forward_that_made_nan_is_run_again_though_the_loss_gave_nan_gradients() -> None:
    """As any but the plainest loss does: mse of NaN has NaN as its gradient."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b((self.a(x) - 100).sqrt())
            return out

    model = Root()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, keep_batch=True) as w:
        nn.functional.mse_loss(model(torch.randn(2, 4)), torch.zeros(2, 1)).backward()
        with pytest.warns(WatchWarning):
            optimizer.step()
    first = w.first_nonfinite()
    assert first is not None
    assert first.rerun is not None
    assert first.rerun.report is not None
    assert first.rerun.report.origin is not None
    assert first.rerun.report.origin.operator == "aten.sqrt"
