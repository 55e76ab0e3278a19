"""`pip` and `uv` as typed in the container: the real ones, told where the user's packages are, and a hint at their end.

pip is that of the user's python. `uv pip` goes there too, unless it is told or shown another environment; told to come
here in other words, it obeys the pin as well. Every other use of uv is left as it is. When the pin of torch is what
made pip or uv give up, a note after their own error says so.
"""

from __future__ import annotations

import contextlib
import itertools
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
TARGETS = re.compile(r"(--system)|(--python|--target|--prefix)(?:=(.*))?|(-[pt])=?(.*)", re.DOTALL)
TARGET_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_SYSTEM_PYTHON")
# Options of uv that take the next word, and may stand before the command.
WITH_VALUE = ("--directory", "--project", "--config-file", "--cache-dir", "--color", "--allow-insecure-host")
DRY_RUN = "--dry-run"
DRY_RUN_LIMIT_S = 60


def main(tool: str, words: list[str]) -> int:
    """Run pip or uv; its exit code."""
    os.environ.update(_certificates())
    place = user_env.find()
    if place is None:
        program = str(paths.VENV / "bin" / tool)
        execute(program, [program, *words], os.environ)
        return 127
    user_env.mend(place)
    user_env.become_user()
    with contextlib.suppress(OSError):
        overlay.make(place.base, place.folder)
    return (_pip if tool == "pip" else _uv)(place, words)


def _certificates() -> dict[str, str]:
    """The variables that a bare `docker exec` lacks: uv has a list of its own and reads no system file."""
    run = paths.run_directory()
    if run is None or not (run / certificates.ALL).exists():
        return {}
    return certificates.unset(run, os.environ)


def _pip(place: Place, words: list[str]) -> int:
    command = [str(place.python), "-m", "pip", *words]
    verb = next((word for word in words if not word.startswith("-")), "")
    _say_where(place, verb)
    if verb == "uninstall":
        return _uninstall(place, command)
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
    at = uv_pip(words)
    verb = words[at] if at is not None else ""
    pinned = overlay.is_pinned(place.folder) and verb in INSTALLING["uv"]
    told = at is not None and is_told(words[at + 1 :], os.environ, place.folder)
    if at is None or (told and not (pinned and leads_here(program, words, at, place.folder))):
        execute(program, [program, *words], os.environ)
        return 127
    _say_where(place, verb)
    options = [] if told else ["--python", str(place.python)]
    if pinned:  # uv takes its variable only where no such option is given
        files = [str(overlay.constraints()), *os.environ.get("UV_CONSTRAINT", "").split()]
        options += [word for file in files for word in ("--constraint", file)]
    command = [program, *words[: at + 1], *options, *words[at + 1 :]]
    if verb == "uninstall":
        return _uninstall(place, command)
    if not pinned:
        execute(command[0], command, os.environ)
    code = _run(command, os.environ)
    if code and "-" not in words:
        again = command if DRY_RUN in words else [*command, DRY_RUN]
        _hint(place, refused_by_uv(_said(again, os.environ), place.base.pinned))
    return code


def uv_pip(words: Sequence[str]) -> int | None:
    """Where the command after `uv pip` is, if it is one that works on an environment.

    >>> uv_pip(["-q", "pip", "install", "rich"])
    2
    >>> uv_pip(["pip", "compile", "requirements.in"])
    """
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    if list(words[at : at + 1]) != ["pip"]:
        return None
    at += 1
    while at < len(words) and words[at].startswith("-"):
        at += 1
    return at if at < len(words) and words[at] in ON_ENVIRONMENT else None


def is_told(words: Sequence[str], environment: Mapping[str, str], folder: Path) -> bool:
    """Whether uv is told an environment, or shown one that is not the overlay: a `.venv` here or above.

    >>> is_told(["--python", "3.12", "rich"], {}, Path("/overlay"))
    True
    >>> is_told(["rich"], {"VIRTUAL_ENV": "/workspace/mine"}, Path("/overlay"))
    True
    """
    if any(map(TARGETS.fullmatch, words)) or any(map(environment.get, TARGET_VARIABLES)):
        return True
    with contextlib.suppress(OSError):
        here = Path.cwd()
        for own in (each / ".venv" for each in (here, *here.parents)):
            if own.is_dir():
                return not _same(own, folder)
    return False


def leads_here(program: str, words: Sequence[str], at: int, folder: Path) -> bool:
    """Whether what uv is told is the overlay by another name: `--python python`, `-p 3.12`, `VIRTUAL_ENV=...`.

    Only uv itself knows where a name leads, so it is asked.
    """
    here, before = Path(os.curdir), []
    for option, value in itertools.pairwise(words[:at]):
        if option in ("--directory", "--project", "--config-file"):
            before += [option, value]
            here = here / value if option == "--directory" else here
    asked: list[str] = []
    rest = iter(words[at + 1 :])
    for word in rest:
        if not (found := TARGETS.fullmatch(word)):
            continue
        if found[1]:
            asked.append(word)
            continue
        option, value = found[2] or found[4], found[3] or found[5] or next(rest, "")
        if option in ("--python", "-p"):
            asked += ["--python", value]
        else:
            return bool(value) and any(_same(path, folder) for path in (here / value / "x").parents)
    plain = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    said = _said([program, *before, "pip", "list", *asked], {**plain, "NO_COLOR": "1"})
    environment = re.search(r"^Using .* environment at: (.+)$", said, re.MULTILINE)
    return environment is not None and _same(here / environment[1], folder)


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


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


def _uninstall(place: Place, command: Sequence[str]) -> int:
    """Run it; say so where what it "removed" is the image's, of which it saw a stub."""
    before = overlay.stubs_in(place.base, place.folder)
    code = _run(command, os.environ)
    gone = sorted(before - overlay.stubs_in(place.base, place.folder))
    with contextlib.suppress(OSError):
        overlay.make(place.base, place.folder)
    for package in gone:
        name, _, version = package.rpartition("-")
        _note(f"the image's own {name} {version} stays: it is part of the image")
    return code


def _said(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What uv says of it. Its own error went to the terminal, with colours and bars, and cannot be read there."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DRY_RUN_LIMIT_S,
            check=False,
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
