"""The user's packages over the base: a folder that pip, uv and Python take for an environment, mended at each start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from entrypoint import lay, overlay, paths
from entrypoint.account import Account, acting_as
from entrypoint.overlay import Base

from .conftest import GID, UID, needs_root

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def distribution(packages: Path, name: str, version: str, **files: str) -> Path:
    """An installed package: a module that says its version, and what the installer noted."""
    (packages / f"{name}.py").write_text(f"version = {version!r}\n")
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    noted = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "INSTALLER": "pip\n",
        "RECORD": f"{name}.py,,\n{info.name}/METADATA,,\n",
        **files,
    }
    for file, text in noted.items():
        (info / file).write_text(text)
    return info


@pytest.fixture
def base(image: Path, monkeypatch: pytest.MonkeyPatch) -> Base:
    """A base with a pinned torch and a package with an entry point, for the Python that runs this test."""
    monkeypatch.setattr(overlay, "SYSTEM_PYTHON", os.path.realpath(sys.executable))
    packages = image / "venv/lib/site-packages"
    packages.mkdir(parents=True)
    distribution(packages, "torch", "2.14.1")
    distribution(packages, "numpy", "2.4.6", **{"entry_points.txt": "[console_scripts]\nf2py = numpy:main\n"})
    paths.OVERLAY.mkdir()
    (paths.OVERLAY / "constraints.txt").write_text("torch==2.14.1\n")
    written = {
        "key": "cu130-torch2.14.1-py3-1234",
        "python": PYTHON,
        "packages": str(packages),
        "pinned": {"torch": "2.14.1"},
        "stubs": {"numpy-2.4.6.dist-info": True, "torch-2.14.1.dist-info": False},
    }
    (paths.OVERLAY / "base.json").write_text(json.dumps(written))
    found = Base.read()
    assert found is not None
    return found


@pytest.fixture
def made(base: Base, image: Path) -> Path:
    folder = overlay.overlays(paths.HOME) / base.key
    assert overlay.make(base, folder) is True
    return folder


def site(folder: Path) -> Path:
    return overlay.site_packages(folder, PYTHON)


def python(folder: Path, code: str) -> str:
    return subprocess.run(
        [str(folder / "bin/python"), "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_its_python_sees_the_base_and_takes_itself_for_an_environment(made: Path) -> None:
    assert python(made, "import sys, numpy; print(sys.prefix, numpy.version)") == f"{made} 2.4.6"


def test_what_the_user_installs_comes_before_the_base(made: Path) -> None:
    distribution(site(made), "numpy", "2.5.0")
    assert python(made, "import numpy; print(numpy.version)") == "2.5.0"


def test_a_package_that_is_worked_on_comes_before_the_base(made: Path, tmp_path: Path) -> None:
    """What `pip install -e` leaves: a .pth. Its folder must not come after the base's copy of the same package."""
    distribution(tmp_path, "numpy", "3.0")
    (site(made) / "_numpy.pth").write_text(f"{tmp_path}\n")
    assert python(made, "import numpy; print(numpy.version)") == "3.0"


def test_metadata_says_every_package_once_and_keeps_entry_points(made: Path) -> None:
    code = (
        "from importlib.metadata import entry_points, version\n"
        "print(version('torch'), [e.value for e in entry_points(group='console_scripts') if e.name == 'f2py'])"
    )
    assert python(made, code) == "2.14.1 ['numpy:main']"


def test_making_it_again_changes_nothing(base: Base, made: Path) -> None:
    before, times = tree(made), {path: path.lstat().st_mtime_ns for path in made.rglob("*")}
    assert overlay.make(base, made) is False
    assert tree(made) == before
    assert {path: path.lstat().st_mtime_ns for path in made.rglob("*")} == times


@pytest.mark.parametrize(
    "harm",
    [
        lambda made: (made / "bin/python").unlink(),
        lambda made: ((made / "bin/python").unlink(), (made / "bin/python").symlink_to("/nowhere/python3")),
        lambda made: (site(made) / "zz_torchtap_base.pth").write_text("import nonsense\n"),
        lambda made: (made / "pip.conf").write_text("not an ini file"),
        lambda made: (made / "pyvenv.cfg").write_bytes(b"\xff\xfe"),
        lambda made: (site(made) / "torch-2.14.1.dist-info/INSTALLER").unlink(),
        lambda made: (site(made) / "torch-2.14.1.dist-info/METADATA").unlink(),
    ],
    ids=[
        "no python",
        "python leads nowhere",
        ".pth",
        "pip.conf",
        "pyvenv.cfg",
        "half a stub",
        "half a stub too",
    ],
)
def test_what_is_broken_is_mended(base: Base, made: Path, harm: object) -> None:
    before = tree(made)
    harm(made)  # type: ignore[operator]
    overlay.make(base, made)
    assert tree(made) == before


def test_a_stub_comes_back_when_the_users_version_is_gone(base: Base, made: Path) -> None:
    before = tree(made)
    stub = site(made) / "numpy-2.4.6.dist-info"
    for listed in (stub / "RECORD").read_text().split(",,\n")[:-1]:  # as pip uninstalls
        (site(made) / listed).unlink()
    stub.rmdir()
    own = distribution(site(made), "numpy", "2.5.0")
    overlay.make(base, made)
    assert not stub.exists()
    assert [(package.name, package.version) for package in overlay.installed(made)] == [("numpy", "2.5.0")]
    for file in own.iterdir():
        file.unlink()
    own.rmdir()
    (site(made) / "numpy.py").unlink()
    overlay.make(base, made)
    assert tree(made) == before


def test_what_a_failed_uninstall_left_is_no_package(base: Base, made: Path) -> None:
    """pip renames what it removes to ~NAME first; where it is stopped then, that stays."""
    distribution(site(made), "rich", "14.0")
    for left in ("rich-14.0", "torch-2.14.1"):
        (site(made) / f"{left}.dist-info").rename(site(made) / f"~{left[1:]}.dist-info")
    assert overlay.installed(made) == []
    overlay.make(base, made)
    assert overlay.installed(made) == []
    assert overlay.stubs_in(base, made) == {"torch-2.14.1", "numpy-2.4.6"}


def test_what_a_reset_left_is_no_other_image(made: Path) -> None:
    left = site(made.with_name(f".{made.name}.123"))
    left.mkdir(parents=True)
    distribution(left, "rich", "14.0")
    assert overlay.others(paths.HOME, made.name) == []


def test_start_makes_no_stubs_and_mends_those_that_are_there(base: Base, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert overlay.make(base, folder, stubs=False) is True
    assert not list(site(folder).glob("*.dist-info"))
    code = "from importlib.metadata import version; import numpy; print(version('torch'), numpy.version)"
    assert python(folder, code) == "2.14.1 2.4.6"
    overlay.make(base, folder)  # as pip and uv do
    whole = tree(folder)
    (site(folder) / "torch-2.14.1.dist-info/METADATA").unlink()
    overlay.make(base, folder, stubs=False)
    assert tree(folder) == whole


def test_stubs_follow_the_base(base: Base, made: Path) -> None:
    """A new image of the same torch brings another numpy, and no longer a package that it had."""
    newer = distribution(base.packages, "numpy", "2.5.1").name
    other = Base(**{**{name: getattr(base, name) for name in base.__slots__}, "stubs": {newer: False}})
    overlay.make(other, made)
    assert sorted(path.name for path in site(made).glob("*.dist-info")) == [newer]
    assert overlay.installed(made) == []


def test_the_pin_is_kept_beside_what_the_user_writes(base: Base, made: Path) -> None:
    (made / "pip.conf").write_text(
        "[global]\nno-color = true\nconstraint = mine.txt\n[list]\nformat = json\n"
    )
    overlay.make(base, made)
    text = (made / "pip.conf").read_text()
    assert f"constraint = {paths.OVERLAY}/constraints.txt\n\tmine.txt\n" in text
    assert "no-color = true" in text
    assert "[list]\nformat = json" in text
    overlay.pin(made, wanted=False)
    overlay.make(base, made)
    assert not overlay.is_pinned(made)
    assert "constraint = mine.txt\n" in (made / "pip.conf").read_text()
    overlay.pin(made, wanted=True)
    assert f"{paths.OVERLAY}/constraints.txt" in (made / "pip.conf").read_text()


def test_pip_takes_the_configuration_of_the_overlay(made: Path, tmp_path: Path) -> None:
    """pip reads pip.conf of its interpreter's prefix; asked of the pip that the tests have."""
    if not (Path(sys.prefix) / "lib" / f"python{PYTHON}/site-packages/pip").exists():
        pytest.skip("these tests run without pip")
    (site(made) / "pip").symlink_to(Path(sys.prefix) / "lib" / f"python{PYTHON}/site-packages/pip")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    said = subprocess.run(
        [made / "bin/python", "-m", "pip", "config", "get", "global.constraint"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.strip() == f"{paths.OVERLAY}/constraints.txt"


def test_path_of_root_leaves_out_what_users_can_write() -> None:
    path = "/opt/torchtap/bin:/run/torchtap/env/bin:/tmp/torchtap/env/bin:/opt/torchtap/venv/bin:/usr/bin"
    assert overlay.path_of_root(path) == "/opt/torchtap/bin:/opt/torchtap/venv/bin:/usr/bin"


# ---- start ----
def account() -> Account:
    return Account(*((UID, GID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())), (), str(paths.HOME))


@pytest.fixture
def home(image: Path) -> Path:
    if os.geteuid() == 0:
        os.chown(paths.HOME, UID, GID)
    return paths.HOME


def test_start_links_it_into_the_run_directory(
    base: Base, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = paths.RUN_CANDIDATES[0]
    folder = lay.lay(account(), run, safe=False)
    assert folder == overlay.overlays(home) / base.key
    assert (run / "env").readlink() == folder
    assert capfd.readouterr().err == ""


@needs_root
def test_everything_in_it_is_the_users(base: Base, home: Path) -> None:
    lay.lay(account(), paths.RUN_CANDIDATES[0], safe=False)
    assert {(p.lstat().st_uid, p.lstat().st_gid) for p in (home / ".local").rglob("*")} == {(UID, GID)}


@needs_root
def test_a_link_in_the_home_leads_root_nowhere(base: Base, home: Path, open_path: Path) -> None:
    """What the user may not write, start does not write for him."""
    theirs = open_path / "theirs"
    theirs.mkdir(mode=0o755)
    (home / ".local").symlink_to(theirs)
    assert lay.lay(account(), paths.RUN_CANDIDATES[0], safe=False) is None
    assert list(theirs.iterdir()) == []


@needs_root
def test_a_home_that_cannot_be_written_starts_without(
    base: Base, image: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert lay.lay(account(), paths.RUN_CANDIDATES[0], safe=False) is None
    assert not (paths.RUN_CANDIDATES[0] / "env").exists()
    folder = overlay.overlays(paths.HOME) / base.key
    assert capfd.readouterr().err == (
        f"WARNING packages: {folder} cannot be made or mended: Permission denied\n"
        "        Started without the packages that you have installed. Mend it and restart, or: torchtap-env reset\n"
    )


def test_safe_start_makes_no_link_and_says_what_is_left_out(
    base: Base, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = lay.lay(account(), paths.RUN_CANDIDATES[0], safe=False)
    assert folder is not None
    (paths.RUN_CANDIDATES[0] / "env").unlink()
    with acting_as(account().uid, account().gid):
        distribution(site(folder), "rich", "14.0")
    assert lay.lay(account(), paths.RUN_CANDIDATES[0], safe=True) is None
    assert not os.path.lexists(paths.RUN_CANDIDATES[0] / "env")
    assert (
        capfd.readouterr().err
        == f"INFO    packages: TORCHTAP_SAFE=1: started without yours (1 in {folder})\n"
    )


def test_another_image_begins_anew_and_says_once_what_there_was(
    base: Base, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of the old one is removed."""
    old = overlay.overlays(home) / "cu128-torch2.9.1-py3.10-1234"
    packages = old / "lib/python3.10/site-packages"
    packages.mkdir(parents=True)
    for name in ("einops", "timm"):
        distribution(packages, name, "1.0")
    if os.geteuid() == 0:
        for path in (home / ".local", *(home / ".local").rglob("*")):
            os.chown(path, UID, GID)
    before = tree(old)
    run = paths.RUN_CANDIDATES[0]
    lay.lay(account(), run, safe=False)
    assert capfd.readouterr().err == (
        "INFO    packages: this image is another one, so yours begin anew; "
        f"2 that you had are kept in {old}\n"
        "        To install them here too: torchtap-env restore cu128-torch2.9.1-py3.10-1234\n"
    )
    (run / "env").unlink()
    lay.lay(account(), run, safe=False)
    assert capfd.readouterr().err == ""
    assert tree(old) == before


def test_an_image_without_a_prepared_base_starts_as_before(image: Path) -> None:
    assert lay.lay(account(), paths.RUN_CANDIDATES[0], safe=False) is None
    assert not overlay.may_hold("anything")


def test_a_program_in_the_overlay_is_known_before_the_user_is(base: Base, made: Path) -> None:
    assert not overlay.may_hold("mytool")
    (made / "bin/mytool").write_text("#!/bin/sh\n")
    assert overlay.may_hold("mytool")


def test_the_real_venv_module_would_make_the_same_shape(made: Path, tmp_path: Path) -> None:
    """What tools look for in an environment is what Python's own makes."""
    venv.create(tmp_path / "theirs", symlinks=True, with_pip=False)
    theirs = tmp_path / "theirs"
    assert {"bin/python", "bin/python3", "pyvenv.cfg"} <= set(tree(theirs)) & set(tree(made))
    ours = dict(line.split(" = ") for line in (made / "pyvenv.cfg").read_text().splitlines())
    keys = {line.split(" = ")[0] for line in (theirs / "pyvenv.cfg").read_text().splitlines()}
    assert {"home", "include-system-site-packages", "version"} <= keys & set(ours)
