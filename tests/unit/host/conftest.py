"""Fixtures for the host side: a copied checkout, and a PATH with nothing but fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.host.checkout import Checkout, make_checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path, "compose.yaml", "compose.cpu.yaml", "compose.cdi.yaml", "compose.ca.yaml")


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a developer has set must not decide a test."""
    from host.settings import NAMES

    for name in (
        *NAMES,
        "COMPOSE_FILE",
        "SSH_PUBLIC_KEY",
        "SSH_AUTH_SOCK",
        "DOCKER_HOST",
        "TORCHTAP_DEVICE",
        "TORCHTAP_VENV",
        "SUDO_UID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
