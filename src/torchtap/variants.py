"""The image's variants: what each is built from, what it needs of the host, and which one fits a host.

One table for everything that asks: the build (expected torch, CUDA, cuDNN, NCCL, arch list), the labels, the
self-test's remedies and `make up`. Standard library only: scripts on a bare host import it too.

Sources: driver floors are those of CUDA minor-version compatibility (CUDA 12.x >= 525.60.13, 13.x >= 580.65.06;
CUDA Toolkit release notes, table "CUDA Toolkit and Minimum Required Driver Version"); arch lists and library
versions were read from the installed wheels (cu130, cu128) or stand in PyTorch's RELEASE.md and release issues
(cu126: pytorch#175253, #182849); compute capabilities: NVIDIA's list of CUDA GPUs.

>>> fitting_variant(driver=(570, 86), capability=(8, 0)).name
'cu128'
>>> fitting_variant(driver=(580, 65), capability=(7, 0)).name    # Volta: CUDA 13 has no code for it
'cu128'
"""

from __future__ import annotations

from dataclasses import dataclass

Capability = tuple[int, int]
"""A GPU's compute capability, as in (9, 0) for an H100."""
Driver = tuple[int, ...]
"""A driver version, as in (580, 65, 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to build the image. `None` stands for "not read from a wheel yet", never for "anything goes"."""

    name: str
    base: str
    torch: str
    index: str | None  # None: the Python index that pip uses anyway
    cuda: str | None  # torch.version.cuda
    cudnn: int | None  # torch.backends.cudnn.version()
    nccl: tuple[int, int, int] | None  # torch.cuda.nccl.version()
    arch_list: tuple[str, ...]  # the sm_XY of torch.cuda.get_arch_list(); empty for CPU
    driver_floor: Driver | None
    require_cuda: str | None  # NVIDIA_REQUIRE_CUDA: the floor of the CUDA major, on purpose (Dockerfile)
    built_here: bool  # built and tested by .ci/run; the others need PyTorch's own index

    @property
    def needs(self) -> str:
        """What this variant asks of the host, in words.

        >>> VARIANTS["cu130"].needs
        'driver 580 or newer'
        """
        return f"driver {self.driver_floor[0]} or newer" if self.driver_floor else "no GPU"

    def floor_for(self, capability: Capability | None) -> Driver:
        """The driver from which this build works on a GPU; () where it asks for none.

        >>> VARIANTS["cu128"].floor_for((9, 0)), VARIANTS["cu128"].floor_for((12, 0))
        ((525, 60, 13), (570, 26))
        """
        floor = self.driver_floor or ()
        if capability is None or capability < BLACKWELL or not self.runs_on(capability):
            return floor
        return max(floor, BLACKWELL_FLOOR)

    def runs_on(self, capability: Capability) -> bool:
        """Whether this build holds code for a GPU: same major, built for the same minor or a lower one.

        This is torch's own rule (`torch.cuda._check_capability`), its exceptions (`EXCLUDED`) included.

        >>> VARIANTS["cu130"].runs_on((8, 9)), VARIANTS["cu130"].runs_on((7, 0))
        (True, False)
        """
        if capability in EXCLUDED:
            return False
        major, minor = capability
        built_for = {divmod(int(arch.removeprefix("sm_")), 10) for arch in self.arch_list}
        return any(have == major and at <= minor for have, at in built_for)


PYTORCH_INDEX = "https://download.pytorch.org/whl/{variant}"
# Embedded parts whose code differs from the desktop part of the same major: torch leaves them out by name.
EXCLUDED: frozenset[Capability] = frozenset({(5, 3), (6, 2), (7, 2), (8, 7)})
# Of the CUDA majors in use, the driver from which each works (minor-version compatibility).
CUDA_11_FLOOR: Driver = (450, 80, 2)
CUDA_12_FLOOR: Driver = (525, 60, 13)
CUDA_13_FLOOR: Driver = (580, 65, 6)
BLACKWELL: Capability = (10, 0)
BLACKWELL_FLOOR: Driver = (570, 26)  # the first driver that knows sm_100: CUDA 12.8 GA

VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(
            name="cu130",
            base="nvidia/cuda:13.0.2-base-ubuntu24.04",
            torch="2.14.1",
            index=None,
            cuda="13.0",
            cudnn=92400,
            nccl=(2, 30, 7),
            arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
            driver_floor=CUDA_13_FLOOR,
            require_cuda="cuda>=13.0",
            built_here=True,
        ),
        Variant(
            name="cu128",
            base="nvidia/cuda:12.8.1-base-ubuntu24.04",
            torch="2.9.1",
            index=None,
            cuda="12.8",
            cudnn=91002,
            nccl=(2, 27, 5),
            arch_list=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
            driver_floor=CUDA_12_FLOOR,
            require_cuda="cuda>=12.0",
            built_here=True,
        ),
        Variant(
            name="cu126",
            base="nvidia/cuda:12.6.3-base-ubuntu24.04",
            torch="2.14.1",
            index=PYTORCH_INDEX.format(variant="cu126"),
            cuda="12.6",
            cudnn=91002,
            nccl=None,
            arch_list=("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
            driver_floor=CUDA_12_FLOOR,
            require_cuda="cuda>=12.0",
            built_here=False,
        ),
        Variant(
            name="cpu",
            base="ubuntu:24.04",
            torch="2.14.1",
            index=PYTORCH_INDEX.format(variant="cpu"),
            cuda=None,
            cudnn=None,
            nccl=None,
            arch_list=(),
            driver_floor=None,
            require_cuda=None,
            built_here=False,
        ),
    )
}
DEFAULT = "cu130"
# Which CUDA variant to prefer, best first. cpu is never chosen for a host that has a GPU.
PREFERENCE = ("cu130", "cu128", "cu126")


class UnknownVariantError(ValueError):
    """A variant was asked for that does not exist."""


def variant(name: str) -> Variant:
    """The variant of this name.

    Raises `UnknownVariantError`, which names all of them.

    >>> variant("cu999")
    Traceback (most recent call last):
    ...
    torchtap.variants.UnknownVariantError: unknown VARIANT 'cu999': one of cu130, cu128, cu126, cpu
    """
    if name not in VARIANTS:
        raise UnknownVariantError(f"unknown VARIANT {name!r}: one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def parse_version(text: str) -> Driver:
    """`"580.65.06"` as numbers, so that versions compare part by part.

    Raises `ValueError` for anything else.

    >>> parse_version("580.65.06") > parse_version("580.9")
    True
    """
    return tuple(int(part) for part in text.strip().split("."))


def fitting_variant(driver: Driver, capability: Capability | None = None) -> Variant | None:
    """The best variant for a host's driver and GPU, or None where none fits.

    `capability` None means that the GPU could not be asked: then the driver alone decides.

    >>> print(fitting_variant((470, 82, 1), (7, 5)))
    None
    >>> fitting_variant((535, 54), (6, 1)).name                      # Pascal
    'cu126'
    """
    for name in PREFERENCE:
        candidate = VARIANTS[name]
        if driver < candidate.floor_for(capability):
            continue
        if capability is None or candidate.runs_on(capability):
            return candidate
    return None
