"""The generated parts of docs/selftest.md: the tables of checks, causes, remedies, references and steps.

`python -m torchtap.selftest.page docs/selftest.md` writes them between their marks; a test compares page and code.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from torchtap.selftest.causes import CAUSES, OPTIONAL_SLOTS
from torchtap.selftest.check import Scope
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.expect import EXPECTATIONS
from torchtap.selftest.child.steps import STEPS
from torchtap.selftest.codes import CODES
from torchtap.selftest.examples import examples
from torchtap.selftest.references import REFERENCES
from torchtap.selftest.report import draw
from torchtap.selftest.status import Remedy

_SCOPES = {
    Scope.ANY: "every machine",
    Scope.GPU: "with a GPU",
    Scope.REAL_GPU: "with a real GPU",
}
_KINDS = {
    "smi": "nvidia-smi",
    "ask": "nvidia-smi, one more call",
    "child": "test process",
    "load": "under load",
    "env": "variable",
}


def checks_table() -> str:
    """One row a check, in their order."""
    rows = [
        (
            f'<a id="{check.id}"></a>`{check.id}`',
            check.title,
            _reads(check.reads),
            ", ".join(f"`{need}`" for need in check.needs) or "-",
            _SCOPES[check.scope],
            check.level.value,
            check.source,
            f"`{check.see}`" if check.see else "-",
        )
        for check in (*CHECKS, *EXPECTATIONS)
    ]
    return _table(
        ("id", "asks", "reads", "needs", "where", "level", "limits and sources", "see it yourself"), rows
    )


def causes_table() -> str:
    """One row a cause: where it is named, what it says, what to do."""
    named: dict[str, list[str]] = {}
    for check in (*CHECKS, *EXPECTATIONS):
        for cause in check.causes:
            named.setdefault(cause, []).append(check.id)
    rows = [
        (
            f"`{cause_id}`",
            ", ".join(f"`{check}`" for check in named.get(cause_id, [])) or "every check, or `smi.judge`",
            _slots(cause.says),
            cause.remedy.value,
            _slots(cause.do) + (f" `{cause.paste}`" if cause.paste else ""),
        )
        for cause_id, cause in CAUSES.items()
    ]
    return _table(("cause", "named by", "what is wrong", "remedy", "what to do"), rows)


def codes_table() -> str:
    """One row a cuInit code."""
    rows = [
        (str(number), code.name, ", else ".join(f"`{cause}`" for _, cause in code.causes))
        for number, code in CODES.items()
    ]
    return _table(("code", "name", "cause"), rows)


def remedies_table() -> str:
    """The closed set of remedies, with the causes that lead to each."""
    rows = [
        (
            f"`{remedy.value}`",
            ", ".join(f"`{name}`" for name, cause in CAUSES.items() if cause.remedy is remedy),
        )
        for remedy in Remedy
    ]
    return _table(("remedy", "for"), rows)


def references_table() -> str:
    """One row a kind of GPU: what measured numbers are compared with."""
    rows = [
        (
            row.name,
            f"{row.memory_gb:g}",
            f"{row.bandwidth:g}",
            *(
                f"{row.tflops[what]:g}" if what in row.tflops else "-"
                for what in ("fp32", "tf32", "fp16", "bf16")
            ),
            row.capability,
            *("-" if value is None else f"{value:g}" for value in (row.dcgm, row.watts)),
            row.source if row.verified else f"{row.source} (unverified)",
        )
        for row in REFERENCES
    ]
    rates = ("fp32", "tf32", "fp16", "bf16")
    head = ("GPU", "GB", "GB/s", *rates, "capability", "DCGM's least GB/s", "DCGM's W", "source")
    return _table(head, rows)


def steps_table() -> str:
    """One row a step of the test process, in the order in which they run."""
    rows = [
        (
            f"`{plan.name}`",
            plan.level.value,
            f"{plan.timeout_s:g}",
            ", ".join(f"`{name}`" for name in plan.after) or "-",
            "yes" if plan.asks_driver else "no",
        )
        for plan in STEPS.values()
    ]
    return _table(("step", "level", "limit in s", "after", "asks the driver"), rows)


def _reads(reads: tuple[str, ...]) -> str:
    """What a check reads, grouped by where it comes from."""
    groups: dict[str, list[str]] = {}
    for read in reads:
        kind, colon, name = read.partition(":")
        groups.setdefault(_KINDS[kind] if colon else "file", []).append(f"`{name if colon else read}`")
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items())


def _slots(text: str) -> str:
    """Slots as a reader sees them, so that a table does not look like code."""
    shown = re.sub("|".join(rf"\{{{slot}\}}" for slot in sorted(OPTIONAL_SLOTS)), "", text)
    return re.sub(r"\{(\w+)\}", lambda slot: f"*{slot[1].replace('_', ' ')}*", shown)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def drawn(title: str, command: str) -> str:
    """One of the recorded reports, as a terminal of 80 columns shows it after this command."""
    file = io.StringIO()
    draw(dict(examples())[title], Console(file=file, width=80, highlight=False, no_color=True))
    return f"```console\n$ {command}\n{file.getvalue()}```\n"


PARTS: dict[str, Callable[[], str]] = {
    "checks": checks_table,
    "causes": causes_table,
    "codes": codes_table,
    "remedies": remedies_table,
    "references": references_table,
    "steps": steps_table,
    "failing": lambda: drawn("a container without a GPU", "torchtap selftest"),
    "good": lambda: drawn("the level burn", "torchtap selftest --level burn"),
}


def filled(page: str) -> str:
    """The page with every generated part as the code has it now. Raises `ValueError` where a mark is missing."""
    for name, make in PARTS.items():
        begin, end = f"<!-- begin {name}: generated -->\n", f"<!-- end {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"the page has no place for {name}: {begin.strip()} ... {end}")
        before, _, rest = page.partition(begin)
        page = before + begin + make() + end + rest.partition(end)[2]
    return page


def main() -> None:
    """Fill the page that is named."""
    page = Path(sys.argv[1])
    temporary = page.with_suffix(".part")
    temporary.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    os.replace(temporary, page)  # noqa: PTH105


if __name__ == "__main__":
    main()
