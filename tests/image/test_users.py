"""Who dev is: one row a way to start the container, the same questions for each."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import KEPT, NO_KEY, READ_ONLY, Container, Run

KERNEL = """
import os, pwd
try:
    name = pwd.getpwuid(os.getuid()).pw_name
except KeyError:
    name = "-"
open("/workspace/by-kernel", "w").close()
open(os.path.expanduser("~/by-kernel"), "w").close()
print(os.getuid(), os.getgid(), name, os.environ["HOME"])
"""
IN_TMP = (
    r"WARNING home: /home/dev cannot be written by uid \d+, gid \d+",
    r"WARNING state: /var/lib/torchtap cannot be written by uid \d+",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to start, and what must come of it."""

    ids: tuple[int, int]  # dev's, and those of every file in the workspace
    owner: tuple[int, int]  # of the workspace on the host, before
    env: tuple[tuple[str, int], ...] = ()
    options: tuple[str, ...] = ()
    name: str = "dev"
    home: str = "/home/dev"
    ssh: bool = True
    allow: tuple[str, ...] = ()


def host(uid: int, gid: int, **more: object) -> Case:
    """HOST_UID and HOST_GID, as `make up` gives them: the owner's of the workspace."""
    return Case(ids=(uid, gid), owner=(uid, gid), env=(("HOST_UID", uid), ("HOST_GID", gid)), **more)  # type: ignore[arg-type]


def by_number(uid: int, gid: int, **more: object) -> Case:
    """docker run --user N:M, with a workspace of that user and nothing else mounted."""
    usual: dict[str, object] = {
        "options": ("--user", f"{uid}:{gid}"),
        "home": f"/tmp/torchtap-home-{uid}",
        "allow": IN_TMP,
    }
    return Case(ids=(uid, gid), owner=(uid, gid), **{**usual, **more})  # type: ignore[arg-type]


CASES = {
    "HOST_UID 1000": host(1000, 1000),
    "HOST_UID 501, a Mac's": host(501, 20),
    "HOST_UID 100": host(100, 100),
    "HOST_UID 0, a rootless engine's": host(
        0, 0, name="root", ssh=False, allow=(r"WARNING ssh: not started: dev is root here \(HOST_UID=0\)",)
    ),
    "HOST_UID 12345:54321": host(12345, 54321),
    "a uid that the image has: www-data": host(33, 33),
    "a uid that the image has: nobody": host(65534, 65534),
    "a gid that the image has: video": host(1234, 44),
    "the owner of the workspace": Case(ids=(4321, 8765), owner=(4321, 8765)),
    "HOST_UID alone": Case(ids=(3000, 3000), owner=(3000, 3000), env=(("HOST_UID", 3000),)),
    "--user without an entry": by_number(12345, 54321),
    "--user below 500": by_number(
        123, 456, name="-", ssh=False,
        allow=(*IN_TMP, r"WARNING ssh: not started: user id 123 \(from --user\) has no name here"),
    ),
    "--user 0:0": Case(ids=(2000, 2000), owner=(2000, 2000), options=("--user", "0:0")),
    "a read-only root": host(12345, 54321, options=(*READ_ONLY, *KEPT)),
    "a read-only root and --user": by_number(12345, 54321, options=("--user", "12345:54321", *READ_ONLY)),
    "a read-only home": host(
        12345, 54321, options=("--tmpfs", "/home/dev:ro"), home="/tmp/torchtap-home-12345",
        allow=(r"WARNING home: /home/dev cannot be written by uid 12345, gid 54321: it lies on a read-only",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_who_dev_is(run: Run, tmp_path: Path, case: Case) -> None:
    """In docker exec, over SSH and in a kernel it is one user; files are the host user's; HOME can be written."""
    work = tmp_path / "project"
    work.mkdir()
    os.chown(work, *case.owner)
    container = run(
        key=True,
        options=("-v", f"{work}:/workspace", *case.options),
        env={"TORCHTAP_SELFTEST": "off", **{name: str(value) for name, value in case.env}},
        allow=case.allow,
    ).wait_healthy()
    by_start = container.user is None and case.options[1] != "0:0"
    if case.name == "root" or "--read-only" in case.options:
        # Docker looks names and their groups up in the container's /etc/passwd, where nothing could be written.
        container.user = None if by_start else f"{case.ids[0]}:{case.ids[1]}"
    elif not by_start:
        container.user = "dev"
    who = [*map(str, case.ids), case.name, case.home]

    assert container.kernel(KERNEL).split() == who
    status, _ = container.api(
        "/api/contents/by-jupyter.txt",
        container.token,
        "PUT",
        {"type": "file", "format": "text", "content": "x"},
    )
    assert status == 201
    container.exec("touch", "/workspace/by-exec")
    said = container.exec(
        "sh", "-c", "id -u; id -g; getent passwd $(id -u) | cut -d: -f1 | grep . || echo -"
    ).stdout.split()
    assert said[:3] == who[:3]
    if case.ssh:
        command = 'id -u; id -g; id -un; echo "$HOME"; touch /workspace/by-ssh ~/by-ssh'
        assert container.ssh(command).stdout.split() == who
    made = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in work.iterdir()}
    expected = {"by-kernel", "by-jupyter.txt", "by-exec", *(["by-ssh"] if case.ssh else []), "notebooks"}
    assert made == dict.fromkeys(expected, case.ids)


def test_c5_a_user_dev_that_a_derived_image_made_is_no_hindrance(
    run: Run, engine: Engine, image: str, tmp_path: Path
) -> None:
    """A name that is taken, with another id and another home."""
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image}\nRUN groupadd -g 777 dev && useradd -u 777 -g 777 -d /nowhere -s /bin/false dev\n"
    )
    name = f"{image}-taken"
    engine.docker("build", "-q", "-t", name, str(tmp_path))
    try:
        container = run(key=True, of=name, env={"TORCHTAP_SELFTEST": "off"}).wait_healthy()
        assert container.ssh("id -u; id -g; pwd -P; echo $HOME").stdout.split()[:2] == ["1000", "1000"]
        assert container.exec("getent", "passwd", "dev").stdout == "dev:x:1000:1000::/home/dev:/bin/bash\n"
    finally:
        engine.docker("rmi", "-f", name, check=False)


def test_c5_no_user_of_the_base_is_left_at_1000(shared: Container) -> None:
    assert shared.exec("getent", "passwd", "1000").stdout.startswith("dev:")
    assert "ubuntu" not in shared.exec("cat", "/etc/passwd").stdout


def test_c6_a_group_that_may_write_is_given_by_group_add(run: Run, tmp_path: Path) -> None:
    """A folder of a team: group-writable, of a group that is not dev's own."""
    work = tmp_path / "team"
    work.mkdir()
    os.chown(work, 0, 6789)
    work.chmod(0o2775)
    container = run(
        options=("-v", f"{work}:/workspace", "--group-add", "6789"),
        env={"TORCHTAP_SELFTEST": "off", "HOST_UID": "1234"},
        allow=(NO_KEY,),
    ).wait_healthy()
    container.kernel("open('/workspace/by-kernel', 'w').close()")
    assert ((work / "by-kernel").stat().st_uid, (work / "by-kernel").stat().st_gid) == (1234, 6789)


def test_c8_git_does_not_call_the_workspace_dubious(run: Run, tmp_path: Path) -> None:
    """The repository is another's: for dev by HOST_UID, and for root in a bare `docker exec`, read-only root and all.

    vscode-remote-release#10179, #10736.
    """
    work = tmp_path / "project"
    for folder in (work, work / "clone", work / "deep/clone"):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["chown", "-R", "4321:4321", str(work)], check=True)
    container = run(
        options=("-v", f"{work}:/workspace", *READ_ONLY, *KEPT),
        env={"TORCHTAP_SELFTEST": "off", "HOST_UID": "1234"},
        allow=(NO_KEY, r"WARNING workspace: /workspace cannot be written by uid 1234"),
    ).wait_healthy()
    container.user = "1234"
    for root in (True, False):
        for place in ("/workspace", "/workspace/clone"):
            container.exec("git", "-C", place, "status", root=root)
    other = container.exec("git", "-C", "/workspace/deep/clone", "status", root=True, check=False)
    assert "dubious ownership" in other.stderr, "not everything is excepted"
