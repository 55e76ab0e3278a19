"""Emulated outputs, gradients and random numbers against PyTorch's own CPU RNNs, for configurations at random."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchtap import modes
from torchtap.modes import _kernels

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Largest difference allowed, relative to the largest value of the tensor."""


@dataclass(frozen=True)
class Config:
    """One RNN and one input for it."""

    kind: str
    layers: int
    bidirectional: bool
    bias: bool
    batch_first: bool
    projection: bool
    dropout: float
    form: str  # padded, packed, unbatched
    state: bool
    dtype: torch.dtype
    train: bool = True
    sizes: tuple[int, int, int, int] = (4, 3, 5, 4)  # steps, batch, features, hidden

    def module(self) -> nn.RNNBase:
        extra: dict[str, Any] = {"proj_size": 2} if self.projection else {}
        cls: Any = {"lstm": nn.LSTM, "gru": nn.GRU}.get(self.kind, nn.RNN)
        if cls is nn.RNN:
            extra["nonlinearity"] = self.kind
        with warnings.catch_warnings():  # dropout with one layer: warned of, and done all the same
            warnings.simplefilter("ignore", UserWarning)
            rnn: nn.RNNBase = cls(
                self.sizes[2],
                self.sizes[3],
                self.layers,
                bias=self.bias,
                batch_first=self.batch_first,
                dropout=self.dropout,
                bidirectional=self.bidirectional,
                **extra,
            )
        return rnn.to(self.dtype).train(self.train)

    def inputs(self, rnn: nn.RNNBase) -> tuple[Tensor, Any]:
        """Input and initial state, both asking for gradients. The state of a plain call is None."""
        steps, batch, features, hidden = self.sizes
        shape = {"unbatched": (steps, features)}.get(
            self.form, (batch, steps, features) if self.batch_first else (steps, batch, features)
        )
        x = torch.randn(shape, dtype=self.dtype).requires_grad_()
        if not self.state:
            return x, None
        lead = (self.layers * (1 + self.bidirectional),) + (() if self.form == "unbatched" else (batch,))
        hx, cx = (
            torch.randn(*lead, size, dtype=self.dtype).requires_grad_()
            for size in (rnn.proj_size or hidden, hidden)
        )
        return x, (hx, cx) if self.kind == "lstm" else hx


def lengths(config: Config) -> Tensor:
    steps, batch, *_ = config.sizes
    return torch.tensor([max(1, steps - 2 * i) for i in range(batch)])


def flat(value: Any) -> list[Tensor]:
    """All tensors of nested outputs."""
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return [value.data]
    return [value] if isinstance(value, Tensor) else [t for part in value or () for t in flat(part)]


def run(config: Config, rnn: nn.RNNBase, x: Tensor, state: Any) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Outputs, gradients (where the config trains) and the random state afterwards, from one seed."""
    torch.manual_seed(7)
    given_x: Any = x
    if config.form == "packed":
        given_x = nn.utils.rnn.pack_padded_sequence(x, lengths(config), batch_first=config.batch_first)
    outputs = flat(rnn(given_x, state))
    leaves = [x, *flat(state), *rnn.parameters()]
    grads = list(torch.autograd.grad([o.sin().sum() for o in outputs], leaves)) if config.train else []
    return [o.detach() for o in outputs], grads, torch.get_rng_state()


def differences(ours: list[Tensor], theirs: list[Tensor]) -> list[float]:
    assert [t.shape for t in ours] == [t.shape for t in theirs]
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    return [
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30))
        for a, b in zip(ours, theirs, strict=True)
    ]


configs = st.builds(
    Config,
    kind=st.sampled_from(["lstm", "gru", "tanh", "relu"]),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    projection=st.booleans(),
    dropout=st.sampled_from([0.0, 0.3, 1.0]),
    form=st.sampled_from(["padded", "packed", "unbatched"]),
    state=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    train=st.booleans(),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(3, 6)),
)
PLAIN: dict[str, Any] = {
    "layers": 2,
    "bidirectional": True,
    "bias": True,
    "batch_first": True,
    "projection": False,
    "dropout": 0.3,
    "form": "padded",
    "state": True,
    "dtype": torch.float32,
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@settings(max_examples=200, deadline=None)
@given(configs)
@example(Config("lstm", **PLAIN))
@example(Config("gru", **{**PLAIN, "form": "packed", "dtype": torch.float64}))
@example(Config("lstm", **{**PLAIN, "projection": True, "bias": False}))
def test_outputs_gradients_and_random_numbers_equal_the_native_ones(config: Config) -> None:
    """Same seed, same module: everything equal within the dtype's tolerance, the random state exactly."""
    assume(not config.projection or config.kind == "lstm")
    rnn = config.module()
    x, state = config.inputs(rnn)
    native_outputs, native_grads, native_random = run(config, rnn, x, state)
    with modes.emulate_cudnn():
        outputs, grads, random = run(config, rnn, x, state)
    assert all(far <= TOLERANCE[config.dtype] for far in differences(outputs, native_outputs))
    assert all(far <= TOLERANCE[config.dtype] for far in differences(grads, native_grads))
    assert torch.equal(random, native_random)


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("layers", [1, 2])
def test_outputs_share_no_memory(kind: str, form: str, layers: int) -> None:
    """cuDNN writes into tensors of their own; an in-place change of one output must not reach another."""
    config = Config(kind, **{**PLAIN, "form": form, "layers": layers, "dropout": 0.0})
    rnn = config.module()
    x, state = config.inputs(rnn)
    with modes.emulate_cudnn():
        config_x = nn.utils.rnn.pack_padded_sequence(x, lengths(config), batch_first=True)
        outputs = flat(rnn(config_x if form == "packed" else x, state))
    places = [t.untyped_storage().data_ptr() for t in (*outputs, x, *flat(state), *rnn.parameters())]
    assert len(set(places)) == len(places)


def reserve_of(rnn: nn.RNNBase, x: Tensor) -> Tensor:
    with modes.emulate_cudnn():
        result: Tensor = rnn(x)[0].grad_fn._saved_result3
    return result


def test_reserve_is_empty_in_eval_and_holds_a_byte_for_each_mask_element_in_train() -> None:
    rnn = nn.LSTM(5, 4, num_layers=3, dropout=0.5, bidirectional=True)
    x = torch.randn(6, 2, 5)
    train, plain, off = reserve_of(rnn, x), reserve_of(nn.LSTM(5, 4), x), reserve_of(rnn.eval(), x)
    assert (train.dtype, train.numel()) == (
        torch.uint8,
        2 * 6 * 2 * 8,
    )  # layers between, steps, batch, 2 hidden
    assert set(train.tolist()) == {0, 1}
    assert (plain.numel(), off.numel()) == (1, 0)


def test_backward_draws_nothing_and_ignores_what_was_drawn_since() -> None:
    """The masks are those of the forward that was run, whatever happens to the random state in between."""
    rnn = nn.GRU(5, 4, num_layers=2, dropout=0.5).double()
    x, weight = torch.randn(6, 2, 5).double(), next(rnn.parameters())
    with modes.emulate_cudnn():
        torch.manual_seed(3)
        (expected,) = torch.autograd.grad(rnn(x)[0].sum(), [weight])
        torch.manual_seed(3)
        loss = rnn(x)[0].sum()
        torch.randn(1000)
        before = torch.get_rng_state()
        (got,) = torch.autograd.grad(loss, [weight])
    assert torch.equal(got, expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_retained_graph_gives_the_same_gradients_again() -> None:
    rnn, x = nn.LSTM(5, 4, num_layers=2, dropout=0.5), torch.randn(6, 2, 5)
    with modes.emulate_cudnn():
        loss = rnn(x)[0].sum()
        first = torch.autograd.grad(loss, list(rnn.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(rnn.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_graph_made_inside_runs_backward_outside_and_in_another_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    rnn, x = nn.LSTM(5, 4), torch.randn(6, 2, 5)
    with modes.emulate_cudnn():
        loss = rnn(x)[0].sum()
        ruined = rnn.eval()(x)[0].sum()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()
        assert rnn.weight_ih_l0.grad is not None
        with pytest.raises(RuntimeError, match=_kernels.EVAL_BACKWARD):
            pool.submit(ruined.backward).result()


def test_only_the_gradients_asked_for_are_returned() -> None:
    rnn = nn.GRU(5, 4).requires_grad_(False)
    x = torch.randn(6, 2, 5, requires_grad=True)
    with modes.emulate_cudnn():
        rnn(x)[0].sum().backward()
    assert x.grad is not None
    assert rnn.weight_ih_l0.grad is None


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_checkpointed_gradients_are_those_of_a_native_checkpoint(
    kind: str, preserve: bool, reentrant: bool
) -> None:
    """With the random state preserved they are also those without any checkpoint: the same masks are drawn again."""
    config = Config(kind, **{**PLAIN, "dtype": torch.float64, "state": False})
    rnn = config.module()
    x, _ = config.inputs(rnn)
    leaves = [x, *rnn.parameters()]

    def gradients(checkpointed: bool) -> list[Tensor]:
        for leaf in leaves:
            leaf.grad = None
        torch.manual_seed(5)
        if checkpointed:
            out = checkpoint(lambda x: rnn(x)[0], x, use_reentrant=reentrant, preserve_rng_state=preserve)
        else:
            out = rnn(x)[0]
        torch.randn(3)  # what the rest of the model draws
        out.sin().sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    native, plain = gradients(True), gradients(False)
    with modes.emulate_cudnn():
        emulated = gradients(True)
    assert len(emulated) == len(leaves)
    assert all(far <= 1e-12 for far in differences(emulated, native))
    assert all(far <= 1e-12 for far in differences(emulated, plain)) is preserve


@pytest.mark.parametrize("which", ["hx", "cx"])
def test_state_that_is_not_contiguous_is_refused_with_cudnns_text(which: str) -> None:
    """Expanded initial states work natively on a CPU and fail on a GPU."""
    good, expanded = torch.zeros(1, 2, 4), torch.zeros(1, 1, 4).expand(1, 2, 4)
    rnn, x = nn.LSTM(5, 4), torch.randn(6, 2, 5)
    state = (expanded, good) if which == "hx" else (good, expanded)
    rnn(x, state)
    with modes.emulate_cudnn(), pytest.raises(RuntimeError, match=f"^rnn: {which} is not contiguous$"):
        rnn(x, state)


def packed_with_dropout() -> tuple[nn.RNNBase, Tensor, Any, Any]:
    config = Config("gru", **{**PLAIN, "form": "packed", "dropout": 1.0})
    rnn = config.module()
    x, state = config.inputs(rnn)
    return rnn, x, nn.utils.rnn.pack_padded_sequence(x, lengths(config), batch_first=True), state


def test_a_default_device_does_not_reach_into_the_kernels() -> None:
    rnn, x, packed, state = packed_with_dropout()
    with modes.emulate_cudnn(), torch.device("meta"):
        out = rnn(packed, state)[0].data
        out.sum().backward()
    assert out.device.type == "cpu"
    assert x.grad is not None


def test_tensor_subclasses_see_one_call_as_on_a_gpu() -> None:
    """What the kernels call inside is not for a subclass to see or to change."""
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    rnn, x = nn.GRU(5, 4, num_layers=2, dropout=0.5), torch.randn(6, 3, 5).as_subclass(Watched)
    with modes.emulate_cudnn():
        out = rnn(x)[0].as_subclass(torch.Tensor)  # so that only the node's saved input is of the subclass
        out.sum().backward()
    assert "_cudnn_rnn" in seen
    assert {"gru", "bernoulli_", "detach"}.isdisjoint(seen)
