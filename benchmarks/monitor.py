"""Measure torchtap.watch(): what a watched training step costs, beside the same step without.

    python -m benchmarks.monitor                    all workloads, every step and every 10th
    python -m benchmarks.monitor --only MLP         one of them
    python -m benchmarks.monitor --pairs 100        more pairs, narrower intervals
    python -m benchmarks.monitor --json FILE        also as JSON

A pair is a bare and a watched step (zero_grad, forward, loss, backward, SGD) of equal models on the same batch, right
after each other, in changing order. Watched are the outputs and output gradients of all layers. Time is that of the
process' CPU where there is no GPU, so that what else the machine does counts little. A figure is the median of the
pairs' ratios with a 95 % bootstrap interval, whose **upper end** has the bar. The path without the C kernel is measured
too. Exit codes: 0 measured, 1 a figure is beyond its bar, 2 could not measure.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks._steps import Ratio, Variant, in_turn, options, ratio
from torchtap.monitor._watch import Watch
from torchtap.monitor.stats import kernel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mlp() -> tuple[nn.Module, Tensor]:
    """Eight layers of 1024 units with ReLU."""
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(128, 1024)


class Block(nn.Module):
    """Two convolutions with BatchNorm around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu2 = nn.ReLU()
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[B, inside, H, W] to [B, outside, H / stride, W / stride]."""
        out: Tensor = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        shortcut: Tensor = self.down(x)
        activated: Tensor = self.relu2(out + shortcut)
        return activated


def resnet() -> tuple[nn.Module, Tensor]:
    """As ResNet-18, for images of 32 by 32, half as wide."""
    width = 32
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inside = width
    for place in range(4):
        outside = width << place
        layers += [Block(inside, outside, 1 if place == 0 else 2), Block(outside, outside, 1)]
        inside = outside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10)]
    return nn.Sequential(*layers), torch.randn(16, 3, 32, 32)


def encoder() -> tuple[nn.Module, Tensor]:
    """Four layers of a transformer's encoder."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(8, 128, 256)


class Recurrent(nn.Module):
    """An LSTM of two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, 256] to [B, T, 10]."""
        out: Tensor = self.head(self.rnn(x)[0])
        return out


def lstm() -> tuple[nn.Module, Tensor]:
    """An LSTM over 64 steps."""
    return Recurrent(), torch.randn(32, 64, 256)


def resnet50() -> tuple[nn.Module, Tensor]:
    """torchvision's, 32 images of 224 by 224."""
    from torchvision.models import resnet50 as make

    return make(), torch.randn(32, 3, 224, 224)


class Language(nn.Module):
    """GPT-2 small as transformers makes it, with random weights; its outputs are the logits."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.model = GPT2LMHeadModel(GPT2Config(use_cache=False))

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] to [B, T, 50257]."""
        logits: Tensor = self.model(tokens).logits
        return logits


def gpt2() -> tuple[nn.Module, Tensor]:
    """Sequences of 512 tokens, 4 of them."""
    return Language(), torch.randint(50257, (4, 512))


@dataclass(frozen=True)
class Row:
    """A workload with its bars: with the C kernel, with PyTorch's operators alone, every tenth step."""

    name: str
    make: Callable[[], tuple[nn.Module, Tensor]]
    kernel: float
    operators: float
    tenth: float = 1.02


ROWS: tuple[Row, ...] = (
    Row("MLP", mlp, 1.05, 1.10),
    Row("ResNet", resnet, 1.07, 1.20),
    Row("encoder", encoder, 1.04, 1.10),
    Row("LSTM", lstm, 1.02, 1.02),
)
if DEVICE.type == "cuda":  # of sizes that fill a GPU; no bar where there is no C kernel to compare with
    ROWS += (Row("ResNet-50", resnet50, 1.03, 1.03), Row("GPT-2 small", gpt2, 1.03, 1.03))


def step_of(
    model: nn.Module, x: Tensor, watch: Callable[[nn.Module, torch.optim.Optimizer], object]
) -> Callable[[], None]:
    """A training step of a copy of the model."""
    model = copy.deepcopy(model).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = x.to(DEVICE)
    kept = watch(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step.kept = kept  # type: ignore[attr-defined]
    return step


def measure(row: Row, pairs: int) -> dict[str, tuple[Ratio, float]]:
    """The ratios with their bars."""
    torch.manual_seed(0)
    model, x = row.make()
    bare = step_of(model, x, lambda *_: None)
    every = step_of(model, x, Watch)
    tenth = step_of(model, x, lambda model, optimizer: Watch(model, optimizer, every=10))

    def ten_bare() -> None:
        for _ in range(10):
            bare()

    def ten() -> None:
        for _ in range(10):
            tenth()

    found: dict[str, tuple[Ratio, float]] = {}
    times = in_turn([Variant(bare), Variant(every)], pairs)
    found["every step"] = ratio(times[1], times[0]), row.kernel
    times = in_turn([Variant(ten_bare), Variant(ten)], max(pairs // 6, 10), warm_up=1)
    found["every 10th step"] = ratio(times[1], times[0]), row.tenth
    if DEVICE.type == "cpu":
        without = kernel.Found(None, "left out, to be measured")
        with patch.object(kernel, "found", lambda: without):
            times = in_turn([Variant(bare), Variant(every)], pairs)
        found["every step, torch ops"] = ratio(times[1], times[0]), row.operators
    return found


def main(argv: list[str]) -> int:
    """Measure, print, judge."""
    names = [row.name for row in ROWS]
    only = [argv[place + 1] for place, word in enumerate(argv) if word == "--only" and place + 1 < len(argv)]
    argv = [
        word
        for place, word in enumerate(argv)
        if word != "--only" and (place == 0 or argv[place - 1] != "--only")
    ]
    arguments = options(argv, "python -m benchmarks.monitor", __doc__, 60)
    if unknown := [each for each in only if each not in names]:
        print(f"--only {unknown[0]}: one of {', '.join(names)}", file=sys.stderr)
        return 2
    table = Table("workload", "watched", "bare ms", "ratio", "95 %", "bar")
    beyond, figures = False, {}
    for row in ROWS:
        if only and row.name not in only:
            continue
        for what, (figure, bar) in measure(row, arguments.pairs).items():
            beyond |= figure.high > bar
            table.add_row(
                row.name, what, f"{figure.base_ms:.1f}", f"{figure.ratio:.3f}",
                f"{figure.low:.3f} to {figure.high:.3f}", f"{bar:.2f}{' beyond' * (figure.high > bar)}",
            )  # fmt: skip
            figures[f"{row.name}, {what}"] = {**asdict(figure), "bar": bar}
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
