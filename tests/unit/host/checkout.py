"""A copy of the host side in a folder of its own, and fake programs that stand in for docker and nvidia-smi.

The programs are run as a user runs them: as processes, with a PATH, a home and an environment of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
COPIED = (
    "Makefile",
    "pyproject.toml",
    "scripts",
    "src/torchtap/__init__.py",
    "src/torchtap/selftest",
    "src/torchtap/variants.py",
    "docker/requirements",
)
ONLY_HERE = {"PATH", "HOME", "LANG", "TERM"}
FAKE = """\
#!{python} -IS
import json, os, re, sys, time
here, name = {folder!r}, {name!r}
argv = sys.argv[1:]
line = " ".join(argv)
calls = os.path.join(here, name + ".calls")
earlier = [" ".join(json.loads(each)["argv"]) for each in open(calls)] if os.path.exists(calls) else []
with open(calls, "a") as file:
    file.write(json.dumps(dict(argv=argv, env=dict(os.environ))) + "\\n")
for row in json.load(open(os.path.join(here, name + ".json"))):
    after, until = row.get("after"), row.get("until")
    if not re.search(row["when"], line):
        continue
    starts = [n for n, each in enumerate(earlier) if after and re.search(after, each)]
    if after and not starts:
        continue
    if until and any(re.search(until, each) for each in earlier[starts[-1] if starts else 0:]):
        continue
    if "sleep_s" in row:
        time.sleep(row["sleep_s"])
    sys.stdout.write(row.get("out", ""))
    sys.stderr.write(row.get("err", ""))
    sys.exit(row.get("rc", 0))
sys.stderr.write("fake " + name + ": nobody expected: " + line + "\\n")
sys.exit(99)
"""


@dataclass
class Fake:
    """A program that answers from a table and records its calls.

    A row: {"when": regex over the arguments, "out", "err", "rc", "sleep_s", "after": only once a call matched this,
    "until": no longer once a later call matched this}. The first row that fits answers; none is exit code 99.
    """

    folder: Path
    name: str

    def answer(self, *rows: Mapping[str, Any]) -> Fake:
        """Replace the table and make the program."""
        (self.folder / f"{self.name}.json").write_text(json.dumps(rows))
        program = self.folder / self.name
        program.write_text(FAKE.format(python=sys.executable, folder=str(self.folder), name=self.name))
        program.chmod(0o755)
        return self

    @property
    def calls(self) -> list[list[str]]:
        return [call["argv"] for call in self._records()]

    def called(self, pattern: str) -> bool:
        return any(re.search(pattern, " ".join(argv)) for argv in self.calls)

    def environment_of(self, pattern: str) -> dict[str, str]:
        """The environment of the first call that matches."""
        found: list[dict[str, str]] = [
            call["env"] for call in self._records() if re.search(pattern, " ".join(call["argv"]))
        ]
        return found[0]

    def _records(self) -> list[dict[str, Any]]:
        file = self.folder / f"{self.name}.calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass
class Checkout:
    """A copied checkout with its own home and PATH."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.root.parent / "home"

    def fake(self, name: str) -> Fake:
        return Fake(self.root.parent / "bin", name)

    def run(
        self, script: str, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run scripts/NAME and capture what it says."""
        return self.call([sys.executable, str(self.root / "scripts" / script), *arguments], env, timeout_s)

    def make(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run make in the checkout, with this Python."""
        return self.call([shutil.which("make") or "make", f"PYTHON={sys.executable}", *words], env, 120)

    def call(
        self, argv: Sequence[str], env: Mapping[str, str] | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env={**self.env, **(env or {})},
            cwd=self.root,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )


def make_checkout(folder: Path, *more: str) -> Checkout:
    """Copy what the host side needs (and `more`) into `folder`/checkout. PATH holds nothing but fakes."""
    root = folder / "checkout"
    for name in (*COPIED, *more):
        source, target = REPOSITORY / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)
    (folder / "home").mkdir()
    (folder / "bin").mkdir()
    for tool in ("sh", "cat", "stat", "tail", "env", "true"):
        (folder / "bin" / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    kept = {key: value for key, value in os.environ.items() if key in ONLY_HERE}
    env = {**kept, "PATH": str(folder / "bin"), "HOME": str(folder / "home"), "COLUMNS": "80"}
    return Checkout(root, env)
