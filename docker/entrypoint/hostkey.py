"""sshd's host key: made once, kept in the state volume, mended at every start, and never exchanged in silence."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import itertools
import os
import stat
import subprocess
from pathlib import Path

from entrypoint import inuse, log, paths
from entrypoint.plan import PlanError
from entrypoint.services import HOST_KEY

DRAFT = ".new-"  # what the names of unfinished keys begin with


def provide(folder: Path, run: Path) -> None:
    """Let `run`/HOST_KEY be a key that sshd can use: the one kept in `folder`, made there if need be.

    Its public half, for torchtap-fingerprints, lies beside it, where the user can read it.

    Raises `PlanError` when no key can be made at all.
    """
    key = run / HOST_KEY
    try:
        public = _kept(folder)
        key.symlink_to(folder / HOST_KEY)
    except OSError as error:
        # A volume that is full, say. To log in and make room matters more than what clients will say of the key.
        log.error(
            "ssh",
            f"the host key cannot be kept in {folder}: {error.strerror}",
            "This start has a key of its own, which clients will call changed. Make room in the state volume",
        )
        try:
            public = _made(key)
        except OSError as last:
            remedy = "To do without SSH, start with the role jupyter"
            raise PlanError(f"the host key cannot be made: {last.strerror}", remedy) from None
    paths.write(_public(key), public)


def public_of(run: Path) -> str:
    """The public half of what sshd uses in this container. Raises OSError where there is none."""
    return _public(run / HOST_KEY).read_text()


def fingerprint(public: str) -> str:
    """As ssh and ssh-keygen show it.

    >>> fingerprint("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me")
    'SHA256:ZkAslGjFiUHdGf/WUL8rQvkib4PTvQatUV0OUQSncCA'
    """
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _kept(folder: Path) -> str:
    """The public half of the key in the state volume. Raises OSError where there is none and none can be made."""
    key = folder / HOST_KEY
    with inuse.alone(folder) as alone:
        if alone:
            _remove_drafts(folder)
        # In this order: another container links the key first. What it makes from now on is not set aside.
        was_public = os.path.lexists(_public(key))
        was_there = os.path.lexists(key)
        public = _usable(key)
        if public is None:
            public = _new(key, damaged=was_there, gone=was_public and not was_there)
    with contextlib.suppress(OSError):  # beside the key only people read it
        if not _public(key).is_file() or _public(key).read_text() != public:
            paths.write(_public(key), public)
    return public


def _remove_drafts(folder: Path) -> None:
    """What a start left that was cut short."""
    for path in folder.iterdir():
        if path.name.startswith((DRAFT, f".{HOST_KEY}")):
            path.unlink(missing_ok=True)


def _usable(key: Path) -> str | None:
    """The public half of a key that sshd can use; None where there is no such key.

    sshd passes over a key that others can read, so owner and mode are mended first.
    """
    try:
        descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with contextlib.suppress(OSError):  # of another user, where there is no root
            if os.geteuid() == 0:
                os.fchown(
                    descriptor, 0, 0
                )  # first: without CAP_FOWNER root may change the mode of its own files only
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    done = _keygen("-y", "-P", "", "-f", str(key))
    return done.stdout if done.returncode == 0 else None


def _new(key: Path, *, damaged: bool, gone: bool) -> str:
    """Make the key, beside its place first: a crash leaves no half of one, and never two containers two of them."""
    draft = key.with_name(f"{DRAFT}{os.urandom(4).hex()}")
    public = _made(draft)
    if damaged or gone:
        kept = f"The old one is kept as {_set_aside(key)}" if damaged else "The old one is gone"
        # Aloud: to clients a changed key looks like an attack.
        log.error(
            "ssh",
            f"the host key in {key.parent} cannot be used; a new one is made, and clients will call it changed",
            f'{kept}. On each client: ssh-keygen -R "[HOST]:PORT", with host and port as it connects',
        )
    try:
        os.link(draft, key)
        draft.unlink()
    except FileExistsError:  # made meanwhile by another container
        draft.unlink()
        public = _usable(key) or public
    except OSError:  # a file system without hard links
        draft.rename(key)
    return public


def _set_aside(key: Path) -> Path:
    """Give what cannot be used another name, which it keeps."""
    names = (key.with_name(f"{key.name}.damaged-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    return key.rename(aside)


def _made(key: Path) -> str:
    """A new key on the disk, and its public half. Raises OSError; then nothing of it stays."""
    try:
        done = _keygen("-q", "-t", "ed25519", "-N", "", "-C", "torchtap", "-f", str(key))
        if done.returncode:
            raise OSError(errno.EIO, " ".join(done.stderr.split()) or "ssh-keygen failed", str(key))
        with open(key, "rb") as file:
            os.fsync(file.fileno())
        return _public(key).read_text()
    except OSError:
        key.unlink(missing_ok=True)
        raise
    finally:
        _public(key).unlink(missing_ok=True)


def _keygen(*words: str) -> subprocess.CompletedProcess[str]:
    command = ("ssh-keygen", *words)
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def _public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")
