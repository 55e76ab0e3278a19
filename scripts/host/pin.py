"""`make pin`: the base images by digest in the Dockerfile, so that a tag that moves changes nothing.

Only the FROM lines of the stages `variant-*` are rewritten, all of them or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from host import proc
from host.paths import Paths
from host.show import FAILED, Problem, say

BASE = re.compile(
    r"^FROM (?P<tag>[^\s@]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))? AS variant-(?P<variant>\w+)$", re.M
)
DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
TIMEOUT_S = 60.0


def bases(dockerfile: str) -> dict[str, str | None]:
    """Each base by its tag, and the digest that stands there.

    >>> bases("FROM ubuntu:24.04 AS variant-cpu\\nFROM os AS tools\\n")
    {'ubuntu:24.04': None}
    """
    return {match["tag"]: match["digest"] for match in BASE.finditer(dockerfile)}


def written(dockerfile: str, digests: dict[str, str]) -> str:
    """The Dockerfile with these digests; a base that is not among them is named by its tag alone."""

    def line(match: re.Match[str]) -> str:
        digest = digests.get(match["tag"])
        return f"FROM {match['tag']}{f'@{digest}' if digest else ''} AS variant-{match['variant']}"

    return BASE.sub(line, dockerfile)


def ask(tag: str) -> str:
    """The digest that the registry has for a tag now: that of the index, for all machines. Raises `Problem`."""
    form = "{{.Manifest.Digest}}"
    done = proc.ask(["docker", "buildx", "imagetools", "inspect", "--format", form, tag], timeout_s=TIMEOUT_S)
    if done.rc == proc.NOT_FOUND:
        raise Problem("docker is not installed: it asks the registry for the digests", code=FAILED)
    digest = done.out.strip()
    if not done.ok or not DIGEST.match(digest):
        words = done.said.removeprefix("ERROR: ")
        raise Problem(
            f"the digest of {tag} could not be had: {words}",
            "The Dockerfile is as it was: its tags work without digests.",
            code=FAILED,
        )
    return digest


def pin(argv: Sequence[str], registry: Callable[[str], str] = ask) -> int:
    """Write the digests; --check compares only (exit code 1: not what the registry has); --unpin takes them out."""
    if len(argv) > 1 or set(argv) - {"--check", "--unpin"}:
        raise Problem(f"{' '.join(argv)!r} is not understood: --check or --unpin")
    file = Paths().root / "Dockerfile"
    text = file.read_text()
    now = bases(text)
    if not now:
        raise Problem("the Dockerfile has no line FROM … AS variant-…", code=FAILED)
    wanted = {} if argv == ["--unpin"] else {tag: registry(tag) for tag in now}
    if argv == ["--check"]:
        off = [tag for tag, digest in wanted.items() if now[tag] != digest]
        for tag in now:
            state = (
                f"{now[tag] or 'not pinned'}, the registry has {wanted[tag]}" if tag in off else "as pinned"
            )
            say("pin", f"{tag}: {state}")
        return FAILED if off else 0
    changed = written(text, wanted)
    for tag, old in now.items():
        new = wanted.get(tag)
        say("pin", f"{tag}: {new or 'by its tag'}{' (as before)' if new == old else ''}")
    if changed != text:
        draft = file.with_name("Dockerfile.tmp")
        draft.write_text(changed)
        draft.chmod(file.stat().st_mode & 0o777)
        draft.replace(file)
        say("Dockerfile", "written; `make build` uses it")
    return 0
