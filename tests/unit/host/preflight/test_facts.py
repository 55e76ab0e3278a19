"""What preflight reads of a host, from folders and programs that stand in for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.preflight.facts import (
    TOOLKIT_CONFIG,
    SeLinux,
    Toolkit,
    look_at_selinux,
    look_at_toolkit,
    read_kernel_log,
)
from tests.unit.host.checkout import Checkout


@pytest.fixture
def fakes_only(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setenv("PATH", checkout.env["PATH"])
    return checkout


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_toolkit_of_a_bare_host(fakes_only: Checkout, tmp_path: Path) -> None:
    assert look_at_toolkit(tmp_path) == Toolkit(None, None, False)


@pytest.mark.parametrize(
    ("line", "no_cgroups"),
    [("no-cgroups = true", True), ("#no-cgroups = true", False), ("no-cgroups = false", False), ("", False)],
)
def test_the_toolkit_as_it_is_configured(
    fakes_only: Checkout, tmp_path: Path, line: str, no_cgroups: bool
) -> None:
    fakes_only.fake("nvidia-ctk").answer(
        {"when": "^--version$", "out": "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: x\n"}
    )
    put(tmp_path / TOOLKIT_CONFIG, f"[nvidia-container-cli]\n{line}\n")
    put(tmp_path / "dev/char/195:255", "")
    assert look_at_toolkit(tmp_path) == Toolkit("1.17.8", no_cgroups, True)


@pytest.mark.parametrize(
    ("enforce", "boolean", "found"),
    [
        (None, None, SeLinux(None, None)),
        ("0", "0 0", SeLinux(False, False)),
        ("1", "1 1", SeLinux(True, True)),
        ("1", None, SeLinux(True, None)),
        ("garbage", "", SeLinux(None, None)),
    ],
)
def test_selinux(tmp_path: Path, enforce: str | None, boolean: str | None, found: SeLinux) -> None:
    if enforce is not None:
        put(tmp_path / "sys/fs/selinux/enforce", enforce)
    if boolean is not None:
        put(tmp_path / "sys/fs/selinux/booleans/container_use_devices", boolean)
    assert look_at_selinux(tmp_path) == found


def test_the_kernel_log_is_read_for_the_driver_alone(fakes_only: Checkout) -> None:
    log = (
        "[    1.0] usb 1-1: new device\n[    2.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01\n"
    )
    fakes_only.fake("dmesg").answer({"when": "", "out": log})
    assert read_kernel_log() == log.splitlines()[1]


def test_a_kernel_log_that_may_not_be_read_is_none(fakes_only: Checkout) -> None:
    assert read_kernel_log() is None
    fakes_only.fake("dmesg").answer(
        {"when": "", "rc": 1, "err": "dmesg: read kernel buffer failed: Operation not permitted\n"}
    )
    assert read_kernel_log() is None
