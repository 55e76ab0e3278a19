"""Maps of layers by steps: a statistic, and where NaN and Inf were."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchtap.monitor._figure import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    dress,
    ink_of,
    layers_down,
    legend_below,
    log_ticks,
    steps_along,
    titled,
)
from torchtap.monitor._grid import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

    from torchtap.monitor._first import FirstNonfinite


class _Statistic(NamedTuple):
    words: str
    scale: str
    """"log"; "fraction", from 0 to 1; "signed", around 0."""


STATISTICS = {
    "rms": _Statistic("root mean square", "log"),
    "std": _Statistic("standard deviation", "log"),
    "absmax": _Statistic("greatest absolute value", "log"),
    "zeros": _Statistic("share of zeros", "fraction"),
    "mean": _Statistic("mean", "signed"),
    "min": _Statistic("least value", "signed"),
    "max": _Statistic("greatest value", "signed"),
}
_DECADES = 1e8
"""A logarithmic scale of colours goes no further down from its greatest value."""


def heat(ax: Axes, title: str, grid: Grid, statistic: str, words: str = "") -> None:
    """A statistic of n layers over m points as colours; red where there was NaN or Inf, empty where nothing was.

    `words` stands at the colours, in place of the statistic's own.
    """
    import matplotlib
    from matplotlib.colors import ListedColormap

    own, scale = STATISTICS[statistic]
    words = words or own
    values = np.where(np.isfinite(grid[statistic]), grid[statistic], np.nan)
    norm = _norm(values, scale)
    if scale == "log":  # this scale has no place for 0: the lowest colour
        values = np.where(values <= 0, norm.vmin or np.nan, values)
    colours = matplotlib.colormaps["coolwarm" if scale == "signed" else "viridis"]
    edges = grid.edges, np.arange(len(grid) + 1) - 0.5
    cells = np.ma.masked_invalid(values)
    # Thousands of cells are one picture within an SVG.
    mesh = ax.pcolormesh(*edges, cells, norm=norm, cmap=colours, rasterized=True)
    if grid.bad.any():
        bad = np.ma.masked_where(~grid.bad, np.ones_like(values))
        ax.pcolormesh(*edges, bad, cmap=ListedColormap([RED]), rasterized=True)
        ax.plot([], [], "s", color=RED, label="NaN or Inf")
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, fontsize=8, frameon=False)
    titled(ax, title)
    layers_down(ax, [line.title for line in grid.lines])
    steps_along(ax)
    bar = ax.figure.colorbar(mesh, cax=ax.inset_axes((1.02, 0, 0.025, 1)))
    bar.set_label(words)
    bar.outline.set_visible(False)
    dress(bar.ax, ink_of(ax))
    if scale == "log":
        log_ticks(bar.ax.yaxis)


def _norm(values: np.ndarray, scale: str) -> Normalize:
    from matplotlib.colors import LogNorm, Normalize

    if scale == "fraction":
        return Normalize(0, 1)
    if scale == "signed":
        most = np.nanmax(np.abs(values)) if np.isfinite(values).any() else 1.0
        return Normalize(-(most or 1), most or 1)
    positive = values[values > 0]
    low, high = (positive.min(), positive.max()) if len(positive) else (1.0, 1.0)
    low = max(low, high / _DECADES)
    if low == high:
        low, high = low / 2, high * 2
    return LogNorm(low, high)


FINITE, GRADIENT, OUTPUT = range(3)
_KINDS = ((GREY, "finite"), (ORANGE, "gradient NaN or Inf"), (RED, "output NaN or Inf"))


def kinds_of(values: Grid, gradients: Grid) -> np.ndarray:
    """[n, m] of FINITE, GRADIENT and OUTPUT for the lines of `values`; masked where nothing was measured."""
    made = np.where(values["count"] > 0, FINITE, -1)
    places = {(line.layer, line.path): place for place, line in enumerate(values.lines)}
    for place, line in enumerate(gradients.lines):
        if (line.layer, line.path) in places:
            made[places[line.layer, line.path], gradients.bad[place]] = GRADIENT
    made[values.bad] = OUTPUT
    return np.ma.masked_less(made, 0)


def timeline(
    ax: Axes, title: str, values: Grid, gradients: Grid, first: FirstNonfinite | None, place: int | None
) -> None:
    """Layers by steps: finite, gradient or output not; a star where it began, in the line at `place`."""
    from matplotlib.colors import ListedColormap

    kinds = kinds_of(values, gradients)
    edges = values.edges, np.arange(len(values) + 1) - 0.5
    colours = ListedColormap([BLUE, ORANGE, RED])
    ax.pcolormesh(
        *edges,
        np.ma.masked_not_equal(kinds, FINITE),
        cmap=ListedColormap([GREY]),
        alpha=0.22,
        rasterized=True,
    )
    bad = np.ma.masked_less(kinds, GRADIENT)
    ax.pcolormesh(*edges, bad, cmap=colours, vmin=FINITE, vmax=OUTPUT, rasterized=True)
    titled(ax, title)
    layers_down(ax, [line.title for line in values.lines])
    steps_along(ax)
    for kind, (colour, label) in enumerate(_KINDS):
        if (kinds == kind).any():
            ax.plot([], [], "s", color=colour, alpha=0.4 if kind == FINITE else 1, label=label)
    if first is not None and place is not None:
        at = np.searchsorted(values.first_step, first.step, side="right") - 1
        label = f"first: step {first.step:,}"
        x = (edges[0][at] + edges[0][at + 1]) / 2
        ax.plot(
            [x],
            [place],
            "*",
            color=ink_of(ax),
            markersize=12,
            markeredgecolor=RED,
            label=label,
            clip_on=False,
        )
    legend_below(ax)
