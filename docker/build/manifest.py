"""Compare what is installed with the table of variants, and write the image's manifest.

Run by the build, with the image's Python, after torch and the lab are in. Exit code 1 ends the build: an image
never calls itself something that it is not.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # variants.py is mounted beside this file


def installed() -> dict[str, Any]:
    """What the wheels say of themselves; no GPU is needed for any of it."""
    import torch

    cuda = torch.version.cuda
    # get_arch_list() may answer [] where no GPU is visible (2.9); this is what it is made from.
    architectures = (torch._C._cuda_getArchFlags() or "").split() if cuda else []
    return {
        "torch": torch.__version__.partition("+")[0],
        "cuda": cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]
        "nccl": list(torch.cuda.nccl.version()) if cuda else None,  # type: ignore[no-untyped-call]
        "arch_list": [name for name in architectures if name.startswith("sm_")],
    }


def triton() -> str | None:
    """The version of Triton that came with torch; None for a CPU build."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """One line for each value that is not what the table says. A value the table does not know is no difference.

    >>> differences({"torch": "2.14.1", "nccl": None}, {"torch": "2.13.0", "nccl": [2, 30, 7]})
    ["torch is '2.13.0', the table of variants says '2.14.1'"]
    """
    return [
        f"{name} is {found[name]!r}, the table of variants says {value!r}"
        for name, value in expected.items()
        if value is not None and found[name] != value
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--base", default="", help="BASE_IMAGE of the build; empty for the variant's own")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()

    import variants  # type: ignore[import-not-found]

    row = variants.variant(arguments.variant)
    found = installed()
    expected = {
        "torch": row.torch,
        "cuda": row.cuda,
        "cudnn": row.cudnn,
        "nccl": list(row.nccl) if row.nccl else None,
        "arch_list": list(row.arch_list),
    }
    wrong = differences(expected, found)
    if row.cuda is None and found["cuda"] is not None:
        wrong.append(f"cuda is {found['cuda']!r}, but variant {row.name} is a CPU build")
    if wrong:
        print(f"torchtap: this is not variant {row.name}:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    manifest = {
        "schema": 1,
        "variant": row.name,
        **found,
        "driver_floor": ".".join(map(str, row.driver_floor)) if row.driver_floor else None,
        "require_cuda": row.require_cuda,
        "base": arguments.base or row.base,
        "python": platform.python_version(),
        # For the self-test: what goes with torch, and where it must come from.
        "triton": triton(),
        "packages": sysconfig.get_path("purelib"),
    }
    arguments.out.write_text(json.dumps(manifest, indent=2) + "\n")
    print(json.dumps(manifest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
