"""docs/modes.md: what it shows is printed so, its findings are those that there are, and its links lead somewhere.

The table of what decides is compared in tests/unit/modes/test_emulate.py, which runs the page's doctests too.
"""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import pytest

import torchtap.modes
from torchtap import modes

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
SOURCE = Path(torchtap.modes.__file__).parent


def block(language: str, start: str) -> str:
    """The one code block of this language that starts so."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if text.startswith(start)]
    return str(found)


def test_the_error_is_the_one_that_the_example_ends_with() -> None:
    """Run under the name that the page gives it."""
    program = compile(block("python", "import torch\nfrom torch import nn\n"), "train.py", "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", modes.ModeWarning)
        with pytest.raises(RuntimeError) as raised:
            exec(program, {"__name__": "train"})
    assert f"RuntimeError: {raised.value}\n" == block("text", "RuntimeError: cudnn")


def severities() -> dict[str, set[str]]:
    """Every finding that the source can make, and how much it can matter."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if not {"id", "severity", "where"} <= set(given):
                continue
            name = given["id"]
            finding = name.value if isinstance(name, ast.Constant) else names[ast.unparse(name)]
            told = set(re.findall(r"Severity\.(\w+)", ast.unparse(given["severity"])))
            if not told:  # a variable: all that its module speaks of
                told = set(re.findall(r"Severity\.([A-Z]+)", path.read_text(encoding="utf-8")))
            found.setdefault(str(finding), set()).update(each.lower() for each in told)
    return found


def rows() -> dict[str, set[str]]:
    """The table of findings: id and severities."""
    return {
        match[1]: set(match[2].split(", "))
        for match in re.finditer(r"^\| `(\w+\.\w+)` \| ([a-z, ]+) \|", PAGE, re.MULTILINE)
    }


def test_every_finding_is_in_the_table_with_its_severity() -> None:
    assert rows() == severities()


def test_every_rule_of_a_guard_is_in_the_table() -> None:
    """A rule names its findings in its docstring."""
    from torchtap.modes.silent import RULES

    for rule in RULES:
        named = set(re.findall(r"`(\w+\.\w+)`", (rule.__doc__ or "").split(":")[0].split(".\n")[0]))
        assert named, f"{rule.__name__} names no finding"
        assert named <= set(rows())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(?:with |@)?modes\.(\w+)", PAGE))))
def test_every_function_of_the_page_exists(name: str) -> None:
    assert name in modes.__all__


def anchors() -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_links_lead_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    assert (ROOT / "docs" / path).exists() if path else anchor in anchors()
