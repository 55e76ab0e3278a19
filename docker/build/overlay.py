"""Prepare what start needs to lay a user's own packages over the base: writes /opt/torchtap/overlay.

Run by the build with the base's Python, once everything is installed. `base.json` says what the base holds and which of
it is pinned; `constraints.txt` pins it for pip and uv; `bin` holds the base's programs, run by the interpreter that the
user's `python` is. And `pip3.12` and `python3.12` lead where `pip` and `python` do, whatever the version is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

# What must stay together with torch: its own requirements of these names, torch and triton themselves.
PINNED = re.compile(r"torch|triton|(nvidia|cuda)-.*")
# The parts of the manifest that decide whether packages with compiled code still fit.
FITS = ("variant", "torch", "cuda", "cudnn", "nccl", "arch_list")
# Not for the user's interpreter: pip has a wrapper, and the self-test must work when the user's packages do not.
OWN_PROGRAMS = frozenset({"pip", "torchtap"})
ENTRY_POINTS = "entry_points.txt"
# Programs that the base has under several names, and what each must be in the image's own folder: by another name root
# would change the base without a word, and the distribution's python knows no torch.
SPELLINGS = {"pip": "pip", "python": "env-python"}


def normal(name: str) -> str:
    """A distribution's name as it is compared.

    >>> normal("Nvidia_cuDNN.cu13")
    'nvidia-cudnn-cu13'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirements: Mapping[str, Iterable[str]], name: str) -> set[str]:
    """The distribution and all that it requires, directly or not, of those that are there.

    >>> sorted(required({"torch": ["triton~=3.8; os == 'x'", "gone"], "triton": [], "rich": []}, "torch"))
    ['torch', 'triton']
    """
    found: set[str] = set()
    pending = [name]
    while pending:
        one = pending.pop()
        if one in requirements and one not in found:
            found.add(one)
            pending += [normal(re.match(r"[\w.-]+", text)[0]) for text in requirements[one]]  # type: ignore[index]
    return found


def key(manifest: Mapping[str, Any], python: str) -> str:
    """The overlay's folder: packages with compiled code fit torch, CUDA and Python's minor version.

    >>> key({"variant": "cu130", "torch": "2.14.1"}, "3.12")
    'cu130-torch2.14.1-py3.12-138052b0'
    """
    parts = json.dumps([[manifest.get(name) for name in FITS], python])
    digest = hashlib.sha256(parts.encode()).hexdigest()[:8]
    return f"{manifest['variant']}-torch{manifest['torch']}-py{python}-{digest}"


def described(found: list[Distribution], manifest: Mapping[str, Any], packages: Path) -> dict[str, Any]:
    """What base.json says."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    by_name = {normal(each.metadata["Name"]): each for each in found}
    requirements = {name: each.requires or [] for name, each in by_name.items()}
    pinned = {name for name in required(requirements, "torch") if PINNED.fullmatch(name)}
    return {
        "schema": 1,
        "key": key(manifest, python),
        "python": python,
        "packages": str(packages),
        "pinned": {name: by_name[name].version for name in sorted(pinned)},
        # The folder of each distribution, and whether it has entry points.
        "stubs": {
            folder.name: (folder / ENTRY_POINTS).exists()
            for folder in sorted(packages.glob("*.dist-info"))
            if (folder / "METADATA").exists()
        },
    }


def programs(source: Path, interpreter: str) -> dict[str, bytes]:
    """The base's Python programs, by name, for another interpreter."""
    found = {}
    for path in sorted(source.iterdir()):
        name = path.name
        if path.is_symlink() or not path.is_file() or re.sub(r"[\d.]+$", "", name) in OWN_PROGRAMS:
            continue
        first, _, rest = path.read_bytes().partition(b"\n")
        if first == f"#!{source}/python".encode():
            found[name] = f"#!{interpreter}\n".encode() + rest
    return found


def spell(source: Path, out: Path) -> list[str]:
    """Give the image's own folder each name of pip and python that the base's has; those that are new."""
    new = []
    for path in sorted(source.iterdir()):
        target = SPELLINGS.get(re.sub(r"[\d.]+$", "", path.name))
        if target and not (out / path.name).exists():
            (out / path.name).symlink_to(target)
            new.append(path.name)
    return new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--interpreter", required=True, help="what runs the programs")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    packages = Path(sysconfig.get_path("purelib"))
    found = list(distributions(path=[str(packages)]))
    base = described(found, json.loads(arguments.manifest.read_text()), packages)
    (arguments.out / "bin").mkdir(parents=True)
    (arguments.out / "base.json").write_text(json.dumps(base, indent=1) + "\n")
    pins = "".join(f"{name}=={version}\n" for name, version in base["pinned"].items())
    why = "# What this image was built and tested with. torchtap-env unpin lifts it.\n"
    (arguments.out / "constraints.txt").write_text(why + pins)
    for name, text in programs(Path(sys.prefix) / "bin", arguments.interpreter).items():
        path = arguments.out / "bin" / name
        path.write_bytes(text)
        path.chmod(0o755)
    spell(Path(sys.prefix) / "bin", Path(arguments.interpreter).parent)
    # Where Jupyter looks last, whoever its interpreter is: kernels, extensions and templates of the base.
    for place in ("share", "etc"):
        link = Path("/usr/local") / place / "jupyter"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(sys.prefix) / place / "jupyter")
    print(json.dumps({name: base[name] for name in ("key", "pinned")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
