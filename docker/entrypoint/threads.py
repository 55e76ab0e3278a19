"""How many CPUs this container may use, and the thread counts that follow from it.

PyTorch and the BLAS libraries start one thread for each CPU that they see. A quota (`docker run --cpus`, a limit of
Kubernetes) hides no CPU: 64 threads then share the time of two CPUs and wait for each other. And a limit of
processes (`--pids-limit`), which counts threads, is used up by a few pools of 384.

>>> variables(Processors(visible=64, quota=1.5), {})
{'OMP_NUM_THREADS': '2', 'TORCHINDUCTOR_COMPILE_THREADS': '2'}
>>> variables(Processors(visible=64), {})
{}
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Name and what it governs. MKL_NUM_THREADS and OPENBLAS_NUM_THREADS are left out on purpose: both libraries follow
# OMP_NUM_THREADS, and where they are set they win over it, so that a later `OMP_NUM_THREADS=1 python ...` of the
# user's would change nothing (seen with torch 2.14.1).
VARIABLES = (
    ("OMP_NUM_THREADS", "threads of PyTorch's operations, MKL, OpenBLAS (NumPy) and numexpr"),
    ("TORCHINDUCTOR_COMPILE_THREADS", "processes with which torch.compile compiles"),
)
# So many processes (kernels, workers of a DataLoader) may have a pool of threads each before the limit is reached.
POOLS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """What this container has of the machine's CPUs."""

    visible: int  # those it may run on (cpuset, affinity): what programs count
    quota: float | None = None  # of their time, in CPUs; None: no limit
    tasks: int | None = None  # processes and threads at once; None: no limit

    @property
    def usable(self) -> int:
        """Threads that make sense in one process: the quota rounded up, and a share of the limit of processes."""
        limits = [self.visible]
        if self.quota is not None:
            limits.append(math.ceil(self.quota))
        if self.tasks is not None:
            limits.append(self.tasks // POOLS)
        return max(min(limits), 1)


def variables(processors: Processors, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set: none where nothing limits what programs see, none that the user has set."""
    if processors.usable >= processors.visible:
        return {}
    return {name: str(processors.usable) for name, _ in VARIABLES if not environment.get(name)}


def processors(proc: Path = Path("/proc")) -> Processors:
    """Ask the kernel. What cannot be read limits nothing."""
    quotas = [quota for folder in _groups("cpu", proc) if (quota := _quota(folder)) is not None]
    tasks = [
        int(text) for folder in _groups("pids", proc) if (text := _words(folder / "pids.max")[0]).isdigit()
    ]
    return Processors(
        visible=len(os.sched_getaffinity(0)), quota=min(quotas, default=None), tasks=min(tasks, default=None)
    )


def _groups(controller: str, proc: Path) -> Iterator[Path]:
    """The folders of the control groups that limit this process, own first, as far up as can be seen from here.

    A limit may lie on a parent: that of a pod, of a job of a batch system.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
        table = (proc / "self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    known = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    own = {name: path for _, names, path in known for name in names.split(",")}
    for words in (line.split() for line in table if " - " in line):
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        # Version 1 has a tree for each controller; version 2 has one for all, whose name is empty.
        name = {"cgroup": controller, "cgroup2": ""}.get(kind)
        if name is None or name not in own or (name and name not in options):
            continue
        root, top = words[3].rstrip("/"), Path(words[4])
        # Docker mounts the container's own group alone, whose path is that of the host: then it is the top itself.
        inside = own[name].removeprefix(root) if f"{own[name]}/".startswith(f"{root}/") else ""
        folder = top / inside.strip("/")
        yield from (each for each in (folder, *folder.parents) if each == top or top in each.parents)


def _quota(folder: Path) -> float | None:
    """CPUs' worth of time; None where there is no limit."""
    words = _words(folder / "cpu.max")  # version 2: "150000 100000", "max 100000"
    if len(words) == 1:
        words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return None
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    """Never empty: [""] for a file that cannot be read."""
    try:
        return path.read_text().split() or [""]
    except OSError:
        return [""]
