"""Loops that do not call the model itself, and replicas in threads."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from tests.unit.monitor.stats.test_on_device import NoHostReads
from torchtap import watch
from torchtap.monitor import _units, gather
from torchtap.monitor._watch import Watch
from torchtap.monitor.stats import kernel, refusing


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), layer, layer, nn.Linear(8, 1))


def test_parts_called_by_themselves_are_one_call_a_step_and_validated_unmeasured() -> None:
    """Two networks in one module that has no forward: GANs, LightningModules."""
    pair = nn.ModuleDict({"one": net(), "other": net()})
    optimizer = torch.optim.SGD(pair.parameters(), lr=0.01)
    x = torch.randn(3, 4)
    with watch(pair, optimizer) as w:
        for _ in range(10):
            optimizer.zero_grad()
            (pair["one"](x) - pair["other"](x)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                pair["one"](x)
    assert w.series("one.0")["count"].tolist() == [3 * 8] * 10


def replicas(model: nn.Module, count: int) -> list[nn.Module]:
    """As `torch.nn.parallel.replicate` makes them on GPUs: modules of their own that share hooks and, here, weights."""
    made = []
    for _ in range(count):
        copies: dict[nn.Module, Any] = {
            module: module._replicate_for_data_parallel() for module in model.modules()
        }
        for module, copy in copies.items():
            for name, child in module._modules.items():
                if child is not None:
                    setattr(copy, name, copies[child])
            for name, parameter in module._parameters.items():
                copy._parameters[name] = None if parameter is None else parameter.view_as(parameter)
        made.append(copies[model])
    return made


def in_threads(models: list[nn.Module], batches: list[Tensor]) -> list[Tensor]:
    """As `torch.nn.parallel.parallel_apply` runs replicas. They start at once, so that they come between each other."""
    outputs: list[Any] = [None] * len(models)
    together = threading.Barrier(len(models))

    def run(place: int) -> None:
        together.wait()
        with torch.enable_grad():
            outputs[place] = models[place](batches[place])

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


class FakeDataParallel(DataParallel[nn.Module]):
    """Three replicas in threads, on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(in_threads(replicas(self.module, 3), list(x.chunk(3))))


@pytest.mark.parametrize(
    "around", [lambda wrapped: wrapped, lambda wrapped: wrapped.module], ids=["wrapper", "inner"]
)
def test_replicas_in_threads_are_one_call_of_each_layer(around: Callable[[Any], nn.Module]) -> None:
    """Whichever runs first: all their rows are of the layer's first call, outputs and gradients."""
    x = torch.randn(9, 4)
    bare, wrapped = net(), FakeDataParallel(net())
    bare(x).square().mean().backward()
    with watch(around(wrapped)) as w:
        for _ in range(5):
            wrapped.zero_grad()
            wrapped(x).square().mean().backward()
            w.step()
    for layer, call, width in (("0", 0, 8), ("1", 0, 8), ("2", 0, 8), ("2", 1, 8), ("4", 0, 1)):
        assert w.series(layer, call=call)["count"].tolist() == [9 * width] * 5
        assert w.series(layer, "gradient", call=call)["count"].tolist() == [9 * width] * 5
    assert [layer.name for layer in w.layers] == ["0", "1", "2", "4"]
    assert list(gather(w)[0].parameters)[:2] == ["0.weight", "0.bias"]
    for one, other in zip(bare.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_zeros_that_are_counted_seldom_outlive_the_pooling_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the C kernel: each tenth step. A point of eight steps has those of the one that was counted."""
    monkeypatch.setattr(kernel, "found", lambda: kernel.Found(None, "left out"))
    model = net()
    with watch(model) as w:
        for _ in range(150):
            model(torch.randn(3, 4)).sum().backward()
            w.step()
    zeros = w.series("1")["zeros"]
    assert 0.5 < (zeros >= 0).mean() < 1


def test_a_part_that_is_validated_after_training_is_not_measured() -> None:
    """It runs without gradients, as a checkpointed part of a training forward would."""
    model, x = net(), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer) as w:
        for _ in range(4):
            model(x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model[0](x)
    assert w.series("0")["count"].tolist() == [3 * 8] * 4


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_are_those_that_the_closure_made(by_name: bool) -> None:
    """The gradients that stand there before a step with a closure are of no step at all."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 3)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 77.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    with watch(model, optimizer, parameters_every=1) as w:
        for _ in range(2):
            optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert model.weight.grad is not None
    rows = w._parameter_history.series(w._parameters.names.index("weight")).values
    assert rows[1, 1] == pytest.approx(float(model.weight.grad.square().mean().sqrt()), rel=1e-6)
    assert rows[0, 1] < 10
    assert rows[0, 2] > 0  # the update
    assert w.steps == 2


def test_lbfgs_is_one_step_of_many_passes() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    x = torch.randn(8, 3)
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    with watch(model, optimizer) as w:
        for _ in range(3):
            optimizer.step(closure)
    assert (w.steps, w.run().passes) == (3, passes)
    assert w.diagnose() == []


def test_nothing_is_measured_while_a_cuda_graph_is_recorded_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No graph can be recorded here: PyTorch's own answer, whether one is, is replaced."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer, device_path=True) as w:
        monkeypatch.setattr(refusing, "in_cuda_graph", lambda _: True)
        for _ in range(2):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
        monkeypatch.undo()
        with pytest.raises(KeyError):
            w.series("0")
        assert "not measured: 2 outputs of 0: a CUDA graph was being recorded" in str(w.summary())
        assert w.looks() == {}
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    assert len(w.series("0")) == 1


@pytest.mark.parametrize("look_closer", [False, True])
def test_the_device_path_reads_nothing_on_the_host(
    look_closer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would make the host wait for a GPU: on CPU tensors, by the code for devices, closer looks included."""
    monkeypatch.setattr(_units, "_is_here", lambda _: False)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.LayerNorm(8),
        nn.Tanh(),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer, device_path=True, look_closer=look_closer) as w:
        for _ in range(12):
            x = torch.randn(4, 1, 4, 4)
            with NoHostReads():
                optimizer.zero_grad()
                loss = model(x).square().mean()
                w.log(loss=loss)
                loss.backward()
                optimizer.step()
    assert len(w.series("0")) == 12
    assert bool(w.looks()) == look_closer
