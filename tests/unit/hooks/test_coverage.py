"""What was hooked and never ran, with the reason."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.hooks.nets import Encoder, batch
from torchtap.hooks import capture, coverage, select
from torchtap.hooks.coverage import FUSED, REASONS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.bypassed = nn.Linear(4, 4)
        self.functional = nn.Linear(4, 4)
        self.forgotten = nn.Linear(4, 4)
        self.skipped = nn.Linear(4, 4)
        self.branch = nn.Sequential(nn.Linear(4, 4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.attention = nn.MultiheadAttention(4, 1)

    def forward(self, x: Tensor, branch: bool = False) -> Tensor:
        x = self.bypassed.forward(self.used(x))
        x = nn.functional.linear(x, self.functional.weight, self.functional.bias)
        if branch:
            x = self.branch(self.skipped(x))
        x = self.blocks[0](x)
        out: Tensor = self.attention(x, x, x)[0]
        return out


def reasons(net: nn.Module, *given: Any, layers: Any = "all") -> dict[str, str]:
    with capture(net, layers) as taken:
        net(*given)
    calls = {name: len(taken.calls(name)) for name in taken}
    return {unseen.name: unseen.reason for unseen in coverage(net, select(net, layers), calls)}


SKIPPED = (
    "Net ran without it: it was skipped this time, its forward was called directly, or its weights were used by a "
    "fused or functional operation"
)
EXPECTED = {
    "bypassed": "Net calls self.bypassed.forward(...), which runs no hooks: call self.bypassed(...)",
    "functional": "Net uses self.functional.bias, weight in a function of its own and does not call self.functional",
    "forgotten": "Net does not mention self.forgotten in its forward: it is not used, or used by something else",
    "skipped": SKIPPED,
    "branch": SKIPPED,
    "branch.0": "not reached: branch, which holds it, did not run either",
    "blocks": "ModuleList holds modules or parameters and is never called: watch what it holds",
    "blocks.1": SKIPPED,
    "attention.out_proj": "MultiheadAttention uses its weights in a fused function and does not call it: "
    "watch attention instead",
}


def test_pitfalls_09_and_10_each_layer_that_never_ran_has_its_reason() -> None:
    assert reasons(Net(), batch()) == EXPECTED


def test_without_the_model_itself_hooked_it_is_the_same() -> None:
    leaves = {
        name: why for name, why in EXPECTED.items() if name not in ("blocks", "branch", "attention.out_proj")
    }
    assert reasons(Net(), batch(), layers=None) == leaves


def test_a_model_that_was_not_called() -> None:
    net = nn.Sequential(nn.Linear(1, 1))
    (unseen,) = coverage(net, select(net), {})
    assert unseen[:2] == ("0", "Linear")
    assert unseen.reason.startswith("nothing of the model ran while it was watched")


def test_a_script_module() -> None:
    net = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)))
    assert reasons(net, batch())["1"].startswith("not hooked: it is a ScriptModule")


@pytest.mark.usefixtures("_fresh_dynamo")
def test_pitfall_11_a_model_that_was_compiled_before() -> None:
    net: Any = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")
    net(batch())
    assert reasons(net, batch(), layers="0")["0"].startswith("not hooked: torch.compile has compiled it")


def test_pitfall_07_a_fused_layer_that_runs_unfused_while_hooked() -> None:
    net = Encoder().eval()
    with torch.no_grad():
        found = reasons(net, batch(), layers=None)
    assert found.pop("layers.layers.0") == found.pop("layers.layers.1") == FUSED
    assert found == {}
    assert reasons(Encoder(), batch(), layers=None) == {}, "in train mode it is never fused"


def test_names_are_those_without_wrappers() -> None:
    net: nn.Module = nn.DataParallel(Net())
    assert reasons(net, batch()) == EXPECTED


def test_every_reason_is_reached_by_a_test() -> None:
    texts = [*EXPECTED.values(), "nothing of the model ran", "not hooked: "]
    for _, text in REASONS:
        head = text.split("{", 1)[0]
        tail = text.rsplit("}", 1)[-1]
        assert any(
            each.startswith(head[:20]) and (each.endswith(tail) or len(each) < 30) for each in texts
        ), text


def test_calls_of_zero_are_none() -> None:
    net = Net()
    assert coverage(net, select(net, "used"), {"used": 0, "": 1})[0].name == "used"
    assert coverage(net, select(net, "used"), {"used": 1}) == []
