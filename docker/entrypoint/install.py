"""`pip` and `uv` as typed in the container: the real ones, told where the user's packages are, and a hint at their end.

pip is that of the user's python. `uv pip` goes there too, unless it is told or shown another environment. Every other
use of uv is left as it is. When the pin of torch is what made pip or uv give up, a note after their own error says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from entrypoint import certificates, overlay, paths, user_env
from entrypoint.execute import execute
from entrypoint.user_env import Place

# Commands that the pin can stop.
INSTALLING = {"pip": ("install", "download", "wheel", "lock"), "uv": ("install", "sync")}
# Of `uv pip`: those that work on an environment, and what tells them which.
ON_ENVIRONMENT = ("install", "uninstall", "sync", "list", "freeze", "show", "check", "tree")
TARGETS = re.compile(r"(--python|--target|--prefix)(=.*)?|--system|-p.*|-t.*")
TARGET_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_SYSTEM_PYTHON")
# Options of uv that take the next word, and may stand before the command.
WITH_VALUE = ("--directory", "--project", "--config-file", "--cache-dir", "--color", "--allow-insecure-host")
DRY_RUN_LIMIT_S = 60


def main(tool: str, words: list[str]) -> int:
    """Run pip or uv; its exit code."""
    os.environ.update(_certificates())
    place = user_env.find()
    if place is None:
        program = str(paths.VENV / "bin" / tool)
        execute(program, [program, *words], os.environ)
        return 127
    user_env.become_user()
    with contextlib.suppress(OSError):
        overlay.make(place.base, place.folder)
    return (_pip if tool == "pip" else _uv)(place, words)


def _certificates() -> dict[str, str]:
    """The variables that a bare `docker exec` lacks: uv has a list of its own and reads no system file."""
    run = paths.run_directory()
    if run is None or not (run / certificates.ALL).exists():
        return {}
    return {name: str(run / file) for name, file, _ in certificates.VARIABLES if not os.environ.get(name)}


def _pip(place: Place, words: list[str]) -> int:
    command = [str(place.python), "-m", "pip", *words]
    verb = next((word for word in words if not word.startswith("-")), "")
    _say_where(place, verb)
    if verb not in INSTALLING["pip"] or not overlay.is_pinned(place.folder):
        execute(command[0], command, os.environ)
    environment = dict(os.environ)
    if environment.get("PIP_CONSTRAINT"):  # else it would take the place of the overlay's own
        environment["PIP_CONSTRAINT"] = f"{overlay.constraints()} {environment['PIP_CONSTRAINT']}"
    with tempfile.TemporaryDirectory(prefix="pip-") as folder:
        log = Path(environment.setdefault("PIP_LOG", f"{folder}/log"))
        code = _run(command, environment)
        text = ""
        with contextlib.suppress(OSError):
            text = log.read_text(errors="replace") if code else ""
    _hint(place, refused_by_pip(text, place.base.pinned))
    return code


def _uv(place: Place, words: list[str]) -> int:
    own = place.folder / "bin/uv"
    program = str(own if os.access(own, os.X_OK) else paths.VENV / "bin/uv")
    at = uv_pip(words, os.environ, Path.cwd)
    if at is None:
        execute(program, [program, *words], os.environ)
        return 127
    verb = words[at]
    _say_where(place, verb)
    pinned = overlay.is_pinned(place.folder) and verb in INSTALLING["uv"]
    options = [
        "--python",
        str(place.python),
        *(["--constraint", str(overlay.constraints())] if pinned else []),
    ]
    command = [program, *words[: at + 1], *options, *words[at + 1 :]]
    if not pinned:
        execute(command[0], command, os.environ)
    code = _run(command, os.environ)
    if code and "-" not in words:
        _hint(place, refused_by_uv(_dry_run([*command, "--dry-run"]), place.base.pinned))
    return code


def uv_pip(words: Sequence[str], environment: Mapping[str, str], cwd: object) -> int | None:
    """Where the command after `uv pip` is, if it is one for the overlay; None if uv shall choose by itself.

    >>> uv_pip(["-q", "pip", "install", "rich"], {}, lambda: Path("/"))
    2
    >>> uv_pip(["pip", "install", "--python", "3.12", "rich"], {}, lambda: Path("/"))
    >>> uv_pip(["pip", "install", "rich"], {"VIRTUAL_ENV": "/workspace/mine"}, lambda: Path("/"))
    """
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    if list(words[at : at + 1]) != ["pip"]:
        return None
    at += 1
    while at < len(words) and words[at].startswith("-"):
        at += 1
    if at >= len(words) or words[at] not in ON_ENVIRONMENT:
        return None
    if any(TARGETS.fullmatch(word) for word in words) or any(map(environment.get, TARGET_VARIABLES)):
        return None
    with contextlib.suppress(OSError):
        here: Path = cwd()  # type: ignore[operator]
        if any((folder / ".venv").is_dir() for folder in (here, *here.parents)):
            return None
    return at


def refused_by_pip(text: str, pinned: Iterable[str]) -> list[str]:
    """What pip's log names as pinned where it gave up.

    >>> refused_by_pip("    The user requested (constraint) torch==2.14.1\\n", ["torch", "triton"])
    ['torch']
    """
    named = {overlay.normal(name) for name in re.findall(r"\(constraint\) ([\w.-]+?)==", text)}
    return [name for name in pinned if name in named]


def refused_by_uv(text: str, pinned: Mapping[str, str]) -> list[str]:
    """What uv's error names as pinned.

    >>> refused_by_uv("Because you require torch==2.9.0 and torch==2.14.1, we can conclude", {"torch": "2.14.1"})
    ['torch']
    """
    return [
        name
        for name, version in pinned.items()
        if re.search(rf"(?<![\w.-]){re.escape(name)}(\{{[^}}]*\}})?=={re.escape(version)}(?!\.?\w|\+)", text)
    ]


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run it on this terminal and wait; its exit code. It gets Ctrl-C itself; SIGTERM is passed on."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, env=dict(environment), preexec_fn=_interruptible)  # noqa: PLW1509 - no threads here
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    return code if code >= 0 else 128 - code


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _dry_run(command: Sequence[str]) -> str:
    """What uv would say once more: its error went to the terminal, with colours and bars, and cannot be read there."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DRY_RUN_LIMIT_S, check=False
        ).stderr
    return ""


def _say_where(place: Place, verb: str) -> None:
    if verb in ("install", "uninstall") and place.used is None:
        why = "TORCHTAP_SAFE=1" if place.safe else "start could not use them"
        _note(f"this is about the packages in {place.folder}, which python does not see now ({why})")
    elif verb == "install" and (own := os.environ.get("VIRTUAL_ENV")):
        _note(f"{own} has no pip of its own, so this goes to {place.folder}. For yours: uv pip install ...")


def _hint(place: Place, names: Sequence[str]) -> None:
    if not names:
        return
    one = len(names) == 1
    listed = " and ".join(f"{name} {place.base.pinned[name]}" for name in names)
    _note(
        f"{listed} {'is' if one else 'are'} pinned: torch, CUDA and cuDNN of this image were tested together.",
        "Take a version of your package that works with it, or another environment (docs/packages.md).",
        "To lift the pin, knowingly:  torchtap-env unpin",
    )


def _note(*lines: str) -> None:
    print("note: " + "\n      ".join(lines), file=sys.stderr, flush=True)
