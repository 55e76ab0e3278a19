"""torchtap-env: what a user is told about his packages, and how they are removed and installed again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from entrypoint import env, overlay, paths, user_env
from entrypoint.overlay import Base

from .test_overlay import base, distribution, site  # noqa: F401 - base is a fixture


@pytest.fixture
def folder(base: Base, image: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A started container's overlay, with one package in it."""
    monkeypatch.setattr(user_env, "become_user", lambda: None)
    monkeypatch.delenv("TORCHTAP_SAFE", raising=False)
    made = overlay.overlays(paths.HOME) / base.key
    overlay.make(base, made)
    run = paths.RUN_CANDIDATES[0]
    (run / "env").symlink_to(made)
    (run / "started.json").write_text(
        json.dumps({"home": str(paths.HOME), "overlay": str(made), "uid": os.geteuid(), "gid": os.getegid()})
    )
    distribution(site(made), "rich", "14.0", REQUESTED="")
    distribution(site(made), "mdurl", "0.1")
    return made


def test_status_says_where_how_many_and_that_torch_is_protected(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert env.main([]) == 0
    assert capsys.readouterr().out == (
        f"folder  {folder}\n"
        "yours   2 packages, 0 MiB\n"
        "pin     torch 2.14.1 and its CUDA packages are protected (torchtap-env unpin lifts it)\n"
    )


def test_status_names_what_hides_the_image_and_what_other_images_hold(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distribution(site(folder), "torch", "2.9.0")
    overlay.pin(folder, wanted=False)
    packages = overlay.overlays(paths.HOME) / "cu128-old/lib/python3.10/site-packages"
    packages.mkdir(parents=True)
    distribution(packages, "timm", "1.0")
    env.main(["status"])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "pin     lifted: pip and uv may replace torch and its CUDA packages (torchtap-env pin)",
        "drift   torch 2.9.0 hides the image's 2.14.1 (pip uninstall torch brings it back)",
        "kept    cu128-old: 1 of another image (torchtap-env restore cu128-old)",
    ]
    env.main(["--json"])
    said = json.loads(capsys.readouterr().out)
    assert (said["pinned"], said["drift"], said["others"]) == (False, ["torch==2.9.0"], {"cu128-old": 1})


def test_list_is_what_pip_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    distribution(site(folder), "fromgit", "1.0", **{"direct_url.json": json.dumps(url)})
    mine = {"url": "file:///workspace/mine", "dir_info": {"editable": True}}
    distribution(site(folder), "mine", "1.0", **{"direct_url.json": json.dumps(mine)})
    distribution(site(folder), "odd", "1.0", **{"direct_url.json": "[]"})
    assert env.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "fromgit @ git+https://example.org/x.git@abc",
        "mdurl==0.1",
        "-e /workspace/mine",
        "odd==1.0",
        "rich==14.0",
    ]


def test_unpin_and_pin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert env.main(["unpin"]) == 0
    assert "constraint" not in (folder / "pip.conf").read_text()
    assert "may now replace torch" in capsys.readouterr().out
    assert env.main(["pin"]) == 0
    assert "constraint" in (folder / "pip.conf").read_text()
    assert "protected again" in capsys.readouterr().out


def test_reset_leaves_an_empty_overlay_and_a_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is written down in its version; what came with another is marked."""
    assert env.main(["reset", "--yes"]) == 0
    kept = folder.with_name(f"{folder.name}.requirements.txt")
    assert kept.read_text() == "mdurl==0.1  # brought by another\nrich==14.0\n"
    assert capsys.readouterr().out.startswith(
        f"removed 2 packages. What there was: {kept} (torchtap-env restore "
    )
    assert overlay.installed(folder) == []
    assert (folder / "bin/python").exists()
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, kept.name]


def test_a_second_reset_keeps_the_list_of_the_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env.main(["reset", "--yes"])
    for version in ("1.0", "2.0"):
        distribution(site(folder), "timm", version)
        assert env.main(["reset", "--yes"]) == 0
    assert "removed 1 package. What there was" in capsys.readouterr().out
    lists = {path.name.removeprefix(folder.name): path.read_text() for path in folder.parent.glob("*.txt")}
    assert lists == {
        ".requirements.txt": "mdurl==0.1  # brought by another\nrich==14.0\n",
        ".2.requirements.txt": "timm==1.0\n",
        ".3.requirements.txt": "timm==2.0\n",
    }


def test_reset_goes_on_where_something_cannot_be_removed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's files, say: Python sees none of them, the user is told, and no command takes them for a package."""
    real = os.unlink

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        if str(path) == "rich.py":
            raise PermissionError(13, "Permission denied", path)
        real(path, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        assert env.main(["reset", "--yes"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("removed 2 packages. ")
    assert "/rich.py could not be removed: it is another user's" in said.err
    assert said.err.endswith("docker exec CONTAINER torchtap-env\n")
    assert overlay.installed(folder) == []
    assert len(overlay.left_by_reset(folder)) == 1
    env.main(["status"])
    assert "kept" not in capsys.readouterr().out
    assert env.main(["reset", "--yes"]) == 0  # now it can be: nothing is left
    assert overlay.left_by_reset(folder) == []


def test_reset_needs_a_yes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert env.main(["reset"]) == 1
    assert capsys.readouterr().err == (
        "torchtap-env: reset removes 2 packages. Without a terminal say so: torchtap-env reset --yes\n"
    )
    assert len(overlay.installed(folder)) == 2


@pytest.mark.parametrize("harm", ["python", "everything", "a file"])
def test_reset_needs_nothing_of_the_overlay(folder: Path, harm: str) -> None:
    if harm == "python":
        (folder / "bin/python").unlink()
    else:
        folder.rename(folder.with_name("gone"))
        if harm == "a file":
            folder.write_text("no folder")
    assert env.main(["reset", "--yes"]) == 0
    assert harm == "everything" or overlay.installed(folder) == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What pip would have been asked for."""
    calls: list[list[str]] = []
    monkeypatch.setattr(env, "execute", lambda _, words, __: calls.append(list(words)))
    return calls


def test_restore_installs_what_another_image_had(folder: Path, asked: list[list[str]]) -> None:
    packages = overlay.overlays(paths.HOME) / "cu128-old/lib/python3.10/site-packages"
    packages.mkdir(parents=True)
    distribution(packages, "timm", "1.0", REQUESTED="")
    distribution(packages, "safetensors", "0.5")
    mine = {"url": "file:///workspace/mine", "dir_info": {"editable": True}}
    distribution(packages, "mine", "1.0", REQUESTED="", **{"direct_url.json": json.dumps(mine)})
    env.main(["restore", "cu128-old"])
    env.main(["restore", "--latest", "cu128-old"])
    assert asked == [
        ["pip", "install", "-e", "/workspace/mine", "timm==1.0"],
        ["pip", "install", "-e", "/workspace/mine", "timm"],
    ]


def test_restore_leaves_out_what_is_pinned(
    folder: Path, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the pin was lifted there: here it holds."""
    packages = overlay.overlays(paths.HOME) / "cu128-old/lib/python3.10/site-packages"
    packages.mkdir(parents=True)
    distribution(packages, "torch", "2.15.0", REQUESTED="")
    distribution(packages, "timm", "1.0", REQUESTED="")
    env.main(["restore", "cu128-old"])
    assert "left out, because the image's is pinned: torch==2.15.0" in capsys.readouterr().out
    assert asked == [["pip", "install", "timm==1.0"]]
    overlay.pin(folder, wanted=False)
    env.main(["restore", "cu128-old"])
    assert asked[-1] == ["pip", "install", "timm==1.0", "torch==2.15.0"]


def test_restore_after_a_reset(folder: Path, asked: list[list[str]]) -> None:
    env.main(["reset", "--yes"])
    env.main(["restore", f"{folder.name}.requirements.txt"])
    env.main(["restore", f"{folder.name}.requirements.txt", "--latest"])
    assert asked == [["pip", "install", "mdurl==0.1", "rich==14.0"], ["pip", "install", "rich"]]


def test_restore_and_list_pass_over_what_a_failed_uninstall_left(
    folder: Path, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    distribution(site(folder), "~inops", "0.8.0", REQUESTED="")
    env.main(["list"])
    assert capsys.readouterr().out == "mdurl==0.1\nrich==14.0\n"
    env.main(["reset", "--yes"])
    env.main(["restore", f"{folder.name}.requirements.txt"])
    assert asked == [["pip", "install", "mdurl==0.1", "rich==14.0"]]


@pytest.mark.parametrize("name", [(), ("../../../etc",), ("nonsense",)])
def test_restore_takes_only_what_is_there(
    folder: Path, asked: list[list[str]], name: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert env.main(["restore", *name]) == 2
    assert "There is nothing to restore" in capsys.readouterr().err
    assert asked == []


def test_a_wrong_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        env.main(["rest"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["list", "foo"],
        ["pin", "pin"],
        ["reset", "--yes", "x"],
        ["status", "--yes"],
        ["restore", "x", "--json"],
    ],
    ids=" ".join,
)
def test_words_that_a_command_does_not_take_are_a_usage_error(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        env.main(words)
    assert ended.value.code == 2
    assert f"torchtap-env: error: {words[0]} takes no " in capsys.readouterr().err
    assert len(overlay.installed(folder)) == 2


def test_an_image_without_an_overlay_says_so(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert env.main(["status"]) == 1
    assert (
        capsys.readouterr().err == "torchtap-env: this image holds no environment for packages of your own\n"
    )
