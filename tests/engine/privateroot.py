"""The engine's programs: a private root made of Debian packages, beside the machine's own system."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

# Engine 26.1.5, Compose 2.26.1, Buildx 0.13.1. Debian 12's engine is 20.10 with Compose v1: too old.
SUITE = "trixie"
PACKAGES = (
    "docker.io",
    "docker-cli",
    "docker-compose",
    "docker-buildx",
    "iptables",  # and iproute2: network.py uses them
    "iproute2",
    "ca-certificates",
    "git",  # build contexts that are git addresses
    "pigz",  # layers are unpacked with it
    "xz-utils",
    "python3",  # the simulated NVIDIA hook runs inside
)
HOST_TOOLS = {"mmdebstrap": "mmdebstrap", "gcc": "gcc", "unshare": "util-linux"}  # command → package
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
MARK = "torchtap-recipe"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


class RootError(RuntimeError):
    """The private root could not be made."""


def system_environment() -> dict[str, str]:
    """The environment with the administrator's folders on PATH: `su` leaves them out, and mount tools lie there."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"}


def is_installed(command: str) -> bool:
    """Whether this machine has a command.

    >>> is_installed("sh"), is_installed("no-such-command")
    (True, False)
    """
    return shutil.which(command, path=system_environment()["PATH"]) is not None


def recipe() -> str:
    """What the root is made from, as one short word: another recipe means another root.

    >>> len(recipe())
    12
    """
    return hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12]


def is_current(root: Path) -> bool:
    """Whether a complete root of this recipe lies there."""
    mark = root / MARK
    return mark.exists() and mark.read_text().strip() == recipe()


def build(root: Path, say: Callable[[str], None]) -> None:
    """Make the root (≈ 20 s, 680 MB), unless a complete one is there.

    Built beside and renamed, so that an interrupted build is never taken for a root. Raises `RootError`.
    """
    if is_current(root):
        return
    install_host_tools(say)
    partial = root.with_name(root.name + ".partial")
    for leftover in (root, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    say(f"making a private root from Debian {SUITE} (about 20 s, 680 MB) in {root}")
    began = time.monotonic()
    bootstrap(SUITE, PACKAGES, str(partial))
    (partial / MARK).write_text(recipe() + "\n")
    partial.rename(root)
    say(f"private root made in {time.monotonic() - began:.0f} s")


def bootstrap(suite: str, packages: tuple[str, ...], target: str, *options: str) -> None:
    """`mmdebstrap` of a minimal Debian with these packages into a folder or a .tar file.

    Debian's default mirror is used. Raises `RootError` with the end of what mmdebstrap said.
    """
    include = f"--include={','.join(packages)}"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", include, *options, suite, target]
    done = subprocess.run(command, env=system_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines()[-8:]
        raise RootError("\n  ".join([f"mmdebstrap {suite} failed (exit status {done.returncode}):", *lines]))


def install_host_tools(say: Callable[[str], None]) -> None:
    """apt-get what is missing on this machine. Raises `RootError` where that cannot be done."""
    missing = sorted({package for command, package in HOST_TOOLS.items() if not is_installed(command)})
    if not missing:
        return
    if not is_installed("apt-get"):
        raise RootError(f"{', '.join(missing)} not installed and there is no apt-get to install with")
    say(f"installing {', '.join(missing)}")
    quiet = {**system_environment(), "DEBIAN_FRONTEND": "noninteractive"}
    packages = [*missing, "debian-archive-keyring"]
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RootError(f"{' '.join(command)} failed: {done.stderr.strip()[-600:]}")


def refresh(root: Path) -> None:
    """Give the root the machine's present name servers and certificate authorities."""
    resolver = Path("/etc/resolv.conf")
    behind = Path("/run/systemd/resolve/resolv.conf")
    # systemd's stub resolver listens on 127.0.0.53, which no container can reach; the real ones stand behind.
    if resolver.exists() and "127.0.0.53" in resolver.read_text() and behind.exists():
        resolver = behind
    bundle = root / str(CA_BUNDLE).lstrip("/")
    for source, target in ((resolver, root / "etc/resolv.conf"), (_ca_bundle(), bundle)):
        if source.exists():
            target.unlink(missing_ok=True)  # may be a symbolic link out of the root
            target.write_bytes(source.read_bytes())


def _ca_bundle() -> Path:
    named = os.environ.get("SSL_CERT_FILE")
    return Path(named) if named and Path(named).exists() else CA_BUNDLE
