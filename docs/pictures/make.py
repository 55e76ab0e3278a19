"""Make the pictures of docs/monitor.md, each of a run of its own: `PYTHONPATH=src python docs/pictures/make.py`.

All seeds are set. The PNGs are small: 90 dots per inch, 256 colours.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import nn

import torchtap
from torchtap.monitor import Watch, WatchWarning, plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
DPI = 90
COLOURS = 256


def healthy() -> Watch:
    """Four linear layers with ReLU learn a sum of sines; the learning rate falls along a cosine."""
    torch.manual_seed(0)
    sizes = (8, 64, 64, 64)
    layers = [each for a, b in pairwise(sizes) for each in (nn.Linear(a, b), nn.ReLU())]
    return train(nn.Sequential(*layers, nn.Linear(64, 1)), steps=300, lr=0.05)


def vanishing() -> Watch:
    """Twenty layers with sigmoids, initialised as PyTorch does."""
    torch.manual_seed(0)
    layers = [each for _ in range(10) for each in (nn.Linear(8, 8), nn.Sigmoid())]
    return train(nn.Sequential(*layers, nn.Linear(8, 1)), steps=60, lr=0.05)


def overflowing() -> Watch:
    """A learning rate that is far too high."""
    torch.manual_seed(0)
    layers = [each for _ in range(4) for each in (nn.Linear(8, 8), nn.LeakyReLU())]
    return train(nn.Sequential(*layers, nn.Linear(8, 1)), steps=12, lr=4.0)


def train(model: nn.Module, steps: int, lr: float) -> Watch:
    """Its watch, closed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with warnings.catch_warnings(), torchtap.watch(model, optimizer) as w:
        warnings.simplefilter("ignore", WatchWarning)
        for _ in range(steps):
            x = torch.randn(64, 8)
            optimizer.zero_grad()
            loss = (model(x) - x.sin().sum(1, keepdim=True)).square().mean()
            w.log(loss=loss)
            loss.backward()
            optimizer.step()
            schedule.step()
    return w


PICTURES: dict[str, tuple[Callable[[], Watch], Callable[[Watch], Figure]]] = {
    "monitor-overview.png": (healthy, plots.overview),
    "monitor-vanishing.png": (vanishing, plots.gradient_flow),
    "monitor-nan.png": (overflowing, plots.nonfinite_timeline),
}


def main() -> None:
    for name, (run, draw) in PICTURES.items():
        drawn = io.BytesIO()
        draw(run()).savefig(drawn, format="png", dpi=DPI)
        Image.open(drawn).convert("RGB").quantize(COLOURS).save(HERE / name, optimize=True)


if __name__ == "__main__":
    main()
