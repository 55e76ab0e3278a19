"""`on_forward` and `on_backward`: a function of the user's for every layer."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.hooks.nets import NETS, Checkpointed, InPlaceModule, Lstm, Reentrant, batch
from torchtap.hooks import HookError, Registration, capture, on_backward, on_forward

BOTH: list[Callable[..., Any]] = [on_forward, on_backward]


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_each_call_of_a_class_of_layers_and_each_gradient_is_given() -> None:
    net, seen = InPlaceModule(), list[tuple[str, Any]]()
    with (
        on_forward(net, nn.Linear, lambda name, output: seen.append((name, tuple(output.shape)))),
        on_backward(net, nn.Linear, lambda name, gradient: seen.append((name, tuple(gradient.shape)))),
    ):
        net(batch()).sum().backward()
    assert seen == [("a", (6, 4)), ("b", (6, 2)), ("b", (6, 2)), ("a", (6, 4))]
    assert hooks_on(net) == 0


def test_several_outputs_have_the_way_to_each_behind_the_name() -> None:
    net, seen = Lstm(), list[str]()
    with on_backward(net, "rnn", lambda name, _: seen.append(name)):
        out, (hidden, _) = net.rnn(batch())
        (out.sum() + hidden.sum()).backward()
    assert sorted(seen) == ["rnn[0]", "rnn[1.0]"]


def test_pitfall_32_what_the_function_returns_is_not_used() -> None:
    net, x = InPlaceModule(), batch()
    bare = net(x)
    with (
        on_forward(net, "all", lambda _, output: output * 0),
        on_backward(net, "all", lambda _, gradient: gradient * 0),
    ):
        out = net(x)
        out.sum().backward()
    assert torch.equal(out, bare)
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in net.b.parameters())


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
def test_pitfall_15_each_call_is_given_once_under_checkpointing(kind: type[Checkpointed]) -> None:
    net, outputs, gradients = kind(), list[str](), list[str]()
    with (
        on_forward(net, None, lambda name, _: outputs.append(name)),
        on_backward(net, None, lambda name, _: gradients.append(name)),
    ):
        net(batch()).sum().backward()
    assert sorted(outputs) == sorted(gradients)
    assert len(set(outputs)) == len(outputs) == 7


@pytest.mark.parametrize("on", BOTH)
def test_what_the_function_raises_says_for_which_layer_and_comes_once(on: Callable[..., Any]) -> None:
    net, calls = InPlaceModule(), list[str]()

    def fail(name: str, _: Tensor) -> None:
        calls.append(name)
        raise ValueError("mine")

    def run() -> None:
        with on(net, ["b"], fail):
            net(batch()).sum().backward()

    what = "output" if on is on_forward else "gradient"
    with pytest.raises(
        HookError, match=rf"^the function for the {what} of b \(Linear\) raised ValueError: mine"
    ) as error:
        run()
    assert isinstance(error.value.__cause__, ValueError)
    assert calls == ["b"]
    assert hooks_on(net) == 0


@pytest.mark.parametrize("on", BOTH)
def test_as_a_decorator_and_entered_twice(on: Callable[..., Any]) -> None:
    net, seen = InPlaceModule(), list[str]()
    registered: Registration = on(net, nn.Linear, lambda name, _: seen.append(name))

    @registered
    def step() -> None:
        net(batch()).sum().backward()

    step()
    step()
    assert sorted(seen) == ["a", "a", "b", "b"]
    with registered, pytest.raises(RuntimeError, match="registered already"):
        registered.__enter__()
    assert hooks_on(net) == 0


def test_a_graph_that_outlives_the_block_calls_nothing_any_more() -> None:
    net, seen = InPlaceModule(), list[str]()
    with on_backward(net, None, lambda name, _: seen.append(name)):
        loss = net(batch()).sum()
    loss.backward()
    assert seen == []


def test_refused_layers_are_named() -> None:
    net = nn.Sequential(nn.Linear(1, 1), torch.jit.script(nn.Linear(1, 1)))
    with on_forward(net, "*", print) as registered:
        pass
    assert [name for name, _ in registered.refused] == ["1"]


@pytest.mark.parametrize("kind", NETS)
def test_training_gives_the_same_layers_as_capture(kind: str) -> None:
    net, outputs, gradients = NETS[kind](), list[str](), set[str]()
    net(batch())
    with (
        on_forward(net, None, lambda name, _: outputs.append(name)),
        on_backward(net, None, lambda name, _: gradients.add(name.partition("[")[0])),
        capture(net, gradients=True) as taken,
    ):
        (net(batch()) ** 2).sum().backward()
    assert {name: outputs.count(name) for name in taken} == {name: len(taken.calls(name)) for name in taken}
    assert len(set(outputs)) == len(taken)
    assert gradients <= set(taken)


def test_pitfall_25_nothing_keeps_the_graph_or_the_model() -> None:
    gc.collect()
    gc.disable()
    try:
        net = InPlaceModule()
        with on_backward(net, None, lambda *_: None), on_forward(net, None, lambda *_: None):
            out = net(batch())
            out.sum().backward()
            gone = weakref.ref(out)
            del out
            assert gone() is None
        model = weakref.ref(net)
        del net
        assert model() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("_fresh_dynamo")
def test_pitfall_13_a_function_that_writes_into_a_buffer_is_compiled_in_and_goes_with_the_block() -> None:
    net, x = InPlaceModule(), batch()
    sums = {name: torch.zeros(()) for name in ("a", "r", "b")}

    def add(name: str, output: Tensor) -> None:
        sums[name].add_(output.detach().sum())

    with on_forward(net, None, add):
        expected = net(x)
        eager = {name: each.clone() for name, each in sums.items()}
        for each in sums.values():
            each.zero_()
        compiled: Any = torch.compile(net, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), expected)
        assert sums == eager
    compiled(x)
    assert sums == eager, "after the block it is compiled anew, without hooks"
