"""The user `dev` under any user id: the three files that libnss-extrausers reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

NAME = "dev"
IMAGE_ID = 1000  # what /etc/passwd of the image says
# libnss-extrausers answers for no id below this one, so that it can never name a system account.
LOWEST_EXTRA_ID = 500


@dataclass(frozen=True, slots=True)
class Account:
    """Who Jupyter, SSH sessions and commands run as."""

    uid: int
    gid: int
    groups: tuple[int, ...]  # supplementary, from --group-add
    home: str
    shell: str = "/bin/bash"

    @property
    def files(self) -> dict[str, str]:
        """Name and text of each file below /var/lib/extrausers.

        >>> Account(12345, 54321, (), "/home/dev").files["passwd"]
        'dev:x:12345:54321::/home/dev:/bin/bash\\n'
        >>> Account(12345, 54321, (44,), "/home/dev").files["group"]
        'dev:x:54321:\\ndev-44:x:44:dev\\n'
        """
        return {
            "passwd": f"{NAME}:x:{self.uid}:{self.gid}::{self.home}:{self.shell}\n",
            # A group of this id may have a name already; a second name for it does no harm.
            # sshd asks these files for the groups of a session, so those of --group-add have lines too.
            "group": f"{NAME}:x:{self.gid}:\n"
            + "".join(f"{NAME}-{group}:x:{group}:{NAME}\n" for group in self.groups),
            # "*" is no password but, other than "!", not a locked account: sshd lets keys in.
            "shadow": f"{NAME}:*:19000:0:99999:7:::\n",
        }


def change_identity(uid: int, gid: int, groups: Iterable[int]) -> None:
    """Be this user from now on, for good. Raises OSError where this process may not."""
    os.setgroups([gid, *groups])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Files are opened and made as this user meanwhile, so that root is led nowhere by the user's links.

    Where this process is not root it stays who it is: there is only one user then.
    """
    before = os.geteuid(), os.getegid()
    if before[0] != 0:
        yield
        return
    try:
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(before[0])
        os.setegid(before[1])
