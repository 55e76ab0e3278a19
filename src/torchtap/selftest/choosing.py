"""CUDA_VISIBLE_DEVICES: which of the GPUs that are here it names. CUDA stops reading at the first that is not."""

from __future__ import annotations

from collections.abc import Sequence

from torchtap.selftest.facts import Facts
from torchtap.selftest.smi import Row


def chooses_gpus(facts: Facts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES is set at all."""
    return "CUDA_VISIBLE_DEVICES" in facts.host.env


def hides_every_gpu(facts: Facts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves nothing: its first entry does not exist.

    An index is only known to be wrong where nvidia-smi told how many GPUs there are.
    """
    if not chooses_gpus(facts):
        return False
    first = facts.host.env["CUDA_VISIBLE_DEVICES"].partition(",")[0].strip()
    rows = facts.smi.rows if facts.smi is not None else ()
    if first.isdecimal():
        return bool(rows) and int(first) >= len(rows)
    uuids = [row.text("uuid") or "" for row in rows]
    uuids += [mig for gpu in (facts.smi.listed if facts.smi is not None else ()) for mig in gpu.mig]
    return not first.startswith(("GPU-", "MIG-")) or (
        bool(rows) and not any(uuid.startswith(first) for uuid in uuids)
    )


def missing_names(facts: Facts) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names and is not here; None where nobody can say: no list of GPUs, or MIG."""
    rows = facts.smi.rows if facts.smi is not None else ()
    if not rows or any(row.text("mig.mode.current") == "Enabled" for row in rows):
        return None
    names = facts.host.env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [name.strip() for name in names if not _is_here(name.strip(), rows)] if chooses_gpus(facts) else []


def _is_here(name: str, rows: Sequence[Row]) -> bool:
    if name.isdecimal():
        return int(name) < len(rows)
    return name.startswith("GPU-") and any((row.text("uuid") or "").startswith(name) for row in rows)
