"""The virtual environment of local mode, of the tests and of the tools: made from the locks, kept, repaired.

A stamp inside says for which locks and which Python it is complete. With a stamp that fits, `ensure` takes
milliseconds; without one all is installed again over what lies there, quickly where it is right already.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from host import disk, gpu, proc
from host.command import HELP
from host.paths import Paths
from host.settings import settle
from host.show import Problem, paste, say, ticking
from torchtap.variants import DEFAULT, PYTORCH_INDEX, VARIANTS, Variant

STAMP = "torchtap-complete.json"
PROBE_TIMEOUT_S = 8.0
LAB, BUILD, DEV = "lab.lock", "build.lock", "dev.lock"


@dataclass(frozen=True, slots=True)
class Venv:
    """A virtual environment by its place."""

    path: Path

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def stamp(self) -> Path:
        return self.path / STAMP

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` as an activated environment has it."""
        active = {key: value for key, value in environ.items() if key != "PYTHONHOME"}
        return {
            **active,
            "VIRTUAL_ENV": str(self.path),
            "PATH": f"{self.bin}{os.pathsep}{environ.get('PATH', os.defpath)}",
        }


def locks_of(paths: Paths, variant: str, *, dev: bool) -> dict[str, str]:
    """What an environment is made from, in install order: file name → hash."""
    names = [f"torch-{variant}.lock", LAB, BUILD, *([DEV] if dev else [])]
    files = [*(paths.requirements / name for name in names), paths.root / "pyproject.toml"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def read_stamp(paths: Paths, venv: Venv) -> dict[str, str]:
    """The stamp's content; empty where there is none, or for another place (scripts hold theirs)."""
    try:
        content = json.loads(venv.stamp.read_text())
    except (OSError, ValueError):
        return {}
    at_home = (
        isinstance(content, dict)
        and content.get("place") == str(venv.path)
        and content.get("checkout") == str(paths.root)
    )
    return (
        content if at_home and venv.python.exists() else {}
    )  # the host's Python may be gone: a dangling link


def choose(
    forced: str, host: gpu.HostGpus, installed: str, cpu_reachable: Callable[[], bool]
) -> tuple[Variant, str]:
    """Which torch, and why in a few words. Without a GPU what is installed is kept: any variant works.

    >>> choose("", gpu.HostGpus(), "", lambda: False)[0].name
    'cu130'
    """
    if forced:
        return VARIANTS[forced], "VARIANT says so"
    if host.present:
        fits = gpu.variant_for(host)
        if fits is None:
            return VARIANTS[
                installed or DEFAULT
            ], f"the default: {host.trouble or 'no variant fits driver ' + host.driver_text}"
        return fits, f"fits {host}"
    if installed:
        return VARIANTS[installed], "already installed; no NVIDIA GPU here"
    if cpu_reachable():
        return VARIANTS["cpu"], "no NVIDIA GPU here"
    return VARIANTS[DEFAULT], "no NVIDIA GPU here, but PyTorch's CPU wheels are out of reach"


def ensure(
    paths: Paths, *, forced: str = "", index: str = "", dev: bool = False, host: gpu.HostGpus | None = None
) -> tuple[Venv, Variant]:
    """A complete environment, made or repaired as needed. After a `Problem` no stamp calls it complete.

    `host` None: GPUs do not matter to the caller (tests, tools); asked only before torch is chosen.
    """
    venv = Venv(paths.venv)
    stamp = read_stamp(paths, venv)
    installed = stamp.get("variant", "")
    installed = installed if installed in VARIANTS else ""
    if host is None:
        host = gpu.HostGpus() if installed else gpu.look()
    variant, why = choose(forced, host, installed, lambda: index_has_cpu_torch(python_with_pip(venv), index))
    wanted = locks_of(paths, variant.name, dev=dev)
    missing = [name for name, digest in wanted.items() if stamp.get(name) != digest]
    if installed == variant.name and not missing:
        return venv, variant
    say("venv", f"{paths.short(venv.path)}: PyTorch {variant.torch} {variant.name} ({why})")
    make(paths, venv, variant, {**stamp, **wanted}, missing, index=index)
    return venv, variant


def python_with_pip(venv: Venv) -> Path:
    return venv.python if venv.python.exists() else Path(sys.executable)


def index_has_cpu_torch(python: Path, index: str) -> bool:
    """Whether PyTorch's CPU wheel can be had now. pip asks: its proxy and certificate settings hold."""
    cpu = VARIANTS["cpu"]
    address = index or cpu.index or PYTORCH_INDEX.format(variant="cpu")
    options = ["--index-url", address, "--timeout", "4", "--retries", "0", "--disable-pip-version-check"]
    answer = proc.ask(
        [python, "-m", "pip", "index", "versions", "torch", *options], timeout_s=PROBE_TIMEOUT_S
    )
    return answer.ok and f"{cpu.torch}+cpu" in answer.out


def check_python() -> None:
    """Raises `Problem` when this Python cannot make a virtual environment (Debian splits it)."""
    answer = proc.ask([sys.executable, "-c", "import venv, ensurepip"])
    if not answer.ok:
        minor = f"python3.{sys.version_info.minor}"
        raise Problem(
            f"{sys.executable} cannot make a virtual environment (venv or ensurepip is missing)",
            f"Debian and Ubuntu: sudo apt install {minor}-venv",
        )


def make(
    paths: Paths,
    venv: Venv,
    variant: Variant,
    stamp: Mapping[str, str],
    missing: Sequence[str],
    *,
    index: str,
) -> None:
    """Install what is missing. The stamp goes first and comes back last: an interrupted run is repaired."""
    check_python()
    venv.stamp.unlink(missing_ok=True)
    if not usable(venv):
        size = disk.CUDA_VENV_BYTES if variant.cuda else disk.CPU_VENV_BYTES
        disk.need(
            venv.path,
            size,
            f"PyTorch {variant.name} with its packages",
            "Free some, or choose another disk: TORCHTAP_VENV=/there/venv",
        )
        begin(paths, venv)
        missing = list(locks_of(paths, variant.name, dev=DEV in missing))
    for name in missing:
        title, options = step(paths, name, variant, index)
        if name.startswith("torch-"):
            forget_other_torch(venv, paths.requirements / name)
        pip(venv, title, options)
    draft = venv.stamp.with_suffix(".tmp")
    place = {"variant": variant.name, "place": str(venv.path), "checkout": str(paths.root)}
    draft.write_text(json.dumps({**stamp, **place}, indent=1) + "\n")
    draft.replace(venv.stamp)


def begin(paths: Paths, venv: Venv) -> None:
    """A new, empty environment in the place of a broken one. Any other folder is left alone."""
    there = venv.path.exists() and any(venv.path.iterdir())
    if there and not (venv.path / "pyvenv.cfg").exists():
        raise Problem(
            f"{paths.short(venv.path)} is there and is no virtual environment",
            "Move it away, or choose TORCHTAP_VENV=…",
        )
    if there:
        say("venv", f"{paths.short(venv.path)} is broken, or was made in another place: it is made anew")
        shutil.rmtree(venv.path)
    if proc.watch([sys.executable, "-m", "venv", venv.path]) != 0:
        raise Problem(f"python3 -m venv {paths.short(venv.path)} failed (its message is above)", code=1)


def pip(venv: Venv, title: str, options: Sequence[str]) -> None:
    """One `pip install`, its steps shown beside the time. Raises `Problem` after pip's own words."""
    command: list[str | Path] = [
        venv.python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        *options,
    ]
    say("install", title)
    with ticking("") as ticker:
        done = proc.follow(command, ticker.tick, pick=pip_is_at)
    if not done.ok:
        print("\n".join(done.err.splitlines()[-12:]), file=sys.stderr)
        raise Problem(
            f"pip could not install {title} (its own words are above)",
            "Then run it again: what is installed is kept. Behind a proxy: set https_proxy.",
            code=1,
        )


def pip_is_at(line: str) -> str:
    """What a line of pip's output says of its progress; empty for the many that say nothing of it.

    >>> pip_is_at("  Downloading torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl (531.2 MB)")
    'downloading torch-2.14.1 (531.2 MB)'
    >>> pip_is_at("Installing collected packages: mpmath, torch"), pip_is_at("  Successfully uninstalled pip-23.0.1")
    ('installing 2 packages', '')
    """
    if match := re.search(r"Downloading (?:\S*/)?([^/\s-]+-[^-\s]+)\S*(?: (\(.*\)))?", line):
        return f"downloading {' '.join(filter(None, match.groups()))}"
    if match := re.match(r"Collecting ([^\s;(]+)", line):
        return f"looking for {match[1]}"
    if match := re.match(r"Installing collected packages: (.+)", line):
        return f"installing {match[1].count(',') + 1} packages"
    return ""


def forget_other_torch(venv: Venv, lock: Path) -> None:
    """Remove a torch of another build: to pip, an installed 2.14.1+cpu satisfies 2.14.1 and would stay."""
    program = "import importlib.metadata as m; print(m.version('torch'))"
    answer = proc.ask([venv.python, "-c", program])
    pinned = re.search(r"(?m)^torch==([^\s;\\]+)", lock.read_text())
    if answer.ok and pinned and answer.out.strip() != pinned[1]:
        proc.ask([venv.python, "-m", "pip", "uninstall", "--yes", "--quiet", "torch"], timeout_s=120)


def usable(venv: Venv) -> bool:
    """Whether its Python starts, is 3.10 or newer, is where it was made, and has pip."""
    program = "import sys, pip; print(sys.prefix); sys.exit(sys.version_info < (3, 10))"
    answer = proc.ask([venv.python, "-c", program])
    pip = venv.bin / "pip"
    # A moved environment still has the old place in the first line of its scripts.
    return answer.ok and pip.exists() and str(venv.path) in pip.read_text(errors="replace")[:400]


TITLES = {
    LAB: "JupyterLab and the lab's packages",
    BUILD: "what builds torchtap",
    DEV: "tools for tests and lint",
    "pyproject.toml": "torchtap from this checkout",
}


def step(paths: Paths, name: str, variant: Variant, index: str) -> tuple[str, list[str]]:
    """What pip is to install for one of the files of `locks_of`, as (title, options)."""
    if name == "pyproject.toml":
        return TITLES[name], ["--no-deps", "--no-build-isolation", "--editable", str(paths.root)]
    lock = paths.requirements / name
    options = [*(["--require-hashes"] if "--hash=" in lock.read_text() else []), "-r", str(lock)]
    if name == DEV:
        options.append(
            "--no-deps"
        )  # its torchvision asks for the default's torch, which another variant lacks
    if name in TITLES:
        return TITLES[name], options
    address = index or variant.index
    size = "3 GB" if variant.cuda else "200 MB"
    return f"PyTorch {variant.torch} {variant.name} (about {size} to download)", [
        *(["--extra-index-url", address] if address else []),
        *options,
    ]


def main(argv: Sequence[str]) -> int:
    """`scripts/venv [--dev] [COMMAND …]`: make the environment complete, then run COMMAND in it."""
    paths = Paths()
    chosen = settle(os.environ, {})
    dev = argv[:1] == ["--dev"]
    command = argv[1:] if dev else argv
    if list(command[1:]) in HELP and (paths.root / command[0]).parent == paths.root / "scripts":
        return proc.become([sys.executable, *command], env=os.environ)  # what a script of ours says of itself
    venv, variant = ensure(paths, forced=chosen.get("VARIANT"), index=chosen.get("TORCH_INDEX"), dev=dev)
    if not command:
        say("venv", f"{paths.short(venv.path)} is complete: PyTorch {variant.torch} {variant.name}")
        paste(f"source {paths.short(venv.bin / 'activate')}")
        return 0
    rc = proc.become(command, env=venv.environment(os.environ))
    raise Problem(f"{command[0]}: command not found", code=rc)
