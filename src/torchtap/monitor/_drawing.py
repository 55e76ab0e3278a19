"""Lines: a statistic over depth, update ratios and scalars over steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    note,
    say,
    shortened,
    steps_along,
    titled,
)
from torchtap.monitor._grid import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchtap.monitor.history import Series

USUAL = (1e-4, 1e-2)
"""Update over weight in one step, as trainings that go well have it: about 1e-3."""
_NAMED = 8
"""Lines that a legend names; more are coloured by depth."""
_STEEP = 20.0
"""From this ratio of the greatest and the least on a loss is drawn on a logarithmic scale."""


def over_points(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least, median and greatest of [n, m] over m, [n] each; NaN where nothing is finite."""
    values = np.where(np.isfinite(values), values, np.nan)
    if not values.shape[1]:
        values = np.full((len(values), 1), np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of lines without a value
        return np.nanmin(values, 1), np.nanmedian(values, 1), np.nanmax(values, 1)


def profile(
    ax: Axes,
    labels: Sequence[str],
    places: np.ndarray,
    values: np.ndarray,
    bad: np.ndarray,
    colour: str,
    label: str,
) -> None:
    """A statistic [n, m] over depth on a logarithmic scale; `places` [n] are those of the lines, `bad` [n, m]."""
    _, middle, high = over_points(values)
    positive = np.where(middle > 0, middle, np.nan)
    # A band has no place for 0 on this scale: it ends where the points that are not 0 do.
    least = over_points(np.where(values > 0, values, np.nan))[0]
    there = np.isfinite(positive)
    ax.set_xscale("log")
    ax.fill_betweenx(places, np.where(there, least, np.nan), high, color=colour, alpha=0.22, linewidth=0)
    ax.hlines(places[there], least[there], high[there], color=colour, alpha=0.5, linewidth=1)
    size = 5 if len(labels) <= 40 else 2
    ax.plot(positive, places, color=colour, marker="o", markersize=size, linewidth=1.6, label=label)
    _at_edge(ax, places[middle == 0], 0.0, "<", "0 in most steps")
    _at_edge(ax, places[bad.any(1)], 1.0, "x", "NaN or Inf")


def _at_edge(ax: Axes, places: np.ndarray, edge: float, marker: str, label: str) -> None:
    if len(places):
        at = np.full(len(places), edge)
        ax.plot(at, places, marker, color=RED, clip_on=False, label=label, transform=ax.get_yaxis_transform())


def dots(ax: Axes, places: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """Medians of [n, m] as dots at their places, with what lies between the least and the greatest."""
    _, middle, high = over_points(values)
    least = over_points(np.where(values > 0, values, np.nan))[0]
    there = middle > 0
    ax.hlines(places[there], least[there], high[there], color=colour, alpha=0.45, linewidth=1)
    ax.plot(
        middle[there],
        places[there],
        "D",
        color=colour,
        markersize=4 if len(places) <= 80 else 2.5,
        markerfacecolor="none",
        linestyle="none",
        label=label,
    )


def told(ax: Axes, title: str, quantity: str, labels: Sequence[str]) -> None:
    """Titles and names around a profile."""
    titled(ax, title)
    layers_down(ax, labels)
    ax.set_xlabel(quantity)
    ax.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    log_ticks(ax.xaxis)
    legend_below(ax)


def ratios(ax: Axes, title: str, parameters: Grid) -> None:
    """Update over value of each parameter, over steps."""
    values = parameters["ratio"]
    moved = np.where(values > 0, values, np.nan)
    drawn = np.isfinite(moved).any(1)
    still = over_points(parameters["update"])[2] == 0
    if not drawn.any() and not still.any():
        say(ax, title, _no_ratio(parameters))
        return
    ax.set_yscale("log")
    ax.axhspan(*USUAL, color=GREY, alpha=0.2, linewidth=0, label="usual: 1e-4 to 1e-2")
    colours = shades(len(parameters))
    few = drawn.sum() <= _NAMED
    for line in np.flatnonzero(drawn).tolist():
        ax.plot(
            parameters.middles,
            moved[line],
            color=colours[line],
            linewidth=1.4 if few else 0.8,
            alpha=1 if few else 0.6,
            marker="o" if len(parameters.middles) == 1 else None,
            label=shortened(parameters.lines[line].label) if few else None,
        )
    if not few:
        middle = over_points(moved.T)[1]
        ax.plot(parameters.middles, middle, color=ink_of(ax), linewidth=2, label="median of all parameters")
        _depth(ax, colours)
    if still.any():
        name, more = shortened(parameters.only(still).lines[0].label, 20), int(still.sum()) - 1
        label = f"never moved: {name}" + f" and {more:,} more" * bool(more)
        ax.plot([], [], "x", color=RED, label=label)
    titled(ax, title)
    ax.set_ylabel("update / weight")
    ax.margins(x=0.01)
    steps_along(ax)
    log_ticks(ax.yaxis)
    ax.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    ax.legend(loc="best", fontsize=8, frameon=False)


def _no_ratio(parameters: Grid) -> str:
    if not len(parameters):
        return "parameters were not measured:\nno step has ended with an optimizer, watch(model, optimizer)"
    if np.isfinite(parameters["update"]).any():
        return "no update is finite, or all weights are 0"
    return "updates were not measured:\ngive the optimizer, watch(model, optimizer)"


def shades(number: int) -> list[tuple[float, float, float, float]]:
    """Colours from the first layer's to the last one's, all of them to be seen on black and on white."""
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("depth", [BLUE, "#a06bd0", ORANGE])
    return [scale(each) for each in np.linspace(0, 1, max(number, 2))[:number]]


def _depth(ax: Axes, colours: list[tuple[float, float, float, float]]) -> None:
    """Say which colour is which end."""
    for colour, label in ((colours[0], "first layers"), (colours[-1], "last layers")):
        ax.plot([], [], color=colour, linewidth=1.4, label=label)


def scalar(ax: Axes, title: str, loss: Series, rates: dict[str, Series]) -> None:
    """The loss over steps, and learning rates on an axis of their own."""
    titled(ax, title)
    if not len(loss) and not any(map(len, rates.values())):
        say(
            ax,
            title,
            "neither loss nor learning rate is known:\nw.log(loss=loss), and watch(model, optimizer)",
        )
        return
    steps_along(ax)
    if len(loss):
        _loss(ax, loss)
    if any(map(len, rates.values())):
        beside = ax if not len(loss) else ax.twinx()
        for name, series in rates.items():
            marker = "." if len(series) == 1 else None
            beside.plot(
                _middles(series),
                series["mean"],
                color=ORANGE,
                linewidth=1.2,
                linestyle="--",
                marker=marker,
                label=name,
            )
        beside.set_ylabel("learning rate")
        beside.set_ylim(bottom=0)
        if beside is not ax:
            dress(beside, ink_of(ax))
        beside.yaxis.label.set_color(ORANGE)


def _loss(ax: Axes, loss: Series) -> None:
    steps, mean = _middles(loss), loss["mean"]
    finite = np.isfinite(mean)
    ax.set_ylabel("loss")
    if finite.any():
        if loss["min"][finite].min() > 0 and mean[finite].max() > _STEEP * mean[finite].min():
            ax.set_yscale("log")
        ax.fill_between(steps, loss["min"], loss["max"], color=BLUE, alpha=0.22, linewidth=0)
        ax.plot(
            steps,
            mean,
            color=BLUE,
            linewidth=1.8,
            marker="o" if finite.sum() == 1 else None,
            label="loss",
        )
        if ax.get_yscale() == "log":
            log_ticks(ax.yaxis)
    else:
        ax.set_yticks([])
    bad = np.flatnonzero(loss["nonfinite"] > 0)
    if len(bad):
        ax.axvline(loss.first_step[bad[0]], color=RED, linewidth=1.5)
        ax.axvspan(loss.first_step[bad[0]], loss.last_step[-1] + 1, color=RED, alpha=0.15, linewidth=0)
        text = f" NaN or Inf from step {loss.first_step[bad[0]]:,}"
        note(ax, loss.first_step[bad[0]], 0.98, text, RED, ax.get_xaxis_transform())
    ax.margins(x=0.01)
    ax.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)


def _middles(series: Series) -> np.ndarray:
    return np.asarray((series.first_step + series.last_step) / 2)
