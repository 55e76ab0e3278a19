"""The overlay: a virtual environment in the user's home that lies over the image's own, the base (docs/packages.md).

Its interpreter is the distribution's, as the base's is. Its own packages come first; a .pth adds the base's. For each
package of the base it holds a stub, a *.dist-info folder without the package: uv looks nowhere else, and pip can then
put another version over the base's, and take it away again, without touching the base. The stubs, 800 files, come with
the first `pip` or `uv`: made at start, they were half of what a first start took.

Everything here is done as the user and can be done again; what a start finds missing it puts back.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint import paths

LINK = "env"  # in the run directory: the overlay of this container, or not there
STUB_FILES = ("METADATA", "WHEEL", "entry_points.txt")  # linked to the base's
INSTALLER = "INSTALLER"  # made last, so that a stub without it is known to be half made
UNPINNED = "unpinned"  # in the overlay: the user has lifted the pin
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What the image holds, as its build wrote it down."""

    key: str
    python: str
    packages: Path
    pinned: Mapping[str, str]
    stubs: Mapping[str, bool]  # folder name: whether it has entry points

    @classmethod
    def read(cls) -> Base | None:
        """None in an image that has none."""
        try:
            written = json.loads((paths.OVERLAY / "base.json").read_text())
        except FileNotFoundError:
            return None
        return cls(
            key=written["key"],
            python=written["python"],
            packages=Path(written["packages"]),
            pinned=written["pinned"],
            stubs=written["stubs"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that the user has installed."""

    name: str
    version: str
    requested: bool  # asked for, not brought by another
    folder: Path  # *.dist-info


def overlays(home: Path) -> Path:
    """The folder of all overlays, one for each kind of image that this home was used with."""
    return home / ".local/share/torchtap/env"


def may_hold(program: str) -> bool:
    """Whether a program of this name seems to be in the home's overlay: known before it is known who dev is."""
    base = Base.read()
    return base is not None and os.path.lexists(overlays(paths.HOME) / base.key / "bin" / program)


def constraints() -> Path:
    """The pins, for pip and uv."""
    return paths.OVERLAY / "constraints.txt"


def make(base: Base, folder: Path, *, stubs: bool = True) -> bool:
    """Make the overlay, or mend it. Whether it is new. Without `stubs` those that are there are mended, no more.

    Raises OSError.
    """
    new = not (folder / "pyvenv.cfg").exists()
    packages = site_packages(folder, base.python)
    for directory in (folder / "bin", packages):
        directory.mkdir(parents=True, exist_ok=True)
    for name, target in (
        ("python", SYSTEM_PYTHON),
        ("python3", "python"),
        (f"python{base.python}", "python"),
    ):
        _link(folder / "bin" / name, target)
    # zz: after the .pth files of packages that the user is working on, which so come before the base.
    _text(packages / "zz_torchtap_base.pth", f"import site; site.addsitedir({str(base.packages)!r})\n")
    if stubs or any(info.name in base.stubs or _is_stub(info) for info in packages.glob("*.dist-info")):
        _stubs(base, packages)
    _pip_configuration(folder)
    _text(
        folder / "pyvenv.cfg",
        f"home = {os.path.dirname(SYSTEM_PYTHON)}\n"
        "include-system-site-packages = false\n"
        f"version = {base.python}\n"
        "prompt = torchtap\n",
    )
    return new


def site_packages(folder: Path, python: str) -> Path:
    return folder / "lib" / f"python{python}" / "site-packages"


def is_pinned(folder: Path) -> bool:
    """Whether torch and what belongs to it are protected here."""
    return not (folder / UNPINNED).exists()


def pin(folder: Path, *, wanted: bool) -> None:
    """Protect torch and what belongs to it, or lift that."""
    mark = folder / UNPINNED
    if wanted:
        mark.unlink(missing_ok=True)
    else:
        mark.touch()
    _pip_configuration(folder)


def installed(folder: Path) -> list[Package]:
    """What the user has installed in an overlay, of this image or another; empty where there is none."""
    found = []
    for info in sorted(folder.glob("lib/python*/site-packages/*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        # "~": what pip leaves where it could not remove a package.
        if name and not name.startswith("~") and not _is_stub(info):
            found.append(
                Package(name=name, version=version, requested=(info / "REQUESTED").exists(), folder=info)
            )
    return found


def others(home: Path, key: str) -> list[tuple[Path, list[Package]]]:
    """Overlays of other images that hold packages, the last used first."""
    try:
        folders = [
            path
            for path in overlays(home).iterdir()
            if path.name != key and not path.name.startswith(".") and not path.is_symlink()
        ]
    except OSError:
        return []
    held = [(path, packages) for path in folders if (packages := installed(path))]
    return sorted(held, key=lambda each: each[0].stat().st_mtime, reverse=True)


def aside(folder: Path, number: int) -> Path:
    """Where an overlay goes that is being removed."""
    return folder.with_name(f".{folder.name}.{number}")


def left_by_reset(folder: Path) -> list[Path]:
    """Overlays of this name that are no longer in use, and not removed yet or not to the end."""
    named = re.compile(rf"\.{re.escape(folder.name)}\.\d+")
    try:
        return [path for path in folder.parent.iterdir() if named.fullmatch(path.name)]
    except OSError:
        return []


def clear(folder: Path) -> list[str]:
    """Remove those; what could not be removed, the cause first."""
    left: list[str] = []
    for path in left_by_reset(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=lambda _, name, __: left.append(name))
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return left


def stubs_in(base: Base, folder: Path) -> set[str]:
    """Packages of the base that are seen through a stub, as NAME-VERSION."""
    packages = site_packages(folder, base.python)
    return {name.removesuffix(".dist-info") for name in base.stubs if _is_stub(packages / name)}


def normal(name: str) -> str:
    """A distribution's name as it is compared.

    >>> normal("Nvidia_cuDNN.cu13")
    'nvidia-cudnn-cu13'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def path_here(path: str, run: Path) -> str:
    """PATH of the image for a container whose run directory is another than the image's.

    >>> path_here("/opt/torchtap/bin:/run/torchtap/env/bin:/bin", Path("/tmp/torchtap"))
    '/opt/torchtap/bin:/tmp/torchtap/env/bin:/bin'
    """
    usual, here = (str(each / LINK / "bin") for each in (paths.RUN_CANDIDATES[0], run))
    return os.pathsep.join(here if part == usual else part for part in path.split(os.pathsep))


def path_of_root(path: str) -> str:
    """PATH without the overlay, for what root runs by name: anyone's files could be there.

    >>> path_of_root("/opt/torchtap/bin:/run/torchtap/env/bin:/bin")
    '/opt/torchtap/bin:/bin'
    """
    users = {str(run / LINK / "bin") for run in paths.RUN_CANDIDATES}
    return os.pathsep.join(part for part in path.split(os.pathsep) if part not in users)


def _name(info: str) -> str:
    return normal(info.removesuffix(".dist-info").rpartition("-")[0])


def _stubs(base: Base, packages: Path) -> None:
    """A stub for each package of the base that the user has not put another version of here; no other stub."""
    present = {entry.name for entry in os.scandir(packages) if entry.name.endswith(".dist-info")}
    whole = {
        name
        for name in present
        if all(os.path.lexists(packages / name / file) for file in (STUB_FILES[0], INSTALLER))
    }
    ours = {name for name in present if _is_stub(packages / name)}
    own = {_name(name) for name in whole - ours}
    wanted = {name for name in base.stubs if _name(name) not in own}
    # Half made, of another state of the base, or no longer needed.
    for name in (ours | ((present - whole) & base.stubs.keys())) - (wanted & whole):
        shutil.rmtree(packages / name)
    for name in wanted - (whole & ours):
        _stub(base, packages, name, has_entry_points=base.stubs[name])


def _stub(base: Base, packages: Path, name: str, *, has_entry_points: bool) -> None:
    folder = packages / name
    folder.mkdir()
    files = STUB_FILES if has_entry_points else STUB_FILES[:-1]
    for file in files:
        os.symlink(base.packages / name / file, folder / file)
    listed = (*files, INSTALLER, "RECORD")
    (folder / "RECORD").write_text("".join(f"{name}/{file},,\n" for file in listed))
    (folder / INSTALLER).write_text("torchtap\n")


def _is_stub(info: Path) -> bool:
    """Whether a *.dist-info folder is ours. Packages that pip and uv install hold no links."""
    return os.path.islink(info / "METADATA")


def _pip_configuration(folder: Path) -> None:
    """The overlay's own pip.conf: the pin, beside whatever the user has put there."""
    path = folder / "pip.conf"
    parser = configparser.RawConfigParser()
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
        parser.read_string(paths.read(path).decode())
    before = {section: dict(parser[section]) for section in parser.sections()}
    if not parser.has_section("global"):
        parser.add_section("global")
    section = parser["global"]
    section.setdefault("disable-pip-version-check", "true")
    ours = str(constraints())
    named = [word for word in section.get("constraint", "").split() if word != ours]
    if is_pinned(folder):
        named.insert(0, ours)
    if named:
        section["constraint"] = "\n".join(named)
    else:
        section.pop("constraint", None)
    if before != {name: dict(parser[name]) for name in parser.sections()}:
        text = io.StringIO()
        parser.write(text)
        paths.write(path, text.getvalue())


def _text(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        if not path.is_symlink() and paths.read(path) == text.encode():
            return
    paths.write(path, text)


def _link(path: Path, target: str) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(path) == target:
            return
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(target)
