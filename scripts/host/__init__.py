"""The host side: what `make up`, `make down` and their kin do. Standard library only, one subject a module.
(`sbom` alone needs a tool of .venv, and is called through scripts/venv.)

Facts are gathered (engine, gpu, ports, disk, keys, settings), a plan is made of them (plan: pure), and
it is carried out (docker, local). Everything a person reads goes through `show`.
"""

import sys

# The one place that looks at Python's version, so it must be readable for old ones too.
if sys.version_info < (3, 10):  # noqa: UP036 - python3 of a host may well be older
    sys.exit(
        "torchtap: needs Python 3.10 or newer, this is %d.%d.\n" % sys.version_info[:2]  # noqa: UP031
        + "  Have a newer one? Name it:  make up PYTHON=python3.12"
    )

from pathlib import Path

# For torchtap.variants, which needs nothing but the standard library either.
sys.path.append(str(Path(__file__).resolve().parents[2] / "src"))
