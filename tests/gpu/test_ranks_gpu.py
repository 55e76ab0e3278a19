"""What only GPUs can show of `torchtap.monitor.gather`, and of claim B12 (docs/claims.md). Not run yet on any GPU.

Run with `pytest -m gpu tests/gpu/test_ranks_gpu.py`; most of it needs two GPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu"),
]
two = pytest.mark.skipif(GPUS < 2, reason="gpu: two are needed, as NCCL takes one rank a GPU")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys, warnings
import torch
import torch.distributed as dist
from torch import nn
from torchtap import watch
from torchtap.monitor import gather

warnings.simplefilter("ignore")
rank, sync = int(os.environ["RANK"]), sys.argv[2] == "sync"
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, eps=1e-12)).cuda()
if sync:
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
model = nn.parallel.DistributedDataParallel(net, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with watch(model, optimizer, parameters_every=1) as w:
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(2, 4, device="cuda", generator=torch.Generator("cuda").manual_seed(rank))
        if step == 1 and rank == dist.get_world_size() - 1 and sys.argv[2] != "well":
            x[1] = x[0]
        with torch.autocast("cuda", torch.float16):
            out = model(x)
        (out.float() * torch.arange(1.0, 9.0, device="cuda").view(2, 4)).sum().backward()
        optimizer.step()
    ranks = gather(w)
found = [each.to_dict() for each in ranks.diagnose()]
told = {"ranks": len(ranks), "names": list(ranks[0].parameters), "found": found}
open(f"{sys.argv[1]}/{rank}", "w").write(json.dumps(told))
dist.destroy_process_group()
"""


def on_gpus(folder: Path, count: int, case: str) -> list[dict[str, Any]]:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), *rendezvous]
    done = subprocess.run(
        [*command, str(program), str(folder), case],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NCCL_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / str(rank)).read_text()) for rank in range(count)]


def test_gather_goes_through_nccl(tmp_path: Path) -> None:
    count = min(GPUS, 2)
    for told in on_gpus(tmp_path, count, "well"):
        assert told["ranks"] == count
        assert told["names"] == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert told["found"] == []


@two
def test_b12_equal_rows_on_one_rank_overflow_float16_and_the_rank_is_named(tmp_path: Path) -> None:
    """Gradients a million times as large, as 1 / sqrt(1e-12) is."""
    for told in on_gpus(tmp_path, 2, "plain"):
        assert [each["id"] for each in told["found"]] == ["ranks.nonfinite"]
        assert told["found"][0]["seen"].startswith("rank 1 first, in step 1")


@two
def test_b12_sync_batchnorm_has_the_rows_of_both_ranks(tmp_path: Path) -> None:
    for told in on_gpus(tmp_path, 2, "sync"):
        assert told["found"] == []
