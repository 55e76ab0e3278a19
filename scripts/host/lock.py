"""One `make up` or `make down` at a time in a checkout on a host."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from host.paths import Paths
from host.show import Problem


@contextmanager
def held(paths: Paths) -> Iterator[None]:
    """Hold the lock while the body runs; the kernel gives it back however that ends. Raises `Problem` when taken."""
    paths.local.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (paths.local / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Problem(
                "another make up or make down is at work in this checkout", "Wait for it to end."
            ) from None
        yield
