"""Hooks that go when they should, change nothing, and are neither copied nor saved with their model."""

# mypy: disallow-untyped-calls=False
# (torch leaves torch.compile and others without types)

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from torchtap.hooks import Hooks, select


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def watch(hooks: Hooks, model: nn.Module, seen: list[str], layers: Any = None) -> None:
    for layer in select(model, layers):
        hooks.add(layer, lambda module, args, output, name=layer.name: seen.append(name))  # type: ignore[misc]


def test_hooks_are_called_and_removed() -> None:
    model, seen = net(), list[str]()
    with Hooks() as hooks:
        watch(hooks, model, seen)
        assert len(hooks) == 3
        model(torch.ones(1, 4))
    model(torch.ones(1, 4))
    assert seen == ["0", "1", "2"]
    assert hooks_on(model) == len(hooks) == 0
    hooks.remove()


def test_hooks_are_removed_on_an_exception() -> None:
    model = net()

    def fail() -> None:
        with Hooks() as hooks:
            watch(hooks, model, [])
            model(torch.ones(1, 3))

    with pytest.raises(RuntimeError, match="shapes"):
        fail()
    assert hooks_on(model) == 0


def test_a_hook_of_the_user_stays_and_its_output_is_what_is_seen() -> None:
    model, outputs = nn.ReLU(), list[Tensor]()
    model.register_forward_hook(lambda module, args, output: output + 1)
    with Hooks() as hooks:
        hooks.add(select(model)[0], lambda module, args, output: outputs.append(output))
        out = model(torch.ones(1))
    assert outputs[0] is out
    assert hooks_on(model) == 1


def test_pitfall_32_what_a_hook_returns_is_not_used() -> None:
    model = nn.ReLU()
    with Hooks() as hooks:
        hooks.add(select(model)[0], lambda module, args, output: output * 0)
        assert model(torch.ones(1)) == 1


def test_pitfall_33_inputs_that_are_given_by_name_are_seen() -> None:
    model, seen = nn.ReLU(), list[Any]()
    with Hooks() as hooks:
        hooks.add_with_inputs(
            select(model)[0], lambda module, args, kwargs, output: seen.append((args, kwargs))
        )
        model(input=torch.ones(1))
    assert seen == [((), {"input": torch.ones(1)})]


def test_pitfall_22_a_copy_is_not_watched() -> None:
    model, seen = net(), list[str]()
    with Hooks() as hooks:
        watch(hooks, model, seen)
        twin = copy.deepcopy(model)
        again = copy.deepcopy(twin)
        ema = AveragedModel(model)
        for each in (twin, again, ema):
            each(torch.ones(1, 4))
        ema.update_parameters(model)
        assert seen == []
        model(torch.ones(1, 4))
    assert seen == ["0", "1", "2"]


def test_pitfall_23_a_watched_model_can_be_pickled_and_the_copy_is_not_watched() -> None:
    model, seen = net(), list[str]()
    with Hooks() as hooks:
        watch(hooks, model, seen)
        file = io.BytesIO()
        torch.save(model, file)
        loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        assert torch.equal(loaded(torch.ones(1, 4)), pickle.loads(pickle.dumps(model))(torch.ones(1, 4)))
    assert seen == []


def test_pitfall_23_a_saved_model_is_loaded_where_there_is_no_torchtap(tmp_path: Path) -> None:
    model, file = net(), tmp_path / "model.pt"
    with Hooks() as hooks:
        watch(hooks, model, [])
        torch.save(model, file)
    code = (
        "import sys; sys.modules['torchtap'] = None\n"
        "import torch; model = torch.load(sys.argv[1], weights_only=False)\n"
        "print(model(torch.ones(1, 4)).tolist())"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(model(torch.ones(1, 4)).tolist())
    assert b"torchtap" not in file.read_bytes()


def test_pitfall_24_nothing_is_kept_in_the_model() -> None:
    model = net()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    state = pickle.dumps(model.state_dict())
    with Hooks() as hooks:
        watch(hooks, model, [])
        assert {name: set(vars(module)) for name, module in model.named_modules()} == before
        assert pickle.dumps(model.state_dict()) == state


def test_pitfall_36_a_script_module_is_refused() -> None:
    model = nn.Sequential(nn.ReLU(), torch.jit.script(nn.Linear(2, 2)))
    with Hooks() as hooks:
        watch(hooks, model, [])
        assert [(layer.name, why.split(":")[0]) for layer, why in hooks.refused] == [
            ("1", "it is a ScriptModule")
        ]
        assert len(hooks) == 1


def test_a_half_made_module_is_refused() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            pass

        def forward(self, x: Tensor) -> Tensor:
            return x

    with Hooks() as hooks:
        watch(hooks, Half(), [])
        assert hooks.refused[0][1].startswith("it is half made")


def test_pitfall_17_an_exception_in_forward_leaves_nothing_behind() -> None:
    model, seen = net(), list[str]()
    with Hooks() as hooks:
        watch(hooks, model, seen)
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
        model(torch.ones(1, 4))
        assert len(hooks) == 3
    assert seen == ["0", "1", "2"]


def test_pitfall_18_hooks_run_on_replicas_in_threads() -> None:
    """As `nn.DataParallel` makes them: shallow copies, which share the hooks of the module."""
    model, seen = net(), list[str]()
    with Hooks() as hooks:
        watch(hooks, model, seen)
        replicas = [[module._replicate_for_data_parallel() for module in model] for _ in range(4)]
        assert replicas[0][0]._forward_hooks is model[0]._forward_hooks

        def run(replica: list[nn.Module]) -> None:
            x = torch.ones(1, 4)
            for module in replica:
                for name, parameter in model[replica.index(module)].named_parameters():
                    object.__setattr__(module, name, parameter.detach())
                x = module(x)

        threads = [threading.Thread(target=run, args=(replica,)) for replica in replicas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == sorted(["0", "1", "2"] * 4)


def compile_model(model: nn.Module, how: str) -> nn.Module:
    if how == "torch.compile(model)":
        return torch.compile(model, backend="aot_eager", fullgraph=True)  # type: ignore[return-value]
    if how == "model.compile()":
        model.compile(backend="aot_eager", fullgraph=True)
    else:
        model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
    return model


HOW = ("torch.compile(model)", "model.compile()", "model.forward = torch.compile(model.forward)")


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("how", HOW)
def test_pitfall_11_hooks_after_the_first_compiled_call_are_refused(how: str) -> None:
    model = compile_model(net(), how)
    model(torch.ones(1, 4))
    with Hooks() as hooks:
        watch(hooks, model, [])
        assert len(hooks) == 0
        assert {why for _, why in hooks.refused} == {hooks.refused[0][1]}
        assert "torch.compile has compiled it, or a model of its class, already" in hooks.refused[0][1]
        torch._dynamo.reset()
        seen = list[str]()
        watch(hooks, model, seen)
        assert len(hooks) == 3


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("how", HOW)
def test_pitfall_13_hooks_before_it_are_compiled_in_without_a_graph_break(how: str) -> None:
    model, sums = net(), torch.zeros(3)
    with Hooks() as hooks:
        for number, layer in enumerate(select(model)):
            hooks.add(layer, lambda module, args, output, row=sums[number]: row.add_(output.detach().sum()))  # type: ignore[misc]
        expected = model(torch.ones(1, 4))
        eager = sums.clone()
        sums.zero_()
        compiled = compile_model(model, how)
        assert torch.equal(compiled(torch.ones(1, 4)), expected)
        assert torch.equal(sums, eager)
        assert (sums != 0).any()


@pytest.mark.usefixtures("_fresh_dynamo")
def test_the_copy_of_a_watched_model_can_be_compiled() -> None:
    model = net()
    with Hooks() as hooks:
        watch(hooks, model, [])
        twin = copy.deepcopy(model)
    compiled: Any = torch.compile(twin, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(1, 4)), model(torch.ones(1, 4)))


@pytest.mark.usefixtures("_fresh_dynamo")
def test_another_model_of_the_same_class_that_is_not_compiled_is_hooked() -> None:
    compile_model(net(), HOW[0])(torch.ones(1, 4))
    with Hooks() as hooks:
        watch(hooks, net(), [])
        assert len(hooks) == 3


@pytest.mark.usefixtures("_fresh_dynamo")
def test_a_model_that_is_yet_to_run_is_hooked_where_another_was_compiled() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.a(x)
            return out

    compile_model(net(), HOW[0])(torch.ones(1, 4))
    model, total = compile_model(Other(), HOW[0]), torch.zeros(())
    with Hooks() as hooks:
        assert hooks.add(select(model)[0], lambda module, args, output: total.add_(output.detach().sum()))
        assert torch.equal(model(torch.ones(1, 4)).sum().detach(), total)


@pytest.mark.usefixtures("_fresh_dynamo")
def test_pitfall_11_what_was_compiled_for_another_model_of_the_class_runs_without_hooks() -> None:
    """So the second model is refused before its own first call; hooked before torch.compile, nobody can tell."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.a(x)
            return out

    compile_model(Net(), HOW[0])(torch.ones(1, 4))
    second, seen = Net(), list[str]()
    with Hooks() as hooks:
        watch(hooks, second, seen)
        compiled = compile_model(second, HOW[0])
        compiled(torch.ones(1, 4))
        assert seen == []
        watch(hooks, compiled, seen)
        assert "or a model of its class" in hooks.refused[0][1]
