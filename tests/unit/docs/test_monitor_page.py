"""docs/monitor.md: its examples print what it shows, its tables name what there is, its links lead somewhere."""

from __future__ import annotations

import doctest
import linecache
import re
from pathlib import Path

import pytest

from torchtap.monitor import plots
from torchtap.monitor.history import COLUMNS
from torchtap.monitor.writers import jsonl

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "docs" / "monitor.md"
PAGE = FILE.read_text(encoding="utf-8")
PICTURES = ROOT / "docs" / "pictures"


def block(language: str, start: str) -> str:
    """The one code block of this language that starts so."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if text.startswith(start)]
    return str(found)


def run(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As train.py, of which the lines can be read."""
    lines = (len(source), None, source.splitlines(keepends=True), "train.py")
    monkeypatch.setitem(linecache.cache, "train.py", lines)
    exec(compile(source, "train.py", "exec"), {"__name__": "train"})


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # the table is as wide as the terminal
    failed, tried = doctest.testfile(str(FILE), module_relative=False)
    assert tried > 10
    assert failed == 0


def test_find_nan_says_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = block("python", "import torch\nimport torchtap\n")
    run(program, monkeypatch)
    assert capsys.readouterr().out == block("text", "Inf first in")
    wrong, right = "apart.square().sum(-1).sqrt()", "(apart.square().sum(-1) + 1e-8).sqrt()"
    assert wrong in program
    assert f"`{right}`" in PAGE
    run(program.replace(wrong, right), monkeypatch)
    assert capsys.readouterr().out == block("text", "all values")


def test_the_table_of_pictures_is_that_of_the_module() -> None:
    listed = set(re.findall(r"^\| `(\w+)\(w", PAGE, re.MULTILINE))
    assert listed == set(re.findall(r"^\| `(\w+)\(w\)`", plots.__doc__ or "", re.MULTILINE))
    assert all(callable(getattr(plots, name)) for name in listed)


def test_every_column_is_defined() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", PAGE.split("## What is measured")[1], re.MULTILINE)
    assert {*COLUMNS, "absmax"} <= set(re.findall(r"\w+", " ".join(rows)))


def test_the_version_of_the_run_folder_is_that_of_the_code() -> None:
    assert f'"schema": {jsonl.SCHEMA}' in PAGE
    assert f"The run folder has the version {jsonl.SCHEMA}," in PAGE


def test_pictures_are_small_and_all_shown() -> None:
    shown = set(re.findall(r"!\[[^\]]+\]\(pictures/([\w-]+\.png)\)", PAGE))
    assert shown == {each.name for each in PICTURES.glob("*.png")}
    for name in shown:
        assert (PICTURES / name).stat().st_size < 60_000
        assert f'"{name}"' in (PICTURES / "make.py").read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_links_lead_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    assert (ROOT / "docs" / path).exists()
    if anchor:
        assert anchor in anchors(ROOT / "docs" / path if path else FILE)
