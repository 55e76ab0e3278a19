"""Stand-ins for the base image, made of Debian packages: for machines that reach no container registry.

    python3 tests/engine/base.py            makes what is missing (about 20 s), prints the names

`torchtap-test-base:bookworm` imitates what start-up and build must cope with in the CUDA base image on
Ubuntu 24.04: apt and no Python, a user `ubuntu` with UID and GID 1000, NVIDIA's environment with a
requirement stricter than CUDA's minor-version compatibility, labels that are true of the base only.
`torchtap-test-base:nopython` has a shell but neither Python nor apt, like many small images: the build must
refuse it with one clear line.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine import privateroot
from tests.engine.engine import Engine, EngineError, EngineUnavailable, ensure, say

LABEL = "torchtap.test-base.recipe"


@dataclass(frozen=True, kw_only=True)
class Base:
    """How one stand-in is made: mmdebstrap, then `docker import` with changes."""

    name: str
    suite: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()  # of mmdebstrap
    changes: tuple[str, ...] = ()  # Dockerfile instructions that `docker import` takes

    @property
    def recipe(self) -> str:
        """A word that changes with anything the image is made of."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


CUDA = Base(
    name="torchtap-test-base:bookworm",
    suite="bookworm",
    packages=("ca-certificates",),
    options=(
        '--customize-hook=chroot "$1" useradd --create-home --shell /bin/bash --uid 1000 --user-group ubuntu',
        '--customize-hook=printf "%s\\n" /usr/local/nvidia/lib /usr/local/nvidia/lib64 '
        '> "$1/etc/ld.so.conf.d/nvidia.conf"',
        '--customize-hook=rm -rf "$1"/var/lib/apt/lists/*',  # as in the real one: apt-get update comes first
    ),
    changes=(
        "ENV PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:"
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        "ENV NVARCH=x86_64",
        "ENV CUDA_VERSION=13.0.2",
        "ENV NVIDIA_VISIBLE_DEVICES=all",
        "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        # A host with driver 580 offers CUDA 13.0: enough for the image, refused by the base's requirement.
        'ENV NVIDIA_REQUIRE_CUDA="cuda>=13.0.2 brand=tesla,driver>=570,driver<571"',
        "LABEL org.opencontainers.image.ref.name=ubuntu",
        "LABEL org.opencontainers.image.version=24.04",
        'CMD ["/bin/bash"]',
    ),
)
NO_PYTHON = Base(
    name="torchtap-test-base:nopython",
    suite="bookworm",
    packages=("busybox-static",),
    options=(
        "--variant=extract",  # unpacked only: no dpkg, no apt, no libc
        '--extract-hook=mkdir -p "$1/tmp" "$1/root" && chroot "$1" /bin/busybox --install -s /bin',
        '--extract-hook=echo "root:x:0:0:root:/root:/bin/sh" > "$1/etc/passwd"',
    ),
    changes=("ENV PATH=/usr/local/bin:/usr/bin:/bin", 'CMD ["/bin/sh"]'),
)
BASES = (CUDA, NO_PYTHON)


def ensure_base(engine: Engine, base: Base = CUDA) -> str:
    """Make the stand-in, unless an image of this name and recipe is there. Returns its name.

    Raises `EngineUnavailable` where mmdebstrap cannot run, `EngineError` where the engine refuses the image.
    """
    label = f'{{{{index .Config.Labels "{LABEL}"}}}}'
    have = engine.docker("image", "inspect", "--format", label, base.name, check=False)
    if have.returncode == 0 and have.stdout.strip() == base.recipe:
        return base.name
    say(f"making {base.name} from Debian {base.suite} (about 15 s)")
    with tempfile.TemporaryDirectory(prefix="torchtap-base.") as folder:
        packed = Path(folder) / "base.tar"
        try:
            privateroot.install_host_tools(say)
            privateroot.bootstrap(base.suite, base.packages, str(packed), *base.options)
        except privateroot.RootError as error:
            raise EngineUnavailable(f"cannot make {base.name}: {error}") from None
        changes = [f"--change={change}" for change in (*base.changes, f"LABEL {LABEL}={base.recipe}")]
        engine.docker("import", *changes, packed, base.name)
    return base.name


def main() -> int:
    try:
        engine = ensure()
        for base in BASES:
            sys.stdout.write(ensure_base(engine, base) + "\n")
    except (EngineUnavailable, EngineError, subprocess.SubprocessError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
