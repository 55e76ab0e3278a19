"""differentiable_eval(): eval outputs, a backward that works under cuDNN's rule, everything restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes


class Reader(nn.Module):
    """Everything that a mode changes, around and beside two RNNs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.4)
        self.rnn = nn.LSTM(6, 5, num_layers=3, dropout=0.5, batch_first=True, bidirectional=True)
        self.more = nn.ModuleList([nn.GRU(10, 4, num_layers=2, dropout=0.3, batch_first=True), nn.RReLU()])
        self.attend = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2))
        x = self.more[1](self.more[0](self.rnn(x)[0])[0])
        result: Tensor = self.head(self.attend(x, x, x)[0])
        return result


def a_reader() -> tuple[Reader, Tensor]:
    net, tokens = Reader(), torch.randint(0, 9, (3, 7))
    net.train()(tokens)  # so that the running statistics are not the initial ones
    return net, tokens


def state_of(net: nn.Module) -> list[Any]:
    """Modes, dropouts and hooks of every module."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return [
        (name, m.training, isinstance(m, nn.RNNBase) and m.dropout, [len(getattr(m, kind)) for kind in hooks])
        for name, m in net.named_modules()
    ]


def mixed(net: Reader) -> Reader:
    """A tree that no single train() or eval() can restore."""
    net.train()
    net.norm.eval()
    net.rnn.eval()
    return net


def test_outputs_are_those_of_eval_mode_and_backward_works() -> None:
    """In float64 to 1e-12, since a matmul may be folded otherwise; nothing random is drawn, no statistic moves."""
    net, tokens = a_reader()
    net.double()
    with torch.no_grad():
        expected = net.eval()(tokens)
    buffers = [b.clone() for b in net.buffers()]
    net.train()
    with modes.emulate_cudnn():
        with modes.differentiable_eval(net):
            random = torch.get_rng_state()
            out = net(tokens)
            assert torch.equal(torch.get_rng_state(), random)
        out.sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), buffers, strict=True))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_an_rnn_alone_gives_its_eval_outputs_bitwise(kind: Callable[..., nn.RNNBase]) -> None:
    rnn = kind(4, 3, num_layers=2, dropout=0.5)
    x = torch.randn(5, 2, 4)
    expected, _ = rnn.eval()(x)
    with modes.differentiable_eval(rnn):
        out, _ = rnn(x)
    assert torch.equal(out, expected)


def test_gradients_are_those_of_eval_mode_with_cudnn_off() -> None:
    net, tokens = a_reader()
    net.double().eval()
    with modes.emulate_cudnn():
        with torch.backends.cudnn.flags(enabled=False):
            expected = torch.autograd.grad(net(tokens).square().sum(), list(net.parameters()))
        with modes.differentiable_eval(net):
            loss = net(tokens).square().sum()
        got = torch.autograd.grad(loss, list(net.parameters()))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_inside_only_the_rnns_train_and_drop_nothing() -> None:
    net, _ = a_reader()
    with modes.differentiable_eval(mixed(net)) as same:
        assert same is net
        assert [name for name, m in net.named_modules() if m.training] == ["rnn", "more.0"]
        assert [m.dropout for m in net.modules() if isinstance(m, nn.RNNBase)] == [0.0, 0.0]


def test_every_module_gets_its_own_mode_and_dropout_back() -> None:
    net, _ = a_reader()
    before = state_of(mixed(net))
    with modes.differentiable_eval(net):
        assert state_of(net) != before
    assert state_of(net) == before


def test_restored_after_an_exception_and_when_nested() -> None:
    net, _ = a_reader()
    before = state_of(mixed(net))
    with modes.differentiable_eval(net):
        inside = state_of(net)
        with pytest.raises(KeyError), modes.differentiable_eval(net):
            raise KeyError(net.train())
        assert state_of(net) == inside
    assert state_of(net) == before


def test_decorator_sets_and_restores_at_each_call() -> None:
    net, tokens = a_reader()
    before = state_of(mixed(net))

    @modes.differentiable_eval(net)
    def saliency() -> Tensor:
        out: Tensor = net(tokens)
        return out

    with modes.emulate_cudnn():
        assert torch.equal(saliency(), saliency())
    assert state_of(net) == before


def test_overridden_train_and_eval_are_not_called() -> None:
    """Models use train() for their training loop, or merge weights in eval(); neither may happen here."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 3)

        def train(self, *_: object) -> None:  # type: ignore[override]
            raise AssertionError("the training loop was started")

        eval = train  # type: ignore[assignment]

    net = Odd()
    with modes.differentiable_eval(net):
        assert (net.training, net.rnn.training) == (False, True)
    assert (net.training, net.rnn.training) == (True, True)


def test_what_is_no_module_is_one_clear_error() -> None:
    with (
        pytest.raises(TypeError, match=r"^differentiable_eval\(\) takes an nn.Module, got list$"),
        modes.differentiable_eval([nn.GRU(4, 3)]),  # type: ignore[type-var]
    ):
        pass


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripted_rnns_are_refused_and_the_model_stays_as_it_was() -> None:
    net = nn.Sequential(nn.Dropout(0.5))
    net.add_module("rnn", torch.jit.script(nn.GRU(4, 3, num_layers=2, dropout=0.5)))
    with pytest.raises(TypeError, match="rnn is a scripted GRU"), modes.differentiable_eval(net):
        pass
    assert all(m.training for m in net.modules())
