"""Claims B1 to B10 about hooks: what is true of each. docs/claims.md names these tests and the verdicts.

All with PyTorch's own hooks, as the claims mean them; what Torchtap makes of it stands beside it where it differs.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import copy
import gc
import io
import pickle
import queue
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.hooks.nets import DataclassOutput, InPlaceModule, batch
from torchtap.hooks import capture, on_forward

ROOT = Path(__file__).resolve().parents[3]
CALLS: list[str] = []


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def noted(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """A hook that can be pickled: a function of a module."""
    CALLS.append(type(module).__name__)


# B1: what a forward hook gets


def test_b01_a_forward_hook_gets_module_inputs_and_output_after_the_forward() -> None:
    layer, x, seen = nn.Linear(4, 2), batch(), list[Any]()
    layer.register_forward_hook(lambda *given: seen.extend(given))
    out = layer(x)
    module, inputs, output = seen
    assert module is layer
    assert isinstance(inputs, tuple)
    assert inputs[0] is x
    assert output is out, "the very tensor that the caller gets"


def test_b01_tensors_stay_where_they_are() -> None:
    layer, devices = nn.Linear(4, 2, device="meta"), list[str]()
    layer.register_forward_hook(
        lambda _, inputs, output: devices.extend([inputs[0].device.type, output.device.type])
    )
    layer(torch.ones(3, 4, device="meta"))
    assert devices == ["meta", "meta"]


def test_b01_inputs_by_name_are_not_in_the_tuple() -> None:
    layer, plain, asked = nn.ReLU(), list[Any](), list[Any]()
    layer.register_forward_hook(lambda _, inputs, output: plain.append(inputs))
    layer.register_forward_hook(lambda _, inputs, kwargs, output: asked.append(kwargs), with_kwargs=True)
    layer(input=torch.ones(1))
    assert plain == [()]
    assert asked == [{"input": torch.ones(1)}]


# B2: the two kinds of backward hooks of modules


class Twice(nn.Module):
    """Two operations: 6 x in all."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2) * 3


def test_b02_the_old_backward_hook_gives_the_last_operations_gradient_as_the_modules() -> None:
    seen: dict[str, list[float]] = {"register_backward_hook": [], "register_full_backward_hook": []}
    for kind in ("register_backward_hook", "register_full_backward_hook"):
        module, x = Twice(), torch.ones(1, requires_grad=True)
        getattr(module, kind)(lambda _, inputs, __, kind=kind: seen[kind].append(inputs[0].item()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module(x * 1).backward()
    assert seen == {"register_backward_hook": [3.0], "register_full_backward_hook": [6.0]}


def test_b02_the_full_one_breaks_operations_in_place_that_follow() -> None:
    model = InPlaceModule()
    model.a.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match=r"BackwardHookFunction.* is a view and is being modified inplace"):
        model(batch())


def test_b02_the_full_one_says_nothing_of_outputs_that_are_no_tensor_or_tuple() -> None:
    model, calls = DataclassOutput(), list[str]()
    model.inner.register_full_backward_hook(lambda *_: calls.append("inner"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(batch()).sum().backward()
    assert calls == []


def test_b02_a_forward_hook_and_a_hook_on_its_output_work_with_all_of_these() -> None:
    for model in (InPlaceModule(), DataclassOutput()):
        with capture(model, "**", gradients=True) as taken:
            model(batch()).sum().backward()
        assert isinstance(taken.gradients("a"), Tensor)
    assert isinstance(taken.gradients("inner").hidden, Tensor)
    module, x = Twice(), torch.ones(1, requires_grad=True)
    with capture(module, gradients=True) as taken:
        (module(x) * 5).backward()
    assert taken.gradients("").item() == 5.0


# B3: detach


def test_b03_detach_cuts_the_graph() -> None:
    layer, kept = nn.Linear(4, 2), list[Tensor]()
    layer.register_forward_hook(lambda _, __, output: kept.append(output.detach()))
    layer(batch())
    assert kept[0].grad_fn is None
    assert not kept[0].requires_grad


def test_b03_it_is_not_enough_to_keep_the_value() -> None:
    model, x, kept = InPlaceModule(), batch(), dict[str, Tensor]()
    model.a.register_forward_hook(lambda _, __, output: kept.update(detached=output.detach()))
    model.a.register_forward_hook(lambda _, __, output: kept.update(cloned=output.detach().clone()))
    model(x)
    model.a._forward_hooks.clear()
    expected = model.a(x).detach()
    assert torch.equal(kept["cloned"], expected)
    assert not torch.equal(kept["detached"], expected)
    assert kept["detached"].min() == 0, "that is what nn.ReLU(inplace=True) made of it"


# B4: remove


def test_b04_without_remove_hooks_pile_up() -> None:
    model, calls = net(), list[int]()
    handles = []
    for epoch in range(3):
        handles.append(model[0].register_forward_hook(lambda *_, epoch=epoch: calls.append(epoch)))
        model(batch())
    assert calls == [0, 0, 1, 0, 1, 2]
    for handle in handles:
        handle.remove()
    calls.clear()
    model(batch())
    assert calls == []


def test_b04_remove_does_not_reach_a_copy() -> None:
    model, calls = net(), list[str]()
    handle = model[0].register_forward_hook(lambda *_: calls.append("called"))
    twin = copy.deepcopy(model)
    handle.remove()
    model(batch())
    assert calls == []
    twin(batch())
    assert calls == ["called"]


def test_b04_a_dropped_handle_removes_nothing() -> None:
    model = net()
    model[0].register_forward_hook(lambda *_: None)
    gc.collect()
    assert hooks_on(model) == 1


# B5: saving


def test_b05_a_state_dict_holds_no_hooks() -> None:
    model = net()
    bare = pickle.dumps(model.state_dict())
    model[0].register_forward_hook(noted)
    assert pickle.dumps(model.state_dict()) == bare
    other = net()
    other.load_state_dict(model.state_dict())
    assert hooks_on(other) == 0


def test_b05_a_model_that_is_saved_whole_takes_its_hooks_along() -> None:
    model, file = net(), io.BytesIO()
    model[1].register_forward_hook(noted)
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    CALLS.clear()
    loaded(batch())
    assert CALLS == ["ReLU"], "registered again it would be called twice"


def test_b05_and_cannot_be_saved_where_the_hook_is_a_closure() -> None:
    model = net()
    model[1].register_forward_hook(lambda *_: None)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        torch.save(model, io.BytesIO())


def test_b05_torchtaps_hooks_are_saved_in_no_case() -> None:
    model, file = net(), io.BytesIO()
    with on_forward(model, None, lambda name, _: CALLS.append(name)):
        torch.save(model, file)
    CALLS.clear()
    torch.load(io.BytesIO(file.getvalue()), weights_only=False)(batch())
    assert CALLS == []


# B6: DDP

RANK = """
import sys, torch
from torch import nn
from torchtap.hooks import capture
rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
calls = []
if rank == 1:
    net.module[0].register_forward_hook(lambda *_: calls.append("called"))
with capture(net, gradients=True) as taken:
    net(torch.full((1, 2), float(rank))).sum().backward()
value = taken["0"] - net.module[0].bias
print(len(calls), list(taken), bool((value == 0).all()), net.module[0].weight.grad.sum().item())
torch.distributed.destroy_process_group()
"""


def test_b06_under_ddp_each_process_has_hooks_and_values_of_its_own(tmp_path: Path) -> None:
    """Rank 1 alone registers a hook; both capture, each its own batch; gradients of parameters are the mean of both."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=120)[0].split(" ", 1) for rank in ranks]
    assert [calls for calls, _ in told] == ["0", "1"]
    assert [text.split("] ")[0] + "]" for _, text in told] == ["['0', '1']"] * 2, "names without `module.`"
    assert [text.split("] ")[1].split()[0] for _, text in told] == ["True", "False"], "each saw its own batch"
    assert len({text.split()[-1] for _, text in told}) == 1, "and both the same reduced gradient"


# B7: memory


class Mark:
    """Lives as long as the node of the graph that carries it."""


def kept_alive(keep: Any) -> tuple[bool, int]:
    """Whether the graph of a forward outlives it because of what a hook keeps, and how many numbers are kept."""
    gc.collect()
    gc.disable()
    try:
        model, kept, marks = net(), list[Tensor](), list[weakref.ref[Mark]]()

        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            kept.append(keep(output))
            node: Any = output.grad_fn
            mark = node.metadata["mark"] = Mark()
            marks.append(weakref.ref(mark))

        model[0].register_forward_hook(hook)
        model(batch())
        return marks[0]() is not None, kept[0].numel()
    finally:
        gc.enable()


def test_b07_it_is_what_a_hook_keeps_that_costs_memory_not_the_hook() -> None:
    assert kept_alive(lambda output: output) == (True, 24), "the output itself keeps its whole graph"
    assert kept_alive(lambda output: output.detach()) == (False, 24)
    assert kept_alive(lambda output: output.detach().mean()) == (False, 1), (
        "a number of every layer costs nothing"
    )


def test_b07_how_much_a_capture_keeps_is_told() -> None:
    with capture(net()) as taken:
        taken_of = [batch() for _ in range(5)]
        for x in taken_of:
            model = taken.layers[0].module
            model(x)
    assert taken.nbytes()["0"] == 5 * 6 * 4 * 4, "all calls are kept"


# B8: context managers


@contextmanager
def careless(model: nn.Module) -> Iterator[None]:
    handles = [module.register_forward_hook(noted) for module in model]  # type: ignore[attr-defined]
    yield
    for handle in handles:
        handle.remove()


@contextmanager
def careful(model: nn.Module) -> Iterator[None]:
    handles = [module.register_forward_hook(noted) for module in model]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def left_behind(around: Any, model: nn.Module) -> int:
    """Hooks that are left after a forward inside the block has raised."""

    def run() -> None:
        with around:
            model(torch.ones(1, 3))

    with pytest.raises(RuntimeError, match="shapes"):
        run()
    return hooks_on(model)


def test_b08_a_context_manager_cleans_up_on_exceptions_only_with_finally() -> None:
    for around, left in ((careless, 3), (careful, 0)):
        model = net()
        assert left_behind(around(model), model) == left
    ours: Any
    for ours in (capture, lambda model: on_forward(model, None, print)):
        model = net()
        assert left_behind(ours(model), model) == 0


def test_b08_and_only_what_it_got_as_far_as_to_register() -> None:
    """A name that is not there, met when others are hooked already: here nothing is hooked before all are found."""
    model = net()
    with pytest.raises(ValueError, match="no module matches"):
        capture(model, ["0", "9"]).__enter__()
    assert hooks_on(model) == 0


# B9: transfers


class HostReads(TorchDispatchMode):
    """Counts what makes the host wait for a value: on a GPU, for all that was queued before it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_b09_a_number_read_in_each_hook_waits_once_a_layer_and_one_buffer_once_a_step() -> None:
    model, x = net(), batch()
    numbers, buffer = list[float](), torch.zeros(3)
    with (
        on_forward(model, None, lambda _, output: numbers.append(output.mean().item())),
        HostReads() as each_layer,
    ):
        model(x)
    with (
        on_forward(model, None, lambda name, output: buffer[int(name)].copy_(output.detach().mean())),
        HostReads() as once,
    ):
        model(x)
    assert (each_layer.count, once.count) == (3, 0)
    assert torch.equal(buffer, torch.tensor(numbers))


# B10: writing and drawing in hooks


def written_later(copy_of: Any) -> list[Tensor]:
    """What a thread finds in a queue that a hook put the output into, when it comes to it after the step."""
    model, x, found = InPlaceModule(), batch(), list[Tensor]()
    waiting: queue.Queue[Tensor | None] = queue.Queue()
    done = threading.Event()

    def write() -> None:
        done.wait(60)
        while (item := waiting.get()) is not None:
            found.append(item)

    thread = threading.Thread(target=write)
    thread.start()
    with on_forward(model, "a", lambda _, output: waiting.put(copy_of(output))):
        model(x)
    done.set()
    waiting.put(None)
    thread.join()
    return [found[0], model.a(x).detach()]


def test_b10_what_is_queued_without_a_copy_may_be_overwritten_before_it_is_written() -> None:
    assert not torch.equal(*written_later(lambda output: output.detach()))
    assert torch.equal(*written_later(lambda output: output.detach().clone()))


def test_b10_a_queue_without_a_bound_grows_as_long_as_the_writer_is_slower() -> None:
    model, waiting = net(), queue.Queue[Tensor]()
    bounded, dropped = queue.Queue[Tensor](maxsize=4), list[str]()

    def put(name: str, output: Tensor) -> None:
        waiting.put(output.detach().clone())
        try:
            bounded.put_nowait(output.detach().clone())
        except queue.Full:
            dropped.append(name)

    with on_forward(model, None, put):
        for _ in range(10):
            model(batch())
    assert (waiting.qsize(), bounded.qsize(), len(dropped)) == (30, 4, 26)


def test_each_claim_is_shown_by_its_own_tests_and_no_test_is_forgotten() -> None:
    """docs/claims.md and this file in step; that the tests exist is checked with the other pages' (test_promises)."""
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    verdicts = ("**True.**", "**False.**", "**True only if**", "**Half true.**")
    named: list[str] = []
    for row in re.finditer(r"^\| B(\d+) \|(.*)\|(.*)\|(.*)\|$", page, re.MULTILINE):
        number, _, here, shown = (cell.strip() for cell in row.groups())
        if int(number) > 10:  # those of the image
            continue
        assert here.startswith(verdicts), f"B{number} has no verdict"
        own = re.findall(rf"`(test_b{int(number):02}_\w+)`", shown)
        assert own, f"B{number} has no test of its own"
        assert re.findall(r"`(test_b\d+_\w+)`", shown) == own, f"B{number} names another claim's test"
        named += own
    files = [Path(__file__), ROOT / "tests" / "gpu" / "test_hooks_gpu.py"]
    written = [
        name for file in files for name in re.findall(r"^def (test_b\d+_\w+)", file.read_text(), re.MULTILINE)
    ]
    assert sorted(named) == sorted(written)
