"""The watches of all ranks of a distributed training brought together."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from torchtap.hooks.names import places
from torchtap.modes._torch import default_store
from torchtap.monitor._checksums import checksums
from torchtap.monitor._first import FirstNonfinite
from torchtap.monitor._packing import packed, parameter_of, unpacked
from torchtap.monitor._parameters import is_plain, local, root_mean_squares, without_wrappers
from torchtap.monitor._watch import Watch
from torchtap.monitor.history import Series
from torchtap.monitor.ranks import ParameterOfRank, Rank, Ranks

_SHOWN = 3  # measurements before a first non-finite value that are sent, as many as its text shows
_GAVE_UP = "gave up"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.2


class MissingRankError(TimeoutError):
    """A rank did not come to `gather`."""


def gather(watch: Watch, *, group: distributed.ProcessGroup | None = None, timeout: float = 300.0) -> Ranks:
    """What the watches of all ranks have measured until now. Every rank of the group calls it, and gets all of them.

    Sent are points and checksums of parameters, some 3 KB for each measured tensor, as JSON and numpy arrays: through
    the process group, gloo or NCCL, after all ranks have come. `timeout`: seconds to wait for them. Where there is no
    process group, one rank. Ranks may have watched other layers, and other numbers of steps. Changes nothing of the
    model; reads each parameter once, and on a GPU waits for that.

    Raises MissingRankError, a TimeoutError, that names the ranks that did not come: their next collective is another
    one, or they have ended. The process group can be used as before.

    >>> from torchtap import watch
    >>> with watch(nn.Linear(2, 1)) as w:
    ...     print(gather(w))
    1 ranks
    rank 0: 0 steps, 1 layers
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return Ranks((_view(watch, 0),))
    number = distributed.get_rank(group)
    if number < 0:
        raise ValueError(f"gather(group=...): rank {distributed.get_rank()} is no member of this group")
    data = packed(_view(watch, distributed.get_rank()))
    _roll_call(group, timeout)
    return Ranks(tuple(unpacked(each) for each in _exchanged(data, group)))


def _view(watch: Watch, rank: int) -> Rank:
    first = watch.first_nonfinite()  # reads what is not read yet
    model = watch.model
    keys = watch._state.keys.keys
    series: dict[tuple[str, str, int, str], Series] = {
        (watch.layers[key.layer].name if key.layer >= 0 else "", key.direction, key.call, key.path): found
        for number, key in enumerate(keys)
        if len(found := watch._history.series(number))
    }
    return Rank(
        rank=rank,
        steps=watch.steps,
        skipped=watch.skipped,
        layers=tuple((layer.name, layer.kind) for layer in watch.layers),
        series=series,
        scalars={name: watch._scalars.series(name) for name in watch._scalars.names},
        parameters={} if model is None else _parameters(watch, model),
        evaluating=() if model is None else _evaluating(model),
        first=None
        if first is None
        else replace(first, before=first.before[-_SHOWN:], weights=(), weights_of="", rerun=None),
        place=0 if first is None else len(first.before),
    )


def _to_send(first: FirstNonfinite) -> FirstNonfinite:
    """Without what was found out about its layer: each rank has told that itself."""
    return replace(first, before=first.before[-_SHOWN:], weights=(), weights_of="", rerun=None)


def _evaluating(model: nn.Module) -> tuple[str, ...]:
    return tuple(place.name for place in places(model) if not place.module.training)


def _parameters(watch: Watch, model: nn.Module) -> dict[str, ParameterOfRank]:
    named: dict[str, Tensor] = {without_wrappers(model, name): p for name, p in model.named_parameters()}
    held = {name: local(p.detach()) for name, p in named.items() if is_plain(p)}
    sums, rms = checksums(held), root_mean_squares(held)
    numbers = {name: number for number, name in enumerate(watch._parameters.names)}
    return {
        name: parameter_of(
            watch._parameter_history.series(numbers.get(name, 1 << 40)),
            tuple(held[name].shape) if name in held else tuple(parameter.shape),
            hasattr(parameter, "to_local"),
            sums.get(name),
            float(rms[name]) if name in rms else float("nan"),
        )
        for name, parameter in named.items()
    }


def _roll_call(group: distributed.ProcessGroup | None, timeout: float) -> None:
    """Wait until all ranks are here, in the store that the process group has anyway.

    A collective that a rank does not come to hangs, and with NCCL ends the process; this tells who is missing. Each
    rank notes under its own name the number of the call that it has come to, and adds 1 to a sum of all. One that gives
    up takes its 1 back, and will come to this call again.
    """
    ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
    store = default_store()
    name = f"torchtap/gather/{'-'.join(map(str, ranks)) if group is not None else 'all'}"
    mine = f"{name}/{distributed.get_rank()}"
    try:
        last, gave_up = _noted(store, mine)
        come = last if gave_up else last + 1
        store.set(mine, f"{come}")
        there = store.add(name, 1)
        end, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while there < come * len(ranks):
            if time.monotonic() > end:
                missing = [each for each in ranks if _noted(store, f"{name}/{each}")[0] < come]
                store.add(name, -1)
                store.set(mine, f"{come} {_GAVE_UP}")
                raise MissingRankError(_missing(missing, ranks, timeout))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            there = store.add(name, 0)
    except RuntimeError as error:
        raise RuntimeError(
            "torchtap.monitor.gather: the process group's store does not answer; the process of rank 0, which "
            f"holds it, has probably ended ({str(error).splitlines()[0]})"
        ) from error


def _noted(store: Any, key: str) -> tuple[int, bool]:
    """The last call that a rank has come to, and whether it gave up waiting there."""
    number, _, rest = (store.get(key).decode() if store.check([key]) else "0").partition(" ")
    return int(number), rest == _GAVE_UP


def _missing(missing: list[int], ranks: list[int], timeout: float) -> str:
    named = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return (
        f"torchtap.monitor.gather: rank {named} of {len(ranks)} did not come within {timeout:g} s. Every rank "
        "must call gather(), at the same place: not only `if rank == 0`. Slower ranks: gather(watch, timeout=...)"
    )


def _exchanged(data: bytes, group: distributed.ProcessGroup | None) -> list[bytes]:
    """The bytes of each rank, in the group's order."""
    device = torch.device("cpu")
    if "cpu:" not in distributed.get_backend_config(group):
        device = torch.device("cuda", torch.cuda.current_device())
    size = torch.tensor([len(data)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(sizes, size, group=group)
    lengths = [int(each) for each in sizes]
    mine = torch.zeros(max(lengths), dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    all_of_them = [torch.empty(max(lengths), dtype=torch.uint8, device=device) for _ in lengths]
    distributed.all_gather(all_of_them, mine.to(device), group=group)
    return [each[:length].cpu().numpy().tobytes() for each, length in zip(all_of_them, lengths, strict=True)]
