"""Read what nvidia-smi says, on every driver from 390 to 610, and tell what it means. A library: runs no process.

`judge` takes one output as text and says pass, warn, fail, retry (it says nothing about the GPU: ask again
differently) or unknown, and names causes. Cells decide before the text, the text before the exit code: nvidia-smi
prints its errors to standard output, and exits with 0 while a cell says that the GPU is lost.

Notes never change a verdict: persistence mode off, MIG on, a field that a product does not have. Tables are read for
error words, GPU names and missing GPUs, never for version numbers: the banner was renamed in driver 610.

>>> judge("Failed to initialize NVML: Driver/library version mismatch", rc=18).causes
((None, 'driver_library_mismatch'),)
>>> query = "nvidia-smi --query-gpu=index,temperature.gpu --format=csv,noheader,nounits"
>>> judge("0, 34\\n1, [GPU is lost]\\n", rc=0, command=query).causes
((1, 'gpu_lost'),)
"""

from torchtap.selftest.smi.cells import Cell, CellState, read_cell
from torchtap.selftest.smi.forms import (
    Kind,
    ListedGpu,
    Row,
    fields_of,
    read_csv,
    read_list,
    read_table,
    read_version,
)
from torchtap.selftest.smi.judging import Finding, Judgement, Verdict, judge

__all__ = [
    "Cell",
    "CellState",
    "Finding",
    "Judgement",
    "Kind",
    "ListedGpu",
    "Row",
    "Verdict",
    "fields_of",
    "judge",
    "read_cell",
    "read_csv",
    "read_list",
    "read_table",
    "read_version",
]
