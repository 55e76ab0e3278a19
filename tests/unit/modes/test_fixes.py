"""The fixes: what each one does inside, and that everything is restored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtap import modes
from torchtap.modes._observer import OBSERVER
from torchtap.modes._scope import Scope


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


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripted_rnns_are_refused_and_the_model_stays_as_it_was() -> None:
    net = nn.Sequential(nn.Dropout(0.5))
    net.add_module("rnn", torch.jit.script(nn.GRU(4, 3, num_layers=2, dropout=0.5)))
    with pytest.raises(TypeError, match="rnn is a scripted GRU"), modes.differentiable_eval(net):
        pass
    assert all(m.training for m in net.modules())


# What holds for every fix that takes a model


Fix = Callable[..., Scope[Any]]
FIXES: dict[str, Fix] = {
    "eval_mode": modes.eval_mode,
    "inference": lambda *models: modes.eval_mode(*models, inference=True),
    "preserve_modes": modes.preserve_modes,
    "differentiable_eval": modes.differentiable_eval,
}
every_fix = pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES)


@every_fix
def test_every_fix_restores_each_modules_own_mode(fix: Fix) -> None:
    """Whatever is done inside; the root's mode, too, that a literal train() would get right."""
    net, _ = a_reader()
    before = state_of(mixed(net))
    for change in (net.train, net.eval, net.norm.train, net.more.eval):
        with fix(net) as same:
            assert same is net
            change()
        assert state_of(net) == before


@every_fix
def test_every_fix_restores_after_an_exception_when_nested_and_entered_again(fix: Fix) -> None:
    net, _ = a_reader()
    before = state_of(mixed(net))
    scope = fix(net)
    with scope:
        inside = state_of(net)
        for inner in (scope, *(other(net) for other in FIXES.values())):
            with pytest.raises(KeyError), inner:
                raise KeyError(net.train())
            assert state_of(net) == inside
    assert state_of(net) == before
    with scope:
        assert state_of(net) == inside
    assert state_of(net) == before


@every_fix
@pytest.mark.parametrize("other", FIXES.values(), ids=FIXES)
def test_fixes_left_in_another_order_than_entered_give_back_what_was_there_first(
    fix: Fix, other: Fix
) -> None:
    """As threads do; the one that is still open keeps its modes meanwhile."""
    net, _ = a_reader()
    before = state_of(mixed(net))
    first, second = fix(net), other(net)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        one.submit(first.__enter__).result()
        two.submit(second.__enter__).result()
        inside = [module.training for module in net.modules()]
        one.submit(first.__exit__, None, None, None).result()
        assert [module.training for module in net.modules()] == inside
        two.submit(second.__exit__, None, None, None).result()
    assert state_of(net) == before


@every_fix
def test_threads_that_use_one_fix_at_once_give_back_what_was_there_first(fix: Fix) -> None:
    net, _ = a_reader()
    before = state_of(mixed(net))
    scope = fix(net)

    def validate() -> None:
        for _ in range(20):
            with scope:
                time.sleep(0.0005)

    threads = [threading.Thread(target=validate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state_of(net) == before


@every_fix
def test_every_fix_decorates_functions_and_refuses_generators(fix: Fix) -> None:
    net, _ = a_reader()
    before = state_of(mixed(net))

    @fix(net)
    def inside() -> list[Any]:
        return state_of(net)

    with fix(net):
        expected = state_of(net)
    assert inside() == inside() == expected
    assert state_of(net) == before
    with pytest.raises(
        TypeError, match=r"cannot decorate .*batches, a generator: its body runs after the call"
    ):

        @fix(net)
        def batches() -> Iterator[int]:
            yield 1


@every_fix
def test_every_fix_takes_several_models_and_yields_the_first(fix: Fix) -> None:
    actor, critic = mixed(a_reader()[0]), a_reader()[0]
    before = state_of(actor), state_of(critic)
    with fix(actor, critic) as first:
        assert first is actor
        actor.eval()
        critic.train().norm.eval()
    assert (state_of(actor), state_of(critic)) == before


@every_fix
def test_modules_taken_out_are_restored_and_those_put_in_keep_their_mode(fix: Fix) -> None:
    net = mixed(a_reader()[0])
    out = net.drop
    with fix(net):
        net.drop = nn.Dropout().eval()
        out.eval()
    assert (out.training, net.drop.training) == (True, False)


@every_fix
def test_shared_modules_are_restored_once_and_those_in_plain_lists_not_touched(fix: Fix) -> None:
    shared = nn.Dropout()
    net = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared)).train()
    hidden = nn.Dropout()
    net.plain = [hidden]  # type: ignore[assignment]
    shared.eval()
    with fix(net):
        net.eval()
        assert hidden.training
        hidden.eval()
        net[0].train()
    assert [m.training for m in net.modules()] == [True, True, False, True]
    assert not hidden.training


@every_fix
def test_values_that_are_no_bool_come_back_as_they_were(fix: Fix) -> None:
    """`m.training = 0` is accepted silently by PyTorch; train(0) is not."""
    net = nn.Sequential(nn.Dropout(), Merging())
    for part in net:
        part.training = 0  # type: ignore[assignment]
    with fix(net):
        net.train()
    assert [part.training for part in net] == [0, 0]
    assert {type(part.training) for part in net} == {int}


@every_fix
def test_models_on_meta_and_wrapped_models_are_restored(fix: Fix) -> None:
    with torch.device("meta"):
        net = mixed(Reader())
    before = state_of(net)
    wrappers: list[Any] = [net, nn.DataParallel(net), torch.compile(net, backend="eager")]
    for wrapped in wrappers:
        with fix(wrapped):
            net.eval()
            net.norm.train()
        assert state_of(net) == before
        assert wrapped.training


@every_fix
def test_a_distributed_model_is_restored(fix: Fix) -> None:
    with one_process_group():
        net = mixed(a_reader()[0])
        before = state_of(net)
        with fix(nn.parallel.DistributedDataParallel(net)) as wrapped:
            wrapped.eval()
        assert state_of(net) == before
        assert wrapped.training


@contextmanager
def one_process_group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


# eval_mode


def test_eval_mode_is_eval_without_gradients_in_this_thread_only() -> None:
    net, tokens = a_reader()
    mixed(net)
    with modes.eval_mode(net):
        assert not any(m.training for m in net.modules())
        assert not torch.is_grad_enabled()
        out = net(tokens)
        assert not out.requires_grad
        with ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(lambda: (torch.is_grad_enabled(), net.training)).result()
    assert elsewhere == (True, False)  # gradients belong to the thread, the mode to the module
    assert torch.is_grad_enabled()
    assert net(tokens).requires_grad
    assert torch.equal(out, net.eval()(tokens))


def test_eval_mode_restores_the_grad_mode_that_it_found() -> None:
    net, _ = a_reader()
    with torch.no_grad():
        with modes.eval_mode(net), torch.enable_grad():
            pass
        assert not torch.is_grad_enabled()


def test_eval_mode_with_inference_gives_inference_tensors_and_no_grad_does_not() -> None:
    net, tokens = a_reader()
    with modes.eval_mode(net, inference=True):
        assert net(tokens).is_inference()
    with modes.eval_mode(net):
        assert not net(tokens).is_inference()
    assert not torch.is_inference_mode_enabled()
    net(tokens).sum().backward()


class Merging(nn.Linear):
    """As LoRA layers do: eval() merges the weights for speed, train() takes them apart."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.merged = False
        self.calls: list[bool] = []

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        self.calls.append(mode)
        self.merged = not mode
        self.cache = self.weight * 2
        return self


@pytest.mark.parametrize("fix", [modes.eval_mode, modes.preserve_modes, FIXES["inference"]])
def test_side_effects_of_an_overridden_train_are_undone(fix: Fix) -> None:
    """Writing `training` back alone would leave a merged layer in train mode, which then learns nothing."""
    net = nn.Sequential(Merging(), nn.Sequential(Merging().eval(), nn.Dropout()), Merging())
    layers = [m for m in net.modules() if isinstance(m, Merging)]
    with fix(net):
        net.eval()
        assert [m.merged for m in layers] == [True] * 3
    assert [(m.training, m.merged) for m in layers] == [(True, False), (False, True), (True, False)]


def test_an_overridden_train_runs_outside_of_inference_mode() -> None:
    """What it keeps may be needed in training."""
    layer = Merging()
    with modes.eval_mode(layer, inference=True):
        assert not layer.cache.is_inference()
        assert layer.cache.requires_grad
    assert not layer.cache.is_inference()
    assert layer.cache.requires_grad


def test_where_no_mode_changes_no_train_is_called() -> None:
    net = nn.Sequential(Merging())
    for fix in (modes.preserve_modes, modes.differentiable_eval):
        with fix(net):
            pass
    assert net[0].calls == []


def test_eval_mode_leaves_what_an_override_decides() -> None:
    """Dropout that samples in eval mode on purpose, below a model whose override says so."""

    class Sampling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout()

        def train(self, mode: bool = True) -> Sampling:
            super().train(mode)
            self.drop.train()
            return self

    net = Sampling().eval()
    with modes.eval_mode(net):
        assert (net.training, net.drop.training) == (False, True)
    assert (net.training, net.drop.training) == (False, True)


@pytest.mark.parametrize("wrong", ["raises", "takes no mode"])
def test_an_eval_that_fails_halfway_leaves_every_mode_as_it_was(wrong: str) -> None:
    class Odd(nn.Module):
        def train(self, *mode: bool) -> Odd:
            if wrong == "raises" or mode:
                raise TypeError("train() takes 1 positional argument but 2 were given")
            return self

    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval(), Odd(), nn.Dropout())
    with pytest.raises(TypeError, match="takes 1 positional argument"), modes.eval_mode(net):
        raise AssertionError("not reached")
    assert [m.training for m in net.modules()] == [True, True, False, True, True]
    assert torch.is_grad_enabled()


def test_a_train_that_fails_on_the_way_back_is_heard_and_the_modes_are_back() -> None:
    class Once(nn.Module):
        def train(self, mode: bool = True) -> Once:
            if mode:
                raise ValueError("no way back")
            return super().train(mode)

    net = nn.Sequential(Once(), nn.Dropout())
    with pytest.raises(ValueError, match="no way back"), modes.eval_mode(net):
        pass
    assert all(m.training for m in net.modules())


# Compiled and exported models


def test_exported_models_are_refused_with_the_reason_and_nothing_changes() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout()
            self.inner = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)).module()

    net = Half()
    with pytest.raises(NotImplementedError) as caught, modes.eval_mode(net):
        pass
    assert str(caught.value).startswith("Calling ")
    assert "() is not supported yet. A model made by torch.export keeps the mode" in str(caught.value)
    with (
        pytest.raises(TypeError, match=r"inner is made by torch\.export: its mode cannot be"),
        modes.differentiable_eval(net),
    ):
        pass
    with modes.preserve_modes(net):
        for module in net.modules():
            module.training = False
    assert all(m.training for m in net.modules())


trace: Callable[..., Any] = torch.jit.trace


class Own(nn.GRU):
    """A subclass of an RNN."""


class Holds(nn.Module):
    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rnn(x)[0]
        return out


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("compiled", "where"),
    [
        (lambda: torch.jit.script(Holds(nn.LSTM(2, 2))), "0.rnn is a scripted LSTM"),
        (lambda: torch.jit.script(Own(2, 2)), "0 is a scripted RNN"),
        (lambda: trace(Holds(Own(2, 2)), torch.zeros(3, 1, 2)), "0.rnn is a scripted RNN"),
        (lambda: torch.jit.freeze(torch.jit.script(Holds(nn.GRU(2, 2)).eval())), "0 is a scripted RNN"),
    ],
    ids=["scripted", "scripted-subclass", "traced", "frozen"],
)
def test_rnns_whose_mode_is_compiled_in_are_found_and_refused(
    compiled: Callable[[], Any], where: str
) -> None:
    net = nn.Sequential(compiled(), nn.Dropout())
    before = [getattr(m, "training", None) for m in net.modules()]
    with pytest.raises(TypeError, match=where), modes.differentiable_eval(net):
        pass
    assert [getattr(m, "training", None) for m in net.modules()] == before


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_and_frozen_modules_are_switched_and_restored() -> None:
    part = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    scripted, frozen = torch.jit.script(part), torch.jit.freeze(torch.jit.script(part).eval())
    net = nn.Sequential(scripted, frozen)
    list(scripted.modules())[2].training = False
    for fix in FIXES.values():
        with fix(net):
            net.eval()
        assert [m.training for m in scripted.modules()] == [True, True, False]
        assert "training" not in vars(frozen)
    with modes.differentiable_eval(scripted):
        assert not any(m.training for m in scripted.modules())


# open on the same modules at once


OVERLAPPING = [name for name in FIXES if name != "inference"]
"""In one thread inference_mode() itself must be left in order."""
overlapping_fix = pytest.mark.parametrize("fix", [FIXES[name] for name in OVERLAPPING], ids=OVERLAPPING)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@overlapping_fix
def test_left_in_any_order_the_modules_are_in_the_end_as_at_first(fix: Fix, order: tuple[int, ...]) -> None:
    """Contexts entered in turn stand for threads, and for coroutines. Those that are open keep their modes."""
    net, _ = a_reader()
    before = state_of(mixed(net))
    scopes = [fix(net), fix(net), fix(net.more)]
    for scope in scopes:
        scope.__enter__()
    inside = state_of(net)
    for number, index in enumerate(order):
        scopes[index].__exit__(None, None, None)
        if {0, 1} & set(order[number + 1 :]):
            assert state_of(net) == inside
    torch.set_grad_enabled(True)  # PyTorch's own contexts put back what they found
    assert state_of(net) == before


@pytest.mark.parametrize("one", OVERLAPPING)
@pytest.mark.parametrize("other", OVERLAPPING)
def test_different_fixes_may_overlap(one: str, other: str) -> None:
    net, _ = a_reader()
    before = state_of(mixed(net))
    first, second = FIXES[one](net), FIXES[other](net.rnn, net.more)
    first.__enter__()
    second.__enter__()
    inside = [module.training for module in (net.rnn, net.more[0])]
    error = KeyError()
    first.__exit__(KeyError, error, None)
    assert [module.training for module in (net.rnn, net.more[0])] == inside
    second.__exit__(None, None, None)
    torch.set_grad_enabled(True)
    assert state_of(net) == before


@every_fix
def test_many_threads_use_a_fix_at_once(fix: Fix) -> None:
    net, _ = a_reader()
    before = state_of(mixed(net))

    def often() -> bool:
        wrong = False
        for _ in range(100):
            with fix(net):
                wrong = wrong or (fix is not modes.preserve_modes and net.drop.training)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(often) for _ in range(8)]
        assert not any(future.result() for future in futures)
    assert state_of(net) == before


@overlapping_fix
def test_an_overridden_train_does_not_reach_into_what_is_still_open(fix: Fix) -> None:
    outer = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2, 2, dropout=0.5))
    model = OwnTrain(outer)
    first, second = modes.eval_mode(model), fix(outer)
    with torch.no_grad():
        first.__enter__()
        second.__enter__()
        inside = state_of(outer)
        first.__exit__(None, None, None)
        assert model.training
        assert state_of(outer) == inside
        second.__exit__(None, None, None)
    assert all(module.training for module in model.modules())
    assert outer[1].dropout == 0.5
    assert torch.is_grad_enabled()


class OwnTrain(nn.Module):
    """Overrides `train`, which is then called when its mode is put back."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def train(self, mode: bool = True) -> OwnTrain:
        return super().train(mode)


@overlapping_fix
def test_a_module_taken_out_while_two_are_open_gets_its_mode_back(fix: Fix) -> None:
    net, _ = a_reader()
    mixed(net)
    drop, norm = net.drop, net.norm
    first, second = fix(net), fix(net)
    first.__enter__()
    net.drop = nn.Dropout().eval()
    second.__enter__()
    net.norm = nn.BatchNorm1d(6)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    torch.set_grad_enabled(True)
    assert (drop.training, norm.training, net.drop.training) == (True, False, False)


def test_who_had_set_a_mode_comes_back_with_it_in_any_order() -> None:
    net, _ = a_reader()
    with modes.guard(net, on_violation="collect"):
        net.eval()
        change = OBSERVER.last_change[net.rnn]
        scopes = [modes.differentiable_eval(net), modes.preserve_modes(net)]
        for scope in scopes:
            scope.__enter__()
        net.train()
        for scope in scopes:
            scope.__exit__(None, None, None)
        assert not any(module.training for module in net.modules())
        assert OBSERVER.last_change[net.rnn] is change


def test_who_had_set_a_mode_before_anybody_watched_stays_unknown() -> None:
    net = a_reader()[0].eval()
    with modes.guard(net, on_violation="collect"):
        with modes.preserve_modes(net):
            net.train()
        assert OBSERVER.last_change.get(net.rnn) is None


# differentiable_eval's RNNs


def test_a_dropout_set_inside_is_gone_afterwards() -> None:
    rnn = nn.LSTM(2, 2, 2, dropout=0.5)
    with modes.differentiable_eval(rnn):
        rnn.dropout = 0.9
    assert rnn.dropout == 0.5


def test_subclasses_are_rnns_and_a_dropout_module_of_theirs_is_in_eval() -> None:
    class Dropping(nn.LSTM):
        def __init__(self) -> None:
            super().__init__(2, 2)
            del self.dropout
            self.dropout = nn.Dropout()  # type: ignore[assignment]

    rnn = Dropping()
    with modes.differentiable_eval(rnn):
        assert (rnn.training, rnn.dropout.training) == (True, False)  # type: ignore[attr-defined]
    assert rnn.dropout.training  # type: ignore[attr-defined]


def test_parametrized_rnns_do_not_move_their_parametrization() -> None:
    rnn = nn.utils.parametrizations.spectral_norm(nn.GRU(2, 2), "weight_hh_l0")
    before = [b.clone() for b in rnn.buffers()]
    with modes.differentiable_eval(rnn), modes.emulate_cudnn():
        rnn(torch.randn(3, 1, 2))[0].sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(rnn.buffers(), before, strict=True))


# without_cudnn


def switches() -> dict[str, Any]:
    """All that torch.backends.cudnn.flags() would set. allow_tf32 itself cannot be read where precisions differ."""
    cudnn: Any = torch.backends.cudnn
    return {
        "enabled": cudnn.enabled,
        "deterministic": cudnn.deterministic,
        "benchmark": cudnn.benchmark,
        "fp32_precision": (cudnn.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision),
    }


@pytest.fixture
def odd_switches() -> Iterator[None]:
    """Not the defaults, and cuDNN's precision for convolutions set in the way that PyTorch's pages show."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision
    cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision = True, True, "ieee"
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision = before


@pytest.mark.usefixtures("odd_switches")
def test_without_cudnn_changes_one_switch_where_flags_fails() -> None:
    before = switches()
    with modes.without_cudnn():
        assert switches() == {**before, "enabled": False}
    assert switches() == before
    with (
        pytest.raises(RuntimeError, match="mix of the legacy and new APIs"),
        torch.backends.cudnn.flags(enabled=False),
    ):
        pass
    assert switches() == before


def test_without_cudnn_works_where_the_flags_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(
        flags, "__allow_nonbracketed_mutation_flag", False
    )  # what disable_global_flags() does
    with pytest.raises(RuntimeError, match="not allowed to set"):
        torch.backends.cudnn.enabled = False
    with modes.without_cudnn():
        assert not torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled


def test_without_cudnn_nests_and_survives_exceptions() -> None:
    with modes.without_cudnn():
        with pytest.raises(KeyError), modes.without_cudnn():
            raise KeyError
        assert not torch.backends.cudnn.enabled
        torch._C._set_cudnn_enabled(True)
        with modes.without_cudnn():
            assert not torch.backends.cudnn.enabled
        assert torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled


def test_without_cudnn_leaves_off_what_was_off() -> None:
    with torch.backends.cudnn.flags(enabled=False):
        with modes.without_cudnn():
            pass
        assert not torch.backends.cudnn.enabled


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_threads_leave_without_cudnn_in_any_order(order: tuple[int, ...]) -> None:
    """Contexts entered in turn stand for threads: the switch is the process's, whoever sets it."""
    scopes = [modes.without_cudnn() for _ in order]
    for scope in scopes:
        scope.__enter__()
    for number, index in enumerate(order):
        assert not torch.backends.cudnn.enabled
        scopes[index].__exit__(None, None, None)
        assert torch.backends.cudnn.enabled is (number == len(order) - 1)


def test_many_threads_use_without_cudnn_at_once() -> None:
    def often() -> bool:
        seen = False
        for _ in range(300):
            with modes.without_cudnn():
                seen = seen or torch.backends.cudnn.enabled
        return seen

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(often) for _ in range(8)]
        assert not any(future.result() for future in futures)
    assert torch.backends.cudnn.enabled


def test_eval_gradients_and_second_derivatives_work_where_the_forward_runs_without_cudnn() -> None:
    rnn, x = nn.LSTM(2, 2).double().eval(), torch.randn(3, 1, 2, dtype=torch.float64, requires_grad=True)
    with modes.emulate_cudnn():
        with modes.without_cudnn():
            out = rnn(x)[0].square().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        torch.autograd.backward(grad.square().sum())
        loss = rnn(x)[0].sum()
        with (
            modes.without_cudnn(),
            pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"),
        ):
            loss.backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_without_cudnn_decorates_functions() -> None:
    @modes.without_cudnn()
    def inside() -> bool:
        return torch.backends.cudnn.enabled

    assert not inside()
    assert torch.backends.cudnn.enabled
