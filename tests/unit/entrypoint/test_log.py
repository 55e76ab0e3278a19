"""Log lines: level, subject, what happened; what to do on lines of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint import log

DOCKER = Path(__file__).parents[3] / "docker"


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (log.info, "INFO    ssh: sshd on port 22"),
        (log.warning, "WARNING ssh: sshd on port 22"),
        (log.error, "ERROR   ssh: sshd on port 22"),
    ],
    ids=["info", "warning", "error"],
)
def test_subjects_stand_below_each_other(write, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("ssh", "sshd on port 22")
    assert capsys.readouterr() == ("", f"{line}\n")


def test_remedies_are_indented_below(capsys: pytest.CaptureFixture[str]) -> None:
    log.warning("home", "cannot be written", "Do this, or", "do that")
    assert capsys.readouterr().err == (
        "WARNING home: cannot be written\n        Do this, or\n        do that\n"
    )


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "xx_XX.ISO-8859-1"])
def test_any_text_can_be_written_in_any_locale(locale: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(DOCKER)!r}); from entrypoint import log; log.info('a', sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, b"Gr\xc3\xbc\xc3\x9fe \xff"],
        env={"LC_ALL": locale},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.startswith("INFO    a: Grüße ".encode())
