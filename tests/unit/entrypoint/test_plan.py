"""From facts to a plan: pure, so every case is a row."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from entrypoint import caches, paths
from entrypoint.account import Account
from entrypoint.certificates import Trust
from entrypoint.gather import Facts, Folder
from entrypoint.keys import Source
from entrypoint.lastimage import Image
from entrypoint.notices import SSH_HINT, Notice
from entrypoint.plan import Plan, PlanError, make_plan
from entrypoint.roles import choose
from entrypoint.services import Service, run_script
from entrypoint.settings import Settings
from entrypoint.space import Full
from entrypoint.threads import Processors

from .conftest import GID, OTHER, UID, needs_root

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"
WORKSPACE, HOME, STATE = paths.WORKSPACE, paths.HOME, paths.STATE


def folder(path: Path, **changes: Any) -> Folder:
    usual = {"uid": 1000, "gid": 1000, "mode": 0o755, "readable": True, "writable": True, "changeable": True}
    return Folder(path=path, exists=True, **{**usual, **changes})


def facts(**changes: Any) -> Facts:
    """A container as compose.yaml starts it: root, for the image's own dev, with one key."""
    usual: dict[str, Any] = {
        "environment": {"PATH": "/opt/torchtap/bin:/usr/bin"},
        "is_root": True,
        "uid": 1000,
        "gid": 1000,
        "groups": (),
        "can_be_user": True,
        "can_chroot": True,
        "can_audit": True,
        "rootless": False,
        "current": folder(WORKSPACE),
        "workspace": folder(WORKSPACE),
        "workspace_is_empty": False,
        "workspace_is_new": False,
        "home": folder(HOME),
        "state": folder(STATE, uid=0, mode=0o1775),
        "state_of_others": (),
        "run": paths.RUN_CANDIDATES[0],
        "key_sources": (Source("SSH_PUBLIC_KEY", KEY),),
        "ssh_port_free": True,
        "jupyter_port_free": True,
        "examples_given": False,
    }
    return Facts(**{**usual, **changes})


def by_user(**changes: Any) -> Facts:
    """docker run --user 12345:54321"""
    owned = {"uid": 12345, "gid": 54321}
    closed = {"writable": False, "changeable": False}
    usual = {
        "is_root": False,
        **owned,
        "home": folder(HOME, **closed),
        "state": folder(STATE, uid=0, mode=0o1775, **closed),
        "workspace": folder(WORKSPACE, **owned),
    }
    return facts(**{**usual, **changes})


def plan(found: Facts | None = None, words: Sequence[str] = (), /, **variables: str) -> Plan:
    return make_plan(Settings.read(variables), choose(words), found or facts())


# ---- services ----
@pytest.mark.parametrize(
    ("words", "variables", "services"),
    [
        ((), {}, ("sshd", "jupyter", "selftest")),
        (("dev",), {"TORCHTAP_SELFTEST": "off"}, ("sshd", "jupyter")),
        (("dev",), {"TORCHTAP_SELFTEST": "strict"}, ("sshd", "jupyter")),
        (("jupyter",), {}, ("jupyter", "selftest")),
        (("ssh",), {}, ("sshd", "selftest")),
        (("selftest",), {}, ()),
        (("python", "x.py"), {}, ()),
    ],
    ids=["dev", "no self-test", "self-test before", "jupyter", "ssh", "selftest", "a command"],
)
def test_services_of_a_role(
    words: tuple[str, ...], variables: dict[str, str], services: tuple[str, ...]
) -> None:
    made = plan(None, words, **variables)
    assert tuple(service.name for service in made.services) == services
    assert (made.selftest == "strict") is (variables.get("TORCHTAP_SELFTEST") == "strict")
    assert made.notices == ()


def test_a_command_waits_for_no_selftest() -> None:
    assert plan(None, ["python", "x.py"], TORCHTAP_SELFTEST="strict").selftest == "off"


def test_sshd_is_told_port_host_key_and_authorized_keys() -> None:
    sshd = plan().services[0]
    assert sshd.argv == (
        "/usr/sbin/sshd", "-D", "-e", "-f", "/etc/torchtap/sshd_config", "-p", "22",
        "-h", "/run/torchtap/ssh_host_ed25519_key",
        "-oAuthorizedKeysFile=/run/torchtap/authorized_keys", "-oStrictModes=no",
    )  # fmt: skip
    assert sshd.as_root
    assert plan().authorized_keys == (KEY,)


def test_selftest_runs_once_and_nothing_but_sshd_as_root() -> None:
    assert {(s.name, s.as_root, s.once) for s in plan().services} == {
        ("sshd", True, False),
        ("jupyter", False, False),
        ("selftest", False, True),
    }


# ---- what is said about SSH ----
def test_without_the_capability_that_terminals_need_sshd_starts_and_the_log_says_what_is_lost() -> None:
    """sshd reports logins with a terminal to the kernel's audit, and gives up where it may not."""
    made = plan(facts(can_audit=False))
    assert "sshd" in [service.name for service in made.services]
    assert [(n.level, n.more) for n in made.notices] == [("error", ("Add: --cap-add AUDIT_WRITE",))]
    assert plan(facts(can_audit=False), ["jupyter"]).notices == ()


def test_without_the_capability_that_every_login_needs_sshd_is_an_error() -> None:
    """docker run --cap-drop SYS_CHROOT: sshd would listen, pass the health check, and end every login."""
    made = plan(facts(can_chroot=False))
    assert [service.name for service in made.services] == ["jupyter", "selftest"]
    assert [(n.level, n.subject, n.more) for n in made.notices] == [
        ("error", "ssh", ("Add: --cap-add SYS_CHROOT",))
    ]
    assert "CAP_SYS_CHROOT is missing" in made.notices[0].text
    with pytest.raises(PlanError, match="CAP_SYS_CHROOT"):
        plan(facts(can_chroot=False), ["ssh"])


LOOKED = (
    Source("SSH_PUBLIC_KEY", None),
    Source("/run/secrets/ssh_public_key", None, "does not exist"),
    Source("/home/dev/.ssh/authorized_keys", "# none yet\n"),
)
NO_KEY = Notice(
    "warning",
    "ssh",
    "not started, no public key: SSH_PUBLIC_KEY is not set, /run/secrets/ssh_public_key does not exist, "
    "/home/dev/.ssh/authorized_keys holds none",
    (f"JupyterLab runs as usual. For SSH add:  {SSH_HINT}",),
)


def test_without_a_key_sshd_stays_off_and_the_option_is_named() -> None:
    made = plan(facts(key_sources=LOOKED))
    assert [service.name for service in made.services] == ["jupyter", "selftest"]
    assert made.authorized_keys == ()
    assert made.notices == (NO_KEY,)


def test_a_malformed_key_is_named_beside_it() -> None:
    made = plan(facts(key_sources=(Source("SSH_PUBLIC_KEY", KEY[:30]),)))
    error, warning = made.notices
    assert (error.level, error.subject) == ("error", "ssh")
    assert error.text.startswith("SSH_PUBLIC_KEY line 1: cannot be used (")
    assert warning.text == "not started, no public key: SSH_PUBLIC_KEY holds none"


def test_a_file_that_was_asked_for_and_is_missing_is_an_error_beside_a_good_key() -> None:
    missing = Source("/keys", None, "is not a file", asked_for=True)
    made = plan(facts(key_sources=(Source("SSH_PUBLIC_KEY", KEY), missing)))
    assert made.notices == (Notice("error", "ssh", "/keys is not a file"),)
    assert made.services[0].name == "sshd"


def test_keys_do_not_matter_where_sshd_is_not_wanted() -> None:
    bad = facts(key_sources=(Source("SSH_PUBLIC_KEY", "nonsense"),))
    assert plan(bad, ["jupyter"]).notices == ()
    assert plan(bad, ["true"]).notices == ()


def test_a_port_that_cannot_be_had_falls_back_aloud() -> None:
    made = plan(facts(ssh_port_free=False))
    assert made.ssh_port == 2222
    assert made.services[0].argv[6] == "2222"
    assert made.notices == (Notice("warning", "ssh", "port 22 cannot be used here; sshd listens on 2222"),)


@pytest.mark.parametrize(
    ("found", "why", "remedy"),
    [
        (
            facts(uid=0, gid=0),
            "dev is root here (HOST_UID=0), and root may not log in",
            "Give HOST_UID the id of a user",
        ),
        (
            by_user(uid=100, workspace=folder(WORKSPACE), home=folder(HOME), state=folder(STATE)),
            "user id 100 (from --user) has no name here",
            "Give --user an id of 500 or more, or HOST_UID=100 in place of --user",
        ),
        (
            facts(run=paths.RUN_CANDIDATES[1]),
            "/run/torchtap cannot be written",
            "With --read-only add: --tmpfs /run",
        ),
        (
            by_user(run=paths.RUN_CANDIDATES[1], home=folder(HOME), state=folder(STATE)),
            "/run/torchtap cannot be written",
            "With --read-only add: --tmpfs /run:mode=1777",
        ),
    ],
    ids=["dev is root", "an id without a name", "run files in /tmp", "run files of a user in /tmp"],
)
def test_where_nobody_could_log_in_sshd_stays_off(found: Facts, why: str, remedy: str) -> None:
    made = plan(found)
    assert [service.name for service in made.services] == ["jupyter", "selftest"]
    assert made.notices == (Notice("warning", "ssh", f"not started: {why}", (remedy,)),)
    with pytest.raises(PlanError) as raised:
        plan(found, ["ssh"])
    assert str(raised.value) == f"role ssh has nothing to run: sshd is not started: {why}"
    assert raised.value.remedy == (remedy,)


def test_root_keeps_an_id_below_those_of_extrausers() -> None:
    """Root writes /etc/passwd, where any id may be."""
    assert plan(facts(uid=100)).services[0].name == "sshd"


# ---- what ends the start ----
@pytest.mark.parametrize(
    ("found", "words", "says", "remedy"),
    [
        (
            facts(run=None),
            [],
            "no place to write: /run and /tmp are read-only for this user",
            ("With --read-only add: --tmpfs /run --tmpfs /tmp",),
        ),
        (
            facts(can_be_user=False),
            ["true"],
            "root may not become user 1000:1000 here: CAP_SETUID or CAP_SETGID is missing",
            ("Add: --user 1000:1000, or leave out --cap-drop",),
        ),
        (
            facts(key_sources=LOOKED),
            ["ssh"],
            "role ssh has nothing to run: sshd needs a public key",
            (f"Add: {SSH_HINT}",),
        ),
        (
            facts(key_sources=(Source("SSH_PUBLIC_KEY", "nonsense"),)),
            ["ssh"],
            "role ssh has nothing to run: sshd needs a public key",
            (
                'SSH_PUBLIC_KEY line 1: cannot be used ("nonsense"): it should look like: ssh-ed25519 AAAA... name',
                f"Add: {SSH_HINT}",
            ),
        ),
    ],
    ids=["nowhere to write", "capabilities dropped", "ssh without a key", "ssh with a bad key"],
)
def test_a_start_that_cannot_be_says_what_to_add(
    found: Facts, words: list[str], says: str, remedy: tuple[str, ...]
) -> None:
    with pytest.raises(PlanError) as raised:
        plan(found, words)
    assert (str(raised.value), raised.value.remedy) == (says, remedy)


# ---- home and state ----
@pytest.mark.parametrize(
    ("home", "to_own"),
    [
        (folder(HOME), False),
        (folder(HOME, uid=0, gid=0, writable=False), True),
        (folder(HOME, uid=0, gid=0, mode=0o777), True),
        (folder(HOME, uid=OTHER, mode=0o777), False),
    ],
    ids=[
        "the user's",
        "root's: a volume of another image",
        "root's and open to all",
        "somebody's, but open",
    ],
)
def test_home_stays_where_it_is(home: Folder, to_own: bool) -> None:
    made = plan(facts(home=home))
    assert (made.home, made.home_to_own, made.notices) == (HOME, to_own, ())


def test_the_images_home_is_given_to_another_id() -> None:
    made = plan(facts(uid=4321, gid=8765, home=folder(HOME, writable=False)))
    assert (made.home, made.home_to_own, made.notices) == (HOME, True, ())


@pytest.mark.parametrize(
    ("home", "it", "or_else"),
    [
        (
            folder(HOME, uid=OTHER, gid=OTHER, writable=False),
            f"belongs to {OTHER}:{OTHER}, mode 0755",
            f"; or -e HOST_UID={OTHER}, whose it is",
        ),
        (
            folder(HOME, writable=False, is_hosts=True),
            "belongs to 1000:1000, mode 0755",
            "; or -e HOST_UID=1000, whose it is",
        ),
        (folder(HOME, is_directory=False, writable=False, changeable=False), "is not a directory", ""),
        (
            folder(HOME, uid=0, gid=0, writable=False, changeable=False, read_only=True),
            "lies on a read-only file system",
            "",
        ),
        (Folder(path=HOME, exists=False), "does not exist", ""),
    ],
    ids=["another user's", "a folder of the host", "a file", "read-only", "not there"],
)
def test_a_home_that_is_not_ours_to_give_is_replaced_aloud(home: Folder, it: str, or_else: str) -> None:
    made = plan(facts(uid=4321, gid=8765, home=home))
    instead = Path("/tmp/torchtap-home-4321")
    assert (made.home, made.home_to_own) == (instead, False)
    assert made.account == Account(4321, 8765, (), str(instead))
    assert made.environment["HOME"] == str(instead)
    (notice,) = made.notices
    assert (notice.level, notice.subject) == ("warning", "home")
    assert notice.text == f"/home/dev cannot be written by uid 4321, gid 8765: it {it}"
    lost = "settings and caches are gone when the container is"
    assert notice.more == (
        f"Using {instead}: {lost}",
        f"Add: -v VOLUME:/home/dev, with another volume{or_else}",
    )


def test_a_user_given_by_number_gets_folders_in_tmp_aloud() -> None:
    made = plan(by_user())
    assert (made.home, made.state) == (
        Path("/tmp/torchtap-home-12345"),
        Path("/tmp/torchtap-state-12345"),
    )
    assert [(n.level, n.subject, n.text) for n in made.notices] == [
        (
            "warning",
            "home",
            "/home/dev cannot be written by uid 12345, gid 54321: it belongs to 1000:1000, mode 0755",
        ),
        (
            "warning",
            "state",
            "/var/lib/torchtap cannot be written by uid 12345, gid 54321: it belongs to 0:1000, mode 1775",
        ),
    ]
    assert made.notices[1].more == (
        "Using /tmp/torchtap-state-12345: Jupyter's token and the SSH host keys are gone when the container is",
        "Add: -v FOLDER:/var/lib/torchtap, with a folder that belongs to 12345:54321",
    )
    assert made.environment["TORCHTAP_STATE"] == str(made.state)


def test_a_state_that_holds_anothers_keys_is_replaced_aloud() -> None:
    """Root's volume, then the same with --user: the group may write there, but the host key is root's."""
    made = plan(by_user(home=folder(HOME), state=folder(STATE), state_of_others=("ssh", "jupyter-token")))
    assert made.state == Path("/tmp/torchtap-state-12345")
    assert [notice.text for notice in made.notices] == [
        "/var/lib/torchtap holds what another user made (ssh, jupyter-token); this is uid 12345, gid 54321"
    ]


def test_root_uses_a_state_that_dev_could_not_write() -> None:
    assert plan(facts(state=folder(STATE, uid=0, writable=False))).state == STATE


# ---- homes of other images and other ids ----
def image(uid: int = 1000, **changes: Any) -> Image:
    return Image(
        **{"variant": "cu130", "torch": "2.14.1", "python": "3.12.3", "uid": uid, "gid": uid, **changes}
    )


def used_by(before: Image | None, owner: int, **changes: Any) -> Facts:
    """A home volume that dev used under another id, and now dev is 4321:8765."""
    home = folder(HOME, uid=owner, gid=owner, writable=False)
    return facts(uid=4321, gid=8765, home=home, home_image=before, image=image(4321), **changes)


def test_a_home_of_devs_earlier_id_is_given_to_the_new_one_aloud() -> None:
    made = plan(used_by(image(501), 501))
    assert (made.home, made.home_to_own, made.home_of) == (HOME, True, (0, 1000, 501))
    assert made.notices == (
        Notice("info", "home", "/home/dev was 501's, as dev was before. It is given to 4321:8765"),
    )


@pytest.mark.parametrize(
    "found",
    [
        used_by(None, 501),
        used_by(image(502), 501),
        used_by(image(501, schema=2), 501),
        used_by(image(501), 501, home_in_use=True),
        used_by(image(1000), 1000, home_in_use=True),
        dataclasses.replace(
            used_by(image(501), 501), home=folder(HOME, uid=501, writable=False, is_hosts=True)
        ),
    ],
    ids=[
        "no note",
        "another's note",
        "a newer note",
        "in use",
        "the image's, in use",
        "a folder of the host",
    ],
)
def test_no_other_home_is_given_away(found: Facts) -> None:
    made = plan(found)
    assert (made.home, made.home_to_own) == (Path("/tmp/torchtap-home-4321"), False)


def test_a_home_that_another_container_uses_says_so() -> None:
    text = plan(used_by(image(501), 501, home_in_use=True)).notices[0].text
    assert text.endswith("it belongs to 501:501, mode 0755, and another running container uses it")


def test_a_note_of_root_gives_nothing_of_others_away() -> None:
    """The user can write there what he likes."""
    made = plan(facts(home=folder(HOME), home_image=image(0), image=image()))
    assert (made.home_to_own, made.home_of) == (False, (0, 1000))


def test_what_another_image_means_for_a_home_is_said_once_and_nothing_where_it_is_the_same() -> None:
    old = image(variant="cu128", torch="2.9.1", python="3.10.12")
    (notice,) = plan(facts(home_image=old, state_image=old, image=image())).notices
    assert (notice.level, notice.subject) == ("info", "home")
    assert notice.text == (
        "last used by cu128, PyTorch 2.9.1, Python 3.10.12; this is cu130, PyTorch 2.14.1, Python 3.12.3. "
        "Nothing is deleted"
    )
    assert plan(facts(home_image=image(), state_image=image(), image=image())).notices == ()


def test_volumes_of_a_newer_torchtap_are_warned_of() -> None:
    newer = image(schema=2)
    made = plan(facts(home_image=newer, state_image=newer, image=image()))
    assert [(n.level, n.subject, n.text) for n in made.notices] == [
        ("warning", s, f"a newer Torchtap has used {p}: what it noted there is left as it is")
        for s, p in (("home", HOME), ("state", STATE))
    ]


# ---- volumes that are full, shared, new ----
ROOM = Full(7, 65536)


def test_one_disk_that_is_full_is_named_once_and_services_start() -> None:
    made = plan(facts(home=folder(HOME, full=ROOM), state=folder(STATE, uid=0, full=ROOM)))
    assert (made.home, made.state) == (HOME, STATE)
    assert made.notices == (
        Notice(
            "warning",
            "disk",
            "/home/dev and /var/lib/torchtap: no room: all of its 64 kB are used",
            (
                "Services start all the same, but nothing new can be kept there. What is large:",
                "docker exec -u dev CONTAINER du -xah /home/dev | sort -h | tail",
            ),
        ),
    )
    assert [service.name for service in made.services] == ["sshd", "jupyter", "selftest"]
    assert made.report == Path("/tmp/torchtap-1000-selftest.json"), "the self-test runs all the same"
    assert made.environment["IPYTHONDIR"] == "/tmp/torchtap-ipython-1000", "and kernels begin"
    assert "IPYTHONDIR" not in plan().environment


def test_a_full_state_without_a_token_is_replaced_aloud() -> None:
    made = plan(facts(state=folder(STATE, uid=0, full=ROOM), token_is_kept=False))
    instead = Path("/tmp/torchtap-state-1000")
    assert (made.state, made.report) == (instead, instead / "selftest.json")
    assert made.notices[0] == Notice(
        "warning",
        "state",
        "/var/lib/torchtap is full: all of its 64 kB are used, and it holds no token yet",
        (
            f"Using {instead}: Jupyter's token and the SSH host keys are gone when the container is. "
            "Make room there, then restart",
        ),
    )


def test_a_full_workspace_gets_no_examples() -> None:
    made = plan(facts(workspace=folder(WORKSPACE, full=ROOM), workspace_is_empty=True))
    assert not made.examples_to_copy
    assert [notice.subject for notice in made.notices] == ["disk"]


def test_a_state_that_another_container_uses_is_told_to_services_only() -> None:
    text = "another running container uses /var/lib/torchtap too: token and host key are the same in both"
    assert plan(facts(state_in_use=True)).notices == (Notice("info", "state", text),)
    assert plan(facts(state_in_use=True), ["true"]).notices == ()


def test_a_state_that_another_users_container_uses_is_left_to_it() -> None:
    """Its token would otherwise change hands, and its JupyterLab could not start again."""
    made = plan(facts(state_in_use=True, state_of_others=("jupyter-token",)))
    assert made.state == Path("/tmp/torchtap-state-1000")
    assert [notice.level for notice in made.notices] == ["warning"]
    assert made.notices[0].text == (
        "/var/lib/torchtap holds what another user made (jupyter-token); this is uid 1000, gid 1000, "
        "and another running container uses it"
    )


def test_an_empty_thread_count_counts_as_not_set() -> None:
    assert "OMP_NUM_THREADS" not in plan(facts(environment={"OMP_NUM_THREADS": ""})).environment


def test_new_volumes_and_folders_made_for_them_become_the_users() -> None:
    made = plan(facts(new_volumes=(Path("/data"),), made_for_mounts=(HOME / ".cache",)))
    assert made.folders_to_own == (HOME / ".cache", Path("/data"))
    text = "/data: root's and empty, as the engine makes them. Given to 1000:1000"
    assert made.notices == (Notice("info", "volumes", text),)


@pytest.mark.parametrize(
    ("state", "taken"),
    [
        (folder(STATE, uid=0), True),
        (folder(STATE), True),
        (folder(STATE, uid=0, is_hosts=True), True),
        (folder(STATE, is_hosts=True), False),
    ],
    ids=[
        "root's volume",
        "the user's volume",
        "root's folder of the host",
        "a folder of somebody on the host",
    ],
)
def test_a_folder_of_the_host_keeps_its_owner_as_the_state(state: Folder, taken: bool) -> None:
    assert plan(facts(state=state)).state_to_take is taken


def test_where_dev_cannot_write_its_report_it_lies_elsewhere() -> None:
    made = plan(facts(state=folder(STATE, uid=OTHER, writable=False, is_hosts=True)))
    assert (made.state, made.report) == (STATE, Path("/tmp/torchtap-1000-selftest.json"))
    assert plan().report == STATE / "selftest.json"


# ---- workspace ----
CHOWN = "On the host: sudo chown -R {}:{} FOLDER"
CLOSED = {"readable": False, "writable": False}
OF_THE_HOST = {"is_mounted": True, "is_hosts": True}


def for_1234(owner: int) -> Facts:
    workspace = folder(WORKSPACE, uid=owner, gid=owner, writable=False, **OF_THE_HOST)
    return facts(uid=1234, gid=1234, home=folder(HOME, uid=1234), workspace=workspace)


def closed_to_user() -> Facts:
    workspace = folder(WORKSPACE, mode=0o700, **CLOSED, **OF_THE_HOST)
    return by_user(home=folder(HOME), state=folder(STATE), workspace=workspace, current=workspace)


@pytest.mark.parametrize(
    ("found", "variables", "text", "more"),
    [
        (
            for_1234(0),
            {"HOST_UID": "1234"},
            "/workspace cannot be written by uid 1234, gid 1234 (from HOST_UID): it belongs to 0:0, mode 0755",
            (CHOWN.format(1234, 1234),),
        ),
        (
            for_1234(5),
            {"HOST_UID": "1234"},
            "/workspace cannot be written by uid 1234, gid 1234 (from HOST_UID): it belongs to 5:5, mode 0755",
            ("Leave out HOST_UID and HOST_GID (then the owner's ids are used), or", CHOWN.format(1234, 1234)),
        ),
        (
            closed_to_user(),
            {},
            "/workspace cannot be read by uid 12345, gid 54321 (from --user): it belongs to 1000:1000, mode 0700",
            (
                "Leave out --user (then the owner's ids are used), or",
                CHOWN.format(12345, 54321),
                "Until then JupyterLab opens /home/dev",
            ),
        ),
        (
            facts(workspace=folder(WORKSPACE, mode=0o555, writable=False, **OF_THE_HOST)),
            {},
            "/workspace cannot be written by uid 1000, gid 1000: it belongs to 1000:1000, mode 0555",
            (CHOWN.format(1000, 1000),),
        ),
        (
            by_user(home=folder(HOME), state=folder(STATE), workspace=folder(WORKSPACE, writable=False)),
            {},
            "/workspace cannot be written by uid 12345, gid 54321 (from --user): it belongs to 1000:1000, mode 0755",
            ("Add: -v FOLDER:/workspace, with a folder that belongs to 12345:54321",),
        ),
        (
            facts(
                uid=5,
                gid=5,
                home=folder(HOME, uid=5),
                workspace=folder(WORKSPACE, writable=False, is_mounted=True),
            ),
            {},
            "/workspace cannot be written by uid 5, gid 5: it belongs to 1000:1000, mode 0755",
            ("docker run --rm --user 0 --entrypoint chown -v VOLUME:/workspace IMAGE -R 5:5 /workspace",),
        ),
        (
            facts(
                workspace=folder(WORKSPACE, **CLOSED, is_directory=False, **OF_THE_HOST), current=folder(HOME)
            ),
            {},
            "/workspace cannot be read by uid 1000, gid 1000: it is not a directory",
            ("Mount a folder there: -v FOLDER:/workspace", "Until then JupyterLab opens /home/dev"),
        ),
        (
            facts(workspace=folder(WORKSPACE, writable=False, changeable=False, read_only=True)),
            {},
            "/workspace cannot be written by uid 1000, gid 1000: it lies on a read-only file system",
            ("Mount a folder or volume there that can be written: -v FOLDER:/workspace, without :ro",),
        ),
        (
            facts(rootless=True, workspace=folder(WORKSPACE, uid=0, gid=0, writable=False)),
            {},
            "/workspace cannot be written by uid 1000, gid 1000: it belongs to 0:0, mode 0755",
            (
                "This engine is rootless: your own user is root in here. Add: -e HOST_UID=0 (sshd stays off then)",
            ),
        ),
    ],
    ids=[
        "root's",
        "another's than HOST_UID",
        "closed to --user",
        "the user's own, but closed",
        "--user with nothing mounted",
        "a volume of another user",
        "a file",
        "read-only",
        "rootless engine",
    ],
)
def test_a_workspace_that_cannot_be_used_is_named_with_what_helps(
    found: Facts, variables: dict[str, str], text: str, more: tuple[str, ...]
) -> None:
    assert plan(found, **variables).notices == (Notice("warning", "workspace", text, more),)


def test_a_workspace_that_docker_made_is_given_to_the_user() -> None:
    new = folder(WORKSPACE, uid=0, gid=0, writable=False)
    made = plan(facts(workspace=new, workspace_is_new=True, workspace_is_empty=True))
    assert made.workspace_to_own
    assert made.notices == (
        Notice(
            "info",
            "workspace",
            "/workspace was root's and empty: Docker made it. It is 1000:1000's now",
        ),
    )


def test_the_images_own_workspace_is_given_without_a_word() -> None:
    made = plan(
        facts(
            uid=5,
            gid=5,
            home=folder(HOME, uid=5),
            workspace=folder(WORKSPACE, writable=False),
            workspace_is_new=True,
        )
    )
    assert made.workspace_to_own
    assert made.notices == ()


@pytest.mark.parametrize(
    ("found", "words", "copied"),
    [
        (facts(workspace_is_empty=True), [], True),
        (facts(workspace_is_empty=True, examples_given=True), [], False),
        (facts(workspace_is_empty=False), [], False),
        (facts(workspace_is_empty=True), ["ssh"], False),
        (facts(workspace_is_empty=True), ["true"], False),
        (facts(workspace_is_empty=True, workspace=folder(WORKSPACE, writable=False)), [], False),
    ],
    ids=["empty", "given before", "in use", "without JupyterLab", "a command", "closed"],
)
def test_examples_go_only_into_an_empty_workspace(found: Facts, words: list[str], copied: bool) -> None:
    assert plan(found, words).examples_to_copy is copied


@pytest.mark.parametrize(
    ("found", "where"),
    [
        (facts(), WORKSPACE),
        (facts(current=folder(Path("/data"))), Path("/data")),
        (facts(current=folder(Path("/root"), readable=False)), WORKSPACE),
        (
            facts(
                current=folder(WORKSPACE, readable=False),
                workspace=folder(WORKSPACE, readable=False, writable=False),
            ),
            HOME,
        ),
    ],
    ids=["as a rule", "docker run -w", "-w to a closed folder", "a closed workspace"],
)
def test_working_directory(found: Facts, where: Path) -> None:
    assert plan(found).working_directory == where


# ---- environment ----
def test_the_users_environment_is_the_containers_less_secrets_plus_who_and_where() -> None:
    given = {"PATH": "/bin", "A": "ü $x\n", "JUPYTER_TOKEN": "t", "HOME": "/root", "USER": "root", "_": "x"}
    given |= {"PWD": "/", "OLDPWD": "/", "SHLVL": "1", "HOSTNAME": "c"}
    made = plan(facts(environment=given), JUPYTER_TOKEN="t")
    assert made.environment == {
        "PATH": "/bin",
        "A": "ü $x\n",
        "HOSTNAME": "c",
        "HOME": "/home/dev",
        "USER": "dev",
        "LOGNAME": "dev",
        "TORCHTAP_STATE": "/var/lib/torchtap",
        "JUPYTER_RUNTIME_DIR": "/run/torchtap/jupyter",
        **caches.places("/home/dev", {}),
    }
    assert made.jupyter_token == "t"


def test_caches_of_the_users_choice_stay_and_the_others_lie_in_the_home_that_is_used() -> None:
    environment = plan(by_user(environment={"HF_HOME": "/models", "TORCH_HOME": ""})).environment
    assert environment["HF_HOME"] == "/models"
    assert environment["TORCH_HOME"] == "/tmp/torchtap-home-12345/.cache/torch"


@pytest.mark.parametrize(
    ("value", "seen"), [("cpu", "cpu"), ("gpu", "gpu"), ("auto", None)], ids=["cpu", "gpu", "auto"]
)
def test_device_is_passed_on_unless_it_is_left_open(value: str, seen: str | None) -> None:
    assert plan(TORCHTAP_DEVICE=value).environment.get("TORCHTAP_DEVICE") == seen


def test_groups_added_by_the_engine_are_kept() -> None:
    assert plan(facts(groups=(44, 992))).account.groups == (44, 992)


def test_another_folder_for_jupyters_run_time_files_is_the_users_choice() -> None:
    """images.md 29, docker-stacks#2073: JUPYTER_RUNTIME_DIR was lost."""
    made = plan(facts(environment={"JUPYTER_RUNTIME_DIR": "/workspace/.rt"}))
    assert made.environment["JUPYTER_RUNTIME_DIR"] == "/workspace/.rt"


def test_a_taken_port_of_jupyter_is_named_with_the_variable() -> None:
    made = plan(facts(jupyter_port_free=False), JUPYTER_PORT_IN_CONTAINER="8890")
    assert made.notices == (
        Notice(
            "error",
            "jupyter",
            "port 8890 cannot be used here: another program has it, or it may not be taken",
            ("JupyterLab tries again until it is free. Another port: -e JUPYTER_PORT_IN_CONTAINER=8889",),
        ),
    )
    assert "jupyter" in [service.name for service in made.services]


def test_jupyter_open_to_anyone_is_said_aloud() -> None:
    (notice,) = plan(JUPYTER_OPEN_TO_ANYONE="1").notices
    assert (notice.level, notice.subject) == ("warning", "jupyter")
    assert "whoever reaches its port runs code as dev" in notice.text


# ---- run scripts ----
def script(service: Service, **changes: Any) -> str:
    return run_script(service, dataclasses.replace(plan(), **changes))


def test_a_users_service_never_changes_who_it_is() -> None:
    text = script(Service(name="x", argv=("prog",)), is_root=False)
    assert text.splitlines()[-1] == "cd /workspace && unset OLDPWD && exec prog"


def test_sshd_stays_root() -> None:
    assert script(Service(name="sshd", argv=("sshd",), as_root=True)).endswith("exec sshd\n")


@needs_root
def test_a_service_runs_as_dev_with_its_groups_and_words_as_they_are(open_path: Path) -> None:
    place = open_path / "a place with 'quotes' $(x)"
    place.mkdir()
    odd = ("two words", "it's", "$HOME", "`id`", "\\n", "ü", "")
    service = Service(name="x", argv=("sh", "-c", 'id -u; id -g; id -G; pwd; printf "%s|" "$@"', "sh", *odd))
    text = script(service, account=Account(UID, GID, (OTHER,), "/"), working_directory=place)
    done = subprocess.run(
        ["sh", "-c", text], capture_output=True, text=True, check=True, env=os.environ, cwd=open_path
    )
    uid, gid, groups, where, said = done.stdout.split("\n")
    assert (uid, gid, where) == (str(UID), str(GID), str(place))
    assert set(groups.split()) == {str(GID), str(OTHER)}
    assert said == "".join(f"{word}|" for word in odd)


# ---- what start computes for every session ----
def test_thread_counts_certificates_and_proxies_reach_the_environment_and_the_users_own_win() -> None:
    found = facts(
        environment={"HTTP_PROXY": "http://proxy:3128", "PIP_CERT": "/mine.pem"},
        processors=Processors(visible=64, quota=1.5),
        trust=Trust(certificates=(b"x",), places=("/there",)),
    )
    environment = plan(found).environment
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["SSL_CERT_FILE"] == "/run/torchtap/ca-certificates.pem"
    assert environment["PIP_CERT"] == "/mine.pem"
    assert environment["http_proxy"] == "http://proxy:3128"
    assert environment["no_proxy"] == "localhost,127.0.0.1,::1"
    assert plan(found).trust is found.trust


def test_limits_and_certificates_are_said() -> None:
    found = facts(
        processors=Processors(visible=64, quota=1.5),
        shared_memory=64 << 20,
        trust=Trust(certificates=(b"x",), places=("/there",), problems=("/there/b.crt is empty",)),
    )
    assert plan(found).notices == (
        Notice("warning", "certificates", "/there/b.crt is empty"),
        Notice("info", "certificates", "1 from /there, for pip, uv, curl, git, requests, httpx, node"),
        Notice(
            "info",
            "cpu",
            "2 of 64 CPUs are this container's: OMP_NUM_THREADS=2, TORCHINDUCTOR_COMPILE_THREADS=2",
        ),
        Notice(
            "info",
            "memory",
            "/dev/shm holds 64 MB: too little for workers of a DataLoader, and for NCCL",
            ("Add: --shm-size 8g (compose.yaml has it)",),
        ),
    )
    command = plan(found, ["python", "x.py"])
    assert [notice.subject for notice in command.notices] == ["certificates", "certificates"]
    assert command.environment["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize("size", [None, 1 << 30, 8 << 30], ids=["not known", "1 GiB", "8 GiB"])
def test_enough_shared_memory_is_not_mentioned(size: int | None) -> None:
    assert plan(facts(shared_memory=size)).notices == ()


def test_a_home_that_the_user_brought_is_used_and_left_as_it_is() -> None:
    own = folder(Path("/data/alice"), uid=12345, gid=54321)
    made = plan(by_user(home=own))
    assert (made.home, made.home_is_the_users, made.environment["HOME"]) == (own.path, True, "/data/alice")
    assert not plan(by_user()).home_is_the_users, "that below /tmp is ours"
    assert not plan().home_is_the_users


def test_sessions_get_the_shell_that_is_there() -> None:
    found = facts(environment={"SHELL": "/usr/bin/fish"}, shell="/bin/bash")
    assert plan(found).environment["SHELL"] == "/bin/bash"
    assert "SHELL" not in plan(facts(environment={})).environment
