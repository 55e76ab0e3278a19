"""A watched run as a table of text: a line a layer."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NamedTuple, TextIO

import numpy as np

from torchtap._findings import printable
from torchtap.monitor._figure import shortened
from torchtap.monitor._grid import MODEL, Grid, dead_in_the_end, parameters_of, tensors_of

if TYPE_CHECKING:
    from rich.console import ConsoleOptions
    from rich.text import Text

    from torchtap.monitor._watch import Watch

_BARS = "▁▂▃▄▅▆▇█"
_BAD = "x"
_TREND = 16
"""Characters of the course of a layer's rms."""
_NAME = 12
"""Characters that a layer's name is given at least, where it is so long."""


class _Column(NamedTuple):
    head: str
    left: bool
    drop: int
    """The higher, the sooner it is left out where the terminal is narrow; 0: never."""


_COLUMNS = (
    _Column("layer", True, 0),
    _Column("class", True, 4),
    _Column("calls", False, 6),
    _Column("rms", False, 0),
    _Column("absmax", False, 5),
    _Column("zeros", False, 2),
    _Column("grad rms", False, 1),
    _Column("upd/weight", False, 3),
    _Column("rms over time", True, 7),
    _Column("NaN/Inf from", True, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLine:
    """One layer, all its calls and tensors taken together; NaN for what was not measured.

    Numbers are those of the last point of the history, which stands for one or more steps at the end of the run.
    """

    name: str
    kind: str
    calls: int
    """Of the whole run, those that were not measured too."""
    rms: float
    """Of the output."""
    absmax: float
    zeros: float
    """As a fraction."""
    gradient: float
    """rms of the gradient with respect to the output."""
    ratio: float
    """Update over weight: the greatest of its weights'; of all its parameters' where it has no weight."""
    over_time: tuple[float, ...]
    """rms of the output over the run, NaN where any of its values was NaN or infinite."""
    output_bad_from: int | None
    """The first step of the first point in which its output held NaN or Inf."""
    gradient_bad_from: int | None

    def cells(self) -> list[str]:
        """As `_COLUMNS`."""
        bad = [
            f"{what} {step}"
            for what, step in (("out", self.output_bad_from), ("grad", self.gradient_bad_from))
            if step is not None
        ]
        numbers = [_short(each, self.output_bad_from) for each in (self.rms, self.absmax)]
        zeros = "" if math.isnan(self.zeros) else f"{self.zeros:.0%}"
        others = [_short(self.gradient, self.gradient_bad_from), _short(self.ratio)]
        calls = f"{self.calls:,}" if self.calls else "never"
        return [
            printable(self.name or MODEL),
            printable(self.kind),
            calls,
            *numbers,
            zeros,
            *others,
            sparkline(self.over_time),
            ", ".join(bad),
        ]

    @property
    def is_bad(self) -> bool:
        """Whether it held NaN or Inf at any time."""
        return self.output_bad_from is not None or self.gradient_bad_from is not None


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """What `w.summary()` gives: prints as a table as wide as the terminal; a rich renderable; a table in Jupyter.

    `show()` prints it in colour where there is a terminal and NO_COLOR is not set.
    """

    title: str
    layers: tuple[LayerLine, ...]
    notes: tuple[str, ...]
    """The first NaN or Inf, and layers that were not measured, in words."""

    def lines(self, width: int | None = None) -> Iterator[tuple[str, str]]:
        """Lines of at most `width` columns (None: the terminal's), each with its style: "", "bold", "red", "dim"."""
        width = width or shutil.get_terminal_size((100, 24)).columns
        yield _cut(self.title, width), "bold"
        rows = [[column.head for column in _COLUMNS], *(layer.cells() for layer in self.layers)]
        if len(rows) == 1:
            return
        chosen, widths = _fitting(rows, width)
        styles = ["dim", *("red" if layer.is_bad else "" if layer.calls else "dim" for layer in self.layers)]
        for row, style in zip(rows, styles, strict=True):
            cells = [_padded(row[at], widths[at], _COLUMNS[at].left) for at in chosen]
            yield _cut("  ".join(cells).rstrip(), width), style
        for note in self.notes:
            for line in note.splitlines():
                yield from ((part, "") for part in _wrapped(line, width))

    def show(self, file: TextIO | None = None) -> None:
        """Print it, to `file` or standard output."""
        from rich.console import Console

        Console(file=file).print(self)

    def __rich_console__(self, _console: object, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line, style in self.lines(options.max_width):
            yield Text(line, style=style, no_wrap=True, overflow="ignore")

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self.lines())

    __repr__ = __str__  # so that a console shows the table, as Jupyter does

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align:left">{column.head}</th>' for column in _COLUMNS)
        rows = "".join(_html_row(layer) for layer in self.layers)
        notes = "".join(f"<pre>{escape(note)}</pre>" for note in self.notes)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" * bool(self.layers)
        return f"<p><b>{escape(self.title)}</b></p>{table}{notes}"


def _html_row(layer: LayerLine) -> str:
    colour = ";color:#e5484d" * layer.is_bad
    cells = [
        f'<td style="text-align:{"left" if column.left else "right"}{colour}">{escape(cell)}</td>'
        for column, cell in zip(_COLUMNS, layer.cells(), strict=True)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def summary_of(watch: Watch) -> Summary:
    """See `Watch.summary`."""
    outputs, gradients = tensors_of(watch, "output"), tensors_of(watch, "gradient")
    ratios = _ratios(watch)
    order = list(dict.fromkeys(line.layer for line in outputs.lines))
    order += [number for number in range(len(watch.layers)) if number not in set(order)]
    layers = tuple(_line(watch, number, outputs, gradients, ratios) for number in order)
    return Summary(_title(watch, outputs), layers, tuple(_notes(watch, layers)))


def _line(watch: Watch, number: int, outputs: Grid, gradients: Grid, ratios: dict[int, float]) -> LayerLine:
    layer = watch.layers[number]
    output, gradient = _of_layer(outputs, number), _of_layer(gradients, number)
    square = output["rms"].astype(np.float64) ** 2
    weights = output["count"] - output["nonfinite"]
    over_time = np.sqrt(_weighted(square, weights))
    return LayerLine(
        name=layer.name,
        kind=layer.kind,
        calls=watch.layer_hooks[number].calls,
        rms=_last(over_time),
        absmax=_last(_most(output["absmax"])),
        zeros=_last_known(_weighted(output["zeros"], output["count"])),
        gradient=_last(np.sqrt(_weighted(gradient["rms"].astype(np.float64) ** 2, gradient["count"]))),
        ratio=ratios.get(number, math.nan),
        over_time=tuple(np.where(output.bad.any(0), np.nan, over_time)[output["count"].any(0)].tolist()),
        output_bad_from=_bad_from(output),
        gradient_bad_from=_bad_from(gradient),
    )


def _of_layer(grid: Grid, number: int) -> Grid:
    return grid.only(np.array([line.layer == number for line in grid.lines], dtype=bool))


def _weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Means over lines, [n, m] to [m]; NaN where nothing has weight."""
    weights = np.where(np.isfinite(values), weights, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.where(weights > 0, values * weights, 0).sum(0)
        return np.asarray(total / weights.sum(0))


def _most(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.fmax.reduce(values, 0) if len(values) else np.empty(0))


def _last(values: np.ndarray) -> float:
    """Of the last point, be it NaN."""
    return float(values[-1]) if len(values) else math.nan


def _last_known(values: np.ndarray) -> float:
    """Of the last point that has one: without the C kernel zeros are counted in each tenth step only."""
    return _last(values[np.isfinite(values)])


def _bad_from(grid: Grid) -> int | None:
    bad = np.flatnonzero(grid.bad.any(0))
    return int(grid.first_step[bad[0]]) if len(bad) else None


def _ratios(watch: Watch) -> dict[int, float]:
    """The last ratio that there is, by layer."""
    parameters = parameters_of(watch)
    of_layers: dict[int, dict[str, float]] = {}
    for line, course in zip(parameters.lines, parameters["ratio"], strict=True):
        finite = course[np.isfinite(course)]
        if len(finite):
            of_layers.setdefault(line.layer, {})[line.label.rpartition(".")[2]] = float(finite[-1])
    return {
        layer: max([each for name, each in found.items() if "weight" in name] or found.values())
        for layer, found in of_layers.items()
    }


def extent(watch: Watch) -> str:
    """How many layers and steps."""
    layers, steps = len(watch.layers), watch.steps
    return f"{layers:,} layer{'s' * (layers != 1)}, {steps:,} step{'s' * (steps != 1)}"


def _title(watch: Watch, outputs: Grid) -> str:
    model = watch.model
    name = f"{type(model).__name__}: " if model is not None else ""
    parts = [name + extent(watch)]
    if len(outputs):
        first, last = int(outputs.first_step[-1]), int(outputs.last_step[-1])
        parts.append(f"shown: step {first}" if first == last else f"shown: steps {first} to {last}")
    for scalar in ("loss", "lr"):
        series = watch.scalars(scalar)
        if len(series):
            value = float(series["mean"][-1])
            parts.append(f"{scalar} {value:.4g}" if math.isfinite(value) else f"{scalar} NaN or Inf")
    return printable(", ".join(parts))


def _notes(watch: Watch, layers: Sequence[LayerLine]) -> Iterator[str]:
    if not watch.steps:
        yield "no step has ended yet: watch(model, optimizer), or w.step() after optimizer.step()"
    first = watch.first_nonfinite()
    if first is not None:
        yield f"first NaN or Inf: {first}"
    for name, why in watch.refused:
        yield f"not watched: {name or MODEL}: {why}"
    if dead := dead_in_the_end(watch):
        names = list(dead)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        told = ", ".join(f"{name} {dead[name]:.0%}" for name in names[:3])
        yield f"dead units in the last look: {told}{more}"
    never = [layer.name or MODEL for layer in layers if not layer.calls]
    if never and watch.steps:
        more = f" and {len(never) - 3} more" if len(never) > 3 else ""
        yield f"never called: {', '.join(never[:3])}{more}"
    for layer, hook in zip(watch.layers, watch.layer_hooks, strict=True):
        for why, times in (hook.refused or {}).items():
            yield f"not measured: {times:,} outputs of {layer.name or MODEL}: {why}"


def sparkline(values: Sequence[float], width: int = _TREND) -> str:
    """The course of some values in bars from the least to the greatest, at most `width`; a cross where one is NaN.

    >>> sparkline([1.0, 2.0, 4.0, float("nan")])
    '▁▃█x'
    >>> sparkline([3.0, 3.0])
    '▄▄'
    """
    parts = np.array_split(np.array(values, dtype=np.float64), min(width, len(values)) or 1)
    # A part is bad where any of its values is: a NaN is not averaged away.
    means = np.array([part.mean() if len(part) else np.nan for part in parts])
    if not len(values):
        return ""
    finite = means[np.isfinite(means)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return "".join(_BARS[3] if math.isfinite(mean) else _BAD for mean in means)
    places = (means - low) / (high - low) * (len(_BARS) - 1)
    return "".join(_BARS[round(place)] if math.isfinite(place) else _BAD for place in places)


def _short(value: float, bad_from: int | None = None) -> str:
    """Three figures. NaN is "" where nothing was measured, and what it is where it went bad."""
    if math.isnan(value):
        return "" if bad_from is None else "NaN"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")


def _fitting(rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit, and how wide each is; empty ones are left out, names shortened, then others left out."""
    chosen = [at for at in range(len(_COLUMNS)) if at == 0 or any(row[at] for row in rows[1:])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for drop in sorted((_COLUMNS[at].drop for at in chosen if _COLUMNS[at].drop), reverse=True):
        if _needed(chosen, [min(widths[0], _NAME), *widths[1:]]) <= width:
            break
        chosen = [at for at in chosen if _COLUMNS[at].drop != drop]
    widths[0] = max(min(widths[0], width - _needed(chosen, [0, *widths[1:]])), 1)
    return chosen, widths


def _needed(chosen: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[at] for at in chosen) + 2 * (len(chosen) - 1)


def _padded(cell: str, width: int, left: bool) -> str:
    cell = shortened(cell, width)
    return cell.ljust(width) if left else cell.rjust(width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _wrapped(line: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(line, width, subsequent_indent="  ", drop_whitespace=True) or [""]
