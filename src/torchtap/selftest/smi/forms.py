"""The forms of nvidia-smi's output, taken apart: csv, `-L`, the table, `--version`, `-q`.

Reading never judges. What does not fit the form is handed back as it is (`Read.strays`), so that nothing is lost: the
strays are where nvidia-smi puts its errors.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from torchtap.selftest.smi.cells import Cell, CellState, read_cell
from torchtap.selftest.smi.fields import ALIASES, FIELDS, NotThisFormError
from torchtap.selftest.smi.fields import name as product_name


class Kind(str, Enum):
    """The forms of output, and the two that are not nvidia-smi's own: a time-out and the kernel log."""

    CSV = "csv"
    TABLE = "table"
    LIST = "list"
    VERSION = "version"
    QUERY = "query"
    ERROR = "error"
    TIMEOUT = "timeout"
    DMESG = "dmesg"


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU's cells by field name. `gpu` is its index, None where the output does not say which GPU it is."""

    gpu: int | None
    cells: Mapping[str, Cell]
    line: str = ""

    def value(self, name: str) -> object | None:
        """The value of a field in its own type; None where it is not asked, not reported or an error.

        Raises `NotThisFormError` where the text is not of the field's form: unreadable is not the same as absent.
        """
        cell = self.cells.get(name)
        if cell is None or cell.state is not CellState.VALUE:
            return None
        known = FIELDS.get(name)
        return cell.text if known is None else known.read(cell.text)

    def number(self, name: str) -> float | None:
        """`value` where it is a number, else None."""
        value = self.value(name)
        return float(value) if isinstance(value, int | float) else None

    def text(self, name: str) -> str | None:
        """The cell's text where it holds a value of the right form, else None."""
        try:
            return None if self.value(name) is None else self.cells[name].text
        except NotThisFormError:
            return None


@dataclass(frozen=True, slots=True)
class Read:
    """Rows, and every line that did not fit the form."""

    rows: tuple[Row, ...] = ()
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU of `nvidia-smi -L`, with the UUIDs of its MIG instances."""

    index: int
    name: str
    uuid: str
    mig: tuple[str, ...] = field(default=())


# -- csv -----------------------------------------------------------------------------------------------------------
_QUERY_OPTIONS = ("--query-gpu", "--query-remapped-rows")


def fields_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """The fields a command asks for, in its order, by their first names; () where it asks for none.

    >>> fields_of("nvidia-smi --query-gpu=index,gpu_name --format=csv")
    ('index', 'name')
    """
    for word, following in _options(command):
        option, _, value = word.partition("=")
        if option in _QUERY_OPTIONS:
            return tuple(ALIASES.get(name, name) for name in _split(value or following))
    return ()


def names_every_gpu(command: str | Sequence[str]) -> bool:
    """Whether a row's position is its index: not where the command picks GPUs, nor for other queries."""
    words = [word.partition("=")[0] for word, _ in _options(command)]
    return "--query-gpu" in words and not picks_gpus(command)


def picks_gpus(command: str | Sequence[str]) -> bool:
    """Whether the command asks for some GPUs only.

    >>> picks_gpus("nvidia-smi -q --id=0"), picks_gpus("nvidia-smi -q")
    (True, False)
    """
    return any(word.partition("=")[0] in ("-i", "--id") for word, _ in _options(command))


def lists_processes(command: str | Sequence[str]) -> bool:
    """Whether the command asks for processes: names of programs, which may be any text.

    >>> lists_processes("nvidia-smi --query-compute-apps=pid,name --format=csv")
    True
    """
    return any(re.match(r"--query-(?:compute|accounted)-apps", word) for word, _ in _options(command))


def repeats(command: str | Sequence[str]) -> bool:
    """Whether the command answers over and over, so that every GPU comes several times.

    >>> repeats("nvidia-smi -l 5"), repeats("nvidia-smi -L")
    (True, False)
    """
    return any(
        re.fullmatch(r"-lms?\d*|-l\d*|--loop(?:-ms)?", word.partition("=")[0]) is not None
        for word, _ in _options(command)
    )


def _options(command: str | Sequence[str]) -> Iterator[tuple[str, str]]:
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError:  # a stray quotation mark: a description, not a command
            words = command.split()
    else:
        words = list(command)
    return zip(words, [*words[1:], ""], strict=False)  # no word: no pair


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def read_csv(text: str, fields: Sequence[str], *, positions: bool = True) -> Read:
    """Rows of `--format=csv`, with or without header and units.

    A header line names the fields itself and wins over `fields`. `positions`: take a row's position as the GPU's
    index where there is no index column. Lines with another number of cells are strays.

    >>> read_csv("index, memory.total [MiB]\\n0, 81559 MiB\\n", ()).rows[0].number("memory.total")
    81559.0
    """
    names = tuple(fields)
    rows: list[Row] = []
    strays: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        parts = _split(line)
        if not rows and (header := header_of(line, names)):
            names = header
            continue
        if not names or len(parts) != len(names):
            strays.append(line)
            continue
        cells = {name: read_cell(part) for name, part in zip(names, parts, strict=True)}
        rows.append(Row(_index(cells, len(rows) if positions else None), cells, line))
    return Read(tuple(rows), tuple(strays))


def header_of(line: str, asked: Sequence[str] = ()) -> tuple[str, ...]:
    """The fields that a csv's first line names, by their first names; () where it is no header.

    `asked`: fields that were asked for. Else all must look like fields, and one of two be known.

    >>> header_of("index, serial, memory.total [MiB]"), header_of("0, 0322714071430, 81559 MiB")
    (('index', 'serial', 'memory.total'), ())
    """
    names = [re.sub(r" \[.*\]$", "", part) for part in _split(line)]
    parts = tuple(ALIASES.get(name, name) for name in names)
    known = sum(part in FIELDS for part in parts)
    shaped = all(re.fullmatch(r"[a-z][A-Za-z0-9_.]*", part) for part in parts)
    return parts if parts == tuple(asked) or (shaped and 2 * known >= len(parts)) else ()


def _index(cells: Mapping[str, Cell], position: int | None) -> int | None:
    cell = cells.get("index")
    if cell is None:
        return position
    return int(cell.text) if re.fullmatch(r"\d{1,4}", cell.text, re.ASCII) else position


# -- nvidia-smi -L -------------------------------------------------------------------------------------------------
_GPU_LINE = re.compile(r"GPU (\d+): (.+?) \(UUID: ((?:GPU-)?[0-9a-fA-F-]{36})\)\s*", re.ASCII)
# Until driver 470 a MIG device's UUID was MIG-GPU-<uuid>/<gpu instance>/<compute instance>.
_MIG_LINE = re.compile(r"\s+MIG \S+\s+Device\s+\d+: \(UUID: (MIG-[0-9a-fA-FGPU/-]{36,60})\)\s*", re.ASCII)


def read_list(text: str) -> tuple[tuple[ListedGpu, ...], tuple[str, ...]]:
    """The GPUs of `nvidia-smi -L` with their MIG instances, and the lines that are neither.

    >>> gpus, strays = read_list("GPU 0: NVIDIA T4 (UUID: GPU-00000074-0000-0000-0000-000000000000)\\n")
    >>> gpus[0].name, strays
    ('NVIDIA T4', ())
    """
    gpus: list[ListedGpu] = []
    strays: list[str] = []
    for line in text.splitlines():
        gpu, mig = _GPU_LINE.fullmatch(line), _MIG_LINE.fullmatch(line)
        if gpu and _is_name(gpu[2]):
            gpus.append(ListedGpu(int(gpu[1]), gpu[2], gpu[3]))
        elif mig and gpus:
            last = gpus[-1]
            gpus[-1] = ListedGpu(last.index, last.name, last.uuid, (*last.mig, mig[1]))
        elif line.strip():
            strays.append(line)
    return tuple(gpus), tuple(strays)


def _is_name(text: str) -> bool:
    try:
        return read_cell(text).state is CellState.VALUE and product_name(text) == text
    except NotThisFormError:
        return False


# -- nvidia-smi --version ------------------------------------------------------------------------------------------
def is_version_line(line: str) -> bool:
    """Whether a line is `NAME version : VALUE`; all others of `--version` are blank or say what is wrong."""
    return re.match(r"[A-Za-z][A-Za-z -]*\bversion\s*:", line, re.IGNORECASE) is not None


def read_version(text: str) -> dict[str, str]:
    """`nvidia-smi --version` as lower-case name -> value. On 610 the old names only say "Deprecated": left out.

    >>> read_version("DRIVER version : Deprecated, see KMD\\nKMD version : 610.57.04\\n")
    {'kmd version': '610.57.04'}
    """
    pairs = (line.partition(":") for line in text.splitlines() if is_version_line(line))
    return {
        key.strip().lower(): value.strip()
        for key, _, value in pairs
        if not value.strip().lower().startswith("deprecated")
    }


# -- the table -----------------------------------------------------------------------------------------------------
_FIRST_LINE = re.compile(r"\|\s+(\d+)\s+(\S.*?)\s{1,}(On|Off|N/A|ERR!|WDDM|TCC|MCDM)\s*$")
# A Jetson's GPU is on no bus: N/A.
_BUS_CELL = re.compile(r"\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|N/A)\s+\S+\s*$")
_SECOND_LINE = re.compile(r"\s*(\S+)\s+(\S+)\s+(\S+)\s+(.+?)\s*/\s*(\S+)\s*$")
_COMPUTE_MODE = re.compile(r"(Default|Prohibited|E\. Process|E\. Thread)\s*$")
_MEMORY_CELL = re.compile(r"\s*(\d+)\s?MiB\s*/\s*(\d+)\s?MiB\s*$")
_BANNER = re.compile(r"CUDA (?:UMD )?Version:\s*(\[[^\]]*\]|Not Found|\S+)")
_HEAD = re.compile(r"NVIDIA-SMI.*Version|\| *GPU +Name\b")
# Lines of the frame that are no GPU's: banner, headings, rules, fillers.
_FRAME = re.compile(
    r"\|[\s|=+-]*$|\|.*(?:NVIDIA-SMI.*Version|Persistence-M|TCC/WDDM|Driver-Model|Pwr:Usage|Memory-Usage|MIG M\.)"
)
# What follows has lines of other kinds: MIG devices, then processes, which may have any name.
_OTHER_PARTS = re.compile(r"\|\s*(?:MIG devices:|No MIG devices found|Processes:)")
_MIG_PART = re.compile(
    r"^\|\s*MIG devices:.*$\n?(?P<lines>(?:^(?!\|\s*Processes:)[|+].*$\n?)*)", re.MULTILINE
)
_MIG_HEADS = re.compile(r"GPU +GI +CI|ID +ID +Dev|No MIG devices found")
_MIG_FIRST = re.compile(r"\s*(\d+)\s+\d+\s+\d+\s+\d+\s*")  # GPU, GPU instance, compute instance, device
_MIG_ECC = re.compile(r"\s*\S+\s+(\S.*?)\s*")  # multiprocessors, uncorrected errors


@dataclass(frozen=True, slots=True)
class Table:
    """What is read from the table: GPUs, the one word after "CUDA Version:", and lines that are no table."""

    rows: tuple[Row, ...]
    cuda_word: str | None
    no_mig_devices: bool
    strays: tuple[str, ...]
    from_its_head: bool = True  # False: a piece, which may begin with any GPU
    mig: tuple[Row, ...] = ()  # MIG devices, each with the index of its GPU


def read_table(text: str) -> Table:
    """The table that `nvidia-smi` prints, or a piece of it.

    GPU blocks are taken apart (index, name, bus id, ECC, temperature, power, memory, MIG) and MIG devices (memory,
    ECC); the banner only tells whether CUDA was found. Never read here: version numbers.

    >>> read_table("| NVIDIA-SMI 515.65   Driver Version: 515.65   CUDA Version: N/A  |").cuda_word
    'N/A'
    """
    rows: list[Row] = []
    strays: list[str] = []
    lines = text.splitlines()
    banner = _BANNER.search(text)
    in_gpus, last = True, -1  # `last`: the last line of the block that was read
    for at, line in enumerate(lines):
        bare = line.strip()
        if not bare or bare[0] in "+|" or _is_date(bare):
            in_gpus = in_gpus and _OTHER_PARTS.match(bare) is None
            columns = line.rstrip().strip("|").split("|")
            if first := _first_line(line, columns):
                following = _rest_of_block(lines[at + 1 : at + 3])
                rows.append(_block(first, columns, following))
                last = at + len(following)
            elif in_gpus and at > last and bare.startswith("|") and not _FRAME.match(bare):
                strays.append(line)  # where a GPU should be
        else:
            strays.append(line)
    mig, more = _mig_devices(text)
    strays += more
    return Table(
        rows=tuple(rows),
        cuda_word=banner[1] if banner else None,
        no_mig_devices="No MIG devices found" in text,
        strays=tuple(strays),
        from_its_head=_HEAD.search(text) is not None,
        mig=tuple(mig),
    )


def _mig_devices(text: str) -> tuple[list[Row], list[str]]:
    """The rows of the table's second part, and lines of it that are neither a device nor its BAR1."""
    rows: list[Row] = []
    strays: list[str] = []
    part = _MIG_PART.search(text)
    for line in part["lines"].splitlines() if part else ():
        columns = [column.strip() for column in line.rstrip().strip("|").split("|")]
        if _MIG_HEADS.search(line) or not re.search(r"[^|+=\s-]", line):
            continue
        if (first := _MIG_FIRST.fullmatch(columns[0])) and len(columns) > 2:
            ecc = _MIG_ECC.fullmatch(columns[2])
            cells = {
                "memory.used": _used(columns[1]),
                "ecc.errors.uncorrected.volatile.total": read_cell(ecc[1])
                if ecc
                else Cell(CellState.VALUE, columns[2]),
            }
            rows.append(Row(int(first[1]), cells, line))
        elif rows and not columns[0] and len(columns) > 1:
            rows[-1] = replace(rows[-1], cells={**rows[-1].cells, "bar1.used": _used(columns[1])})
        elif rows or columns[0]:  # before the first device: the last line of the heads
            strays.append(line)
    return rows, strays


def _used(column: str) -> Cell:
    memory = _MEMORY_CELL.match(column)
    return read_cell(memory[1] if memory else column)


def _is_date(line: str) -> bool:
    """Any language's: a time and a year, and nothing but words, numbers and their marks."""
    parts = (r"\b\d{1,2}:\d{2}:\d{2}\b", r"(?<!\d)20\d{2}(?!\d)")
    return re.fullmatch(r"[\w .,:/+-]{14,60}", line) is not None and all(
        re.search(part, line) for part in parts
    )


def _first_line(line: str, columns: Sequence[str]) -> re.Match[str] | None:
    """The match of a block's first line: index, name, persistence; its second column must hold a bus id."""
    if len(columns) < 3 or not _BUS_CELL.match(columns[1]):
        return None
    return _FIRST_LINE.match("|" + columns[0]) if line.startswith("|") else None


def _rest_of_block(lines: Sequence[str]) -> list[str]:
    """The lines that belong to the block above them: until a rule, another block or another part."""
    for at, line in enumerate(lines):
        other = _OTHER_PARTS.match(line) or _first_line(line, line.rstrip().strip("|").split("|"))
        if other or not line.startswith("|"):
            return list(lines[:at])
    return list(lines)


def _block(first: re.Match[str], columns: Sequence[str], following: Sequence[str]) -> Row:
    bus = _BUS_CELL.match(columns[1])
    assert bus is not None
    cells = {
        "index": read_cell(first[1]),
        "name": read_cell(first[2].rstrip(" .")),  # "NVIDIA GeForce RTX 2080 ..." is shortened by the table
        "pci.bus_id": read_cell(bus[1]),
        "ecc.errors.uncorrected.volatile.total": _ecc(columns[2]),
    }
    if following:
        cells |= _second(following[0].rstrip().strip("|").split("|"))
    else:
        cells["memory.used"] = Cell(CellState.VALUE, "cut off")
    if len(following) > 1:
        last = following[1].rstrip().strip("|").split("|")[-1]
        cells["mig.mode.current"] = read_cell(last)
    block = "\n".join((first[0], *columns, *following))
    # A lost GPU has "GPU is lost" where its memory use would be, and ERR! in the other cells.
    for phrase in ("GPU is lost", "GPU requires reset", "Requires reset"):
        if phrase.casefold() in block.casefold():
            cells["memory.used"] = read_cell(phrase)
    return Row(int(first[1]), cells, block)


def _ecc(column: str) -> Cell:
    """The ECC column: a number, N/A, Off, or "On" in a MIG block of drivers before 570."""
    text = column.strip()
    return read_cell("N/A" if text in ("On", "Off") else text)


def _second(columns: Sequence[str]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    if left := _SECOND_LINE.match(columns[0]):
        # Fahrenheit never appears; "28C" is the table's own way of writing 28 C.
        cells["fan.speed"] = read_cell(left[1].replace("%", " %"))
        cells["temperature.gpu"] = read_cell(re.sub(r"^(\d+)C$", r"\1", left[2]))
        cells["power.draw"] = read_cell(re.sub(r"^(\d+)W$", r"\1 W", left[4]))
    else:
        cells["temperature.gpu"] = Cell(CellState.VALUE, columns[0].strip())
    if len(columns) > 1:
        memory = _MEMORY_CELL.match(columns[1])
        cells["memory.used"] = read_cell(memory[1] if memory else columns[1])
        if memory:
            cells["memory.total"] = read_cell(memory[2])
    else:
        cells["memory.used"] = Cell(CellState.VALUE, "cut off")
    if len(columns) > 2 and (mode := _COMPUTE_MODE.search(columns[2])):
        cells["compute_mode"] = read_cell(mode[1])
    return cells


# -- nvidia-smi -q -------------------------------------------------------------------------------------------------
def read_query(text: str) -> tuple[tuple[int, tuple[tuple[str, ...], str]], ...]:
    """Leaves of `nvidia-smi -q` as (position of the GPU, (path, value)), headings by their indentation.

    >>> read_query("GPU 00000000:41:00.0\\n    ECC Mode\\n        Current       : Enabled\\n")
    ((0, (('ECC Mode', 'Current'), 'Enabled')),)
    """
    leaves: list[tuple[int, tuple[tuple[str, ...], str]]] = []
    stack: list[tuple[int, str]] = []
    gpu = -1
    for line in text.splitlines():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        key, colon, value = line.partition(" : ")
        if depth == 0 and re.match(r"GPU [0-9A-Fa-f:.]+\s*$", line):
            gpu, stack = gpu + 1, []
            continue
        while stack and stack[-1][0] >= depth:
            stack.pop()
        if colon or line.rstrip().endswith(":"):
            path = (*(name for _, name in stack), key.strip().rstrip(":").strip())
            leaves.append((gpu, (path, value.strip())))
        else:
            stack.append((depth, line.strip()))
    return tuple(leaves)
