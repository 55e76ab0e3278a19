"""Results and the report: plain values, ordered, ready for JSON. Drawing is report.py's business."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeGuard

from torchtap.selftest.identity import Identity
from torchtap.selftest.masking import host_names, mask_all, pseudonym, short_too
from torchtap.selftest.status import Level, Status, worst

SCHEMA = 1
EXIT_CODES = {Status.PASS: 0, Status.WARN: 0, Status.FAIL: 1, Status.UNKNOWN: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one check says. `cause` and `remedy` are sentences; `values` are the numbers behind `seen`.

    `evidence` is the raw text that was read (control characters made visible, shortened in the middle).
    """

    id: str
    status: Status
    seen: str
    cause: str | None = None
    cause_id: str | None = None
    remedy: str | None = None  # what to do; a line to paste follows on a line of its own
    remedy_id: str | None = None
    evidence: str = ""
    seconds: float = 0.0
    values: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """For JSON, keys in the order of the schema."""
        return {
            "id": self.id,
            "status": self.status.value,
            "seen": self.seen,
            "cause": self.cause,
            "cause_id": self.cause_id,
            "remedy": self.remedy,
            "remedy_id": self.remedy_id,
            "evidence": self.evidence,
            "seconds": round(self.seconds, 3),
            "values": {key: _plain(value) for key, value in self.values.items()},
        }

    def masked(self, cover: Callable[[object], object]) -> Result:
        """The same with every text and value covered."""
        texts = {name: cover(getattr(self, name)) for name in ("seen", "cause", "remedy", "evidence")}
        return replace(self, **texts, values=cover(_plain(self.values)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which checks were asked for, by their ids. Empty: all of the level. With any, a report is a part of one."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether something was chosen or left out."""
        return bool(self.only or self.skip)

    def __str__(self) -> str:
        """As it is said on the command line, as in "--only gpu.ecc,gpu.pcie"."""
        said = (("--only", self.only), ("--skip", self.skip))
        return " ".join(f"{option} {','.join(ids)}" for option, ids in said if ids)


ALL = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every result, in the order of the checks, and what follows from them."""

    results: tuple[Result, ...]
    device: str
    seconds: float
    torchtap: str  # the version that judged
    level: str = Level.QUICK.value
    selection: Selection = ALL
    identity: Identity = field(default_factory=Identity)

    @property
    def verdict(self) -> Status:
        """fail if any fails, else unknown, else warn, else pass; unknown too when nothing was tested."""
        return worst(result.status for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 for pass and warn, 1 for fail and unknown. (2, could not run, is the command line's.)"""
        return EXIT_CODES[self.verdict]

    @property
    def first(self) -> Result | None:
        """The one result to look at first: the earliest of those that decide the verdict; None after a pass."""
        if self.verdict is Status.PASS:
            return None
        return next((result for result in self.results if result.status is self.verdict), None)

    def masked(self) -> Report:
        """The same without what says which machine it is (masking.py): to be shown to strangers."""
        identity = self.identity
        hosts = host_names() | short_too({identity.name})
        cover = partial(mask_all, hosts=hosts)
        return replace(
            self,
            results=tuple(result.masked(cover) for result in self.results),
            identity=replace(
                identity,
                name=pseudonym("host-", identity.name) if identity.name else "",
                gpus=tuple(replace(gpu, uuid=cover(gpu.uuid)) for gpu in identity.gpus),  # type: ignore[arg-type]
            ),
        )

    def to_dict(self) -> dict[str, object]:
        """For JSON (schema 1, docs/selftest.md): verdict first, results in the order of the checks."""
        first = self.first
        return {
            "schema": SCHEMA,
            "torchtap": self.torchtap,
            "host": self.identity.host(),
            "started": self.identity.started,
            "device": self.device,
            "level": self.level,
            "selection": {"only": list(self.selection.only), "skip": list(self.selection.skip)},
            "verdict": self.verdict.value,
            "first_cause": {"id": first.id, "cause_id": first.cause_id} if first else None,
            "seconds": round(self.seconds, 3),
            "versions": dict(self.identity.versions),
            "gpus": [gpu.to_dict() for gpu in self.identity.gpus],
            "results": [result.to_dict() for result in self.results],
        }

    def to_json(self) -> str:
        """`to_dict` as text in ASCII, which every terminal and log can take; indented by two, with a line end."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


def measured(values: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The records under "measured" in a check's values that are whole (`is_measure`)."""
    records = values.get("measured")
    return [record for record in records if is_measure(record)] if isinstance(records, list | tuple) else []


def is_measure(record: object) -> TypeGuard[Mapping[str, object]]:
    """Whether this is one measured value: of a GPU, a finite number, with a unit.

    >>> is_measure({"gpu": 0, "value": 4312.0, "unit": "GB/s"}), is_measure({"gpu": 0, "value": None, "unit": "s"})
    (True, False)
    """
    return (
        isinstance(record, Mapping)
        and isinstance(record.get("gpu"), int | str)
        and isinstance(record.get("value"), int | float)
        and not isinstance(record["value"], bool)
        and abs(record["value"])
        <= sys.float_info.max  # not nan either; a whole number can be too large for a float
        and isinstance(record.get("unit"), str)
    )


def _plain(value: object) -> object:
    """`value` in JSON's own types, so that a report can always be written."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)
