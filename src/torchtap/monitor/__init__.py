"""What every layer of a network did in each step, at almost no cost.

- `watch(model, optimizer)`: statistics of outputs, output gradients, parameters and updates, in each step.
- `unwatch(model)`: ends it.
- `gather(watch)`: the watches of all ranks of a distributed training; its `diagnose()`: what is wrong over them.
- `find_nan(model, batch, loss)`: which operation, at which line, made the first NaN or Inf.
"""

from __future__ import annotations

from torchtap.monitor._find_nan import NanReport, find_nan
from torchtap.monitor._first import FirstNonfinite
from torchtap.monitor._watch import Watch, WatchWarning, unwatch, watch
from torchtap.monitor.distributed import MissingRankError, gather
from torchtap.monitor.history import Series
from torchtap.monitor.ranks import Ranks

__all__ = [
    "FirstNonfinite",
    "MissingRankError",
    "NanReport",
    "Ranks",
    "Series",
    "Watch",
    "WatchWarning",
    "find_nan",
    "gather",
    "unwatch",
    "watch",
]
