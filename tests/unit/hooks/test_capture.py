"""`capture`: what is taken, how it is read, and what it says where there is nothing."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tests.unit.hooks.nets import (
    NETS,
    Checkpointed,
    DataclassOutput,
    DictOutput,
    Encoder,
    Given,
    InPlaceModule,
    InPlaceSum,
    KwargsOnly,
    Lazy,
    Lstm,
    Packed,
    Reentrant,
    Reused,
    Shared,
    batch,
)
from torchtap.hooks import Capture, OverwrittenError, capture, keeping


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_outputs_are_detached_and_named() -> None:
    net = InPlaceModule()
    with capture(net) as taken:
        out = net(batch())
    assert list(taken) == ["a", "r", "b"]
    assert torch.equal(taken["b"], out)
    assert not any(each.requires_grad for each in taken.values())
    assert "a" in taken
    assert "b.c" not in taken
    assert len(taken) == 3


@pytest.mark.parametrize("net", [InPlaceModule(), InPlaceSum()], ids=["inplace=True", "y += x"])
def test_pitfall_03_a_value_is_what_it_was_before_an_operation_in_place(net: InPlaceModule) -> None:
    x = batch()
    with capture(net, "a") as taken:
        net(x)
    assert torch.equal(taken["a"], net.a(x))


def test_pitfall_03_without_a_copy_an_overwritten_value_is_refused() -> None:
    net, x = InPlaceModule(), batch()
    with capture(net, clone=False) as taken:
        out = net(x)
        assert taken["b"].data_ptr() == out.data_ptr(), "not copied"
    with pytest.raises(OverwrittenError, match=r"what was taken of a was written to in place.*clone=False"):
        taken["a"]


def test_pitfall_02_a_gradient_is_of_the_output_before_an_operation_in_place() -> None:
    net, x = InPlaceModule(), batch()
    with capture(net, gradients=True) as taken:
        net(x).sum().backward()
    before = net.a(x).detach().requires_grad_()
    net.b(torch.relu(before)).sum().backward()
    assert torch.equal(taken.gradients("a"), before.grad)


def test_pitfall_05_outputs_of_every_kind_in_their_own_structure() -> None:
    net: nn.Module = DictOutput()
    with capture(net, "**", gradients=True) as taken:
        net(batch()).sum().backward()
    given, gradient = taken["inner"], taken.gradients("inner")
    assert (list(given), given["name"], given["rest"][1]) == (["double", "name", "rest"], "inner", None)
    assert torch.equal(given["double"], taken["a"] * 2)
    assert torch.equal(gradient["double"], gradient["rest"][0])
    assert gradient["name"] == "inner"

    net = DataclassOutput()
    with capture(net, "inner", gradients=True) as taken:
        net(batch()).sum().backward()
    assert isinstance(taken["inner"], Given)
    assert taken["inner"].length == 6
    assert isinstance(taken.gradients("inner").hidden, Tensor)

    net = Lstm()
    with capture(net, gradients=True) as taken:
        net(batch()).sum().backward()
    sequence, (hidden, cell) = taken["rnn"]
    assert torch.equal(sequence[-1], hidden[-1])
    assert cell.shape == hidden.shape
    assert taken.gradients("rnn")[0].shape == sequence.shape
    assert taken.gradients("rnn")[1] == (None, None), "nothing is made of the last states"

    net = Packed()
    with capture(net, gradients=True) as taken:
        net(batch()).sum().backward()
    assert isinstance(taken["rnn"][0], PackedSequence)
    assert taken.gradients("rnn")[0].data.shape == taken["rnn"][0].data.shape


def test_pitfall_29_a_reused_module_has_an_output_and_a_gradient_for_each_call() -> None:
    net, x = Reused(), batch()
    with capture(net, gradients=True) as taken:
        net(x).sum().backward()
    outputs = taken.calls("cell")
    assert len(outputs) == 3
    assert torch.equal(taken["cell"], outputs[-1])
    values = [net.cell(x).detach().requires_grad_()]
    net.head(torch.tanh(net.cell(torch.tanh(net.cell(torch.tanh(values[0])))))).sum().backward()
    assert torch.equal(outputs[0], values[0])
    assert torch.equal(taken.gradients("cell", 0), values[0].grad)
    assert not torch.equal(taken.gradients("cell", 0), taken.gradients("cell", 2))


def test_pitfall_30_a_shared_module_is_known_by_all_its_names() -> None:
    net = Shared()
    with capture(net) as taken:
        net(batch())
    assert len(taken.calls("left")) == 2
    assert taken["right.0"] is taken.calls("left")[-1] or torch.equal(taken["right.0"], taken["left"])
    assert "right.0" in taken


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
def test_pitfall_15_what_checkpointing_repeats_is_counted_once(kind: type[Checkpointed]) -> None:
    torch.manual_seed(1)
    net, x = kind(), batch()
    state = torch.get_rng_state()
    with capture(net, gradients=True) as taken:
        net(x).sum().backward()
    assert [len(taken.calls(name)) for name in taken] == [1] * 7

    plain = copy.deepcopy(net)
    for block in plain.blocks:
        block.forward = block.forward
    torch.set_rng_state(state)
    with capture(plain, gradients=True) as expected:
        y = x
        for block in plain.blocks:
            y = block(y)
        plain.head(y).sum().backward()
    for name in expected:
        assert torch.equal(taken[name], expected[name])
        assert torch.equal(taken.gradients(name), expected.gradients(name)), name


def test_pitfall_15_a_reused_module_in_a_reentrant_checkpoint_has_the_right_gradients() -> None:
    class Net(Reused):
        def forward(self, x: Tensor) -> Tensor:
            from torch.utils.checkpoint import checkpoint

            x = x.clone().requires_grad_()
            given = checkpoint(super().forward, x, use_reentrant=True)
            assert isinstance(given, Tensor)
            return given

    torch.manual_seed(1)
    net, x = Net(), batch()
    with capture(net, gradients=True) as taken:
        net(x).sum().backward()
    with capture(net, gradients=True) as expected:
        Reused.forward(net, x).sum().backward()
    for call in range(3):
        assert torch.equal(taken.gradients("cell", call), expected.gradients("cell", call))


def test_pitfall_33_inputs_are_taken_as_they_were_given_by_name_too() -> None:
    net, x = KwargsOnly(), batch()
    with capture(net, "**", inputs=True) as taken:
        net(x)
    args, kwargs = taken.inputs("a")
    assert args == ()
    assert torch.equal(kwargs["input"], x)
    args, kwargs = taken.inputs("inner")
    assert args == ()
    assert torch.equal(kwargs["values"], taken["a"])
    assert kwargs["scale"] == 3.0


def test_an_input_is_what_it_was_before_the_module_wrote_to_it() -> None:
    net, x = nn.ReLU(inplace=True), torch.tensor([-1.0, 2.0])
    with capture(net, inputs=True) as taken:
        net(x)
    assert taken.inputs("")[0][0].tolist() == [-1, 2]


def test_a_call_that_raises_leaves_inputs_and_outputs_of_others_in_step() -> None:
    net = InPlaceModule()
    with capture(net, inputs=True) as taken:
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
        x = batch()
        net(x)
    assert torch.equal(taken.inputs("a")[0][0], x)
    assert len(taken.calls("a")) == 1


def test_pitfall_38_several_backwards_are_summed_as_in_grad() -> None:
    net = InPlaceModule()
    with capture(net, gradients=True) as taken:
        loss = net(batch()).sum()
        loss.backward(retain_graph=True)
        once = taken.gradients("a").clone()
        loss.backward()
    assert torch.allclose(taken.gradients("a"), once * 2)


def test_pitfall_31_without_gradients_there_is_none() -> None:
    net = InPlaceModule()
    with torch.no_grad(), capture(net, gradients=True) as taken:
        net(batch())
    assert taken.gradients("a") is None


def test_what_is_taken_in_inference_mode_can_be_used_in_a_graph() -> None:
    net = nn.Linear(4, 2)
    with torch.inference_mode(), capture(net) as taken:
        net(batch())
    (taken[""] * torch.ones(2, requires_grad=True)).sum().backward()


def test_a_leaf_that_a_layer_gives_keeps_no_hook() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self) -> Tensor:
            return self.weight

    net = Gives()
    with capture(net, gradients=True) as taken:
        (net() * 2).sum().backward()
    assert taken.gradients("").tolist() == [2, 2]
    assert not net.weight._backward_hooks


def test_hooks_are_gone_after_the_block_on_an_exception_and_after_a_refusal() -> None:
    net = InPlaceModule()
    with capture(net, gradients=True, inputs=True):
        out = net(batch())
        assert hooks_on(net) == 6
    assert hooks_on(net) == 0
    assert not out._backward_hooks

    def fail() -> None:
        with capture(net, gradients=True, inputs=True):
            net(torch.ones(1, 3))

    with pytest.raises(RuntimeError, match="shapes"):
        fail()
    assert hooks_on(net) == 0
    net._modules["b"] = torch.jit.script(nn.Linear(4, 2))
    with capture(net, "*", inputs=True) as taken:
        net(batch())
    assert hooks_on(net) == 0
    assert [name for name, _ in taken.refused] == ["b"]
    with pytest.raises(KeyError, match="'b' was not hooked: it is a ScriptModule"):
        taken["b"]


def test_as_a_decorator() -> None:
    net = InPlaceModule()
    taken = capture(net)

    @taken
    def run(x: Tensor) -> Tensor:
        """Said of it."""
        out: Tensor = net(x)
        return out

    assert (run.__name__, run.__doc__) == ("run", "Said of it.")
    for _ in range(2):
        out = run(batch())
        assert len(taken.calls("b")) == 1, "each call anew"
        assert torch.equal(taken["b"], out)
        assert hooks_on(net) == 0


def test_a_generator_or_coroutine_is_refused_as_its_body_runs_later() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="later is a generator or coroutine"):
        capture(nn.ReLU())(later)


def test_what_is_not_there_is_an_error_that_says_why() -> None:
    net = NETS["unused layer"]()
    taken = capture(net)
    with pytest.raises(KeyError, match="'a': this capture was not entered"):
        taken["a"]
    with taken:
        net(batch())
    with pytest.raises(KeyError, match="'never' was not called as a module while it was captured"):
        taken["never"]
    with pytest.raises(KeyError, match="'nevr' is not among the 4 layers that are captured; nearest: never"):
        taken["nevr"]
    with pytest.raises(ValueError, match="gradients were not taken"):
        taken.gradients("a")
    with pytest.raises(ValueError, match="inputs were not taken"):
        taken.inputs("a")
    with pytest.raises(ValueError, match="clone: expected"):
        capture(net, clone="yes")  # type: ignore[arg-type]
    with taken, pytest.raises(RuntimeError, match="entered already"):
        taken.__enter__()
    assert hooks_on(net) == 0


def test_how_much_is_kept_is_told() -> None:
    net, x = nn.Linear(4, 2), torch.ones(8, 4)
    with capture(net, gradients=True, inputs=True) as taken:
        net(x).sum().backward()
    assert taken.nbytes() == {"": 8 * 2 * 4 * 2 + 8 * 4 * 4}
    assert repr(taken) == "<Capture of 1 layers: 1 calls of 1, 0.0 MiB>"


def test_objects_that_may_hold_a_graph_are_not_kept() -> None:
    class Cache:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    class Net(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Cache]:
            return x, Cache(x)

    net = Net()
    with capture(net) as taken:
        net(batch())
    assert repr(taken[""][1]) == "<not kept: Cache>"


def test_on_another_device_nothing_is_copied_twice() -> None:
    net = nn.Linear(4, 2)
    with capture(net, device="meta") as taken:
        net(batch())
    assert taken[""].device.type == "meta"
    with capture(net, device="cpu") as taken:
        out = net(batch())
    assert torch.equal(taken[""], out)
    assert taken[""].data_ptr() != out.data_ptr()


def test_meta_tensors_are_kept() -> None:
    net = nn.Linear(4, 2, device="meta")
    with capture(net) as taken:
        net(torch.ones(3, 4, device="meta"))
    assert taken[""].shape == (3, 2)


def test_lazy_modules() -> None:
    net = Lazy()
    with capture(net) as taken:
        net(batch())
    assert taken["a"].shape == (6, 3)


def test_functional_call_is_seen() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    weights = {name: torch.zeros_like(each) for name, each in net.named_parameters()}
    with capture(net) as taken:
        torch.func.functional_call(net, weights, (batch(),))
    assert (taken["0"] == 0).all()


def test_inside_vmap_nothing_leaks() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    with capture(net, gradients=True) as taken:
        torch.func.vmap(net)(batch())
    assert "inside a transform of torch.func" in repr(taken["0"])
    assert taken.nbytes() == {"0": 0}
    per_sample = torch.func.vmap(torch.func.grad(lambda x: net(x).sum()))
    bare = per_sample(torch.ones(2, 4))
    with capture(net, gradients=True):
        assert torch.equal(per_sample(torch.ones(2, 4)), bare)


def test_a_traced_model_holds_nothing_of_it() -> None:
    net = nn.Linear(4, 2)
    bare = str(torch.jit.trace(net, batch(), check_trace=False).graph)
    with capture(net) as taken:
        assert str(torch.jit.trace(net, batch(), check_trace=False).graph).count("aten::") == bare.count(
            "aten::"
        )
    assert len(taken) == 0


def test_an_exported_model_holds_nothing_of_it() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    bare = str(torch.export.export(net, (batch(),)).graph)
    with capture(net):
        assert str(torch.export.export(net, (batch(),)).graph) == bare


def test_pitfall_18_calls_in_threads_are_all_kept() -> None:
    net = InPlaceModule()
    xs = [batch() for _ in range(8)]
    with capture(net, gradients=True, inputs=True) as taken:
        threads = [threading.Thread(target=lambda x: net(x).sum().backward(), args=(x,)) for x in xs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(taken.calls("a")) == 8
    for call in range(8):
        assert torch.equal(taken.calls("a")[call], net.a(taken.inputs("a", call)[0][0]))


@pytest.mark.usefixtures("_fresh_dynamo")
def test_pitfall_11_a_compiled_model_is_refused_with_the_way_out() -> None:
    net: Any = torch.compile(InPlaceModule(), backend="eager")
    with capture(net) as taken:
        out = net(torch.ones(1, 4))
    assert [name for name, _ in taken.refused] == ["a", "r", "b"]
    with pytest.raises(KeyError, match="'a' was not hooked: it is part of a compiled model"):
        taken["a"]
    with torch.compiler.set_stance("force_eager"), capture(net) as taken:
        net(torch.ones(1, 4))
    assert torch.equal(taken["b"], out)
    with capture(net._orig_mod) as taken:
        net._orig_mod(torch.ones(1, 4))
    assert torch.equal(taken["b"], out)


def test_pitfall_07_fused_layers_run_layer_by_layer_while_they_are_captured() -> None:
    net = Encoder().eval()
    with torch.no_grad(), capture(net) as taken:
        net(batch())
    assert set(taken) >= {
        f"layers.layers.{n}.{part}" for n in (0, 1) for part in ("linear1", "norm2", "self_attn")
    }


def test_how_many_gradients_of_one_graph_are_waited_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Capture._follow.__module__], "_MOST_AHEAD", 5)
    net = nn.Linear(4, 4)
    with capture(net, gradients=True) as taken:
        x = batch()
        for _ in range(9):
            x = net(x)
        x.sum().backward()
        net(batch()).sum().backward()
    assert [taken.gradients("", call) is not None for call in range(10)] == [True] * 5 + [False] * 4 + [True]
    assert taken.refused == [
        ("", "gradients of 5 outputs were waited for, and no backward came: more are not taken")
    ]


def test_it_is_a_mapping() -> None:
    net = InPlaceModule()
    with capture(net) as taken:
        net(batch())
    assert isinstance(taken, Capture)
    assert dict(taken).keys() == taken.keys()
    assert taken.get("zzz") is None


def test_pitfall_28_nothing_is_kept_while_a_cuda_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording itself needs a GPU: tests/gpu/test_hooks_gpu.py."""
    monkeypatch.setattr(keeping, "_in_cuda_graph", lambda _: True)
    net = nn.Linear(4, 2)
    with capture(net, gradients=True) as taken:
        net(batch()).sum().backward()
    assert "a CUDA graph was being recorded" in repr(taken[""])
    assert taken.nbytes() == {"": 0}
