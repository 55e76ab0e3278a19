"""`torchtap selftest --merge`, in fresh processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.running import command, environment, on_terminal
from torchtap.selftest.fleet.examples import host_reports


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six good hosts and the failing node0007."""
    folder = tmp_path_factory.mktemp("fleet") / "reports"
    folder.mkdir()
    for written in host_reports(7):
        if written["host"]["name"] != "node0003":
            (folder / f"{written['host']['name']}.json").write_text(json.dumps(written))
    return folder


def test_a_folder_becomes_a_table(reports: Path):
    """Exit 1, because one host fails; without it 0."""
    done = command("selftest", "--merge", reports)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("FAIL    gpu.state: 1 host, 8 x NVIDIA H200\n        node0007\n")
    assert done.stdout.endswith("FAIL    6 hosts: 5 passed, 1 failed\n")
    good = command(
        "selftest", "--merge", *(path for path in sorted(reports.iterdir()) if "7" not in path.name)
    )
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "PASS    5 hosts: 5 passed")


def test_the_json_goes_alone_to_standard_output_or_to_a_file(reports: Path, tmp_path: Path):
    """The same in both; names may come from standard input."""
    done = command("selftest", "--merge", reports, "--json")
    written = json.loads(done.stdout)
    assert (done.returncode, written["merged"], written["verdict"]) == (1, 6, "fail")
    names = "".join(f"{path}\n" for path in sorted(reports.iterdir()))
    piped = subprocess.run(
        [
            sys.executable,
            "-m",
            "torchtap.cli",
            "selftest",
            "--merge",
            "-",
            "--output",
            str(tmp_path / "all.json"),
        ],
        input=names,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert piped.returncode == 1
    assert json.loads((tmp_path / "all.json").read_text()) == written


def test_one_bad_file_among_many_is_named_and_hides_no_host(reports: Path, tmp_path: Path):
    """Its host is unknown, so the exit code is 1."""
    (tmp_path / "x.json").write_text((reports / "node0001.json").read_text()[:2000])
    done = command("selftest", "--merge", reports / "node0001.json", tmp_path / "x.json")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"BAD     {tmp_path}/x.json: cut off" in done.stdout.replace("\n        ", " ")
    assert done.stdout.endswith("UNKNOWN 1 host: 1 passed; 1 unreadable file\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--merge"], "--merge needs reports: files, folders of them, or - for names on standard input"),
        (["--merge", "empty"], "no report among what was given"),
        (["--merge", "-"], "nothing was given to merge"),
        (["--merge", "gone.json"], "no report among what was given"),
        (
            ["--merge", "--level", "full", "empty"],
            "--level is for testing this machine; --merge only reads reports",
        ),
        (["--merge", "--one-line", "empty"], "--one-line is for testing this machine"),
        (["--merge", "--output", "none/x.json", "empty"], "--output none/x.json cannot be written: No such"),
        (["empty"], "empty: files are for --merge; to write one, say --output empty"),
    ],
)
def test_a_merge_of_nothing_could_not_run(words: list[str], said: str, tmp_path: Path):
    """Exit 2, one line, no traceback."""
    (tmp_path / "empty").mkdir()
    done = command("selftest", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"torchtap selftest: {said}")


def test_a_large_merge_says_how_far_it_is_on_a_terminal(reports: Path, tmp_path: Path):
    """Wiped away at the end; in a pipe nothing is said."""
    good = (reports / "node0001.json").read_text()
    for at in range(40):
        (tmp_path / f"{at}.json").write_text(
            good.replace("node0001", f"n{at}").replace("GPU-00000001", f"GPU-{at:08x}")
        )
    shown, code = on_terminal(["selftest", "--merge", str(tmp_path)], environment())
    assert code == 0
    assert re.search(r"self-test: reading (20|40) of 40 reports", shown)
    assert "40 hosts: 40 passed" in shown
    assert command("selftest", "--merge", tmp_path).stderr == ""


def test_merging_imports_no_torch(reports: Path):
    """It may run on a laptop, a thousand times a day."""
    code = (
        "import sys\n"
        "sys.argv = ['torchtap', 'selftest', '--merge', sys.argv[1]]\n"
        "from torchtap.cli import main\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(reports)], capture_output=True, text=True, env=environment()
    )
    assert (done.returncode, done.stderr) == (1, "")
