"""Two real processes of one distributed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torchtap

PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torchtap import modes

rank = int(sys.argv[1])
case = sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
model = nn.parallel.DistributedDataParallel(net) if case == "differ" else net
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(2, 4)
with modes.guard(net, on_violation="collect") as guard:
    for step in range(6):
        net.train()
        if step == 2 and rank == 0 and case == "differ":
            net.eval()  # only here
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if rank == 0:
            with modes.eval_mode(net):
                net(x)
dist.barrier()
json.dump([finding.to_dict() for finding in guard.findings], open(sys.argv[4] + str(rank), "w"))
dist.destroy_process_group()
"""


def run(case: str, folder: Path) -> list[list[dict[str, str]]]:
    """What each rank's guard has found."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    arguments = [case, str(folder / "store"), str(folder / "found")]
    source = str(Path(torchtap.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, str(program), str(rank), *arguments], env=environment, cwd=folder)
        for rank in range(2)
    ]
    try:
        assert [each.wait(timeout=120) for each in ranks] == [0, 0]
    finally:
        for each in ranks:
            if each.poll() is None:
                each.kill()
    return [json.loads((folder / f"found{rank}").read_text()) for rank in range(2)]


def test_c43_one_rank_trains_in_eval_mode(tmp_path: Path):
    """Both ranks tell; each names ranks, modules, step and its own line."""
    on_ranks = run("differ", tmp_path)
    for rank, findings in enumerate(on_ranks):
        mine = [finding for finding in findings if finding["id"] == "mode.ranks_differ"]
        assert len(mine) == 1, findings
        modes = ("eval", "train") if rank == 0 else ("train", "eval")
        assert mine[0]["where"] == "1"
        assert mine[0]["seen"] == (
            f"training step 3: {modes[0]} mode on rank {rank}, {modes[1]} mode on rank {1 - rank} (1)"
        )
        assert "rank 0: eval() at train.py:20" in mine[0]["cause"]
        assert "rank 1: train() at train.py:18" in mine[0]["cause"]


def test_an_evaluation_on_one_rank_that_restores_is_well(tmp_path: Path):
    """Also where the ranks do not wait for each other, as here without DistributedDataParallel."""
    assert run("well", tmp_path) == [[], []]
