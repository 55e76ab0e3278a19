"""Where things lie in a checkout. Nothing here is read or made; the modules that own a file do that."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Paths:
    """The places in one checkout. TORCHTAP_VENV moves the virtual environment (a faster disk, a test)."""

    root: Path = CHECKOUT

    @property
    def env_file(self) -> Path:
        return self.root / ".env"

    @property
    def private(self) -> Path:
        """What make itself keeps: not in git."""
        return self.root / ".torchtap"

    @property
    def gpus_file(self) -> Path:
        return self.private / "compose.gpus.yaml"

    @property
    def local(self) -> Path:
        """State of local mode, by host: a home directory may be shared by several."""
        return self.private / "local" / socket.gethostname()

    @property
    def identity(self) -> Path:
        """Where the private key for `make ssh` lies, when SSH_KEY named its public half."""
        return self.local / "ssh-identity"

    @property
    def requirements(self) -> Path:
        return self.root / "docker" / "requirements"

    @property
    def venv(self) -> Path:
        chosen = os.environ.get("TORCHTAP_VENV")
        return self.root / Path(chosen).expanduser() if chosen else self.root / ".venv"

    def short(self, path: Path) -> str:
        """A path as a person would write it from the checkout: relative inside it, ~ for the home."""
        for base, prefix in ((self.root, ""), (Path.home(), "~/")):
            if path.is_relative_to(base):
                return prefix + str(path.relative_to(base))
        return str(path)
