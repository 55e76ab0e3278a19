"""`torchtap-env`: the packages that the user has installed over the image's own."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from entrypoint import overlay, paths, user_env
from entrypoint.execute import execute
from entrypoint.overlay import Package
from entrypoint.user_env import Place

KEPT = "requirements.txt"  # what `reset` writes down: KEY.requirements.txt beside the overlays, KEY.2.requirements.txt
BROUGHT = "  # brought by another"  # there: not asked for by name
# What each command takes beside its name; anything else is wrong usage.
TAKES = {"status": {"json"}, "list": {"json"}, "restore": {"key", "latest"}, "reset": {"yes"}}

EPILOG = """\
status    where they are, how many and how large, whether torch is pinned, what hides parts of the image
list      their names and versions, one a line, as `pip install -r` takes them
unpin     let pip and uv replace torch, triton and the CUDA packages; the self-test then tells what differs
pin       protect them again
restore   install here what was installed under another image, or before a reset: torchtap-env restore KEY
reset     remove them all; the image's own packages stay as they are. What there was is written down first

Exit codes: 0 done, 1 not possible, 2 wrong usage. docs/packages.md says more.
"""


def main(words: list[str]) -> int:
    """Run one command; its exit code."""
    parser = _parser()
    arguments = parser.parse_intermixed_args(words)
    named = {name for name, value in vars(arguments).items() if value and name != "command"}
    if extra := sorted(named - TAKES.get(arguments.command, set())):
        wrong = repr(arguments.key) if "key" in extra else f"--{extra[0]}"
        parser.error(f"{arguments.command} takes no {wrong}")
    place = user_env.find()
    if place is None:
        return _problem("this image holds no environment for packages of your own")
    given = user_env.mend(place)
    user_env.become_user()
    try:
        if given:
            overlay.clear(place.folder)
        return int(_COMMANDS[arguments.command](place, arguments))
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        return _problem(f"{where}{error.strerror or error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchtap-env",
        description="The packages that you have installed over the image's own.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=tuple(_COMMANDS), default="status", metavar="COMMAND")
    parser.add_argument(
        "key", nargs="?", metavar="KEY", help="for restore: a name that status or the log gave"
    )
    parser.add_argument("--json", action="store_true", help="status and list: as JSON")
    parser.add_argument(
        "--latest", action="store_true", help="restore: newest versions, not those there were"
    )
    parser.add_argument("--yes", action="store_true", help="reset: do not ask")
    return parser


def _status(place: Place, arguments: argparse.Namespace) -> int:
    packages = overlay.installed(place.folder)
    pins = place.base.pinned
    hidden = [package for package in packages if overlay.normal(package.name) in pins]
    others = overlay.others(place.home, place.base.key)
    state: dict[str, Any] = {
        "folder": str(place.folder),
        "key": place.base.key,
        "used": place.used is not None,
        "safe": place.safe,
        "pinned": overlay.is_pinned(place.folder),
        "packages": len(packages),
        "mib": _size(place.folder) >> 20,
        "drift": [_requirement(package) for package in hidden],
        "others": {folder.name: len(held) for folder, held in others},
    }
    if arguments.json:
        print(json.dumps(state, indent=2))
        return 0
    note = "" if state["used"] else f"  (not used now: {'TORCHTAP_SAFE=1' if place.safe else 'see the log'})"
    torch = pins.get("torch", "")
    lines = [
        ("folder", f"{place.folder}{note}"),
        ("yours", f"{_count(packages)}, {state['mib']} MiB"),
        (
            "pin",
            f"torch {torch} and its CUDA packages are protected (torchtap-env unpin lifts it)"
            if state["pinned"]
            else "lifted: pip and uv may replace torch and its CUDA packages (torchtap-env pin)",
        ),
        *(("drift", f"{package.name} {package.version} hides the image's {pins[overlay.normal(package.name)]}"
           f" (pip uninstall {package.name} brings it back)") for package in hidden),
        *(("kept", f"{folder.name}: {len(held)} of another image (torchtap-env restore {folder.name})")
          for folder, held in others),
    ]  # fmt: skip
    for name, text in lines:
        print(f"{name:<8}{text}")
    return 0


def _list(place: Place, arguments: argparse.Namespace) -> int:
    lines = [_requirement(package) for package in overlay.installed(place.folder)]
    print(
        json.dumps(lines, indent=2) if arguments.json else "\n".join(lines),
        end="\n" if lines or arguments.json else "",
    )
    return 0


def _pin(place: Place, arguments: argparse.Namespace) -> int:
    wanted = arguments.command == "pin"
    overlay.make(place.base, place.folder)
    overlay.pin(place.folder, wanted=wanted)
    if wanted:
        print("torch and its CUDA packages are protected again; what you have installed meanwhile stays")
    else:
        print(
            "pip and uv may now replace torch and its CUDA packages. The self-test says what differs from the image.\n"
            "Back: torchtap-env pin, and pip uninstall what you have put over the image's"
        )
    return 0


def _reset(place: Place, arguments: argparse.Namespace) -> int:
    if not os.path.lexists(place.folder):
        print(f"nothing to remove: {place.folder} does not exist")
        return 0
    packages = overlay.installed(place.folder)
    if not arguments.yes:
        if not sys.stdin.isatty():
            return _problem(
                f"reset removes {_count(packages)}. Without a terminal say so: torchtap-env reset --yes"
            )
        print(f"Remove {_count(packages)} of yours ({place.folder})? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return _problem("nothing removed")
    written = ""
    if packages:
        kept = _new_list(place)
        paths.write(kept, "".join(f"{line}\n" for line in _marked(packages)))
        written = f". What there was: {kept} (torchtap-env restore {kept.name})"
    place.folder.rename(overlay.aside(place.folder, time.time_ns()))  # first, so that nobody sees half of it
    overlay.make(place.base, place.folder)
    left = overlay.clear(place.folder)
    print(
        f"removed {_count(packages)}{written}\nWhat runs keeps what it has loaded: restart kernels and programs"
    )
    if left:
        print(
            f"note: {left[0]} could not be removed: it is another user's, root's mostly. Python does not see it.\n"
            "      To remove it, on the host: docker exec CONTAINER torchtap-env",
            file=sys.stderr,
        )
    return 0


def _new_list(place: Place) -> Path:
    """A name for the list of a reset; an earlier one is never written over."""
    numbers = itertools.chain([""], (f"{number}." for number in itertools.count(2)))
    names = (place.folder.with_name(f"{place.base.key}.{number}{KEPT}") for number in numbers)
    return next(path for path in names if not os.path.lexists(path))


def _marked(packages: list[Package]) -> list[str]:
    """All of them, each in its version; what came with another says so, where it was noted which did."""
    noted = any(package.requested for package in packages)
    return [
        f"{_requirement(package)}{BROUGHT if noted and not package.requested else ''}" for package in packages
    ]


def _restore(place: Place, arguments: argparse.Namespace) -> int:
    root = place.folder.parent
    known = [path.name for path, _ in overlay.others(place.home, place.base.key)]
    known += sorted(path.name for path in root.glob(f"*.{KEPT}"))
    if arguments.key not in known:
        there = f"There is: {', '.join(known)}" if known else "There is nothing to restore"
        what = f"{arguments.key!r} is nothing that can be restored" if arguments.key else "restore what?"
        return _problem(f"{what} {there}" if what.endswith("?") else f"{what}. {there}", code=2)
    source = root / arguments.key
    lines = (
        _written(source, brought=not arguments.latest)
        if source.is_file()
        else _requirements(overlay.installed(source))
    )
    lines = [line.partition("==")[0] if arguments.latest else line for line in lines]
    pins = place.base.pinned if overlay.is_pinned(place.folder) else {}
    left = [line for line in lines if overlay.normal(re.split("[=@ ]", line)[0]) in pins]
    lines = [line for line in lines if line not in left]
    if left:
        print(f"left out, because the image's is pinned: {', '.join(left)}")
    if not lines:
        print("nothing to install")
        return 0
    print(f"pip install {' '.join(lines)}", flush=True)
    execute(
        str(paths.BIN / "pip"),
        ["pip", "install", *(word for line in lines for word in _words(line))],
        os.environ,
    )
    return 1


def _written(source: Path, *, brought: bool) -> list[str]:
    """The lines that an earlier `reset` wrote; those of packages that came with another only where wanted."""
    lines = [line for line in paths.read(source).decode().split("\n") if line]
    return [line.removesuffix(BROUGHT) for line in lines if brought or not line.endswith(BROUGHT)]


def _words(line: str) -> list[str]:
    return ["-e", line[3:]] if line.startswith("-e ") else [line]


def _requirements(packages: list[Package]) -> list[str]:
    """What was asked for by name; the rest comes with it. All, where nobody noted what was."""
    return [_requirement(package) for package in packages if package.requested] or [
        *map(_requirement, packages)
    ]


def _requirement(package: Package) -> str:
    """A line for `pip install -r`.

    >>> _requirement(Package(name="rich", version="14.0", requested=True, folder=Path("rich-14.0.dist-info")))
    'rich==14.0'
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        origin = json.loads(paths.read(package.folder / "direct_url.json"))
        url = str(origin["url"])
        if origin.get("dir_info", {}).get("editable"):
            return f"-e {url.removeprefix('file://')}"
        vcs = origin.get("vcs_info")
        return f"{package.name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else f"{package.name} @ {url}"
    return f"{package.name}=={package.version}"


def _size(folder: Path) -> int:
    total = 0
    for directory, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size
    return total


def _count(packages: list[Package]) -> str:
    return f"{len(packages)} package{'' if len(packages) == 1 else 's'}"


def _problem(text: str, code: int = 1) -> int:
    print(f"torchtap-env: {text}", file=sys.stderr)
    return code


_COMMANDS = {
    "status": _status,
    "list": _list,
    "pin": _pin,
    "unpin": _pin,
    "restore": _restore,
    "reset": _reset,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
