"""What tests/unit/monitor/test_distributed.py runs on each rank, by torchrun: cases that give JSON.

`python -m torch.distributed.run --nproc-per-node 3 on_ranks.py FOLDER`
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from torchtap import watch
from torchtap.monitor import MissingRankError, Ranks, gather

RANK = int(os.environ.get("RANK", "0"))


class Root(nn.Module):
    """NaN for what is below 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


class Net(nn.Module):
    def __init__(self, *, checkpointed: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.root = Root()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
        self.last = nn.Linear(8, 1)
        if unused:
            self.never = nn.Linear(4, 4)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Any:
        x = self.drop(self.norm(self.first(self.root(x))))
        x = checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)
        return self.last(x)


def batch(step: int) -> Tensor:
    """Other data on each rank, the same in each run."""
    return torch.rand(6, 4, generator=torch.Generator().manual_seed(100 * RANK + step))


def train(model: Any, steps: int = 4, *, watched: bool, accumulate: int = 1) -> dict[str, Any]:
    """What is left after a training: weights, gradients, random numbers; and names, where it was watched."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    told: dict[str, Any] = {}
    with watch(model, optimizer, parameters_every=1) if watched else contextlib.nullcontext() as w:
        for step in range(steps):
            optimizer.zero_grad()
            for micro in range(accumulate):
                last = micro == accumulate - 1
                quiet = contextlib.nullcontext() if last else model.no_sync()
                with quiet:
                    loss = model(batch(accumulate * step + micro)).square().mean()
                    loss.backward()
            optimizer.step()
        if w is not None:
            ranks = gather(w)
            told = {
                "layers": [layer.name for layer in w.layers],
                "parameters": list(ranks[0].parameters),
                "measured": len(w.series("body.0", "gradient")),
                "count": w.series("body.0")["count"].tolist(),
                "normed": [
                    name
                    for name, each in ranks[RANK].parameters.items()
                    if len(each.value) == steps and (each.gradient > 0).all() and (each.update > 0).all()
                ],
                "findings": [each.id for each in ranks.diagnose()],
            }
    state = {name: whole(each) for name, each in model.state_dict().items()}
    state |= {f"grad of {name}": whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return {"state": {**state, "rng": torch.get_rng_state()}, **told}


def whole(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def both(make: Callable[[], nn.Module], accumulate: int = 1) -> dict[str, Any]:
    """A bare training and a watched one; whether all that is left of them is equal, bit for bit."""
    runs = []
    for watched in (False, True):
        torch.manual_seed(1)
        model = make()
        torch.manual_seed(2 + RANK)
        runs.append(train(model, watched=watched, accumulate=accumulate))
    bare, seen = (run.pop("state") for run in runs)
    equal = bare.keys() == seen.keys() and all(torch.equal(bare[name], seen[name]) for name in bare)
    return {**runs[1], "equal": equal}


def ddp(**options: Any) -> Callable[[], nn.Module]:
    of_net = {name: options.pop(name) for name in ("checkpointed", "unused") if name in options}
    return lambda: DistributedDataParallel(Net(**of_net), **options)


def sharded() -> nn.Module:
    net = Net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (net.body, net):
        fully_shard(part, mesh=mesh)
    return net


def nan_on_rank_2(spoil: float, *, step: int = 3) -> dict[str, Any]:
    """A value in one batch of rank 2."""
    torch.manual_seed(1)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch(model, optimizer) as w:
            for each in range(6):
                optimizer.zero_grad()
                x = batch(each)
                if RANK == 2 and each == step:
                    x[1, 1] = spoil
                model(x).square().mean().backward()
                optimizer.step()
            ranks = gather(w)
    return {
        "ranks": [each.rank for each in ranks.first_nonfinite()],
        "steps": [each.first.step for each in ranks if each.first is not None],
        "findings": [each.to_dict() for each in ranks.diagnose()],
        "text": str(ranks),
    }


def healthy(change: Callable[[Any, int], None] | None = None, **options: Any) -> Ranks:
    torch.manual_seed(1)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=options.get("lr", 0.05))
    with watch(model, optimizer, parameters_every=1) as w:
        for step in range(3):
            if change is not None:
                change(model, step)
            optimizer.zero_grad()
            called: Any = model.module if options.get("inside") else model
            loss = called(batch(step)).square().mean()
            w.log(loss=loss)
            loss.backward()
            optimizer.step()
        return gather(w)


def told(ranks: Ranks) -> list[dict[str, str]]:
    return [each.to_dict() for each in ranks.diagnose()]


def out_of_sync() -> Any:
    def change(model: Any, step: int) -> None:
        if RANK == 1 and step == 0:
            with torch.no_grad():
                model.module.last.weight.add_(0.5)

    return told(healthy(change))


def uneven() -> Any:
    """Other layers and other numbers of steps on each rank; no DistributedDataParallel."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with watch(net, optimizer, layers="0" if RANK == 1 else None) as w:
        for step in range(60 if RANK == 0 else 5):
            net(batch(step)).sum().backward()
            optimizer.step()
        ranks = gather(w)
    return {
        "layers": [[name for name, _ in each.layers] for each in ranks],
        "steps": [each.steps for each in ranks],
        "points": {str(rank): len(series) for rank, series in ranks.series("0").items()},
        "last_steps": [int(series.last_step[-1]) for series in ranks.series("0").values()],
        "of_2": list(ranks.series("2")),
        "findings": [each.id for each in ranks.diagnose()],
    }


def series() -> Any:
    """Each rank's own numbers arrive unchanged at all others."""
    ranks = healthy()
    mine = ranks[RANK]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        means = {rank: each["mean"].tolist() for rank, each in ranks.series("first").items()}
    return {
        "means": means,
        "own": mine.series["first", "output", 0, ""]["mean"].tolist(),
        "losses": [each.scalars["loss"]["mean"].tolist() for each in ranks],
        "norms": {rank: each.tolist() for rank, each in ranks.gradient_norms("first").items()},
        "findings": told(ranks),
    }


def missing() -> Any:
    """Rank 1 comes only when the others have given up twice; then all come."""
    net = nn.Linear(2, 1)
    with watch(net) as w:
        errors = []
        if RANK == 1:
            time.sleep(3)
        for _ in range(0 if RANK == 1 else 2):
            try:
                gather(w, timeout=0.5)
            except MissingRankError as given:
                errors.append(str(given))
        dist.barrier()
        return {"errors": errors, "then": len(gather(w))}


def evaluating() -> Any:
    def change(model: Any, step: int) -> None:
        model.module.drop.train(RANK != 1)

    return [each.evaluating for each in healthy(change)]


def of_a_group() -> Any:
    group: Any = dist.new_group([0, 2])
    with watch(nn.Linear(2, 1)) as w:
        try:
            return [each.rank for each in gather(w, group=group)]
        except ValueError as error:
            return str(error)


class Float16Norm(nn.Module):
    """BatchNorm in float16 with an eps that is too small for it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, eps=1e-12).half()

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x.half())
        return normed.float()


def batchnorm() -> Any:
    """Two equal rows on rank 1 alone."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), Float16Norm()))
    x = batch(0)[:2].clone()
    if RANK == 1:
        x[1] = x[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch(model) as w:
            model(x).square().sum().backward()
            w.step()
            ranks = gather(w)
    own = ranks[RANK].series["0", "gradient", 0, ""]["nonfinite"]
    named: Any = model.module[0].named_parameters()
    try:
        made = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4))(x)
        sync = f"no error, {made.shape}"
    except ValueError as error:
        sync = str(error)
    return {
        "output gradients are finite": bool((own == 0).all()),
        "parameters with nan": [f"0.{name}" for name, p in named if p.grad.isnan().any()],
        "first": [each.rank for each in ranks.first_nonfinite()],
        "sync": sync,
    }


CASES: dict[str, Callable[[], Any]] = {
    "plain": lambda: both(ddp()),
    "find_unused_parameters": lambda: both(ddp(find_unused_parameters=True, unused=True)),
    "static_graph": lambda: both(ddp(static_graph=True)),
    "gradient_as_bucket_view": lambda: both(ddp(gradient_as_bucket_view=True)),
    "no_sync": lambda: both(ddp(), accumulate=3),
    "checkpoint": lambda: both(ddp(checkpointed=True)),
    "fsdp2": lambda: both(sharded),
    "nan_in_batch": lambda: nan_on_rank_2(float("nan")),
    "nan_made": lambda: nan_on_rank_2(-1.0),
    "series": series,
    "out_of_sync": out_of_sync,
    "inside": lambda: told(healthy(inside=True)),
    "inside_without_steps": lambda: told(healthy(inside=True, lr=0.0)),
    "uneven": uneven,
    "batchnorm": batchnorm,
    "missing": missing,
    "evaluating": evaluating,
    "of_a_group": of_a_group,
}


def main(folder: Path, chosen: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # a rank that hangs ends by itself
    results = {name: case() for name, case in CASES.items() if name in chosen or not chosen}
    dist.barrier()
    (folder / f"{RANK}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
