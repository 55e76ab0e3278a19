"""What the image was built with: its manifest, or the variant table where there is no image."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtap.variants import VARIANTS, Driver, Variant, parse_version

PATH = Path("/opt/torchtap/manifest.json")
VARIABLE = "TORCHTAP_MANIFEST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The image's manifest. `error` is set where it cannot be read, and then nothing else is."""

    path: str
    error: str = ""
    variant: str = ""
    torch: str = ""
    cuda: str | None = None
    cudnn: int | None = None
    arch_list: tuple[str, ...] = ()
    driver_floor: Driver | None = None
    # Later additions, so an image may lack them. `packages`: the folder that holds torch and all that comes with it.
    nccl: str = ""
    triton: str = ""
    packages: str = ""


def read_manifest(env: Mapping[str, str] | None = None, path: Path = PATH) -> Manifest | None:
    """The manifest that `TORCHTAP_MANIFEST` names, else the image's; None where there is none.

    A named file that is missing, and a file that does not hold what it must, come back with `error` set.
    """
    named = (os.environ if env is None else env).get(VARIABLE)
    file = Path(named) if named else path
    if not named and not file.exists():
        return None
    try:
        return _parse(json.loads(file.read_text(encoding="utf-8")), str(file))
    except OSError as error:
        return Manifest(path=str(file), error=error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        return Manifest(path=str(file), error=str(error))


def _parse(written: object, path: str) -> Manifest:
    if not isinstance(written, dict) or written.get("schema") != 1:
        raise ValueError("it is not a manifest of schema 1")
    for key, kinds in (
        ("variant", (str,)),
        ("torch", (str,)),
        ("cuda", (str, type(None))),
        ("cudnn", (int, type(None))),
        ("arch_list", (list,)),
        ("driver_floor", (str, type(None))),
    ):
        if key not in written or not isinstance(written[key], kinds):
            raise ValueError(f"{key} is {written.get(key)!r}")
    floor = written["driver_floor"]
    return Manifest(
        path=path,
        variant=written["variant"],
        torch=written["torch"],
        cuda=written["cuda"],
        cudnn=written["cudnn"],
        arch_list=tuple(str(arch) for arch in written["arch_list"]),
        driver_floor=None if floor is None else parse_version(floor),
        nccl=".".join(map(str, written.get("nccl") or ())),
        triton=str(written.get("triton") or ""),
        packages=str(written.get("packages") or ""),
    )


def variant_like(torch: str, cuda: str | None) -> Variant | None:
    """The variant of this torch and CUDA version, for machines without an image; None where there is none.

    >>> variant_like("2.14.1+cu130", "13.0").name
    'cu130'
    """
    public = torch.partition("+")[0]
    return next((each for each in VARIANTS.values() if each.torch == public and each.cuda == cuda), None)
