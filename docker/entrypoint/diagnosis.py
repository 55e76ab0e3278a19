"""What answers of nvidia-smi mean, by the self-test's own rules and in its own words.

`torchtap` lies in the image's environment; what is used of it needs nothing but the standard library. It is imported
when there is an answer to judge: by the process that has asked, or once something is wrong. A HEALTHCHECK that finds
all well never pays for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from entrypoint import paths

LONGEST = 400  # letters of one problem: it is a line of `docker inspect`


@dataclass(frozen=True, slots=True)
class Said:
    """One answer: what was asked, the exit code (None: it hangs) and the text."""

    command: tuple[str, ...]
    code: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The GPUs and MIG instances that answered, by UUID, and the first problem: empty where there is none."""

    uuids: tuple[str, ...] = ()
    problem: str = ""


def mig_gpus(said: Said) -> list[int]:
    """Indexes of the GPUs in MIG mode: their instances are only in the list of `nvidia-smi -L`."""
    _find_torchtap()
    from torchtap.selftest import smi

    rows = smi.judge(said.text, said.code, said.command).rows
    return [row.gpu for row in rows if row.gpu is not None and row.text("mig.mode.current") == "Enabled"]


def of(answers: Sequence[Said], *, uid: int, waited_s: float) -> Diagnosis:
    """What these answers say together. A warning (a hot GPU, say) is no problem; what cannot be read is one."""
    _find_torchtap()
    from torchtap.selftest import smi

    uuids: list[str] = []
    mig = mig_gpus(answers[0]) if answers else []
    for said in answers:
        kind = smi.Kind.TIMEOUT if said.code is None else None
        judged = smi.judge(said.text, said.code, said.command, kind, mig_enabled=mig)
        if judged.verdict not in (smi.Verdict.PASS, smi.Verdict.WARN):
            worst = next(each for each in judged.findings if each.verdict is judged.verdict)
            same = [each.gpu for each in judged.findings if each.cause == worst.cause]
            values = {"uid": uid, "rc": said.code, "waited_s": f"{waited_s:.0f}", **worst.values}
            return Diagnosis(tuple(uuids), explain(worst.cause, values, same))
        uuids += filter(None, (row.text("uuid") for row in judged.rows))
        uuids += (uuid for gpu in smi.read_list(said.text)[0] for uuid in gpu.mig)
    return Diagnosis(tuple(dict.fromkeys(uuids)))


def explain(cause: str, values: dict[str, object], gpus: Sequence[int | None] = ()) -> str:
    """Cause and remedy of the self-test's table in one line.

    >>> explain("smi_hung", {"waited_s": 20})[:69]
    'nvidia-smi gave no answer in 20 s: the driver waits for a GPU that do'
    """
    _find_torchtap()
    from torchtap.selftest.causes import CAUSES
    from torchtap.selftest.words import name_gpus

    known = sorted(gpu for gpu in gpus if gpu is not None)
    slots = {"gpus": name_gpus(gpus, values.get("bus")), "index": known[0] if known else 0, **values}
    says, do, _ = CAUSES[cause].fill(slots)
    return re.sub("[^ -~]", "?", f"{says}. {do}")[:LONGEST]


def _find_torchtap() -> None:
    """Make the image's torchtap importable. After everything else, so that it can stand in nobody's way."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = str(paths.VENV / "lib" / version / "site-packages")
    if packages not in sys.path:
        sys.path.append(packages)
