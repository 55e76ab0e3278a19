"""Who else has a claim on the GPU: other processes, a licence server, a variable that picks GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtap.selftest.check import Check, Judged, UnreadableError, failed, passed, skipped, warned
from torchtap.selftest.checks.untold import not_told, untold
from torchtap.selftest.choosing import missing_names
from torchtap.selftest.facts import Facts
from torchtap.selftest.limits import MEMORY_IN_USE_MIB
from torchtap.selftest.process import Answer
from torchtap.selftest.query import is_vgpu
from torchtap.selftest.smi import CellState, Row, read_cell
from torchtap.selftest.smi.fields import NotThisFormError, licensed, uuid
from torchtap.selftest.smi.forms import read_query
from torchtap.selftest.words import count, name_gpus


def judge_free(facts: Facts) -> Judged:
    """Memory in use, and processes where nvidia-smi shows them: a container sees only its own."""
    smi = facts.need_smi
    if smi.path is None:
        return skipped("not_reported", "there is no nvidia-smi to ask")
    if not smi.rows:
        raise UnreadableError("nvidia-smi reported no GPU")
    if any(row.text("mig.mode.current") == "Enabled" for row in smi.rows):
        return skipped("not_applicable", "MIG is on: the memory in use is that of all instances together")
    used = {row.gpu: row.number("memory.used") for row in smi.rows}
    answer = smi.also.get("processes")
    apps = _apps(answer, smi.rows) if answer is not None else {}
    full = [gpu for gpu, mib in used.items() if mib is not None and mib > MEMORY_IN_USE_MIB]
    values: dict[str, object] = {
        "used_mib": list(used.values()),
        "processes": {str(gpu): pids for gpu, pids in apps.items()},
    }
    if busy := [gpu for gpu in used if gpu in full or apps.get(gpu)]:
        seen = "; ".join(f"GPU {gpu}: {_use(used[gpu], apps.get(gpu, []))}" for gpu in busy)
        return warned("gpu_in_use", seen, **values, gpus=name_gpus(busy), index=busy[0] or 0)
    if silent := untold(smi.rows, ("memory.used",)):
        return not_told(silent)
    dark = [gpu for gpu, mib in used.items() if mib is None]
    if dark and answer is None:
        return skipped("not_reported", f"not reported by {name_gpus(dark)}")
    known = [mib for mib in used.values() if mib is not None]
    parts = [f"{max(known):,.0f} MiB in use at most"] if known else []
    parts += [f"no process on {name_gpus(dark) if known else 'it'}"] if dark else []
    return passed("; ".join(parts), **values)


def _use(mib: float | None, pids: Sequence[str]) -> str:
    parts = [] if mib is None else [f"{mib:,.0f} MiB in use"]
    parts += [f"process{'es' if len(pids) > 1 else ''} {', '.join(pids)}"] if pids else []
    return ", ".join(parts)


_REFUSED = re.compile(
    r"^\s*(?:Field |No running processes|ERROR: Option|\[?(?:N/A|Not Supported))", re.MULTILINE
)


def _apps(answer: Answer, rows: Sequence[Row]) -> dict[int | None, list[str]]:
    """Process ids by GPU. Raises `UnreadableError` for lines of another form, and for an answer that is none."""
    if answer.rc != 0 and not _REFUSED.search(answer.text):
        raise UnreadableError(f"the question for processes was not answered: {answer.ending}")
    index = {row.text("uuid"): row.gpu for row in rows}
    found: dict[int | None, list[str]] = {}
    for line in answer.text.splitlines():
        # An old driver may refuse the question, WSL has no processes to tell: both say nothing about the GPU.
        if not line.strip() or _REFUSED.match(line.strip()):
            continue
        parts = [part.strip() for part in line.split(",")]
        try:
            gpu = index[uuid(parts[0])]
            found.setdefault(gpu, []).append(
                parts[1].strip("[]") if parts[1] == "[N/A]" else str(int(parts[1]))
            )
        except (NotThisFormError, KeyError, ValueError, IndexError):
            raise UnreadableError(f"the list of processes has the line {line!r}") from None
    return found


def judge_licence(facts: Facts) -> Judged:
    """Of virtual GPUs only, known by their names: without a licence they work, and slow down after minutes."""
    smi = facts.need_smi
    if smi.path is None:
        return skipped("not_reported", "there is no nvidia-smi to ask")
    virtual = [row for row in smi.rows if is_vgpu(row.text("name") or "")]
    if not virtual:
        return passed("no virtual GPU, so no licence is needed")
    answer = smi.also.get("licence")
    if answer is None:
        raise UnreadableError("nvidia-smi was not asked for the licence")
    # The GPUs of `-q` stand in the order of the rows, each once.
    said = {at: value for at, (path, value) in read_query(answer.text) if path[-1] == "License Status"}
    if silent := [row.gpu for at, row in enumerate(smi.rows) if row in virtual and at not in said]:
        raise UnreadableError(f"nvidia-smi -q says no License Status of {name_gpus(silent)}")
    leaves = [(smi.rows[at].gpu, value) for at, value in said.items() if 0 <= at < len(smi.rows)]
    try:
        missing = [(gpu, value) for gpu, value in leaves if not _has_licence(value)]
    except NotThisFormError as error:
        raise UnreadableError(f"License Status is {str(error)!r}") from None
    if missing:
        return warned(
            "vgpu_unlicensed",
            "; ".join(f"GPU {gpu}: {value}" for gpu, value in missing),
            gpus=name_gpus(gpu for gpu, _ in missing),
        )
    return passed(
        f"{count(len(leaves), 'virtual GPU')} with a licence", status=[value for _, value in leaves]
    )


def _has_licence(status: str) -> bool:
    """A virtual GPU that reports none has none. Raises `NotThisFormError` for words that nobody knows."""
    return read_cell(status).state is not CellState.NOT_REPORTED and licensed(status)


def judge_visible(facts: Facts) -> Judged:
    """What CUDA_VISIBLE_DEVICES names must be here: CUDA drops the first name that is not, and all that follow."""
    visible = facts.host.env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return passed("CUDA_VISIBLE_DEVICES is not set")
    rows = facts.smi.rows if facts.smi is not None else ()
    mig = any(row.text("mig.mode.current") == "Enabled" for row in rows)
    if not rows or mig:
        return skipped("not_applicable", "MIG picks the instance" if mig else "nobody lists the GPUs")
    values = {"visible": visible, "count": len(rows)}
    if missing := missing_names(facts):
        return failed(
            "visible_not_here",
            f"CUDA_VISIBLE_DEVICES={visible}; nvidia-smi lists {count(len(rows), 'GPU')}",
            **values,
            missing=missing[0],
        )
    return passed(f"CUDA_VISIBLE_DEVICES={visible}", **values)


FREE = Check(
    id="gpu.free",
    title="Is every GPU free of other work?",
    reads=("smi:memory.used", "smi:mig.mode.current", "ask:processes"),
    needs=("gpu.state",),
    judge=judge_free,
    causes=("gpu_in_use", "not_told"),
    source="limits.py: more than 1 GiB in use, or any compute process",
    see="nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
)
LICENCE = Check(
    id="gpu.licence",
    title="Has a virtual GPU its licence?",
    reads=("smi:name", "ask:licence"),
    needs=("gpu.state",),
    judge=judge_licence,
    causes=("vgpu_unlicensed",),
    source="gpu-operator#220: License Status of nvidia-smi -q; asked of names that end like those of virtual GPUs",
    see="nvidia-smi -q | grep -i license",
)
VISIBLE = Check(
    id="env.visible",
    title="Are the GPUs here that CUDA_VISIBLE_DEVICES names?",
    reads=("env:CUDA_VISIBLE_DEVICES", "smi:index", "smi:uuid", "smi:mig.mode.current"),
    needs=("cuda.init",),
    judge=judge_visible,
    causes=("visible_not_here",),
    source="CUDA C++ Programming Guide, CUDA environment variables",
    see="echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L",
)
