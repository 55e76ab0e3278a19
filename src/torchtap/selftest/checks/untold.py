"""A GPU that is silent where it should speak: an equal one tells the field, or its own mode says that it must.

That a product has no such field is normal, and nobody lists what each product has. But two GPUs of one name have the
same fields, as long as they are in the same mode: with MIG on, or ECC off, some fields go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchtap.selftest.check import Judged, unknown
from torchtap.selftest.query import is_vgpu
from torchtap.selftest.smi import Row
from torchtap.selftest.words import name_gpus

MIG, ECC = "mig.mode.current", "ecc.mode.current"
# Errors since the driver was loaded: a board with ECC counts them. Those of its life are kept by some boards only.
COUNTED = "ecc.errors.uncorrected.volatile.total"
# Says nothing about health.
_UNCOMPARED = frozenset({"persistence_mode"})
_OF_ECC = ("ecc.errors.", "remapped_rows.", "retired_pages.")


def untold(rows: Sequence[Row], fields: Sequence[str]) -> dict[int | None, tuple[str, str]]:
    """GPU -> (a field that it does not tell, why it should), for the GPUs that are silent.

    >>> from torchtap.selftest.smi import Row, read_cell
    >>> def gpu(index, width):
    ...     cells = {"name": "NVIDIA H200", "pcie.link.width.max": width}
    ...     return Row(index, {name: read_cell(text) for name, text in cells.items()})
    >>> untold([gpu(0, "16"), gpu(1, "[N/A]")], ["pcie.link.width.max"])
    {1: ('pcie.link.width.max', 'GPU 0, which is of the same kind, does')}
    """
    found: dict[int | None, tuple[str, str]] = {}
    for name in fields:
        if name in _UNCOMPARED:
            continue
        tellers: dict[object, int | None] = {}
        for row in rows:
            if row.text(name) is not None:
                tellers.setdefault(_kind(row, name), row.gpu)
        for row in rows:
            if row.text(name) is None and (kind := _kind(row, name)) in tellers:
                why = f"{name_gpus([tellers[kind]])}, which is of the same kind, does"
                found.setdefault(row.gpu, (name, why))
            if name == COUNTED and _must_count(row):
                found.setdefault(row.gpu, (name, "its ECC is Enabled"))
    return found


def not_told(silent: Mapping[int | None, tuple[str, str]]) -> Judged:
    """What it means: nobody knows whether these GPUs are well."""
    name, why = next(iter(silent.values()))
    gpus = name_gpus(silent)
    return unknown(
        "not_told",
        f"{gpus}: {name} [N/A]",
        gpus=gpus,
        index=next(iter(silent)) or 0,
        field=name,
        why=why,
    )


def _kind(row: Row, field: str) -> object:
    """What two GPUs must share to be compared in a field: their name, and the modes that decide whether it is there."""
    name = row.text("name")
    if name is None:
        return object()  # equal to none
    mig = row.text(MIG) == "Enabled" and field != MIG
    ecc = row.text(ECC) if field.startswith(_OF_ECC) else None
    return name, mig, ecc


def _must_count(row: Row) -> bool:
    """ECC is on, and nothing that hides its counters: not MIG, and no virtual GPU, whose ECC is the host's."""
    hidden = row.text(MIG) == "Enabled" or is_vgpu(row.text("name") or "")
    return row.text(ECC) == "Enabled" and row.text(COUNTED) is None and not hidden
