"""An open guard changes nothing: results, random numbers, checkpoints, lifetimes, compilers, other processes."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchtap import modes
from torchtap.modes._doors import GUARD, RNN
from torchtap.modes._observer import OBSERVER


class Recurrent(nn.Module):
    """Every kind of RNN, with dropout between and inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.drop = nn.Dropout(0.3)
        self.lstm = nn.LSTM(6, 5, num_layers=2, dropout=0.4, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 6, num_layers=2, dropout=0.2, batch_first=True)
        self.rnn = nn.RNN(6, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lstm(self.drop(self.embed(x)))[0]
        scores: Tensor = self.head(self.rnn(self.gru(x)[0])[0])
        return scores.mean(1)


class Convolutional(nn.Module):
    """BatchNorm, dropout in all kinds, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2)
        )
        self.second = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, affine=False), nn.RReLU()
        )
        self.rest = nn.Sequential(nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1), nn.InstanceNorm2d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        scores: Tensor = self.head(self.rest(nn.functional.relu(x + self.second(x))).mean((2, 3)))
        return scores


class Attending(nn.Module):
    """A transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(self.embed(x)).mean(1))
        return scores


def tokens() -> Tensor:
    return torch.randint(0, 9, (4, 7))


def images() -> Tensor:
    return torch.randn(4, 2, 6, 6)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "recurrent": (Recurrent, tokens),
    "convolutional": (Convolutional, images),
    "attending": (Attending, tokens),
}
nets = pytest.mark.parametrize(("make", "batch"), NETS.values(), ids=NETS)


@pytest.fixture(autouse=True)
def _doors_are_closed_again() -> Iterator[None]:
    """Each of them, and nobody listens any more."""
    before = [(door.name in vars(door.owner), getattr(door.owner, door.name)) for door in (*RNN, *GUARD)]
    yield
    assert [
        (door.name in vars(door.owner), getattr(door.owner, door.name)) for door in (*RNN, *GUARD)
    ] == before
    assert OBSERVER.listeners == ()
    assert len(OBSERVER.last_change) == 0


def guarded(net: nn.Module) -> AbstractContextManager[object]:
    """Open, and silent: what it finds is not the subject here."""
    return modes.guard(net, on_violation="collect")


def loss_of(net: Callable[..., Any], batch: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(batch), torch.arange(len(batch)) % 3)


def two_epochs(
    make: Callable[[], nn.Module], batch: Callable[[], Tensor], watch: bool, around: Any = nullcontext
) -> list[Any]:
    """Everything that two epochs of training and evaluation leave behind."""
    torch.manual_seed(5)
    net = make()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    seen: list[Any] = []
    with guarded(net) if watch else nullcontext():
        for _ in range(2):
            net.train()
            for _ in range(2):
                optimizer.zero_grad()
                with around():
                    loss = loss_of(net, batch())
                loss.backward()
                seen += [loss.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
                optimizer.step()
            net.eval()
            with torch.no_grad():
                seen.append(net(batch()))
    return [
        *seen,
        torch.get_rng_state(),
        *net.state_dict().values(),
        optimizer.state_dict(),
        net.state_dict().keys(),
    ]


def same(a: Any, b: Any) -> bool:
    """Bitwise."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a.view(-1), b.view(-1)) and a.shape == b.shape
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@nets
def test_training_is_bitwise_the_same(make: Any, batch: Any) -> None:
    """Losses, gradients, random state, weights and running statistics, state of the optimizer."""
    assert same(two_epochs(make, batch, False), two_epochs(make, batch, True))


@nets
def test_training_under_autocast_is_bitwise_the_same(make: Any, batch: Any) -> None:
    def around() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    with modes.emulate_cudnn():  # not every CPU has a bfloat16 LSTM of its own
        assert same(two_epochs(make, batch, False, around), two_epochs(make, batch, True, around))


@nets
def test_a_guard_inside_an_emulation_changes_nothing_of_it(make: Any, batch: Any) -> None:
    with modes.emulate_cudnn():
        assert same(two_epochs(make, batch, False), two_epochs(make, batch, True))


@nets
def test_the_model_itself_carries_nothing(make: Any, batch: Any) -> None:
    """No attribute, no hook, no other class; what is saved inside equals what is saved outside."""
    net = make()

    def looks() -> list[object]:
        return [(type(module), list(vars(module)), module.forward.__code__) for module in net.modules()]

    before = looks()
    with guarded(net):
        loss_of(net, batch()).backward()
        assert looks() == before
        assert not any(
            value for module in net.modules() for name, value in vars(module).items() if "hooks" in name
        )
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        copies = pickle.loads(pickle.dumps(net)), copy.deepcopy(net), torch.load(file, weights_only=False)
        pickled = pickle.dumps(net)
    assert b"torchtap" not in pickled
    for each in copies:
        assert [m.training for m in each.modules()] == [m.training for m in net.modules()]
        assert same(each.state_dict(), net.state_dict())
    x = batch()
    assert same(copies[0].eval()(x), net.eval()(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_bitwise_the_same(reentrant: bool) -> None:
    def run(watch: bool) -> list[Tensor]:
        torch.manual_seed(1)
        net, x = nn.LSTM(4, 3, num_layers=2, dropout=0.5), torch.randn(5, 2, 4, requires_grad=True)
        with guarded(net) if watch else nullcontext():
            out = checkpoint(lambda x: net(x)[0], x, use_reentrant=reentrant)
            out.square().sum().backward()
        assert x.grad is not None
        return [
            out.detach(),
            x.grad,
            torch.get_rng_state(),
            *(p.grad for p in net.parameters() if p.grad is not None),
        ]

    assert same(run(False), run(True))


@pytest.mark.filterwarnings("ignore:.*GradScaler")
def test_a_gradient_scaler_is_bitwise_the_same() -> None:
    def run(watch: bool) -> list[Any]:
        torch.manual_seed(1)
        net = Recurrent()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        with modes.emulate_cudnn(), guarded(net) if watch else nullcontext():
            for _ in range(3):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(net, tokens())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return [*net.state_dict().values(), scaler.state_dict()]

    assert same(run(False), run(True))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_the_users_hooks_run_as_often_and_in_the_same_order() -> None:
    def run(watch: bool) -> list[str]:
        torch.manual_seed(1)
        net, ran = Recurrent(), []
        for name, module in net.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: ran.append(f"pre {name}"))
            module.register_forward_hook(lambda *_, name=name: ran.append(f"post {name}"))
            module.register_full_backward_hook(lambda *_, name=name: ran.append(f"back {name}"))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: ran.append("step"))
        with guarded(net) if watch else nullcontext():
            loss_of(net, tokens()).backward()
            optimizer.step()
        return ran

    assert run(False) == run(True)


@nets
@pytest.mark.parametrize("training", [True, False])
def test_activations_are_freed_at_the_same_moment(make: Any, batch: Any, training: bool) -> None:
    """Those of the user by reference counting alone, without a collection."""
    net = make().train(training)
    alive: list[weakref.ref[Tensor]] = []

    def note(_module: nn.Module, inputs: Any, outputs: Any) -> None:
        flat = [inputs, outputs]
        while flat:
            each = flat.pop()
            if isinstance(each, Tensor):
                alive.append(weakref.ref(each))
            elif isinstance(each, tuple):
                flat += each

    for module in net.modules():
        module.register_forward_hook(note)
    gc.collect()
    gc.disable()
    try:
        with guarded(net), modes.emulate_cudnn() if training else nullcontext():
            loss_of(net, batch()).backward()
            assert alive
            assert [each() for each in alive if each() is not None] == []
    finally:
        gc.enable()


@nets
def test_model_and_guard_go_with_their_last_reference(make: Any, batch: Any) -> None:
    """No cycles: the collector of Python 3.11 may run while a model ends, and free weak references to it too early."""

    def train() -> list[weakref.ref[Any]]:
        net = make().train()
        with guarded(net) as guard:
            loss_of(net, batch()).backward()
            net.eval()
            with torch.no_grad():
                net(batch())
            net.train()
            loss_of(net, batch()).backward()
        return [weakref.ref(net), weakref.ref(guard)]

    train()  # what is made once
    gc.collect()
    gc.disable()
    try:
        assert [each() for each in train()] == [None, None]
    finally:
        gc.enable()


def test_a_tensor_deleted_inside_forward_is_freed_there() -> None:
    """Nothing looks into the variables of a running forward, which would keep a copy of them."""
    freed = []

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 3)
            self.norm = nn.BatchNorm1d(3)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            scratch = x * 2
            mark = weakref.ref(scratch)
            out: Tensor = self.drop(self.norm(self.rnn(x)[0].flatten(0, 1)))
            nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
            self.drop.training = self.drop.training  # a write is watched too
            del scratch
            freed.append(mark() is None)
            return out

    net = Careful()
    gc.disable()
    try:
        with guarded(net):
            net(torch.randn(5, 2, 4)).sum().backward()
            with torch.no_grad():
                net(torch.randn(5, 2, 4))
    finally:
        gc.enable()
    assert freed == [True, True]


DEEP = """
import sys, threading
import torch
from torchtap import modes

def run():
    cell, x = torch.nn.LSTMCell(3, 4), torch.rand(1, 3)
    with modes.guard(cell):
        state = torch.zeros(1, 4), torch.zeros(1, 4)
        for _ in range(700):
            state = cell(x, state)
        loss = state[0].sum()
        loss.backward()
        del loss, state

threading.stack_size(512 * 1024)  # so that a small graph is deep
thread = threading.Thread(target=run)
thread.start()
thread.join()
print("freed")
"""


def test_a_deep_graph_can_still_be_freed() -> None:
    """PyTorch 2.14 frees a chain that Python has looked at node within node, and overflows the stack."""
    done = subprocess.run(
        [sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert (done.returncode, done.stdout) == (0, "freed\n"), done.stderr


def test_the_users_exception_closes_all_doors() -> None:
    net = Recurrent()

    def train() -> None:
        with guarded(net):
            loss_of(net, tokens()).backward()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()


def test_modes_are_left_as_the_user_set_them() -> None:
    net = Recurrent()
    net.drop.eval()
    with guarded(net):
        net.gru.eval()
    assert [net.drop.training, net.gru.training, net.lstm.training, net.training] == [
        False,
        False,
        True,
        True,
    ]


# --- compilers ---


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Counted:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@pytest.mark.usefixtures("_fresh_compiler")
@nets
@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled inside"])
def test_compiled_models_train_the_same(make: Any, batch: Any, before: bool) -> None:
    def run(watch: bool) -> list[Any]:
        torch.compiler.reset()
        torch.manual_seed(2)
        net, x = make(), batch()
        compiled = torch.compile(net, backend="aot_eager")
        if before:
            loss_of(compiled, x)
        with guarded(net) if watch else nullcontext():
            loss = loss_of(compiled, x)
            loss.backward()
        after = loss_of(compiled, x).detach()
        return [loss.detach(), after, *(p.grad for p in net.parameters()), *net.state_dict().values()]

    assert same(run(False), run(True))


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize(("make", "batch"), [NETS["convolutional"], NETS["attending"]])
def test_fullgraph_stays_one_graph(make: Any, batch: Any) -> None:
    """And a second entry does not compile again: what stands at the doors is made once."""
    net, x, backend = make(), batch(), Counted()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    with guarded(net):
        compiled(x)
        compiled(x)
    assert backend.graphs == 1
    with guarded(net):
        compiled(x)
    assert backend.graphs == 1


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_model_in_eval_is_refused_as_uncompiled() -> None:
    net = Recurrent().eval()
    compiled = torch.compile(net, backend="aot_eager")
    with modes.guard(net), pytest.raises(RuntimeError, match="cudnn RNN backward") as caught:
        loss_of(compiled, tokens()).backward()
    assert "lstm" in str(caught.value)


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit", "ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning"
)
@nets
def test_tracing_inside_gives_the_same_graph(make: Any, batch: Any) -> None:
    net, x = make().eval(), batch()

    def run(watch: bool) -> tuple[int, bool]:
        with guarded(net) if watch else nullcontext():
            traced: Any = torch.jit.trace(net, x, check_trace=False)
        return str(traced.inlined_graph).count("aten::"), same(traced(x), net(x))

    assert run(True) == run(False)
    assert run(True)[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::DeprecationWarning")
class Scriptable(nn.Module):
    """All that stands at a door."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.rnn = kind(4, 3)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return self.norm(self.drop(self.rnn(x)[0].flatten(0, 1)))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_scripting_inside_works(kind: Callable[..., nn.Module]) -> None:
    net, x = Scriptable(kind).eval(), torch.randn(5, 2, 4)
    with guarded(net):
        scripted: Any = torch.jit.script(net)
        inside = scripted(x)
    assert same(inside, net(x))
    assert same(scripted(x), net(x))


# --- wrappers, threads, processes ---


@pytest.mark.filterwarnings("ignore:.*DataParallel")
@nets
def test_data_parallel_without_gpus_trains_the_same(make: Any, batch: Any) -> None:
    def wrapped() -> nn.Module:
        return nn.DataParallel(make())

    assert same(two_epochs(wrapped, batch, False), two_epochs(wrapped, batch, True))


def test_models_in_other_threads_train_the_same() -> None:
    """The doors are open for the whole process; who is not watched must not notice."""
    net, x = Convolutional(), images()
    results: list[Any] = []

    def work() -> None:
        other = copy.deepcopy(net).eval()
        results.append(torch.autograd.grad(loss_of(other, x), list(other.parameters())))

    watched = Recurrent()
    with guarded(watched):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        loss_of(watched, tokens()).backward()
        for thread in threads:
            thread.join(60)
    work()
    assert len(results) == 5
    assert all(same(each, results[-1]) for each in results)


def test_data_loaders_with_workers_run_inside() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8))
    net = Recurrent()
    with guarded(net):
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
        assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


DDP = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from contextlib import nullcontext
from torchtap import modes

rank, world, store, watch = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "guard"
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 3, num_layers=2, dropout=0.2)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 1)
    def forward(self, x):
        return self.head(self.norm(self.rnn(x)[0].flatten(0, 1)))

model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
with modes.guard(model) if watch else nullcontext() as guard:
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(5, 2, 4)).square().sum().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(5, 2, 4))
assert not watch or guard.findings == [], guard
if rank == 0:
    torch.save([model.state_dict(), torch.get_rng_state()], store + ".out")
dist.barrier()
dist.destroy_process_group()
"""


def ddp(folder: Path, world: int, how: str) -> Any:
    script, store = folder / "train.py", folder / how
    script.write_text(textwrap.dedent(DDP))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world), str(store), how],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        ends = [(process.communicate(timeout=120), process.returncode) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [code for _, code in ends] == [0] * world, ends
    return torch.load(f"{store}.out")


def test_ddp_trains_the_same(tmp_path: Path) -> None:
    """Two ranks over gloo, with evaluations on each, and no finding."""
    assert same(ddp(tmp_path, 2, "bare"), ddp(tmp_path, 2, "guard"))
