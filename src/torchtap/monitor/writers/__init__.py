"""Where the steps of a watch are written, by a thread of their own: `watch(model, writers=[JsonLines("runs/a")])`.

| writer | what it writes | read it with |
|---|---|---|
| `JsonLines(folder)` | a run folder: `run.json`, and `steps.jsonl`, a line a step | `read_run(folder)` |
| `Csv(file)` | one line for each tensor of each step | pandas, a spreadsheet |
| `TensorBoard(folder)` | scalars | tensorboard |

One of your own has `start(about)`, `write(record)` and `close()`: see `Writer`.
"""

from __future__ import annotations

from torchtap.monitor.writers.background import WriterWarning
from torchtap.monitor.writers.csv import Csv
from torchtap.monitor.writers.jsonl import JsonLines, read_run
from torchtap.monitor.writers.record import About, Record, Writer
from torchtap.monitor.writers.tensorboard import TensorBoard

__all__ = ["About", "Csv", "JsonLines", "Record", "TensorBoard", "Writer", "WriterWarning", "read_run"]
