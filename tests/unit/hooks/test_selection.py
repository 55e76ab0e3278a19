"""Which modules `select` gives, under which names, and what it says where it finds none."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from torchtap.hooks import PatternError, select


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.query(x))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.attn(x))
        return out


class Net(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Sequential(OrderedDict(drop=nn.Dropout(), out=nn.Linear(4, 2)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def names(model: nn.Module, layers: Any = None, **options: Any) -> list[str]:
    return [layer.name for layer in select(model, layers, **options)]


def per_block(*parts: str, blocks: int = 3) -> list[str]:
    return [f"blocks.{number}.{part}" for number in range(blocks) for part in parts]


def test_what_runs_and_has_no_children_is_chosen_by_itself() -> None:
    assert names(Net()) == ["embed", *per_block("attn.query", "attn.out", "norm"), "head.drop", "head.out"]


def test_a_model_without_children_is_its_own_layer() -> None:
    (layer,) = select(nn.LSTM(2, 2))
    assert (layer.name, layer.names, layer.kind) == ("", ("",), "LSTM")


def test_multihead_attention_is_one_layer_as_its_out_proj_never_runs() -> None:
    assert "self_attn" in names(nn.TransformerEncoderLayer(4, 2))
    assert "self_attn.out_proj" not in names(nn.TransformerEncoderLayer(4, 2))
    assert names(nn.TransformerEncoderLayer(4, 2), "**.out_proj") == ["self_attn.out_proj"]


def test_what_only_holds_is_left_out_unless_asked_for() -> None:
    net = nn.ModuleDict(
        {"none": nn.ModuleList(), "weights": nn.ParameterList([torch.ones(1)]), "act": nn.ReLU()}
    )
    assert names(net) == ["act"]
    assert names(net, "all") == ["", "none", "weights", "act"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("embed", ["embed"]),
        ("", [""]),
        ("*", ["embed", "blocks", "head"]),
        ("blocks.*", ["blocks.0", "blocks.1", "blocks.2"]),
        ("blocks.*.attn", per_block("attn")),
        ("blocks.**", per_block("", "attn", "attn.query", "attn.out", "norm")),
        ("**.attn", per_block("attn")),
        ("**.out", [*per_block("attn.out"), "head.out"]),
        ("**.head", ["head"]),
        ("**.attn.**", per_block("attn.query", "attn.out")),
        ("blocks.[0-1].norm", per_block("norm", blocks=2)),
        ("blocks.[!0].norm", ["blocks.1.norm", "blocks.2.norm"]),
        ("blocks.?.norm", per_block("norm")),
        ("h*", ["head"]),
        (["embed", "head.out"], ["embed", "head.out"]),
        (["head.out", "embed"], ["embed", "head.out"]),
        (["blocks.**", "!blocks.*", "!**.attn.*"], per_block("attn", "norm")),
        (["!blocks.**"], ["embed", "head.drop", "head.out"]),
        ("!blocks.**", ["embed", "head.drop", "head.out"]),
        (nn.LayerNorm, per_block("norm")),
        ([nn.LayerNorm, nn.Dropout, "!blocks.0.**"], ["blocks.1.norm", "blocks.2.norm", "head.drop"]),
        (lambda name, _: name.endswith("out"), [*per_block("attn.out"), "head.out"]),
    ],
    ids=str,
)  # fmt: skip
def test_layers(pattern: Any, expected: list[str]) -> None:
    assert names(Net(), pattern) == [name.rstrip(".") for name in expected]


def test_letters_that_mean_something_elsewhere_stand_for_themselves() -> None:
    net = nn.ModuleDict({"a+b": nn.ReLU(), "aab": nn.ReLU(), "(x)": nn.ReLU(), "bücher": nn.ReLU()})
    assert names(net, "a+b") == ["a+b"]
    assert names(net, "(x)") == ["(x)"]
    assert names(net, "b?cher") == ["bücher"]


def test_depth_takes_nothing_deeper_and_what_is_there_as_wholes() -> None:
    assert names(Net(), depth=1) == ["embed", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert names(Net(), depth=0) == [""]
    assert names(Net(), nn.Linear, depth=2) == ["embed", "head.out"]


def test_blocks() -> None:
    assert names(Net(), blocks="each") == ["blocks.0", "blocks.1", "blocks.2"]
    assert names(Net(), blocks="first") == ["blocks.0"]
    assert names(Net(), nn.Linear, blocks="last") == ["blocks.2.attn.query", "blocks.2.attn.out"]
    stages = nn.Sequential(
        nn.Sequential(Block(), Block()),
        nn.ReLU(),
        nn.Sequential(Block(), nn.Sequential(nn.ReLU(), nn.ReLU())),
    )
    assert names(stages, blocks="last") == ["0.1", "2.1.1"]
    assert names(nn.Sequential(Block(), Block()), blocks="first") == ["0"], (
        "the blocks within a block are not rows"
    )


def test_a_shared_module_is_one_layer_of_all_its_names() -> None:
    shared = Block()
    net = nn.ModuleDict({"a": shared, "b": nn.ModuleDict({"c": shared})})
    assert names(net) == ["a.attn.query", "a.attn.out", "a.norm"]
    assert [layer.names for layer in select(net, "b.c.norm")] == [("a.norm", "b.c.norm")]


def test_sharing_within_sharing_is_bounded() -> None:
    net: nn.Module = nn.ReLU()
    for _ in range(40):
        net = nn.ModuleDict({"a": net, "b": net})
    (layer,) = select(net, nn.ReLU)
    assert 1 < len(layer.names) <= 64


def test_a_module_that_holds_itself_is_no_endless_name() -> None:
    net = nn.Sequential(nn.ReLU())
    net.add_module("me", net)
    assert names(net, "all") == ["", "0"]


def wrappers(net: nn.Module) -> dict[str, nn.Module]:
    inside = Net()
    compiled: Any = torch.compile(net)
    inside.blocks[1] = checkpoint_wrapper(inside.blocks[1])
    return {
        "DataParallel": nn.DataParallel(net),
        "compile": compiled,
        "AveragedModel": AveragedModel(net),
        "both": nn.DataParallel(compiled),
        "checkpoint_wrapper": inside,
    }


@pytest.mark.parametrize("wrapper", sorted(wrappers(Net())))
def test_pitfall_19_names_are_those_without_the_wrapper(wrapper: str) -> None:
    wrapped = wrappers(Net())[wrapper]
    assert names(wrapped) == names(Net())
    assert names(wrapped, "all") == names(Net(), "all")
    raw = next(name for name, _ in wrapped.named_modules() if ".1." in name and name.endswith("norm"))
    assert names(wrapped, raw) == ["blocks.1.norm"], "as named_modules() has it, it is understood too"


def test_a_part_that_the_user_calls_module_keeps_its_name() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Sequential(nn.ReLU())

    assert names(Mine()) == ["module.0"]


def test_a_parametrized_layer_is_the_layer_that_its_user_wrote() -> None:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.ReLU())
    assert [(layer.name, layer.kind) for layer in select(net)] == [("0", "Linear"), ("1", "ReLU")]


def test_pitfall_30_shared_modules_have_all_names() -> None:
    cell = nn.GRUCell(2, 2)
    (layer,) = select(nn.ModuleList([cell, cell]))
    assert layer.names == ("0", "1")


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (
            "blocks.*.atn",
            'no module matches layers="blocks.*.atn"\n  Net has 21 modules; nearest: blocks.*.attn',
        ),
        ("embd", 'no module matches layers="embd"\n  Net has 21 modules; nearest: embed'),
        ("decoder.attn", "; nearest: blocks.0.attn"),
        ("Linear", "; Linear is the class of 8 of them: give the class, not its name"),
        ("zzz", "; the first are embed, blocks, blocks.0"),
        (
            nn.Conv2d,
            "no module matches layers=Conv2d\n  Net has 21 modules of these classes: Linear (8), Block (3)",
        ),
        (["embed", "!embd"], 'no module matches layers="!embd"'),
        (lambda name, module: False, "it is true for none"),
        (["embed", "!embed"], "nothing is left of 21 modules"),
    ],
    ids=str,
)
def test_what_matches_nothing_is_an_error_that_says_what_comes_near(layers: Any, told: str) -> None:
    with pytest.raises(PatternError) as error:
        select(Net(), layers)
    assert told in str(error.value)


def test_no_repeated_blocks() -> None:
    with pytest.raises(PatternError, match="Linear has no repeated blocks"):
        select(nn.Linear(1, 1), blocks="each")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "told"),
    [
        ((3,), {}, TypeError, "layers: expected None.* got an instance of int"),
        (([3],), {}, TypeError, "got an instance of int"),
        ((nn.ReLU(),), {}, TypeError, "got an instance of ReLU"),
        ((int,), {}, TypeError, "got int"),
        (([None],), {}, TypeError, "got an instance of NoneType"),
        ((), {"depth": -1}, ValueError, "depth: expected None or a number of names, 0 or more, got -1"),
        ((), {"depth": True}, ValueError, "depth"),
        (
            (),
            {"blocks": "middle"},
            ValueError,
            "blocks: expected None or one of first, last, each, got 'middle'",
        ),
    ],
)
def test_arguments_that_are_none(arguments: Any, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        select(Net(), *arguments, **options)


def test_a_model_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"model: expected an nn\.Module, got an instance of function"):
        select(lambda x: x)  # type: ignore[arg-type]


def test_selecting_changes_nothing_and_runs_nothing() -> None:
    net = Net()
    before = {key: dict(vars(module)) for key, module in net.named_modules()}
    state = torch.get_rng_state()
    select(net, ["**", "!blocks.0"], depth=2)
    assert {key: dict(vars(module)) for key, module in net.named_modules()} == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_half_made_module_is_no_reason_to_fail() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            pass

        def forward(self, x: Tensor) -> Tensor:
            return x

    net = nn.Module()
    net.whole = nn.ReLU()
    net._modules["half"] = Half()
    assert names(net) == ["whole", "half"]


def test_depth_of_names_is_not_bounded_by_ours() -> None:
    net: nn.Module = nn.ReLU()
    for _ in range(sys.getrecursionlimit() // 5):
        net = nn.Sequential(net)
    assert len(select(net)) == 1
