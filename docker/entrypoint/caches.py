"""Where programs keep what is dear to make again: in the home volume, so that it outlives the container.

Inductor's default is a folder in /tmp; the others' defaults follow HOME, each by a rule of its own. What is in there is
keyed by the versions that made it, so another image beside or after this one does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Variable, folder below the cache directory, and what is kept there.
CACHES = (
    ("HF_HOME", "huggingface", "models and data sets of Hugging Face, and its login"),
    ("TORCH_HOME", "torch", "weights of torch.hub and torchvision"),
    ("TRITON_CACHE_DIR", "triton", "kernels that Triton compiled"),
    ("TORCHINDUCTOR_CACHE_DIR", "torchinductor", "what torch.compile generated"),
)


def places(home: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are not set yet, with their folders.

    >>> places("/home/dev", {"HF_HOME": "/models", "TORCH_HOME": ""})["TORCH_HOME"]
    '/home/dev/.cache/torch'
    >>> "HF_HOME" in places("/home/dev", {"HF_HOME": "/models"})
    False
    """
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(home) / ".cache")
    return {name: str(cache / folder) for name, folder, _ in CACHES if not environment.get(name)}
