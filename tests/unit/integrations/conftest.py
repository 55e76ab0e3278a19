"""The libraries, imported before the tests that use them."""

from __future__ import annotations

import os

import lightning.pytorch  # noqa: F401

# Lightning sets it at import, and torch.cuda.is_available() then asks NVML in every later test: it counts the GPUs of
# the stand-in that tests/unit/engine has loaded, and PyTorch looks for a driver that is not there.
os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
