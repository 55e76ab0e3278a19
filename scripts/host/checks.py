"""`scripts/test` and `scripts/lint`: what has to be green before a commit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from host import places, proc, venv
from host.paths import Paths
from host.show import Problem, say
from torchtap.variants import DEFAULT, VARIANTS


def test(argv: Sequence[str]) -> int:
    """Run the tests that this machine can run. Arguments go to pytest."""
    paths = Paths()
    place, _ = venv.ensure(paths, dev=True)
    command: list[str | Path] = [place.python, "-m", "pytest", *argv]
    return proc.become(command, env=place.environment(os.environ), cwd=paths.root)


def test_image(argv: Sequence[str]) -> int:
    """Run every image test, on the variant that VARIANT names. Arguments go to pytest."""
    paths = Paths()
    variant = places.settings(paths).get("VARIANT") or DEFAULT
    if not VARIANTS[variant].built_here:
        say(
            "note",
            f"{variant} comes from PyTorch's own wheel index; its tests are those of the built variants",
        )
    place, _ = venv.ensure(paths, dev=True)
    say("test-image", f"variant {variant}")
    command: list[str | Path] = [place.python, "-m", "pytest", "tests/image", *argv]
    return proc.become(command, env={**place.environment(os.environ), "VARIANT": variant}, cwd=paths.root)


def bench(argv: Sequence[str]) -> int:
    """Run the benchmarks: all subjects, or the one named; further arguments go to it."""
    paths = Paths()
    subjects = sorted(path.stem for path in (paths.root / "benchmarks").glob("[a-z]*.py"))
    wanted, arguments = (list(argv[:1]), argv[1:]) if argv else (subjects, [])
    unknown = [each for each in wanted if each not in subjects]
    if unknown:
        raise Problem(f"there is no benchmark {unknown[0]!r}", f"There are: {', '.join(subjects)}")
    place, _ = venv.ensure(paths, dev=True)
    worst = 0
    for subject in wanted:
        say("bench", subject)
        command: list[str | Path] = [place.python, "-m", f"benchmarks.{subject}", *arguments]
        worst = max(worst, proc.watch(command, env=place.environment(os.environ), cwd=paths.root))
    return worst


def is_script(path: Path, *interpreters: str) -> bool:
    """Whether the first line of a file names one of these interpreters."""
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and any(name.encode() in first for name in interpreters)


def tracked(paths: Paths) -> list[Path]:
    """Every file of the checkout that git knows or would add."""
    listed = proc.ask(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=paths.root)
    if not listed.ok:
        raise Problem(
            f"git ls-files: {listed.said}", "The linters look at what git knows, so they need a clone."
        )
    return [path for name in listed.out.split("\0") if name and (path := paths.root / name).is_file()]


def lint(argv: Sequence[str]) -> int:
    """Run every linter and say at the end which ones complain. `--fix` lets ruff mend and format."""
    if set(argv) - {"--fix"}:
        raise Problem(f"unknown argument {argv[0]!r}: only --fix is known")
    paths = Paths()
    place, _ = venv.ensure(paths, dev=True)
    files = tracked(paths)
    bare = [path for path in files if not path.suffix]
    python = [".", *map(str, (path for path in bare if is_script(path, "python")))]
    shell = [path for path in files if path.suffix == ".sh" or is_script(path, "/sh", "bash", " sh")]
    docker = [path for path in files if path.name == "Dockerfile"]
    fix = bool(argv)
    checks: list[tuple[str, list[str | Path]]] = [
        ("ruff check", ["ruff", "check", "--quiet", *(["--fix"] if fix else []), *python]),
        ("ruff format", ["ruff", "format", "--quiet", *([] if fix else ["--check", "--diff"]), *python]),
        ("mypy", ["mypy", "--no-error-summary"]),
    ]
    checks += [("shellcheck", ["shellcheck", *shell])] if shell else []
    checks += [("hadolint", ["hadolint", *docker])] if docker else []
    complaints = []
    for title, (tool, *arguments) in checks:
        rc = proc.watch([place.bin / tool, *arguments], env=place.environment(os.environ), cwd=paths.root)
        say("lint", f"{title}: {'ok' if rc == 0 else 'see above'}")
        complaints += [title] if rc else []
    return 1 if complaints else 0
