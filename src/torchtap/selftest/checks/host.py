"""What the host gives every process: shared memory and limits. None of it is a GPU's fault; it stops training alike."""

from __future__ import annotations

from torchtap.selftest.check import Check, Judged, Scope, UnreadableError, failed, passed, warned
from torchtap.selftest.facts import Facts
from torchtap.selftest.host import SHARED_MEMORY
from torchtap.selftest.limits import OPEN_FILES_WARN, SHARED_MEMORY_DEFAULT, SHARED_MEMORY_WARN
from torchtap.selftest.status import Device
from torchtap.selftest.words import size


def gpu_count(facts: Facts) -> int:
    """How many GPUs this process is given: as nvidia-smi lists them, else as there are nodes."""
    if facts.smi is not None and facts.smi.rows:
        return len(facts.smi.rows)
    names = [node.path.removeprefix("/dev/nvidia") for node in facts.host.nodes]
    return sum(name.isdecimal() for name in names)


def judge_shared_memory(facts: Facts) -> Judged:
    """Its size against what workers of a DataLoader and NCCL need. Without a GPU by design it is only told."""
    room = facts.host.shared_memory
    if room is None:
        raise UnreadableError(f"{SHARED_MEMORY} is not there, or its size cannot be read")
    seen, gpus = f"{SHARED_MEMORY} holds {size(room)}", gpu_count(facts)
    values = {"bytes": room, "gpu_count": gpus, "room": size(room)}
    if room >= SHARED_MEMORY_WARN:
        return passed(seen, **values)
    if facts.device is Device.CPU:
        return passed(f"{seen}, little for workers of a DataLoader: --shm-size 8g", **values)
    if room <= SHARED_MEMORY_DEFAULT and gpus > 1:
        return failed("shm_too_small", f"{seen}, for {gpus} GPUs", **values)
    return warned("shm_small", seen, **values)


def judge_limits(facts: Facts) -> Judged:
    """Locked memory, which InfiniBand and GPUs that talk to each other need, and open files."""
    limits = facts.host.limits
    if not {"memlock", "nofile"} <= limits.keys():
        raise UnreadableError("the limits of this process cannot be read")
    locked, files = limits["memlock"], limits["nofile"]
    words = [
        f"memlock {'unlimited' if locked < 0 else size(locked)}",
        f"nofile {'unlimited' if files < 0 else files}",
    ]
    values = {**limits, "locked": words[0], "files": words[1]}
    seen = ", ".join(words)
    if 0 <= files < OPEN_FILES_WARN:
        return warned("few_open_files", seen, **values)
    if locked >= 0 and facts.device is Device.GPU and (facts.host.infiniband or gpu_count(facts) > 1):
        return warned("memlock_limited", seen, **values)
    return passed(seen, **values)


CHECKS = (
    Check(
        id="host.shm",
        title="Is /dev/shm large enough for DataLoader workers and NCCL?",
        reads=(SHARED_MEMORY, "smi:index"),
        needs=("gpu.state",),
        judge=judge_shared_memory,
        causes=("shm_small", "shm_too_small"),
        scope=Scope.ANY,
        source="limits.py: less than 1 GiB; Docker's 64 MiB with more than one GPU (NCCL's segments)",
        see="df -h /dev/shm",
    ),
    Check(
        id="host.limits",
        title="May a process lock memory and open files as training does?",
        reads=("ulimit", "/sys/class/infiniband", "smi:index"),
        needs=("gpu.state",),
        judge=judge_limits,
        causes=("memlock_limited", "few_open_files"),
        scope=Scope.ANY,
        source="NGC's start line (--ulimit memlock=-1); 4,096 files; memlock counts with InfiniBand or several GPUs",
        see="ulimit -l -n -s",
    ),
)
