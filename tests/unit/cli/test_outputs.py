"""Where a report goes: files checked before anything runs, one form to standard output."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from torchtap.cli.files import UnwritableError
from torchtap.cli.outputs import FOLDER, FORMS, WORDS, choose_outputs
from torchtap.selftest.examples import examples

REPORT = dict(examples())["all is well"]
NOTHING = dict.fromkeys(FORMS)


def test_people_get_a_table_and_nothing_is_written():
    """Where no option asks for anything else."""
    outputs = choose_outputs({}, NOTHING, None)
    assert (outputs.stdout, list(outputs.files)) == (None, [])


def test_a_folder_gets_every_form(tmp_path: Path):
    """Made with its parents; what stood there is replaced, and what else is there stays."""
    folder = tmp_path / "a" / "selftest-report"
    for _ in range(2):
        assert choose_outputs({}, NOTHING, folder).write(REPORT) == []
        assert {file.name for file in folder.iterdir()} == set(FOLDER)
    assert json.loads((folder / "report.json").read_text()) == json.loads(REPORT.to_json())
    assert ET.parse(folder / "junit.xml").getroot().tag == "testsuites"
    assert (folder / "metrics.prom").read_text().startswith("# HELP torchtap_selftest_ready ")
    text = (folder / "report.txt").read_text()
    assert text.startswith("node017, 2026-11-30T17:48:17Z, level quick, torchtap 0.1.0\n\n")
    assert "PASS    self-test: " in text
    assert "\x1b" not in text
    assert "pass    gpu.ecc" in text
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}


@pytest.mark.parametrize("option", FORMS)
def test_a_dash_is_standard_output_in_place_of_the_table(option: str, tmp_path: Path):
    """As in `docker run IMAGE selftest --junit - > junit.xml`: a file in a container would go with it."""
    outputs = choose_outputs({}, {**NOTHING, option: Path("-")}, None)
    assert outputs.stdout is FORMS[option][1]
    assert list(outputs.files) == []


@pytest.mark.parametrize(
    ("words", "files", "said"),
    [
        (("--json", "--one-line"), {}, "--json and --one-line both go to standard output"),
        (("--json",), {"--junit": "-"}, "--json and --junit - both go to standard output"),
        ((), {"--output": "-", "--prometheus": "-"}, "--output - and --prometheus - both go to"),
        (
            (),
            {"--prometheus": "metrics.txt"},
            r"must end in \.prom, .*textfile collector reads; as in metrics\.prom",
        ),
        ((), {"--prometheus": "metrics"}, r"as in metrics\.prom"),
        ((), {"--output": "same", "--junit": "./same"}, "two options name the same file: /.*/same"),
        ((), {"--junit": "none/junit.xml"}, "--junit none/junit.xml cannot be written: No such file"),
        ((), {"--junit": "."}, r"--junit \. is a folder; give a file in it, as in junit\.xml"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(
    words: tuple[str, ...], files: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Which options, and what to do instead."""
    monkeypatch.chdir(tmp_path)
    given = {option: Path(files[option]) if option in files else None for option in FORMS}
    with pytest.raises(UnwritableError, match=said):
        choose_outputs({word: WORDS[word] for word in words}, given, None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_or_cannot_be_made_is_refused(tmp_path: Path):
    """Before the tests run; the file stays."""
    file = tmp_path / "report"
    file.write_text("kept")
    with pytest.raises(UnwritableError, match="is a file; give a folder"):
        choose_outputs({}, NOTHING, file)
    with pytest.raises(UnwritableError, match="cannot be made: Not a directory"):
        choose_outputs({}, NOTHING, file / "below")
    (tmp_path / "folder" / "junit.xml").mkdir(parents=True)
    with pytest.raises(UnwritableError, match=r"--report .*/junit\.xml is a folder"):
        choose_outputs({}, NOTHING, tmp_path / "folder")
    assert file.read_text() == "kept"


def test_one_file_that_fails_does_not_take_the_others_away(tmp_path: Path):
    """The disk was full, or the folder went away while the tests ran."""
    (tmp_path / "gone").mkdir()
    files = {**NOTHING, "--output": tmp_path / "gone" / "x.json", "--junit": tmp_path / "junit.xml"}
    outputs = choose_outputs({}, files, None)
    (tmp_path / "gone").rmdir()
    (error,) = outputs.write(REPORT)
    assert "x.json cannot be written: No such file or directory" in error
    assert (tmp_path / "junit.xml").exists()
