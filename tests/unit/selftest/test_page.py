"""docs/selftest.md says what the code says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchtap.selftest.causes import CAUSES
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.expect import EXPECTATIONS
from torchtap.selftest.page import PARTS, filled

PAGE = Path(__file__).parents[3] / "docs" / "selftest.md"


def test_the_tables_of_the_page_equal_the_code():
    """If this fails: python -m torchtap.selftest.page docs/selftest.md."""
    assert filled(PAGE.read_text()) == PAGE.read_text()


def test_every_check_and_every_cause_has_its_row():
    """And nothing that looks like code is left in a sentence."""
    checks, causes = PARTS["checks"](), PARTS["causes"]()
    assert checks.count("\n") == len(CHECKS) + len(EXPECTATIONS) + 2
    assert causes.count("\n") == len(CAUSES) + 2
    assert not re.search(
        r"\{\w+\}(?! make up|`)",
        causes.replace("{index}", "").replace("{fits}", "").replace("{check}", "").replace("{packages}", ""),
    )


def test_a_page_without_a_place_is_refused():
    """Nothing is written half."""
    with pytest.raises(ValueError, match="no place for checks"):
        filled("# The self-test\n")


def test_the_command_fills_a_page(tmp_path: Path):
    """In place, all or nothing."""
    page = tmp_path / "page.md"
    page.write_text(re.sub(r"(generated -->\n).*?(<!-- end)", r"\1\2", PAGE.read_text(), flags=re.DOTALL))
    assert page.read_text() != PAGE.read_text()
    subprocess.run([sys.executable, "-m", "torchtap.selftest.page", str(page)], check=True)
    assert page.read_text() == PAGE.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["page.md"]


def test_the_json_of_the_page_is_json_with_the_keys_that_are_written():
    """The example is one that could have been printed."""
    from torchtap.selftest.examples import examples

    block = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    shown = json.loads(block[1])
    real = dict(examples())["a container without a GPU"].to_dict()
    assert list(shown) == list(real)
    (result,) = [each for each in real["results"] if each["id"] == "device.nodes"]  # type: ignore[attr-defined]
    assert list(shown["results"][0]) == list(result)
    for key in ("status", "seen", "cause", "cause_id", "remedy", "remedy_id", "values"):
        assert shown["results"][0][key] == result[key], key
