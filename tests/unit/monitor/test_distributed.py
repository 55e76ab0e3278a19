"""Three real processes of one distributed training, by torchrun with gloo: see on_ranks.py for what they run."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchtap import watch
from torchtap.monitor import gather

ROOT = Path(__file__).resolve().parents[3]
RANKS = range(3)
LAYERS = ["root", "first", "norm", "drop", "body.0", "body.1", "last"]
PARAMETERS = [f"{name}.{of}" for name in ("first", "norm", "body.0", "last") for of in ("weight", "bias")]
Told = list[dict[str, Any]]


def torchrun(folder: Path, ranks: int = 3, *cases: str) -> Told:
    """What each rank has written. All its ports are free ones, on the loopback interface."""
    program = Path(__file__).with_name("on_ranks.py")
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *rendezvous]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [*command, str(program), str(folder), *cases],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """All cases, run once."""
    return torchrun(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("plain", 1),
        ("find_unused_parameters", 1),
        ("static_graph", 1),
        ("gradient_as_bucket_view", 1),
        ("no_sync", 3),
        ("checkpoint", 1),
        ("fsdp2", 1),
    ],
)
def test_a_watched_training_is_the_bare_one_bit_for_bit_on_every_rank(
    on_ranks: Told, case: str, calls: int
) -> None:
    """Weights, buffers, gradients and random numbers. Names are the user's; each step is measured, once."""
    unused = case == "find_unused_parameters"
    for rank in RANKS:
        seen = on_ranks[rank][case]
        assert seen["equal"]
        assert seen["layers"] == LAYERS + ["never"] * unused, "without `module.`"
        assert seen["parameters"] == PARAMETERS + ["never.weight", "never.bias"] * unused
        assert seen["measured"] == 4, "gradients of four steps"
        assert seen["count"] == [6 * 8 * calls] * 4, "this rank's batch, a recomputation not counted"
        # Of `last`, which has one unit, only rank 0 holds a shard with values.
        held = PARAMETERS[:-2] if case == "fsdp2" and rank else PARAMETERS
        assert seen["normed"] == held, "gradient and update of each, of local shards too"
        assert seen["findings"] == [], "all is well"


def test_nan_in_the_batch_of_one_rank_is_named(on_ranks: Told) -> None:
    """With rank, step and input; the others have it one step later, by the averaged gradients."""
    for rank in RANKS:
        seen = on_ranks[rank]["nan_in_batch"]
        assert (seen["ranks"], seen["steps"]) == ([2], [4, 4, 3])
        [finding] = seen["findings"]
        assert (finding["id"], finding["where"]) == ("ranks.nonfinite", "")
        assert finding["seen"] == (
            "rank 2 first, in step 3: 1 of 24 values of the input 0 of the model itself are NaN or infinite; "
            "ranks 0, 1 later"
        )
        assert finding["cause"] == "the batch of rank 2 in step 3 holds NaN or infinity"


def test_nan_made_by_a_layer_on_one_rank_is_named(on_ranks: Told) -> None:
    """The root of a value below 0 in one rank's batch: rank, step and layer."""
    for rank in RANKS:
        seen = on_ranks[rank]["nan_made"]
        [finding] = seen["findings"]
        assert (seen["ranks"], finding["where"]) == ([2], "root")
        assert finding["seen"].startswith("rank 2 first, in step 3: 1 of 24 values of the output of root")
        assert "rank 2: 6 steps, 7 layers; step 3: 1 of 24" in seen["text"]


def test_every_rank_has_all_series_as_they_were_measured(on_ranks: Told) -> None:
    """Outputs, losses and gradient norms before averaging differ over ranks, and that is no fault."""
    first = on_ranks[0]["series"]
    for rank in RANKS:
        seen = on_ranks[rank]["series"]
        assert seen["means"] == first["means"]
        assert seen["means"][str(rank)] == seen["own"]
        assert seen["losses"] == first["losses"]
        assert seen["findings"] == []
    assert len({tuple(each) for each in first["means"].values()}) == 3
    assert len({tuple(each) for each in first["norms"].values()}) == 3


def test_a_replica_that_has_gone_apart_is_named(on_ranks: Told) -> None:
    for rank in RANKS:
        [finding] = on_ranks[rank]["out_of_sync"]
        assert (finding["id"], finding["where"]) == ("ranks.out_of_sync", "last.weight")
        assert finding["seen"].startswith("after 3 steps its values differ between rank 1 (rms 0.58")
        assert "and ranks 0, 2 (rms 0.2" in finding["seen"]


@pytest.mark.parametrize("case", ["inside", "inside_without_steps"])
def test_gradients_that_are_not_averaged_are_told(on_ranks: Told, case: str) -> None:
    """`ddp.module(x)` instead of `ddp(x)`: the cause, not that replicas have gone apart by it; with lr=0 too."""
    for rank in RANKS:
        [finding] = on_ranks[rank][case]
        assert (finding["id"], finding["where"]) == ("ranks.gradients_differ", "first.weight")
        assert "on rank 0" in finding["seen"]
        assert "on rank 2; the same at first.bias, norm.weight" in finding["seen"]
        assert "ddp(x), not ddp.module(x)" in finding["remedy"]


def test_ranks_may_have_watched_other_layers_and_other_numbers_of_steps(on_ranks: Told) -> None:
    seen = on_ranks[2]["uneven"]
    assert seen["layers"] == [["0", "1", "2"], ["0"], ["0", "1", "2"]]
    assert seen["steps"] == [60, 5, 5]
    assert seen["last_steps"] == [59, 4, 4]
    assert seen["of_2"] == [0, 2]
    assert "ranks.steps_differ" in seen["findings"]


def test_a_rank_that_does_not_come_is_named_and_the_group_lives_on(on_ranks: Told) -> None:
    """No collective has begun, so nothing hangs: the next call, which all come to, works."""
    for rank in (0, 2):
        errors = on_ranks[rank]["missing"]["errors"]
        assert len(errors) == 2, "having come once before is not coming"
        for error in errors:
            assert error.startswith("torchtap.monitor.gather: rank 1 of 3 did not come within 0.5 s.")
    assert [on_ranks[rank]["missing"]["then"] for rank in RANKS] == [3, 3, 3]


def test_modes_of_each_rank_are_told(on_ranks: Told) -> None:
    assert on_ranks[0]["evaluating"] == [[], ["drop"], []]


def test_a_group_of_some_ranks(on_ranks: Told) -> None:
    assert [on_ranks[rank]["of_a_group"] for rank in RANKS] == [
        [0, 2],
        "gather(group=...): rank 1 is no member of this group",
        [0, 2],
    ]


def test_without_a_process_group_there_is_one_rank() -> None:
    """So a script runs alone, too; also when the model is gone."""
    net = nn.Sequential(nn.Linear(2, 1))
    with watch(net) as w:
        net(torch.ones(3, 2)).sum().backward()
        w.step()
    assert len(gather(w)) == 1
    assert list(gather(w)[0].parameters) == ["0.weight", "0.bias"]
    del net
    assert gather(w)[0].parameters == {}
    assert len(gather(w).series("0")[0]["mean"]) == 1
