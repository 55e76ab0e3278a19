"""Statistics of one tensor: a row of eight numbers, measured in about one pass, and what is derived from many rows.

`host_row` reads a tensor in the memory of the CPU and writes its row at once; `device_row` leaves all on the tensor's
device and never waits for it. Neither changes the tensor, its version, grad mode or any random state, and neither is
recorded by autograd. Ask `refusal` first: it says which tensors are not measured, and why.

    python -m torchtap.monitor.stats            which code measures here, and why
    python -m torchtap.monitor.stats --build    compile the C kernel
"""

from __future__ import annotations

from torchtap.monitor.stats.host import host_row
from torchtap.monitor.stats.on_device import device_row
from torchtap.monitor.stats.refusing import refusal
from torchtap.monitor.stats.rows import COLUMNS, ROW, derive

__all__ = ["COLUMNS", "ROW", "derive", "device_row", "host_row", "refusal"]
