"""What Compose is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from host import handout, project
from host.engine import Engine, State
from host.gpu import HostGpus
from host.keys import Keys
from host.paths import Paths
from host.plan import Plan, decide
from host.settings import Settings, settle

NO_KEYS = Keys((), "")


def plan(settings: Settings) -> Plan:
    return decide(settings, Engine(State.READY), HostGpus())


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (1234, {}, (1234, 567)),
        (1234, {"SUDO_UID": "1"}, (1234, 567)),
        (0, {"SUDO_UID": "1001", "SUDO_GID": "1002"}, (1001, 1002)),
        (0, {}, None),
    ],
    ids=["a user", "no root, no sudo", "behind sudo", "root itself"],
)
def test_whose_ids_the_container_gets(
    monkeypatch: pytest.MonkeyPatch, uid: int, environ: dict[str, str], expected: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: 567)
    assert project.owner(environ) == expected


def test_compose_hears_of_every_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 567)
    settings = settle(
        {"BIND_ADDRESS": "::1", "SHM_SIZE": "16gb", "TORCHTAP_CA_BUNDLE": "/ca.pem", "GPUS": "0"}, {}
    )
    way = handout.ways("0")[0]
    keys = Keys(("ssh-ed25519 AA", "ssh-rsa BB"), "")
    assert project.compose_variables(Paths(tmp_path), settings, plan(settings), way, keys, {}) == {
        "COMPOSE_FILE": "compose.yaml:.torchtap/compose.gpus.yaml:compose.ca.yaml",
        "VARIANT": "cu130",
        "HOST_UID": "1234",
        "HOST_GID": "567",
        "BIND_ADDRESS": "[::1]",
        "SHM_SIZE": "16gb",
        "TORCHTAP_CA_BUNDLE": "/ca.pem",
        "SSH_PUBLIC_KEY": "ssh-ed25519 AA\nssh-rsa BB",
    }


def test_what_was_not_chosen_does_not_come_from_the_shell() -> None:
    """SSH_KEY=none with an exported SSH_PUBLIC_KEY must not let a key in."""
    environ = {"SSH_PUBLIC_KEY": "ssh-ed25519 AA", "GPUS": "0,1", "COMPOSE_FILE": "x", "PATH": "/bin"}
    assert project.environment(environ, {"VARIANT": "cu130"}) == {"PATH": "/bin", "VARIANT": "cu130"}


def test_plain_compose_means_the_same_afterwards(tmp_path: Path) -> None:
    """What make decided stands in `.env`, where `docker compose up` finds it."""
    settings = settle({}, {"VARIANT": ("cu128", 1)})
    chosen = project.compose_variables(Paths(tmp_path), settings, plan(settings), None, NO_KEYS, {})
    project.remember(Paths(tmp_path), settings, chosen, None)
    text = (tmp_path / ".env").read_text()
    assert "COMPOSE_FILE=compose.yaml:compose.cpu.yaml\n" in text
    assert "VARIANT" not in text  # the user's own line has it
