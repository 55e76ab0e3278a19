"""Step of level full: LSTM and GRU as people train them, through cuDNN and without it."""

from __future__ import annotations

import torch

from torchtap.selftest.child.comparing import compared
from torchtap.selftest.child.devices import each_gpu
from torchtap.selftest.child.networks import forward_backward
from torchtap.selftest.child.running import Reporter, Values
from torchtap.selftest.limits import AMP_TOLERANCE, LSTM_TOLERANCE

KINDS = ("LSTM", "GRU")


def gpu_recurrent(reporter: Reporter) -> Values:
    """Two layers, both directions, forward and backward, in fp32 and with autocast, on every GPU."""
    gpus = []
    for device in each_gpu(reporter):
        for kind in KINDS:
            reporter.say_where(f"GPU {device.index}, {kind}")
            for amp in (False, True):
                what = f"{kind} {'amp' if amp else 'fp32'}"
                gpus.append({"index": device.index, "what": what, **compared_network(device, kind, amp=amp)})
    return {"gpus": gpus}


def compared_network(device: torch.device, kind: str, *, amp: bool) -> Values:
    """The network through cuDNN against the same in fp32 without it: values compared, values that differ."""
    torch.manual_seed(0)
    network = getattr(torch.nn, kind)(32, 64, num_layers=2, bidirectional=True).to(device)
    batch = torch.randn(20, 8, 32).to(device)
    # fp16 where bf16 is emulated: before Ampere.
    half = torch.bfloat16
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        half = torch.float16
    both = []
    for tested in (True, False):
        # TF32 off: with it, the two would differ by rounding alone.
        with (
            torch.backends.cudnn.flags(enabled=tested, allow_tf32=False),
            torch.autocast(device.type, dtype=half, enabled=amp and tested),
        ):
            both.append(forward_backward(network, batch, lambda inputs: network(inputs)[0].float()))
    return compared(both[0], both[1], AMP_TOLERANCE if amp else LSTM_TOLERANCE)
