"""Measure modes: what emulate_cudnn() costs, and what the fixes cost beside each other, all taken side by side.

    python -m benchmarks.modes                  all
    python -m benchmarks.modes --pairs 200      more rounds, narrower intervals
    python -m benchmarks.modes --json FILE      also as JSON

Three tables. Emulation: a native and an emulated training step (zero_grad, forward, loss, backward, SGD) of the same
LSTM on the same batch, inside the open emulation; always on the CPU. Gradients of eval outputs: the gradient of an
LSTM's loss with respect to its input (saliency), had in five ways; on the GPU where there is one. Contexts: entering
and leaving without a forward, beside a bare `model.eval(); model.train()`.
Every round runs all variants of a table, in changing order; a figure is the median of the rounds' ratios with a 95 %
bootstrap interval. Time is that of the process' CPU where there is no GPU, so that other work on the machine does not
count. Exit codes: 0 measured, 1 a figure is beyond its bar, 2 could not measure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks._steps import Ratio, Step, Variant, in_turn, options, ratio
from torchtap import modes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Size:
    """One LSTM and its batch. `bar`: the ratio that the median must not pass; None where nothing is promised."""

    name: str
    steps: int
    batch: int
    hidden: int
    layers: int = 1
    dropout: float = 0.0
    bar: float | None = None

    def __str__(self) -> str:
        return f"{self.steps}x{self.batch}x{self.hidden}x{self.layers}"


SIZES = (
    Size("small", steps=50, batch=8, hidden=64),
    Size("medium", steps=50, batch=32, hidden=128, bar=1.45),
    Size("large", steps=30, batch=32, hidden=256),
    Size("dropout", steps=50, batch=32, hidden=128, layers=2, dropout=0.3),
)
SALIENCY = Size("saliency", steps=50, batch=32, hidden=128, layers=2, dropout=0.3)
MODULES = (51, 500)


@dataclass(frozen=True)
class Figure:
    """One line of a table."""

    name: str
    measured: Ratio
    bar: float | None = None

    @property
    def held(self) -> bool:
        return self.bar is None or self.measured.ratio <= self.bar


# Emulation


def training_step(size: Size) -> Step:
    """A closure that trains once on one fixed batch."""
    torch.manual_seed(0)
    rnn = nn.LSTM(size.hidden, size.hidden, size.layers, dropout=size.dropout)
    batch = torch.randn(size.steps, size.batch, size.hidden)
    optimizer = torch.optim.SGD(rnn.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        out: Tensor = rnn(batch)[0]
        out.square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def emulation(size: Size, rounds: int) -> Figure:
    step = training_step(size)
    variants = [Variant(step, nullcontext), Variant(step, modes.emulate_cudnn)]
    native_ms, emulated_ms = in_turn(variants, rounds)
    return Figure(f"{size.name} {size}", ratio(emulated_ms, native_ms), size.bar)


# Gradients of eval outputs


class Cells(nn.Module):
    """The same LSTM, its weights shared, as loops over `nn.LSTMCell`. (steps, batch, features), as `nn.LSTM`."""

    def __init__(self, rnn: nn.LSTM) -> None:
        super().__init__()
        self.cells = nn.ModuleList()
        for layer in range(rnn.num_layers):
            cell = nn.LSTMCell(rnn.hidden_size, rnn.hidden_size)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(cell, name, getattr(rnn, f"{name}_l{layer}"))
            self.cells.append(cell)

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            state = None
            steps = []
            for features in x:
                state = cell(features, state)
                steps.append(state[0])
            x = torch.stack(steps)
        return x


class Last(nn.Module):
    """An LSTM, its output alone."""

    def __init__(self, rnn: nn.LSTM) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rnn(x)[0]
        return out


def gradient_variants(size: Size) -> dict[str, Step]:
    """The first is the base, and the only one whose outputs are not those of eval mode: its dropout drops."""
    torch.manual_seed(0)
    rnn = nn.LSTM(size.hidden, size.hidden, size.layers, dropout=size.dropout).to(DEVICE)
    model, cells = Last(rnn), Cells(rnn).to(DEVICE)
    x = torch.randn(size.steps, size.batch, size.hidden, device=DEVICE, requires_grad=True)

    def saliency(of: nn.Module) -> None:
        torch.autograd.grad(of(x).square().sum(), x)

    def train() -> None:
        model.train()
        saliency(model)

    def differentiable_eval() -> None:
        with modes.differentiable_eval(model):
            saliency(model)

    def without_cudnn() -> None:
        model.eval()
        with modes.without_cudnn():
            saliency(model)

    def twice() -> None:
        with modes.eval_mode(model):
            model(x)
        train()

    def cell_loop() -> None:
        saliency(cells.eval())

    return {
        "train() (not eval's outputs)": train,
        "differentiable_eval()": differentiable_eval,
        "eval() in without_cudnn()": without_cudnn,
        "eval(), second forward in train()": twice,
        "LSTMCell loop": cell_loop,
    }


# Contexts


def context_variants(modules: int) -> dict[str, Step]:
    """A model of so many modules, itself included."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(modules - 1)))

    def bare() -> None:
        model.eval()
        model.train()

    def by_hand() -> None:
        with torch.no_grad():
            model.eval()
        model.train()

    def eval_mode() -> None:
        with modes.eval_mode(model):
            pass

    def preserve_modes() -> None:
        with modes.preserve_modes(model):
            model.eval()

    def differentiable_eval() -> None:
        with modes.differentiable_eval(model):
            pass

    return {
        "eval(); train()": bare,
        "no_grad, eval(); train()": by_hand,
        "eval_mode()": eval_mode,
        "preserve_modes(), eval()": preserve_modes,
        "differentiable_eval()": differentiable_eval,
    }


def figures(variants: dict[str, Step], rounds: int) -> list[Figure]:
    """All beside the first, that one included."""
    times = in_turn([Variant(step) for step in variants.values()], rounds)
    return [Figure(name, ratio(each, times[0])) for name, each in zip(variants, times, strict=True)]


def shown(title: str, base: str, lines: Sequence[Figure]) -> Table:
    """One table. `base`: what the ratios are to."""
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("")
    for head in (f"{base} ms", "ms", "ratio", "95 %", "bar"):
        table.add_column(head, justify="right")
    for line in lines:
        it = line.measured
        table.add_row(
            line.name,
            f"{it.base_ms:.3f}",
            f"{it.ms:.3f}",
            f"{it.ratio:.2f}",
            f"{it.low:.2f}-{it.high:.2f}",
            "" if line.bar is None else f"{line.bar:.2f}" + ("" if line.held else " BEYOND"),
        )
    return table


def main(argv: list[str]) -> int:
    arguments = options(argv, "benchmarks.modes", __doc__, 100)
    rounds = arguments.pairs
    on = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU, so no cuDNN"
    tables = {
        "emulation": (
            f"emulate_cudnn(): one LSTM training step (TxBxHxL), torch {torch.__version__}",
            "native",
            [emulation(size, rounds) for size in SIZES],
        ),
        "gradients": (
            f"gradient of an LSTM's input ({SALIENCY}); {on}",
            "train()",
            figures(gradient_variants(SALIENCY), rounds),
        ),
        **{
            f"contexts_{modules}": (
                f"entering and leaving, {modules} modules, no forward",
                "bare",
                figures(context_variants(modules), 5 * rounds),
            )
            for modules in MODULES
        },
    }
    console = Console()
    for title, base, lines in tables.values():
        console.print(shown(title, base, lines))
        console.print()
    if arguments.json:
        result = {
            "schema": 2,
            "torch": torch.__version__,
            "device": on,
            "threads": arguments.threads,
            **{
                name: [{**asdict(line), "held": line.held} for line in lines]
                for name, (_, _, lines) in tables.items()
            },
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(line.held for _, _, lines in tables.values() for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
