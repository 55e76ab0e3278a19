"""The frame around every command: what people see when something is in the way."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from host import command
from host.show import Problem

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def named_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/x/scripts/up"])


def raising(error: BaseException) -> command.Main:
    def main(_: object) -> int:
        raise error

    return main


def test_a_problem_is_what_and_what_to_do_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(raising(Problem("it is broken", "mend it", code=1))) == 1
    assert capsys.readouterr() == ("", "up: it is broken\n  mend it\n")


def test_ctrl_c_is_130_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "\nup: interrupted\n"


def test_a_file_of_somebody_else_is_named_with_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that was once used with sudo."""
    file = tmp_path / "lock"
    file.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert command.run(raising(PermissionError(errno.EACCES, "Permission denied", str(file)))) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"up: {file}: Permission denied"
    assert second == f"  It belongs to user {file.owner()}. To make it yours:  sudo chown -R $USER {file}"


def test_a_full_disk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "not there"))
    assert command.run(raising(error)) == 2
    assert capsys.readouterr().err == f"up: {tmp_path}/not there: No space left on device\n"


@pytest.mark.parametrize("words", [["--help"], ["--json"]])
def test_an_output_that_takes_nothing_is_one_line(words: list[str]) -> None:
    """Also what is written only at the end; as torchtap itself does."""
    code = (
        "import sys\n"
        "sys.path.insert(0, 'scripts')\n"
        "'A command.'\n"
        "from host import command\n"
        "sys.argv = ['up', *sys.argv[1:]]\n"
        "sys.exit(command.run(lambda _: print('x') or 0))\n"
    )
    line = [sys.executable, "-c", code, *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert done.stderr == "up: standard output cannot be written: No space left on device\n"
    assert done.returncode == 2


def test_a_fault_of_the_program_is_not_dressed_up() -> None:
    with pytest.raises(ZeroDivisionError):
        command.run(raising(ZeroDivisionError()))
    with pytest.raises(FileNotFoundError):
        command.run(raising(FileNotFoundError(errno.ENOENT, "No such file or directory", "x")))
