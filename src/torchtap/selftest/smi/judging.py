"""Judge one output of nvidia-smi: cells first, then the text, the exit code last."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchtap.selftest.smi import texts
from torchtap.selftest.smi.arguments import check_arguments
from torchtap.selftest.smi.cells import Cell, CellState, read_cell
from torchtap.selftest.smi.fields import FIELDS, NotThisFormError, licensed
from torchtap.selftest.smi.forms import (
    Kind,
    Row,
    fields_of,
    header_of,
    is_version_line,
    lists_processes,
    names_every_gpu,
    picks_gpus,
    read_csv,
    read_list,
    read_query,
    read_table,
    read_version,
    repeats,
)
from torchtap.selftest.smi.rules import Said, error_cells, rules_on, same_uuid
from torchtap.selftest.smi.verdict import Verdict

__all__ = ["Finding", "Judgement", "Verdict", "judge"]

_WORST_FIRST = (Verdict.FAIL, Verdict.RETRY, Verdict.UNKNOWN, Verdict.WARN)


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause: at which GPU (None: the host, or not told), how bad, with the values and the line that showed it."""

    gpu: int | None
    cause: str
    verdict: Verdict
    values: Mapping[str, object] = field(default_factory=dict)
    line: str = ""
    fields: tuple[str, ...] = ()  # the cells it rests on, where it rests on cells


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict over one output, what was found, and the rows that were read (for `csv` and `table`)."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()  # worth knowing, never a verdict: "mig_enabled", "persistence_off"
    rows: tuple[Row, ...] = ()

    @property
    def causes(self) -> tuple[tuple[int | None, str], ...]:
        """(GPU index or None, cause id) in the order found, each once."""
        return tuple(dict.fromkeys((finding.gpu, finding.cause) for finding in self.findings))


def judge(
    text: str,
    rc: int | None = None,
    command: str | Sequence[str] = "",
    kind: Kind | str | None = None,
    *,
    mig_enabled: Collection[int] = (),
) -> Judgement:
    """Tell what one output means, without running anything.

    `rc` is the exit status (None: not known, negative: the signal that ended it); `command` gives a csv its columns;
    `kind` is guessed from the command and the text where it is not given. `mig_enabled`: indexes of GPUs whose
    `mig.mode.current` is Enabled. An ordinary `-L` and the `-L` of a GPU in MIG mode without instances are the same
    text, so only this can tell them apart.

    Raises `TypeError` for arguments of other types: bytes must be decoded first.

    A pass needs proof: at least one GPU or version that could be read, nothing unreadable, exit status 0 or unknown.

    >>> judge("Unable to determine the device handle for GPU0000:5E:00.0: Unknown Error").causes
    ((None, 'gpu_fell_off_bus'),)
    >>> judge("lorem ipsum", rc=0).verdict.value
    'unknown'
    """
    check_arguments(text, rc, command, kind, mig_enabled)
    text, asked = _bare(text)
    command = command or asked
    form = Kind(kind) if kind is not None else guess_kind(text, command)
    if form is Kind.TIMEOUT or (rc in texts.KILLED_AFTER_WAITING and texts.KILLED.fullmatch(text)):
        return _sum([Finding(None, "smi_hung", Verdict.FAIL)], proved=False)
    seen = _READERS[form](text, command, frozenset(mig_enabled))
    if form is not Kind.DMESG:
        seen.findings += _sentences(seen.strays)
        if rc:
            seen.findings += _exit_code(rc, seen.findings, proved=seen.proved)
    return _sum(seen.findings, proved=seen.proved, notes=seen.notes, rows=seen.rows)


def _bare(text: str) -> tuple[str, str]:
    """The answer without what a terminal put around it, and the command of its prompt ("" where there is none)."""
    text = texts.COLOURS.sub("", text.removeprefix("\ufeff")).replace("\xa0", " ").replace("\r\n", "\n")
    asked = next((found["command"] for found in texts.PROMPT.finditer(text) if found["command"]), "")
    return texts.PROMPT.sub("", text), asked


def guess_kind(text: str, command: str | Sequence[str] = "") -> Kind:
    """The form of an output, from how it was asked for, else from how it looks."""
    words = command if isinstance(command, str) else " ".join(command)
    if "dmesg" in words or re.search(r"\bNVRM: ", text):
        return Kind.DMESG
    if "--query-" in words or "--format=csv" in words:
        return Kind.CSV
    if not words and header_of(next((line for line in text.splitlines() if line.strip()), "")):
        return Kind.CSV
    if re.search(r"\s(-L|--list-gpus)\b", words) or re.match(r"\s*GPU \d+: .*\(UUID: ", text):
        return Kind.LIST
    if "--version" in words or re.match(r"NVIDIA-SMI version\s*:", text):
        return Kind.VERSION
    if re.search(r"\s(-q|--query)\b", words) or "NVSMI LOG" in text:
        return Kind.QUERY
    return Kind.TABLE if re.search(r"^[+|]", text, re.MULTILINE) else Kind.ERROR


@dataclass(slots=True)
class _Seen:
    """What a reader found: findings, whether anything healthy could be read, and the lines it could not place."""

    findings: list[Finding] = field(default_factory=list)
    proved: bool = False
    strays: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    rows: tuple[Row, ...] = ()


def _csv(text: str, command: str | Sequence[str], _: frozenset[int]) -> _Seen:
    # A sentence may have as many commas as the query has fields (a query of one field: any line), so sentences are
    # taken out before lines are taken apart.
    lines = text.splitlines()
    if lists_processes(command):  # rows that say nothing about the GPU, with names that may be a sentence
        lines = [line for line in lines if not texts.PROCESS_ROW.match(line)]
    said = [line for line in lines if texts.COMPANIONS.search(line) or _sentence(line) is not None]
    # A cell says "[GPU is lost]" in the words of a sentence; brackets tell the two apart.
    said = [line for line in said if not re.search(r"(^|,)\s*\[", line)]
    rest = "\n".join(line for line in lines if line not in said)
    read = read_csv(rest, fields_of(command), positions=names_every_gpu(command))
    seen = _rows(read.rows, (*said, *read.strays))
    seen.findings += _gaps([row.gpu for row in read.rows if "index" in row.cells], command)
    seen.findings += _twins(read.rows, command)
    return seen


def _twins(rows: Sequence[Row], command: str | Sequence[str]) -> list[Finding]:
    """GPUs with the UUID of another one: one of the two was not read."""
    shown = {} if repeats(command) else same_uuid(rows)
    return [
        Finding(gpu, said.cause, said.verdict, said.values, f"GPU {gpu}: {said.values['what']}", said.fields)
        for gpu, said in shown.items()
    ]


def _gaps(shown: Sequence[int | None], command: str | Sequence[str], *, piece: bool = False) -> list[Finding]:
    """GPUs that are missing from the answer or in it twice: one may be on its way out, so nobody knows of it.

    nvidia-smi counts its GPUs from 0 without a gap. `piece`: the answer may be cut out of a longer one.
    """
    indexes = [index for index in shown if index is not None]
    if not indexes:
        return []
    start = min(indexes) if piece else 0
    missing = [] if picks_gpus(command) else sorted(set(range(start, max(indexes))) - set(indexes))
    twice = [] if repeats(command) else sorted({index for index in indexes if indexes.count(index) > 1})
    return [
        Finding(index, "smi_unreadable", Verdict.UNKNOWN, {"what": f"GPU {index} {how}"})
        for how, found in (("is left out, and one after it is shown", missing), ("is shown twice", twice))
        for index in found
    ]


def _rows(rows: tuple[Row, ...], strays: Sequence[str]) -> _Seen:
    seen = _Seen(strays=strays, rows=rows)
    for row in rows:
        said = error_cells(row)
        try:
            said += rules_on(row)
            readable = _typed_values(row)
        except NotThisFormError as error:
            said.append(Said(Verdict.UNKNOWN, "smi_unreadable", {"what": str(error)}))
            readable = 0
        if not readable and not said:
            # Nothing but [N/A] is an answer about fields, not about a GPU.
            said.append(
                Said(Verdict.UNKNOWN, "smi_unreadable", {"what": "no field of this GPU holds a value"})
            )
        seen.proved = seen.proved or readable > 0
        seen.findings += [
            Finding(row.gpu, each.cause, each.verdict, each.values, row.line, each.fields) for each in said
        ]
        seen.notes += _notes(row)
    return seen


def _typed_values(row: Row) -> int:
    """How many cells hold a value of the form their field must have. Raises where one does not.

    Fields that Torchtap does not know count for nothing: any text would do for them. Nor does an index, which
    counts rows, beside other fields.
    """
    known = [name for name, cell in row.cells.items() if name in FIELDS and cell.state is CellState.VALUE]
    for name in known:
        row.value(name)
    return len([name for name in known if name != "index" or len(row.cells) == 1])


def _notes(row: Row) -> list[str]:
    return [
        note
        for name, words, note in (
            ("mig.mode.current", ("Enabled", "On"), "mig_enabled"),
            ("persistence_mode", ("Disabled", "Off"), "persistence_off"),
            ("ecc.mode.current", ("Disabled", "Off"), "ecc_off"),
        )
        if row.text(name) in words
    ]


def _table(text: str, command: str | Sequence[str], _: frozenset[int]) -> _Seen:
    table = read_table(text)
    listed, strays = read_list("\n".join(table.strays))  # copied together with the table
    seen = _rows(table.rows, strays)
    seen.findings += _gaps([gpu.index for gpu in listed], command, piece=True)
    seen.findings += _gaps([row.gpu for row in table.rows], command, piece=not table.from_its_head)
    seen.findings += _rows(table.mig, ()).findings
    if table.cuda_word is not None:
        seen.findings += _cuda(table.cuda_word)
    if table.no_mig_devices:
        seen.findings.append(Finding(None, "mig_no_instance", Verdict.FAIL))
    # Errors are printed inside the frame too ("No devices were found" of some versions), so it is searched as well;
    # but a process may be named like an error, so the list of processes is left out.
    if not table.rows:
        seen.strays = [*seen.strays, *text.partition("Processes:")[0].splitlines()]
    return seen


def _cuda(word: str) -> list[Finding]:
    """What stands after "CUDA Version", in the table, in `--version` and in `-q`."""
    word = re.sub(
        r"(?<=\S) *\[Deprecated.*", "", word, flags=re.IGNORECASE
    )  # 610 in `-q`: "13.3 [Deprecated; ...]"
    state = read_cell(word).state
    if state is CellState.NOT_REPORTED or word.casefold() == "not found":
        return [Finding(None, "libcuda_not_injected", Verdict.FAIL)]
    if state is not CellState.VALUE:
        return [Finding(None, "wrong_libcuda", Verdict.FAIL)]
    if re.fullmatch(r"\d+\.\d+", word, re.ASCII) or word.casefold().startswith("deprecated"):
        return []
    return [Finding(None, "smi_unreadable", Verdict.UNKNOWN, {"what": f"CUDA Version {word}"})]


def _list(text: str, command: str | Sequence[str], mig_enabled: frozenset[int]) -> _Seen:
    gpus, strays = read_list(text)
    seen = _Seen(strays=strays, proved=bool(gpus))
    seen.findings += _twins([Row(gpu.index, {"uuid": read_cell(gpu.uuid)}) for gpu in gpus], command)
    seen.findings += _gaps([gpu.index for gpu in gpus], command, piece=not command)
    if gpus and any(line.startswith(("|", "+")) for line in strays):  # a table was copied together with it
        table = _table("\n".join(strays), "", mig_enabled)
        seen.findings += table.findings
        seen.strays, seen.rows, seen.notes = table.strays, table.rows, table.notes
    empty = [gpu.index for gpu in gpus if gpu.index in mig_enabled and not gpu.mig]
    if any(gpu.mig for gpu in gpus):
        seen.notes.append("mig_enabled")
    if empty and not any(gpu.mig for gpu in gpus) and len(empty) == len(gpus):
        seen.findings.append(Finding(None, "mig_no_instance", Verdict.FAIL))
    else:  # other devices can be used, so it is a loss, not the end
        seen.findings += [Finding(index, "mig_no_instance", Verdict.WARN) for index in empty]
    return seen


def _version(text: str, _: str | Sequence[str], __: frozenset[int]) -> _Seen:
    said = read_version(text)
    driver = next((said[key] for key in ("kmd version", "driver version") if key in said), "")
    seen = _Seen(
        proved=re.fullmatch(r"\d{3}(\.\d+)+", driver, re.ASCII) is not None,
        # A value may be a sentence too.
        strays=[
            line for line in text.splitlines() if not is_version_line(line) or _sentence(line) is not None
        ],
    )
    for key, value in said.items():
        if key.startswith("cuda"):
            seen.findings += _cuda(value)
        elif read_cell(value).state not in (CellState.VALUE, CellState.NOT_REPORTED):
            seen.findings.append(
                Finding(None, "smi_unreadable", Verdict.UNKNOWN, {"what": f"{key} {value}"}, value)
            )
    return seen


def _query(text: str, command: str | Sequence[str], _: frozenset[int]) -> _Seen:
    """`-q`: leaves become the fields they are, then the same rules as for csv."""
    by_gpu: dict[int, dict[str, Cell]] = {}
    findings: list[Finding] = []
    attached = ""
    heads = re.findall(r"^GPU ([0-9A-Fa-f:.]+)\s*$", text, re.MULTILINE)
    for gpu, (path, value) in read_query(text):
        if gpu < 0:
            if path[-1] == "CUDA Version":
                findings += _cuda(value)
            elif read_cell(value).state not in (CellState.VALUE, CellState.NOT_REPORTED):
                what = f"{path[-1]} {value}"
                findings.append(Finding(None, "smi_unreadable", Verdict.UNKNOWN, {"what": what}))
            attached = value if path[-1] == "Attached GPUs" else attached
            continue
        cells = by_gpu.setdefault(gpu, {"pci.bus_id": read_cell(heads[gpu])})
        if path[-1] == "License Status":
            findings += _licence(value)
        if read_cell(value).state in (CellState.LOST, CellState.NEEDS_RESET):
            if path[-1] not in _FREE_TEXT:
                cells[path[-1]] = read_cell(value)
        elif (name := _leaf_field(path)) is not None:
            cells.setdefault(name, read_cell(value))
        elif (ecc := texts.QUERY_ECC.search(" ".join(path))) is not None:
            name = f"ecc.errors.uncorrected.{ecc['when'].lower()}.total"
            cells[name] = _larger(cells.get(name), read_cell(value))
        elif path[-1].lower() in texts.QUERY_CLOCKS and "counters" not in " ".join(path).lower():
            cells[texts.QUERY_CLOCKS[path[-1].lower()]] = read_cell(value)
    rows = tuple(Row(gpu, cells) for gpu, cells in by_gpu.items() if cells)
    if by_gpu and attached and attached != str(len(by_gpu)) and not picks_gpus(command):
        what = f"{attached} attached GPUs, {len(by_gpu)} of them shown"
        findings.append(Finding(None, "smi_unreadable", Verdict.UNKNOWN, {"what": what}))
    lines = [line for line in text.splitlines() if line.strip()]
    strays = [
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=False)
        if not by_gpu or _is_said_in_query(line, following)
    ]
    seen = _rows(rows, strays)
    seen.findings += [*findings, *_twins(rows, command)]
    return seen


def _licence(status: str) -> list[Finding]:
    """Of a virtual GPU: "Licensed (Expiry: ...)", "Unlicensed (Restricted)", "Expired"; N/A where none is needed."""
    try:
        if read_cell(status).state is CellState.NOT_REPORTED or licensed(status):
            return []
    except NotThisFormError:
        what = f"License Status {status}"
        return [Finding(None, "smi_unreadable", Verdict.UNKNOWN, {"what": what}, status)]
    return [Finding(None, "vgpu_unlicensed", Verdict.WARN)]


_FREE_TEXT = frozenset({"Name", "Process Name"})  # of processes


def _is_said_in_query(line: str, following: str) -> bool:
    """Whether a line of `-q` is no line of its form, or a sentence. A process may be named like one."""
    key, colon, value = line.partition(" : ")
    if key.strip() in _FREE_TEXT or (colon and read_cell(value).state is not CellState.VALUE):
        return False  # a cell that is an error is judged as a cell
    heading = following.startswith(" ") or re.match(r"=|GPU [0-9A-Fa-f:.]+\s*$", line) is not None
    outside = not colon and not line.startswith(" ") and not heading
    return outside or _sentence(line) is not None


def _leaf_field(path: tuple[str, ...]) -> str | None:
    lower = tuple(part.lower() for part in path)
    for tail, name in texts.QUERY_LEAVES:
        if lower[-len(tail) :] == tuple(part.lower() for part in tail):
            return name
    return None


def _larger(one: Cell | None, other: Cell) -> Cell:
    """The cell with more errors; a cell without a number (N/A) gives way, an error cell does not."""
    if one is None or one.state is CellState.NOT_REPORTED:
        return other
    if other.state is CellState.NOT_REPORTED:
        return one
    both = (one, other)
    broken = [cell for cell in both if not cell.text.isdecimal()]
    return broken[0] if broken else max(both, key=lambda cell: int(cell.text))


def _error(text: str, _: str | Sequence[str], __: frozenset[int]) -> _Seen:
    return _Seen(strays=text.splitlines())


def _dmesg(text: str, _: str | Sequence[str], __: frozenset[int]) -> _Seen:
    """The kernel log. "Fallen off the bus" comes without an Xid on some drivers, and broken over three lines."""
    found: dict[tuple[str, str, str], Finding] = {}
    lines = [line for line in text.splitlines() if line.strip()]
    driven = {found["bus"].lower() for line in lines for found in texts.DRIVEN_BUS.finditer(line)}
    for at, line in enumerate(lines):
        for finding in (*_kernel_findings(line, lines[max(at - 2, 0) : at]), *_port_error(line, driven)):
            xid = str(finding.values.get("xid", ""))
            key = (str(finding.values.get("bus", "")), finding.cause, xid)
            times = int(str(found[key].values["count"])) if key in found else 0
            # The newest line of each stands for all of them.
            found[key] = replace(finding, values={**finding.values, "count": times + 1})
    return _Seen(
        findings=list(_first_causes(found.values())),
        proved=bool(lines) and all(map(texts.KERNEL_LINE.search, lines)),
    )


def _first_causes(findings: Collection[Finding]) -> Iterator[Finding]:
    """The findings without those that only follow from another one of the same GPU."""
    for each in findings:
        reasons = texts.KERNEL_CONSEQUENCES.get(each.cause, frozenset())
        buses = {other.values.get("bus") for other in findings if other.cause in reasons}
        mine = each.values.get("bus")
        if not buses or (mine is not None and None not in buses and mine not in buses):
            yield each


def _port_error(line: str, driven: Collection[str]) -> Iterator[Finding]:
    """An uncorrected error that a PCIe port reports of one of the GPUs at these addresses."""
    said = texts.PORT_ERROR.search(line)
    if said is not None and said["bus"].lower() in driven:
        verdict = Verdict.FAIL if said["severity"].casefold() == "fatal" else Verdict.WARN
        yield Finding(None, "pcie_error", verdict, {"bus": said["bus"].lower()}, line.strip())


def _kernel_findings(line: str, before: Sequence[str]) -> Iterator[Finding]:
    """What one line says, with the GPU's PCI address where it or one of the lines before tells it."""
    bus = next(
        (found[1] for each in (line, *reversed(before)) if (found := texts.KERNEL_BUS.search(each))), None
    )
    where = {"bus": bus.lower()} if bus else {}
    named = set()
    for xid in texts.XID.finditer(line):
        group = next((group for group in texts.XIDS if int(xid["xid"]) in group.numbers), texts.OTHER_XID)
        named.add(group.cause)
        if group.verdict is not None:
            yield Finding(None, group.cause, group.verdict, {**where, "xid": xid["xid"]}, line.strip())
    for sentence in texts.KERNEL_SENTENCES:
        if sentence.cause not in named and (said := sentence.pattern.search(line)) is not None:
            yield Finding(None, sentence.cause, sentence.verdict, {**where, **said.groupdict()}, line.strip())


_READERS = {
    Kind.CSV: _csv,
    Kind.TABLE: _table,
    Kind.LIST: _list,
    Kind.VERSION: _version,
    Kind.QUERY: _query,
    Kind.ERROR: _error,
    Kind.TIMEOUT: _error,
    Kind.DMESG: _dmesg,
}


def _sentences(lines: Sequence[str]) -> list[Finding]:
    """What the lines say that are not part of the form."""
    found: list[Finding] = []
    for line in lines:
        if (finding := _sentence(line)) is not None:
            found.append(finding)
    # A warning that stands in one line with something else: what else is there, was it a row?
    rest = [line for line in map(_beside_a_warning, lines) if line]
    if any(each.verdict is Verdict.FAIL and each.cause != texts.CONSEQUENCE for each in found):
        found = [each for each in found if each.cause != texts.CONSEQUENCE]
    # A line that nobody knows must not pass for health. Only what ends nvidia-smi's answer explains it; a warning
    # comes beside an answer that is whole.
    explained = any(finding.verdict in (Verdict.FAIL, Verdict.RETRY) for finding in found)
    strange = [
        line
        for line in lines
        if line.strip() and not texts.COMPANIONS.search(line) and _sentence(line) is None
    ]
    strange += rest
    if strange and not explained and (whole := _sentence(" ".join(line.strip(" |") for line in strange))):
        return [*found, whole]  # a sentence that a terminal broke into lines
    if strange and not explained:
        found.append(Finding(None, "smi_unreadable", Verdict.UNKNOWN, {"what": strange[0]}, strange[0]))
    return found


def _sentence(line: str) -> Finding | None:
    for pattern, unknown_error in (
        (texts.INIT_FAILED, texts.INIT_UNKNOWN),
        (texts.NO_HANDLE, texts.HANDLE_UNKNOWN),
    ):
        if (match := pattern.search(line)) is not None:
            reason = match["reason"].strip()
            cause = _nvml_cause(reason, unknown_error)
            known = _known_sentence(reason) if cause is None else None
            values = {**match.groupdict(), "reason": reason}
            return Finding(
                None, cause or (known.cause if known else "nvml_error"), Verdict.FAIL, values, line
            )
    return None if texts.COMPANIONS.search(line) else _known_sentence(line)


def _known_sentence(line: str) -> Finding | None:
    for sentence in texts.SENTENCES:
        if (match := sentence.pattern.search(line)) is not None:
            values = {key: value for key, value in match.groupdict().items() if value is not None}
            return Finding(None, sentence.cause, sentence.verdict, values, line)
    return None


def _beside_a_warning(line: str) -> str:
    """What a line says besides a warning; "" for all other lines."""
    found = texts.INFOROM.search(line)
    return "" if found is None else (line[: found.start()] + line[found.end() :]).strip(" .|")


def _nvml_cause(reason: str, unknown_error: str) -> str | None:
    """What NVML's words mean; None for words of others."""
    folded = reason.casefold()
    if folded.startswith("unknown error"):
        return unknown_error
    for said, cause in texts.NVML_ERRORS:
        # The end may be on another line, where the text was wrapped.
        if folded.startswith(said) or (len(folded) > 9 and said.startswith(folded)):
            return cause
    return None


def _exit_code(rc: int, findings: Sequence[Finding], *, proved: bool) -> list[Finding]:
    """What a non-zero exit status adds: nothing where the output itself named a reason."""
    if any(finding.verdict in (Verdict.FAIL, Verdict.RETRY) for finding in findings):
        return []
    if rc in texts.KILLED_AFTER_WAITING:
        return [Finding(None, "smi_hung", Verdict.FAIL)]
    if rc < 0 or (rc > 128 and rc != 255):
        signal = -rc if rc < 0 else rc - 128
        return [Finding(None, "smi_crashed", Verdict.FAIL, {"signal": f"signal {signal}"})]
    verdict, cause = texts.EXIT_CODES.get(
        rc, (Verdict.UNKNOWN, "smi_exit_code" if proved else "smi_unreadable")
    )
    if any(finding.cause == cause for finding in findings):
        return []
    return [Finding(None, cause, verdict, {"rc": rc})]


def _sum(
    findings: Sequence[Finding], *, proved: bool, notes: Sequence[str] = (), rows: tuple[Row, ...] = ()
) -> Judgement:
    """The verdict: the worst finding; without any, a pass only where something healthy could be read."""
    found = {finding.verdict for finding in findings}
    verdict = next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.PASS)
    kept = list(findings)
    if verdict in (Verdict.PASS, Verdict.WARN) and not proved:
        verdict = Verdict.UNKNOWN
        kept.append(Finding(None, "smi_unreadable", Verdict.UNKNOWN, {"what": "nothing could be read"}))
    if verdict in (Verdict.FAIL, Verdict.RETRY):  # what could not be read besides is no cause of its own
        kept = [finding for finding in kept if finding.verdict is not Verdict.UNKNOWN]
    return Judgement(verdict, tuple(kept), tuple(dict.fromkeys(notes)), rows)
