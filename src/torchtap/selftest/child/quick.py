"""The steps of level quick that compute: one small product, one convolution, one LSTM on every device."""

from __future__ import annotations

import torch

from torchtap.selftest.child.comparing import compared
from torchtap.selftest.child.devices import each_gpu
from torchtap.selftest.child.networks import convolutions, lstm_and_formula, lstm_with_and_without_cudnn
from torchtap.selftest.child.products import checked_product
from torchtap.selftest.child.running import Reporter, Values
from torchtap.selftest.limits import CONVOLUTION_TOLERANCE, LSTM_TOLERANCE


def cpu_matmul(_: Reporter) -> Values:
    """A product whose exact result is known, on the CPU."""
    return {"gpus": [{"index": -1, **checked_product(torch.device("cpu"), torch.float32)}]}


def cpu_rnn(_: Reporter) -> Values:
    """An LSTM, forward and backward, against the formula written out."""
    return {"gpus": [{"index": -1, **compared(*lstm_and_formula(torch.device("cpu")), LSTM_TOLERANCE)}]}


def gpu_matmul(reporter: Reporter) -> Values:
    """A product whose exact result is known, on every GPU: fp32, and bf16 where the GPU has it."""
    gpus = []
    for device in each_gpu(reporter):
        types = [torch.float32]
        if torch.cuda.get_device_capability(device)[0] >= 8:
            types.append(torch.bfloat16)
        parts = [checked_product(device, dtype) for dtype in types]
        gpus.append(
            {"index": device.index, **{key: sum(part[key] for part in parts) for key in ("checked", "wrong")}}
        )
    return {"gpus": gpus}


def gpu_cudnn(reporter: Reporter) -> Values:
    """A convolution through cuDNN on every GPU against the same on the CPU."""
    gpus = [
        {"index": device.index, **compared(*convolutions(device), CONVOLUTION_TOLERANCE)}
        for device in each_gpu(reporter)
    ]
    return {"gpus": gpus}


def gpu_rnn(reporter: Reporter) -> Values:
    """An LSTM through cuDNN on every GPU, forward and backward, against the same with cuDNN off."""
    gpus = [
        {"index": device.index, **compared(*lstm_with_and_without_cudnn(device), LSTM_TOLERANCE)}
        for device in each_gpu(reporter)
    ]
    return {"gpus": gpus}
