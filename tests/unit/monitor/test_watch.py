"""`watch`: what it measures, and that it changes nothing."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from torchtap.hooks import PatternError
from torchtap.monitor import Watch, WatchWarning, unwatch, watch
from torchtap.monitor.stats import kernel


def trained(
    model: nn.Module, batch: Callable[[int], object], steps: int = 3, watched: bool = False, **options
):
    """The model's weights, the random state and the watch after some steps."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    w = Watch(model, optimizer, **options) if watched else None
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    if w is not None:
        w.close()
    return [p.detach().clone() for p in model.state_dict().values()], torch.get_rng_state(), w


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Dropout(0.5))

    def forward(self, x: Any) -> Any:
        y = self.net[0](x)
        y += x
        return self.net[3](self.net[2](self.net[1](y)))


class DictOutput(nn.Module):
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return {"h": self.linear(x), "rest": (self.linear(x), None, 3)}

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Any) -> Any:
        out = self.inner(x=x)
        return out["h"] + out["rest"][0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4, num_layers=2, dropout=0.5)

    def forward(self, x: Any) -> Any:
        packed = pack_padded_sequence(
            x[:, None].expand(-1, 2, -1), torch.tensor([3, 2]), enforce_sorted=False
        )
        out, (h, _) = self.rnn(packed)
        return out.data.sum() + h.sum()


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.same = self.cell

    def forward(self, x: Any) -> Any:
        h = x
        for _ in range(20):
            h = self.cell(x, h)
        return h


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        return checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)


class BatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
        )

    def forward(self, x: Any) -> Any:
        return self.net(x[:, None, None].expand(-1, 1, 2, -1).to(memory_format=torch.channels_last))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "in place": InPlace,
    "dict and keywords": DictOutput,
    "packed LSTM": Recurrent,
    "reused": Reused,
    "checkpoint": lambda: Checkpointed(False),
    "reentrant checkpoint": lambda: Checkpointed(True),
    "channels_last": BatchNormed,
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "attention": lambda: nn.Sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)),
}


def batch(step: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("device_path", [False, True], ids=["host path", "device path"])
@pytest.mark.parametrize("name", MODELS)
def test_a_watched_run_is_the_bare_run_bit_by_bit(name, device_path):
    torch.manual_seed(1)
    model = MODELS[name]()
    other = copy.deepcopy(model)
    weights, state, _ = trained(model, batch)
    watched_weights, watched_state, w = trained(other, batch, watched=True, device_path=device_path)
    assert all(torch.equal(a, b) for a, b in zip(weights, watched_weights, strict=True))
    assert torch.equal(state, watched_state)
    assert w.steps == 3
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())
    measured = [w.series(layer.name) for layer in w.layers if not isinstance(layer.module, nn.Dropout)]
    assert all(len(series) == 3 for series in measured)


def test_statistics_are_those_of_outputs_and_their_gradients():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    x = torch.randn(5, 4)
    w = watch(model)
    hidden = model[0](x)
    before = hidden.detach().clone()
    hidden.retain_grad()
    unwatch(model)
    w = watch(model)
    y = model(x)
    loss = y.exp().sum()
    loss.backward()
    w.step(loss)
    w.close()
    series = w.series("0")
    wanted = {
        "min": before.min(),
        "max": before.max(),
        "mean": before.mean(),
        "std": before.std(correction=0),
    }
    for name, value in wanted.items():
        assert series[name][0] == pytest.approx(value.item(), rel=1e-5), name
    assert series["rms"][0] == pytest.approx(before.square().mean().sqrt().item(), rel=1e-5)
    assert w.series("1")["zeros"][0] == pytest.approx((before <= 0).float().mean().item())
    assert np.isnan(series["zeros"][0])
    gradient = y.detach().exp()
    assert w.series("2", "gradient")["max"][0] == pytest.approx(gradient.max().item(), rel=1e-5)
    # Of the value before ReLU worked in place: zero where it cut.
    expected = (gradient @ model[2].weight) * (before > 0)
    assert w.series("0", "gradient")["absmax"][0] == pytest.approx(expected.abs().max().item(), rel=1e-5)
    assert w.scalars("loss")["mean"][0] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_a_layer_once_and_has_its_gradients(reentrant):
    model: Any = Checkpointed(reentrant)
    model.block[1].p = 0.0
    plain = copy.deepcopy(model)
    x = torch.randn(8, 4)
    with watch(model) as w, watch(plain) as bare:
        model(x).square().sum().backward()
        w.step()
        nn.Sequential(plain.first, plain.block)(x).square().sum().backward()
        bare.step()
    for layer in ("first", "block.0", "block.2"):
        for direction in ("output", "gradient"):
            got, want = w.series(layer, direction), bare.series(layer, direction)
            assert got["count"].tolist() == want["count"].tolist()
            np.testing.assert_allclose(got["rms"], want["rms"], rtol=1e-6)


def test_calls_have_rows_of_their_own_up_to_eight():
    model = Reused()
    with watch(model) as w:
        model(torch.randn(3, 4)).sum().backward()
        w.step()
    assert [layer.names for layer in w.layers] == [("cell", "same")]
    assert w.series("same", call=3)["count"].tolist() == [12]
    assert w.series("cell", call=7)["count"].tolist() == [13 * 12]
    assert w.series("cell", "gradient", call=7)["count"].tolist() == [13 * 12]
    with pytest.raises(KeyError, match="no output was measured"):
        w.series("cell", call=8)


def test_micro_batches_of_a_step_are_taken_together():
    model = nn.Linear(4, 2)
    x = torch.randn(6, 4)
    with watch(model) as w:
        for part in torch.split(x, 2):
            model(part).sum().backward()
        w.step()
    series = w.series("")
    assert series["count"].tolist() == [12]
    assert series["max"][0] == pytest.approx(model(x).max().item(), rel=1e-6)
    assert series["std"][0] == pytest.approx(model(x).std(correction=0).item(), rel=1e-5)


def test_validation_is_not_measured():
    model = nn.Sequential(nn.Linear(4, 2))
    with watch(model) as w:
        model(torch.ones(1, 4)).sum().backward()
        with torch.no_grad():
            model(torch.full((1, 4), 1e6))
        w.step()
    assert w.series("0")["max"][0] < 1e3
    assert w.layer_hooks[0].calls == 2


def test_every_measures_only_each_so_many_steps():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=10) as w:
        for _ in range(25):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert w.series("").first_step.tolist() == [0, 10, 20]


def test_updates_and_gradients_of_parameters():
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch(model, optimizer, parameters_every=1) as w:
        model(torch.ones(1, 3)).sum().backward()
        before = model.weight.detach().clone()
        optimizer.step()
    value, gradient, update, sampled = w._parameter_history.series(0).values[0, :4]
    assert gradient == pytest.approx(1.0)
    assert update == pytest.approx(0.5)
    assert sampled == pytest.approx(before.square().mean().sqrt().item(), rel=1e-6)
    assert value == pytest.approx(model.weight.square().mean().sqrt().item(), rel=1e-6)


def test_the_first_nonfinite_value_is_named_and_warned_of_once():
    class Logarithm(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.log()

    model = nn.Sequential(nn.Flatten(), Logarithm(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model(torch.tensor([[1.0, -1.0]])).sum().backward()
                optimizer.step()
            if w.steps == 2:
                assert [each.category for each in caught] == [WatchWarning]
    first: Any = w.first_nonfinite()
    assert (first.step, first.where.layer, first.where.key.direction) == (1, "1", "output")
    assert (first.nonfinite, first.count) == (1, 2)
    assert str(first).startswith(
        "step 1: 1 of 2 values of the output of 1 are NaN or infinite, the first of the run"
    )
    assert "before it: output of 0: -1 to 1" in str(first)


def test_a_nonfinite_gradient_is_found_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with watch(model) as w:
        (model(torch.zeros(1, 2)).sum() * 0).sqrt().backward()
        with pytest.warns(WatchWarning):
            w.step()
    first: Any = w.first_nonfinite()
    assert (first.where.layer, first.where.key.direction) == ("1", "gradient")


def test_gradients_are_unscaled_and_those_of_skipped_steps_left_out():
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, scaler=scaler) as w, warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    gradient = w.series("", "gradient")
    assert gradient["max"].tolist() == [1.0, 2.0]
    assert w.skipped == 1
    assert w.first_nonfinite() is None


def test_zeros_are_counted_seldom_without_the_kernel(monkeypatch):
    monkeypatch.setattr(kernel, "found", lambda: kernel.Found(None, "left out"))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with watch(model) as w:
        for _ in range(21):
            model(torch.ones(1, 2)).sum().backward()
            w.step()
    counted = ~np.isnan(w.series("1")["zeros"])
    assert np.flatnonzero(counted).tolist() == [0, 10, 20]


def test_what_hands_on_its_input_is_not_looked_at_twice():
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    with watch(model) as w:
        assert [layer.name for layer in w.layers] == ["0"]
    with watch(model, layers=nn.Identity) as w:
        assert [layer.name for layer in w.layers] == ["1"]


def test_rows_of_several_devices_are_one_step():
    """Here some are measured by the device path and some by the host's."""

    class Switch(nn.Module):
        def forward(self, x: Any) -> Any:
            w._state._device_path = not w._state._device_path
            return x

    model = nn.Sequential(nn.Linear(2, 2), Switch(), nn.Linear(2, 2))
    w = watch(model)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        w.step()
    w.close()
    assert len(w._history) == 3
    for layer in ("0", "2"):
        for direction in ("output", "gradient"):
            assert w.series(layer, direction).first_step.tolist() == [0, 1, 2]


def test_memory_does_not_grow_with_the_run():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer) as w:
        for step in range(300):
            model(torch.full((1, 2), float(step))).sum().backward()
            optimizer.step()
    series = w.series("")
    assert len(series) <= 48
    assert series.first_step[0] == 0
    assert series.last_step[-1] == 299
    assert series["count"].sum() == 600


def test_nothing_of_the_watch_is_in_copies_and_files():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with watch(model) as w:
        clone = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        for other in (clone, loaded):
            other(torch.ones(1, 2)).sum().backward()
        w.step()
        assert w.layer_hooks[0].calls == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pickle.dumps(model(torch.ones(1, 2)).detach())


def test_a_watch_keeps_no_model_alive_and_goes_with_its_last_reference():
    model = nn.Sequential(nn.Linear(2, 2))
    gone = weakref.ref(model)
    w = watch(model)
    del model
    gc.collect()
    assert gone() is None
    assert w.model is None
    w.step()
    for keep_batch in (False, True):
        other = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        with pytest.warns(WatchWarning, match="keep it, w = torchtap.watch"):
            watch(other, optimizer, keep_batch=keep_batch)
        gc.collect()
        assert not other._forward_hooks
        assert not other._forward_pre_hooks
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("close_first", [False, True])
def test_what_was_measured_stays_when_the_model_with_all_its_layers_is_gone(close_first: bool) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, optimizer)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 2)).sum().backward()
        optimizer.step()
    if close_first:
        w.close()
    alive = [weakref.ref(each) for each in (*model.modules(), *model.parameters(), optimizer)]
    del model, optimizer
    gc.collect()
    assert [each() for each in alive] == [None] * len(alive)
    run = w.run()
    assert [each.name for each in run.layers] == ["0", "1.0", "1.1", "2"]
    assert run.layers[0].fan_in == 2
    assert run.layers[1].facts["num_features"] == 4
    assert "BatchNorm1d" in str(w.summary())
    assert w.diagnose() == w.diagnose()


def test_an_exception_in_the_forward_leaves_it_working():
    model = nn.Sequential(nn.Linear(2, 2))
    with watch(model) as w:
        with pytest.raises(RuntimeError, match="shapes cannot"):
            model(torch.ones(1, 3))
        model(torch.ones(1, 2)).sum().backward()
        w.step()
    assert len(w.series("0")) == 1


class TestBadInput:
    def test_what_is_no_model(self):
        with pytest.raises(TypeError, match=r"takes an nn.Module, got str"):
            watch("model")  # type: ignore[arg-type]

    def test_what_is_no_optimizer(self):
        with pytest.raises(TypeError, match=r"a torch.optim.Optimizer, got float"):
            watch(nn.Linear(1, 1), 0.1)  # type: ignore[arg-type]

    def test_every_zero(self):
        with pytest.raises(ValueError, match=r"watch\(every=...\) is 1 or more, got 0"):
            watch(nn.Linear(1, 1), every=0)

    def test_a_pattern_that_matches_nothing(self):
        with pytest.raises(PatternError):
            watch(nn.Sequential(nn.Linear(1, 1)), layers="encoder.*")

    def test_watched_twice(self):
        model = nn.Linear(1, 1)
        text = r"this Linear is watched already.*torchtap\.unwatch"
        with watch(model), pytest.raises(RuntimeError, match=text):
            watch(model)
        with watch(model) as w:
            pass
        with pytest.raises(RuntimeError, match="this watch is closed"):
            w.__enter__()

    def test_a_loss_of_many_values(self):
        with (
            watch(nn.Linear(1, 1)) as w,
            pytest.raises(
                ValueError, match=r"log\(loss=...\): one number, but the tensor has the shape \(2,\)"
            ),
        ):
            w.step(torch.ones(2))

    def test_a_layer_that_is_not_watched(self):
        with (
            watch(nn.Sequential(nn.Linear(1, 1))) as w,
            pytest.raises(KeyError, match="'encoder' is not watched"),
        ):
            w.series("encoder")
