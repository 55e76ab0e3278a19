"""`torchtap selftest --merge`, in fresh processes."""

from __future__ import annotations

import json
import os
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


def merged_from(names: bytes, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "torchtap.cli", "selftest", "--merge", "-", *map(str, words)]
    return subprocess.run(line, input=names, capture_output=True, env=environment())


def test_names_may_be_of_any_kind(reports: Path, tmp_path: Path):
    """Ended by NUL as of find -print0, with other bytes, longer than any file's; each bad one is named."""
    (tmp_path / "a\nb.json").write_bytes((reports / "node0001.json").read_bytes())
    names = b"\0".join(os.fsencode(path) for path in (tmp_path / "a\nb.json", reports / "node0002.json"))
    done = merged_from(names + b"\0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"PASS    2 hosts: 2 passed\n")
    odd = b"x" * 300 + b"\n\xff.json\n" + os.fsencode(reports / "node0001.json") + b"\n"
    done = merged_from(odd)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"File name too long" in done.stdout
    assert done.stdout.count(b"BAD  ") == 2
    assert done.stdout.endswith(b"UNKNOWN 1 host: 1 passed; 2 unreadable files\n")


def test_a_closed_standard_input_is_exit_2(tmp_path: Path):
    """It gives no names."""
    line = f"exec {sys.executable} -m torchtap.cli selftest --merge - <&-"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "torchtap selftest: nothing was given to merge\n")


def test_a_merge_never_overwrites_a_report(reports: Path, tmp_path: Path):
    """Named, in a folder, by a link; what an earlier merge wrote is written anew, and is no bad file."""
    for name in ("node0001.json", "node0002.json"):
        (tmp_path / name).write_bytes((reports / name).read_bytes())
    (tmp_path / "link.json").symlink_to(tmp_path / "node0001.json")
    before = (tmp_path / "node0001.json").read_bytes()
    for given in (tmp_path / "node0001.json", tmp_path):
        for output in ("node0001.json", "link.json"):
            done = command("selftest", "--merge", given, "--output", tmp_path / output)
            assert (done.returncode, done.stdout) == (2, "")
            assert "is one of the files to merge; give another name" in done.stderr
            assert (tmp_path / "node0001.json").read_bytes() == before
    (tmp_path / "link.json").unlink()
    for _ in range(2):
        done = command("selftest", "--merge", tmp_path, "--output", tmp_path / "merged.json")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS    2 hosts: 2 passed")
    assert json.loads((tmp_path / "merged.json").read_text())["merged"] == 2
    assert (
        command("selftest", "--merge", tmp_path).returncode == 1
    )  # a merged one proves nothing, and is said


def test_what_preflight_left_is_passed_over(reports: Path, tmp_path: Path):
    """By name in a folder, by what is in it where the shell named it; alone it is no report."""
    (tmp_path / "preflight.json").write_text('{"preflight": 1, "verdict": "fail", "results": []}')
    done = command("selftest", "--merge", reports / "node0001.json", tmp_path / "preflight.json")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS    1 host: 1 passed")
    done = command("selftest", "--merge", tmp_path / "preflight.json")
    assert (done.returncode, done.stderr) == (2, "torchtap selftest: no report among what was given\n")


def test_the_reports_of_a_terminal_can_be_merged(reports: Path, tmp_path: Path):
    """docker run -t ends each line with both, also those before the report."""
    report = json.dumps(json.loads((reports / "node0001.json").read_text()), indent=2)
    text = f"WARNING ssh: not started\n{report}\nbye\n"
    (tmp_path / "n1.json").write_bytes(text.replace("\n", "\r\n").encode())
    assert command("selftest", "--merge", tmp_path).returncode == 0


def test_every_report_is_shown_with_its_level_where_all_is_asked_for(reports: Path):
    """-v: level, beginning, file."""
    shown = command("selftest", "--merge", reports / "node0001.json", "-v").stdout
    assert re.search(r"pass    node0001: level quick, 2026-\S+Z,\s+\S*node0001.json", shown)
