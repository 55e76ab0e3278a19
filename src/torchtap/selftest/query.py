"""Ask nvidia-smi: few questions, each with a time-out, and only fields this driver may know.

Order: fields that every driver knows, then the rest by driver; a field that is refused is dropped and the question
asked again (nvidia-smi then prints no data at all and names one field). `-L` only where MIG is on. After a hang
nothing more is asked.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from torchtap.selftest.facts import SmiFacts
from torchtap.selftest.limits import MAX_OUTPUT_BYTES, MAX_REFUSALS, PROCESSES_ASKED_MIB, SMI_TIMEOUT_S
from torchtap.selftest.process import Answer, ask
from torchtap.selftest.smi import Finding, Judgement, Kind, Row, Verdict, judge, read_list
from torchtap.selftest.smi.fields import FIELDS
from torchtap.selftest.words import size, waited
from torchtap.variants import Driver, parse_version

TIMEOUT_VARIABLE = "TORCHTAP_SMI_TIMEOUT"
# Where it is when it is not on PATH: WSL puts it here, and a login over SSH may have a short PATH.
USUAL_PLACES = ("/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
# Needed to tell GPUs apart and to choose the next questions, whatever the checks want.
ALWAYS_ASKED = ("index", "name", "uuid", "driver_version")
# 530 knows the new name only; 535 took the old one back "to not break backwards compatibility" (man nvidia-smi 550).
RENAMED = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}
REMAPPED_ROWS = (
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
)
_WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.RETRY, Verdict.WARN, Verdict.PASS)


@dataclass(frozen=True, slots=True)
class Also:
    """A question that costs a call of its own: its options, and whether these GPUs may have an answer."""

    options: tuple[str, ...]
    worth_it: Callable[[Sequence[Row]], bool]


def _somebody_is_there(rows: Sequence[Row]) -> bool:
    """More memory in use than an idle GPU needs; or nobody says how much, as on GB10, whose memory is the host's."""
    used = [row.number("memory.used") if row.text("memory.used") is not None else None for row in rows]
    return any(mib is None or mib > PROCESSES_ASKED_MIB for mib in used)


ALSO = {
    # Not the processes' names: they may hold commas, and more than a report should tell.
    "processes": Also(
        ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"), _somebody_is_there
    ),
    "licence": Also(("-q",), lambda rows: any(is_vgpu(row.text("name") or "") for row in rows)),
    "nvlink": Also(("nvlink", "-s"), lambda rows: len(rows) > 1),
}


def is_vgpu(name: str) -> bool:
    """Whether this is the name of a virtual GPU: the board, the frame buffer in GB, the kind of licence.

    >>> is_vgpu("GRID A100-3-20C"), is_vgpu("NVIDIA L40S-24Q"), is_vgpu("NVIDIA A100-PCIE-40GB")
    (True, True, False)
    """
    return re.search(r"-\d{1,3}[ABCQ]$", name) is not None


def find_smi() -> str | None:
    """The path of nvidia-smi; None where it is not installed.

    A file of that name that cannot be executed is found too, so that the report can say so.
    """
    on_path = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", mode=os.F_OK)
    return on_path or next((place for place in USUAL_PLACES if os.path.exists(place)), None)  # noqa: PTH110


def ask_smi(
    fields: Iterable[str],
    *,
    also: Collection[str] = (),
    timeout_s: float = SMI_TIMEOUT_S,
    find: Callable[[], str | None] = find_smi,
    run: Callable[..., Answer] = ask,
) -> SmiFacts:
    """Ask for `fields` of every GPU, and for MIG instances where MIG is on. Never raises for what nvidia-smi does.

    `also`: names of `ALSO`, questions that cost a call of their own and are asked only where they have an answer.
    """
    path = find()
    if path is None:
        return SmiFacts(path=None)
    wanted = list(dict.fromkeys((*ALWAYS_ASKED, *fields)))
    conversation = _Conversation(path, timeout_s, run)
    conversation.query([name for name in wanted if not _differs(name)])
    if conversation.good:
        driver = _driver(conversation.rows)
        rest = [name for name in wanted if _differs(name) and FIELDS[name].worth_asking(driver)]
        rest += [new for old, new in RENAMED.items() if conversation.refuses(old) and new not in rest]
        if rest:
            # With one field that every GPU has: a row of nothing but [N/A] would prove nothing.
            conversation.query(["index", *rest, "uuid"])
    if conversation.good and (mig := _mig_enabled(conversation.rows)):
        conversation.list_mig(mig)
    if conversation.good and _rows_are_elsewhere(wanted, conversation.rows):
        conversation.remapped_rows()
    for name in dict.fromkeys(also):
        if conversation.good and ALSO[name].worth_it(conversation.rows):
            conversation.ask_also(name)
    return conversation.facts()


def _rows_are_elsewhere(wanted: Sequence[str], rows: Sequence[Row]) -> bool:
    """Whether this driver tells of remapped rows only when it is asked for them alone, and the GPU may have some.

    Until 550 `--query-gpu` does not know them. Only GPUs with ECC from compute capability 8.0 remap rows at all; a
    driver that does not tell the capability (470 and older) runs none of today's PyTorch.
    """
    name = "remapped_rows.pending"
    return name in wanted and any(
        name not in row.cells
        and row.text("ecc.errors.uncorrected.volatile.total") is not None
        and int((row.text("compute_cap") or "0").partition(".")[0]) >= 8
        for row in rows
    )


def _differs(name: str) -> bool:
    """Whether some drivers do not know the field."""
    known = FIELDS.get(name)
    return known is not None and bool(known.unknown_to or known.gone_from)


def _driver(rows: Sequence[Row]) -> Driver | None:
    text = next((text for row in rows if (text := row.text("driver_version"))), None)
    return None if text is None else parse_version(text.partition(" ")[0])


def _mig_enabled(rows: Sequence[Row]) -> list[int]:
    return [row.gpu for row in rows if row.gpu is not None and row.text("mig.mode.current") == "Enabled"]


class _Conversation:
    """Questions and answers with one nvidia-smi."""

    def __init__(self, path: str, timeout_s: float, run: Callable[..., Answer]) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._run = run
        self._answers: list[Answer] = []
        self._judgements: list[Judgement] = []
        self._refused: list[str] = []
        self._listed = ""
        self._also: dict[str, Answer] = {}
        self.rows: tuple[Row, ...] = ()

    @property
    def good(self) -> bool:
        """Whether it is worth asking on: every question so far was answered with rows."""
        return bool(self.rows) and all(each.rows for each in self._judgements)

    def refuses(self, field: str) -> bool:
        """Whether this driver said that it does not know the field."""
        return field in self._refused

    def query(self, fields: list[str]) -> None:
        """One question; refused fields are dropped, a bounded number of times."""
        for _ in range(MAX_REFUSALS + 1):
            answer, judged = self._ask([f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
            field = _refused_field(judged)
            if field not in fields or field in ALWAYS_ASKED:
                break
            fields.remove(field)
            self._refused.append(field)
        self._answers.append(answer)
        if judged.verdict is Verdict.RETRY and self.rows:
            # The GPUs are known already; what this driver will not tell is not reported, and no fault.
            self._refused += fields
            return
        self._judgements.append(judged)
        self._compare((row.gpu, row.text("uuid")) for row in judged.rows)
        self.rows = _joined(self.rows, judged.rows)

    def list_mig(self, enabled: list[int]) -> None:
        """The MIG instances of GPUs in MIG mode."""
        answer, judged = self._ask(["-L"], kind=Kind.LIST, mig_enabled=enabled)
        self._answers.append(answer)
        self._judgements.append(judged)
        self._listed = answer.text
        self._compare((gpu.index, gpu.uuid) for gpu in read_list(answer.text)[0])

    def remapped_rows(self) -> None:
        """Rows of `--query-remapped-rows`, by PCI address. A driver that does not know the question has none."""
        names = ["gpu_bus_id", *REMAPPED_ROWS]
        answer, judged = self._ask(
            [f"--query-remapped-rows={','.join(names)}", "--format=csv,noheader,nounits"]
        )
        self._answers.append(answer)
        if judged.verdict is Verdict.RETRY:
            self._refused += REMAPPED_ROWS
            return
        at = {row.text("pci.bus_id"): row.gpu for row in self.rows}
        gpu_of = {row.line: at.get(row.text("pci.bus_id")) for row in judged.rows}
        rows = tuple(
            replace(row, gpu=gpu_of[row.line]) for row in judged.rows if gpu_of[row.line] is not None
        )
        findings = tuple(replace(each, gpu=gpu_of.get(each.line, each.gpu)) for each in judged.findings)
        self._judgements.append(replace(judged, rows=rows or self.rows, findings=findings))
        self.rows = _joined(self.rows, rows)

    def ask_also(self, name: str) -> None:
        """One of `ALSO`. Its answer is for the check that wants it; only that it hung is everybody's."""
        answer, judged = self._ask(list(ALSO[name].options))
        self._also[name] = answer
        if answer.timed_out:
            self._answers.append(answer)
            self._judgements.append(judged)

    def _compare(self, answered: Iterable[tuple[int | None, str | None]]) -> None:
        """A GPU that is not in every answer, or twice in one, may be on its way out: nobody can say that it is well."""
        named = list(answered)
        now = [gpu for gpu, _ in named]
        before = [row.gpu for row in self.rows] or now
        if not now:  # an answer without GPUs has a judgement of its own
            return
        odd = {gpu for gpu in (*before, *now) if gpu not in before or gpu not in now or now.count(gpu) > 1}
        known = {row.gpu: row.text("uuid") for row in self.rows}
        changed = {gpu for gpu, uuid in named if uuid and known.get(gpu) not in (None, uuid)}
        for gpu in sorted(odd | changed, key=str):
            how = "twice in one answer" if now.count(gpu) > 1 else "in one answer and not in the other"
            how = how if gpu in odd else "another one in each answer"
            line = f"GPU {'?' if gpu is None else gpu} is {how} of nvidia-smi"
            finding = Finding(gpu, "smi_unreadable", Verdict.UNKNOWN, {"what": line}, line)
            self._judgements.append(Judgement(Verdict.UNKNOWN, (finding,), rows=self.rows))

    def _ask(
        self, options: list[str], kind: Kind | None = None, mig_enabled: Sequence[int] = ()
    ) -> tuple[Answer, Judgement]:
        answer = self._run([self._path, *options], timeout_s=self._timeout_s)
        return answer, judge_answer(answer, kind, mig_enabled)

    def facts(self) -> SmiFacts:
        return SmiFacts(
            path=self._path,
            answers=tuple(self._answers),
            judgement=_together(self._judgements, self.rows),
            rows=self.rows,
            listed=read_list(self._listed)[0],
            refused=tuple(self._refused),
            also=self._also,
        )


def judge_answer(answer: Answer, kind: Kind | None = None, mig_enabled: Sequence[int] = ()) -> Judgement:
    """`smi.judge` for an answer of a process that may not have started, not have ended or babbled."""
    if answer.not_started:
        finding = Finding(None, "smi_broken", Verdict.FAIL, {"error": answer.not_started})
        return Judgement(Verdict.FAIL, (finding,))
    if answer.timed_out:
        said = judge(answer.text, None, answer.command, Kind.TIMEOUT)
        values = {"waited_s": waited(answer.seconds), "stuck_pid": answer.stuck_pid}
        return replace(said, findings=tuple(replace(each, values=values) for each in said.findings))
    if answer.too_long:
        finding = Finding(None, "smi_too_long", Verdict.UNKNOWN, {"size": size(MAX_OUTPUT_BYTES)})
        return Judgement(Verdict.UNKNOWN, (finding,))
    # It prints everything to standard output. What comes by the other way is the loader's or the shell's: a reason
    # where it failed, noise where it did not.
    text = answer.text + (answer.errors if answer.rc else "")
    return judge(text, answer.rc, answer.command, kind, mig_enabled=mig_enabled)


def _refused_field(judged: Judgement) -> str:
    return next(
        (str(each.values.get("field", "")) for each in judged.findings if each.cause == "field_refused"), ""
    )


def _joined(rows: tuple[Row, ...], more: tuple[Row, ...]) -> tuple[Row, ...]:
    """Cells of both questions by GPU index; the first answer to a field stands."""
    by_gpu = {row.gpu: row for row in rows}
    for row in more:
        have = by_gpu.get(row.gpu)
        by_gpu[row.gpu] = (
            row
            if have is None
            else replace(have, cells={**row.cells, **have.cells}, line=f"{have.line}\n{row.line}")
        )
    return tuple(by_gpu.values())


def _together(judgements: Sequence[Judgement], rows: tuple[Row, ...]) -> Judgement | None:
    """One judgement over all answers: the worst verdict, every finding once."""
    if not judgements:
        return None
    findings: dict[tuple[int | None, str], Finding] = {}
    for judged in judgements:
        for finding in judged.findings:
            findings.setdefault((finding.gpu, finding.cause), finding)
    verdict = next(each for each in _WORST_FIRST if any(judged.verdict is each for judged in judgements))
    notes = dict.fromkeys(note for judged in judgements for note in judged.notes)
    return Judgement(verdict, tuple(findings.values()), tuple(notes), rows)
