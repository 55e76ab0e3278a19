"""Whether watching changes anything: train each model bare, watched, and captured under a guard, and compare all bits.

    python -m tests.matrix                          all models (an hour and more)
    python -m tests.matrix --only resnet18 BERT     some: names of models or of groups
    python -m tests.matrix --sample                 those that `make test` runs
    python -m tests.matrix --list                   their names
    python -m tests.matrix --json FILE              also as JSON, written after each model
    python -m tests.matrix --page FILE [FILE ...]   run nothing: write docs/compatibility.md from such files

Needs torchvision and transformers (`make test` installs both). Exit codes: 0 all are equal, 1 one is not, 2 wrong
usage, or a library is missing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path

import torch
from rich.console import Console

from tests.matrix.cases import Case, cases
from tests.matrix.compare import Row, compare
from tests.matrix.page import PAGE, environment, page

OUTPUT = Console(markup=False, highlight=False, soft_wrap=True)
ERRORS = Console(markup=False, highlight=False, soft_wrap=True, stderr=True)


def main() -> int:
    """The command line."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", nargs="+", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.page:
        return _write_page(given.page)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        chosen = [case for case in cases(given.only) if case.sampled or not given.sample]
    except (ValueError, ImportError) as error:
        ERRORS.print(f"tests.matrix: {error}")
        return 2
    if given.list:
        OUTPUT.print("\n".join(f"{case.group:32} {case.name}" for case in chosen))
        return 0
    torch.set_num_threads(1)
    return _run(chosen, given.json)


def _run(chosen: list[Case], file: Path | None) -> int:
    rows: list[Row] = []
    for number, case in enumerate(chosen, 1):
        row = compare(case)
        rows.append(row)
        gc.collect()
        verdict = "equal" if row.good else f"NOT EQUAL: {_trouble(row)}"
        OUTPUT.print(f"{number}/{len(chosen)} {row.name}: {verdict} ({row.seconds:.1f} s)")
        if file is not None:
            _write(
                file,
                json.dumps({**environment(), "rows": [each.to_dict() for each in rows]}, indent=1) + "\n",
            )
    bad = [row.name for row in rows if not row.good]
    OUTPUT.print(f"{len(rows) - len(bad)} of {len(rows)} are equal in all bits")
    return 1 if bad else 0


def _trouble(row: Row) -> str:
    said = [f"watched: {row.watched}", f"captured: {row.captured}", *row.guarded]
    return "; ".join([*said, f"{row.hooks_left} hooks left"] if row.hooks_left else said)


def _write_page(files: list[Path]) -> int:
    try:
        runs = [json.loads(file.read_text()) for file in files]
    except (OSError, ValueError) as error:
        ERRORS.print(f"tests.matrix: {error}")
        return 2
    _write(PAGE, page(runs, cases()))
    return 0


def _write(file: Path, text: str) -> None:
    draft = file.with_name(file.name + ".tmp")
    draft.write_text(text)
    draft.replace(file)


if __name__ == "__main__":
    sys.exit(main())
