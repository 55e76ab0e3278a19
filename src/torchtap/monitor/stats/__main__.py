"""Says which code makes the statistics here, and why; with --build, compiles the C kernel first."""

from __future__ import annotations

import argparse
import sys

from torchtap.monitor.stats import build, kernel, on_device

OPERATORS = "PyTorch's operators"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m torchtap.monitor.stats", description=__doc__)
    parser.add_argument("--build", action="store_true", help="compile the C kernel for this machine")
    if parser.parse_args(argv).build:
        try:
            build.build()
        except build.BuildError as error:
            sys.stderr.write(f"torchtap: not compiled: {error}\n")
            return 1
    found = kernel.found()
    sys.stdout.write(f"CPU tensors: {'C kernel' if found.kernel else OPERATORS} ({found.why})\n")
    sys.stdout.write(
        f"GPU tensors: {'Triton' if on_device.uses_triton() else OPERATORS} ({on_device.why()})\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
