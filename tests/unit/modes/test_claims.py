"""Claims A1 to A18 about the modes of a model: what is true of each. docs/claims.md names these tests and the verdicts.

All under cuDNN's rule, emulated. What only a GPU can show is asked there: tests/gpu/test_claims_gpu.py.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import copy
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.modes.situations import KINDS
from torchtap import modes
from torchtap.modes._torch import cudnn_rnn

ROOT = Path(__file__).resolve().parents[3]
REFUSED = r"^cudnn RNN backward can only be called in training mode$"


@pytest.fixture(autouse=True)
def _cudnn_rule() -> Iterator[None]:
    with modes.emulate_cudnn():
        yield


class Net(nn.Module):
    """A tagger: norm, dropout and a two-layer LSTM that drops too."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(dropout)
        self.rnn = nn.LSTM(4, 3, num_layers=2, dropout=dropout)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(x.transpose(1, 2)).transpose(1, 2))
        out: Tensor = self.head(self.rnn(x)[0])
        return out


def batch() -> Tensor:
    return torch.randn(5, 2, 4)


def refused() -> Any:
    return pytest.raises(RuntimeError, match=REFUSED)


def kept_bytes(module: nn.Module, x: Tensor) -> int:
    """How much the graph of one forward keeps for backward."""
    kept: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        module(x)
    return sum(kept.values())


# A1, A2: when it raises, and why


def test_a01_the_mode_at_the_forward_decides_and_not_at_backward() -> None:
    net = Net()
    loss = net.train()(batch()).sum()
    net.eval()
    loss.backward()
    loss = net.eval()(batch()).sum()
    net.train()
    with refused():
        loss.backward()


def test_a01_the_mode_of_the_rnn_itself_decides_and_not_the_models() -> None:
    net = Net().train()
    net.rnn.eval()
    with refused():
        net(batch()).sum().backward()
    net.eval().rnn.train()
    net(batch()).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a02_in_eval_mode_the_reserve_is_empty(kind: str) -> None:
    """The emulation's reserve, made by cuDNN's rule; on a GPU cuDNN's own: test_truths_hold_on_cudnn."""
    rnn = KINDS[kind](4, 3)
    sizes = {}
    for training in (True, False):
        node: Any = rnn.train(training)(batch())[0].grad_fn
        sizes[training] = node._saved_result3.numel()
    assert sizes[True] > 0
    assert sizes[False] == 0


# A3: what leads to it


def validate(net: nn.Module) -> None:
    net.eval()
    with torch.no_grad():
        net(batch())


def test_a03_validation_without_going_back_fails_in_the_next_step() -> None:
    net = Net().train()
    net(batch()).sum().backward()
    validate(net)
    with refused():
        net(batch()).sum().backward()


def test_a03_acting_in_eval_fails_only_where_the_update_reuses_that_forward() -> None:
    """Policy gradients of log-probabilities that were kept while acting; acting under no_grad is harmless."""
    policy = Net()
    policy.eval()
    while_acting = policy(batch()).log_softmax(0)[0].sum()
    policy.train()
    with refused():
        (-while_acting).backward()
    with modes.eval_mode(policy):
        policy(batch())
    policy(batch()).sum().backward()


def test_a03_one_gpu_in_eval_fails_alone() -> None:
    """A process of DistributedDataParallel has its own modes; the others then wait for its gradients."""
    ranks = [copy.deepcopy(Net().train()) for _ in range(3)]
    ranks[1].eval()
    for number, net in enumerate(ranks):
        loss = net(batch()).sum()
        if number == 1:
            with refused():
                loss.backward()
        else:
            loss.backward()


def test_a03_gradient_accumulation_is_no_trigger_by_itself() -> None:
    net = Net().train()
    for number in range(4):
        net(batch()).sum().backward()
        if number == 1:
            with modes.eval_mode(net):
                net(batch())


# A4, A5: what the modes change


def test_a04_train_turns_no_gradient_on() -> None:
    net = Net()
    net.head.requires_grad_(False)
    wanted = [p.requires_grad for p in net.parameters()]
    net.train()
    assert [p.requires_grad for p in net.parameters()] == wanted
    with torch.no_grad():
        net.train()
        assert not torch.is_grad_enabled()
        assert not net(batch()).requires_grad


def test_a04_eval_turns_no_gradient_off_and_keeps_the_graph() -> None:
    net = Net().eval()
    with modes.without_cudnn():
        out = net(batch())
    assert out.requires_grad
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh])
def test_a04_eval_saves_no_memory_but_that_of_what_the_mode_changes(act: Callable[[], nn.Module]) -> None:
    net, x = nn.Sequential(nn.Linear(4, 64), act(), nn.Linear(64, 64)), torch.randn(32, 4)
    assert kept_bytes(net.eval(), x) == kept_bytes(net.train(), x) > 0
    with torch.no_grad():
        assert kept_bytes(net, x) == 0


def test_a05_dropout_drops_and_batchnorm_moves_in_train_only() -> None:
    drop, norm, x = nn.Dropout(0.5), nn.BatchNorm1d(4), torch.randn(64, 4) + 3
    assert (drop.train()(x) == 0).any()
    assert torch.equal(drop.eval()(x), x)
    norm.train()(x)
    moved = norm.running_mean.clone()  # type: ignore[union-attr]
    assert not torch.equal(moved, torch.zeros(4))
    first, second = norm.eval()(x), norm(torch.cat([x, x * 9]))[:64]
    torch.testing.assert_close(first, second)
    assert torch.equal(norm.running_mean, moved)  # type: ignore[arg-type]


def test_a05_exceptions_no_running_statistics_and_functional_dropout() -> None:
    norm, x = nn.BatchNorm1d(4, track_running_stats=False).eval(), torch.randn(64, 4)
    assert not torch.allclose(norm(x)[:9], norm(x[:9]))  # the batch's statistics, in eval too

    class Functional(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5)  # training=True is its default

    assert (Functional().eval()(x) == 0).any()


# A6 to A9: habits and loops


def test_a06_train_at_the_head_of_each_epoch_avoids_it() -> None:
    net = Net()
    for _ in range(3):
        net.train()
        for _ in range(2):
            net(batch()).sum().backward()
        validate(net)


def test_a06_not_with_a_validation_within_the_epoch() -> None:
    net = Net()
    net.train()
    net(batch()).sum().backward()
    validate(net)
    with refused():
        net(batch()).sum().backward()


def test_a06_not_where_train_does_not_reach_the_rnn() -> None:
    class Cut(nn.Module):
        """Keeps its part in eval mode, as a frozen encoder."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = Net().eval()

        def train(self, mode: bool = True) -> Cut:
            self.training = mode
            return self

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    net = Cut()
    net.train()
    with refused():
        net(batch()).sum().backward()


class Critic(nn.Module):
    """Values states and actions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(torch.cat([states, actions], 2))[0])
        return out


def test_a07_a_critic_in_train_with_a_target_in_eval_is_updated() -> None:
    critic, states, actions = Critic(), batch(), torch.randn(5, 2, 1)
    target = copy.deepcopy(critic)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    before = [p.clone() for p in critic.parameters()]
    critic.train()
    with modes.eval_mode(target):
        wanted = target(states, actions) + 1
    nn.functional.mse_loss(critic(states, actions), wanted).backward()
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(critic.parameters(), before, strict=True))


def test_a07_the_actors_update_needs_the_critic_in_train_too() -> None:
    """Its gradient flows through the critic, whose parameters need none."""
    actor, critic, states = nn.Linear(4, 1), Critic().requires_grad_(False).eval(), batch()
    with refused():
        (-critic(states, actor(states)).mean()).backward()
    with modes.differentiable_eval(critic):
        loss = -critic(states, actor(states)).mean()
    loss.backward()
    assert actor.weight.grad is not None


def test_a08_each_micro_batch_decides_for_itself() -> None:
    """Its own forward in train mode is enough: what is between forwards, and the mode at backward, do not matter."""
    net = Net()
    losses = []
    for _ in range(3):
        net.train()
        losses.append(net(batch()).sum())
        net.eval()
    for loss in losses:
        loss.backward()
    with refused():
        net(batch()).sum().backward()


def test_a08_the_gradients_gathered_before_the_error_remain() -> None:
    net = Net().train()
    net(batch()).sum().backward()
    gathered = [p.grad.clone() for p in net.rnn.parameters() if p.grad is not None]
    net.eval()
    with refused():
        net(batch()).sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(net.rnn.parameters(), gathered, strict=True))  # type: ignore[arg-type]
    assert net.head.bias.grad == 20  # the head's have counted the second batch already


@pytest.mark.parametrize("through_wrapper", [True, False])
def test_a09_every_replica_is_made_anew_in_the_modes_of_the_module(
    through_wrapper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own replicate(), the copies to GPUs left out."""
    replicate = importlib.import_module(
        "torch.nn.parallel.replicate"
    )  # the package has a function of that name
    monkeypatch.setattr(
        replicate,
        "_broadcast_coalesced_reshape",
        lambda tensors, devices, detach: [list(tensors)] * len(devices),
    )
    net = Net().eval()
    wrapper = nn.DataParallel(net)
    (wrapper if through_wrapper else wrapper.module).train()
    net.drop.eval()
    for replica in replicate.replicate(net, [0, 1]):
        assert replica is not net
        assert [m.training for m in replica.modules()] == [m.training for m in net.modules()]
        assert replica.training
        assert not replica.drop.training
        replica.eval()  # is lost with the replica
    assert net.training
    assert wrapper.module is net


# A10 to A12: finding the cause


def test_a10_printing_the_models_mode_before_backward_shows_the_wrong_thing() -> None:
    """(what is printed, whether backward raises): one says nothing about the other."""
    seen = []
    for forward, backward in ((True, True), (True, False), (False, True)):
        net = Net().train(forward)
        loss = net(batch()).sum()
        net.train(backward)
        seen.append((net.training, bool(modes.check_backward(loss, net))))
    net = Net()
    net.rnn.eval()
    seen.append((net.training, bool(modes.check_backward(net(batch()).sum(), net))))
    assert seen == [(True, False), (False, False), (True, True), (True, True)]


def test_a10_check_backward_names_the_module() -> None:
    net = Net().eval()
    loss = net(batch()).sum()
    net.train()
    (finding,) = modes.check_backward(loss, net).findings
    assert finding.where == "rnn"


def apart(net: nn.Module) -> list[str]:
    """What the claim proposes."""
    return [
        name for name, m in net.named_modules() if isinstance(m, nn.RNNBase) and m.training != net.training
    ]


def test_a11_looking_at_every_rnn_finds_one_set_apart_before_the_forward_only() -> None:
    net = Net()
    net.rnn.eval()
    assert apart(net) == ["rnn"]
    loss = net(batch()).sum()
    net.train()
    assert apart(net) == []  # too late
    with refused():
        loss.backward()


def test_a11_not_where_the_whole_model_is_in_eval_nor_in_plain_lists() -> None:
    net = Net().eval()
    assert apart(net) == []
    with refused():
        net(batch()).sum().backward()
    hidden, gru = Net(), nn.GRU(4, 4).eval()
    hidden.layers = [gru]  # type: ignore[assignment]
    assert apart(hidden) == []
    with refused():
        gru(batch())[0].sum().backward()


PROGRAM = """
import torch
from torchtap import modes
with modes.emulate_cudnn():
    loss = torch.nn.LSTM(2, 2).eval()(torch.zeros(3, 1, 2))[0].sum()
    try:
        loss.backward()
    except RuntimeError as error:
        print(type(error).__name__, error)
"""


def test_a12_launch_blocking_changes_nothing_in_the_emulation() -> None:
    """The check is made on the host, from a flag in the graph, before any kernel is started."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_LAUNCH_BLOCKING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "RuntimeError cudnn RNN backward can only be called in training mode\n"


def test_a12_the_flag_stands_in_the_graph_before_backward() -> None:
    out = Net().eval().rnn(batch())[0]
    assert out.grad_fn._saved_train is False


def test_a12_anomaly_mode_is_what_names_the_forwards_line() -> None:
    net = Net().eval()
    with (
        pytest.warns(UserWarning, match="Traceback of forward call") as warned,
        torch.autograd.set_detect_anomaly(True),
        refused(),
    ):
        net(batch()).sum().backward()
    text = "\n".join(str(warning.message) for warning in warned)
    assert "Error detected in CudnnRnnBackward0" in text
    assert "self.head(self.rnn(x)[0])" in text


# A13 to A15: ways around it


def test_a13_only_the_rnn_in_train_is_inference_where_it_drops_nothing() -> None:
    for layers, dropout, same in ((2, 0.0, True), (1, 0.0, True), (2, 0.5, False)):
        rnn, x = nn.LSTM(4, 3, layers, dropout=dropout), batch()
        expected, _ = rnn.eval()(x)
        rnn.train()
        assert torch.equal(rnn(x)[0], expected) is same
        assert torch.equal(rnn(x)[0], rnn(x)[0]) is same


def test_a13_it_works_only_before_the_forward_and_for_all_rnns() -> None:
    net = Net(dropout=0.0).eval()
    loss = net(batch()).sum()
    net.rnn.train()
    with refused():
        loss.backward()
    two = nn.ModuleList([nn.LSTM(4, 4), nn.GRU(4, 4)]).eval()
    two[0].train()
    with refused():
        two[1](two[0](batch())[0])[0].sum().backward()


def test_a13_differentiable_eval_gives_eval_outputs_with_dropout_too() -> None:
    net, x = Net().eval(), batch()
    with torch.no_grad():
        expected = net(x)
    with modes.differentiable_eval(net):
        out = net(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()


def test_a14_cudnn_off_solves_it_at_the_forward_and_not_at_backward() -> None:
    net = Net().eval()
    with modes.without_cudnn():
        loss = net(batch()).sum()
    loss.backward()
    loss = net(batch()).sum()
    with modes.without_cudnn(), refused():
        loss.backward()


def test_a15_cells_in_a_loop_know_no_such_rule_and_give_the_same() -> None:
    """In either mode, second derivatives too, which cuDNN's RNN refuses."""
    rnn, cell = nn.LSTM(4, 3).double(), nn.LSTMCell(4, 3).double()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, getattr(rnn, f"{name}_l0"))
    x = batch().double().requires_grad_()
    for training in (True, False):
        state, steps = None, []
        for features in x:
            state = cell.train(training)(features, state)
            steps.append(state[0])
        out = torch.stack(steps)
        torch.testing.assert_close(out, rnn(x)[0], rtol=0, atol=1e-12)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        grad.square().sum().backward()
    (grad,) = torch.autograd.grad(rnn.train()(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="Double backwards is not supported for CuDNN RNNs"):
        grad.square().sum().backward()


# A16 to A18: what the modes do not do


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a16_an_optimizer_does_not_look_at_modes(kind: Callable[..., torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    twins = [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)) for _ in range(2)]
    twins[1].load_state_dict(twins[0].state_dict())
    start = [p.clone() for p in twins[0].parameters()]
    x = torch.randn(8, 4)
    for net, training in zip(twins, (True, False), strict=True):
        optimizer = kind(net.parameters(), lr=0.1)
        net.train(training)
        net(x).square().sum().backward()
        optimizer.step()
    for trained, evaluated, before in zip(twins[0].parameters(), twins[1].parameters(), start, strict=True):
        assert torch.equal(trained, evaluated)
        assert not torch.equal(evaluated, before)


def test_a16_it_leaves_silently_what_has_no_gradient_whatever_the_mode() -> None:
    """The likely origin of the claim: no backward reached the parameters."""
    net = nn.Linear(4, 1).train()
    before = [p.clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.no_grad():
        net(torch.randn(8, 4))
    optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_a17_a_forgotten_eval_makes_results_random_and_moves_statistics_under_no_grad_too() -> None:
    net, x = Net().train(), batch()
    assert net.norm.running_mean is not None
    before = net.norm.running_mean.clone()
    with torch.no_grad():
        assert not torch.equal(net(x), net(x))
        assert not torch.equal(net.norm.running_mean, before)
        net.eval()
        assert torch.equal(net(x), net(x))


def test_a17_modules_without_a_mode_are_the_same_in_both() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GRU(4, 3)), torch.randn(5, 2, 4)
    assert torch.equal(net.train()(x)[0], net.eval()(x)[0])


def reserve_of(rnn: nn.LSTM, x: Tensor) -> Tensor:
    """What cuDNN keeps, asked of the operator itself: under no_grad there is no graph to look into."""
    state = torch.zeros(rnn.num_layers, x.shape[1], rnn.hidden_size)
    sizes = (2, rnn.hidden_size, 0, rnn.num_layers)  # 2: an LSTM; 0: no projection
    flags = (False, 0.0, rnn.training, False)  # batch_first, dropout, train, bidirectional
    reserve: Tensor = cudnn_rnn(x, list(rnn.parameters()), 4, None, state, state, *sizes, *flags, (), None)[3]
    return reserve


def cells_of_the_table(training: bool, grad: bool) -> dict[str, bool]:
    """The columns of the claim's table, as they are for a model that is in this mode with gradients on or off."""
    net, x = Net().train(training), batch()
    before = net.norm.running_mean.clone()  # type: ignore[union-attr]
    with torch.set_grad_enabled(grad):
        out = net(x)
        drops = not torch.equal(net.drop(x), x)
        reserve = reserve_of(net.rnn, x)
    return {
        "gradients": out.requires_grad,
        "dropout": drops,
        "batchnorm": not torch.equal(net.norm.running_mean, before),  # type: ignore[arg-type]
        "reserve": reserve.numel() > 0,
    }


def test_a18_eval_and_no_grad_are_different_things_the_whole_table() -> None:
    """`train()` itself turns no gradient on (A4). Rows: mode, gradients on."""
    active = {"dropout": True, "batchnorm": True, "reserve": True}
    still = {"dropout": False, "batchnorm": False, "reserve": False}
    assert cells_of_the_table(True, True) == {"gradients": True, **active}
    assert cells_of_the_table(False, True) == {"gradients": True, **still}
    assert cells_of_the_table(True, False) == {"gradients": False, **active}
    assert cells_of_the_table(False, False) == {"gradients": False, **still}


def test_each_claim_is_shown_by_its_own_tests_and_no_test_is_forgotten() -> None:
    """docs/claims.md and this file in step; that the tests exist is checked with the other pages' (test_promises)."""
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    verdicts = ("**True.**", "**False.**", "**True only if**", "**Half true.**")
    named: list[str] = []
    for row in re.finditer(r"^\| A(\d+) \|(.*)\|(.*)\|(.*)\|$", page, re.MULTILINE):
        number, _, here, shown = (cell.strip() for cell in row.groups())
        assert here.startswith(verdicts), f"A{number} has no verdict"
        own = re.findall(rf"`(test_a{int(number):02}_\w+)`", shown)
        assert own, f"A{number} has no test of its own"
        assert re.findall(r"`(test_a\d+_\w+)`", shown) == own, f"A{number} names another claim's test"
        named += own
    files = [Path(__file__), ROOT / "tests" / "gpu" / "test_claims_gpu.py"]
    written = [
        name for file in files for name in re.findall(r"^def (test_a\d+_\w+)", file.read_text(), re.MULTILINE)
    ]
    assert sorted(named) == sorted(written)
