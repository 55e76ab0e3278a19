"""Pictures of a watched run: `w.plot()` draws the four that matter, each function here draws one.

| function | shows |
|---|---|
| `gradient_flow(w)` | how large gradients are from the first layer to the last: median, least and greatest of the run |
| `activation_map(w)` | a statistic of the outputs, layers by steps |
| `activation_profile(w)` | the same over depth: median, least and greatest of the run |
| `zero_fractions(w)` | the share of zeros in outputs, layers by steps; 1: the layer is dead |
| `dead_units(w)` | the share of units that gave nothing and got no gradient, layers by closer looks |
| `update_ratios(w)` | update over weight of each parameter; the band from 1e-4 to 1e-2 is where trainings usually are |
| `nonfinite_timeline(w)` | where NaN and Inf began, and how they spread |
| `loss(w)` | the loss and the learning rate |
| `overview(w)` | four of these: what `w.plot()` gives |

Each takes `ax`, to draw into axes of yours; `save`, a file .png, .svg or .pdf, which is there whole or not at all; and
`dark`, None: as the background of Matplotlib is set. Each returns a `matplotlib.figure.Figure`, which Jupyter shows.
Nothing global is changed and pyplot is not used, so there is no window and nothing to close. Layers run from top to
bottom. Where there is nothing to draw the picture says why. ImportError without Matplotlib.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchtap.monitor._drawing import dots, profile, ratios, scalar, told
from torchtap.monitor._figure import BLUE, ORANGE, figure_with, ink_of, new_figure, saved, say, suffix_of
from torchtap.monitor._grid import (
    Grid,
    dead_in_the_end,
    dead_of,
    parameters_of,
    scalar_names,
    stacked,
    tensors_of,
)
from torchtap.monitor._heat import STATISTICS, heat, timeline
from torchtap.monitor._summary import extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchtap.monitor._watch import Watch

File: TypeAlias = str | os.PathLike[str]


def gradient_flow(
    w: Watch,
    ax: Axes | None = None,
    *,
    parameters: bool = True,
    save: File | None = None,
    dark: bool | None = None,
) -> Figure:
    """Root mean squares of gradients over depth, on a logarithmic scale.

    A line through the medians of the run of the gradient of each layer's output, a band from the least to the
    greatest; a diamond for each parameter's gradient, at its layer. Marked at the edge: gradients that are 0 in most
    steps, and layers with NaN or Inf.
    """
    title = "Gradients over depth"
    gradients = tensors_of(w, "gradient")
    grid = gradients if len(gradients) else tensors_of(w, "output")
    labels = [line.title for line in grid.lines]
    of_parameters = parameters_of(w)
    places = {line.layer: place for place, line in reversed(list(enumerate(grid.lines)))}
    held = np.array([line.layer in places for line in of_parameters.lines], dtype=bool)
    of_parameters = of_parameters.only(held & np.isfinite(of_parameters["gradient"]).any(1))

    def draw(ax: Axes) -> None:
        if not len(gradients) and not (parameters and len(of_parameters)):
            say(ax, title, _no_gradients(w))
            return
        if len(gradients):
            down = np.arange(len(gradients), dtype=float)
            profile(ax, labels, down, gradients["rms"], gradients.bad, BLUE, "of outputs")
        if parameters and len(of_parameters):
            at = np.array([places[line.layer] for line in of_parameters.lines], dtype=float)
            ax.set_xscale("log")
            dots(ax, at, of_parameters["gradient"], ORANGE, "of parameters")
        told(ax, title, "root mean square", labels)

    return _drawn(draw, ax, save, dark, len(grid))


def activation_map(
    w: Watch,
    ax: Axes | None = None,
    *,
    statistic: str = "rms",
    save: File | None = None,
    dark: bool | None = None,
) -> Figure:
    """A statistic of outputs, layers by steps, as colours; red where there was NaN or Inf.

    `statistic`: "rms", "std", "absmax" (logarithmic), "zeros", "mean", "min", "max". ValueError for another.
    """
    title = f"Outputs: {_words(statistic)}"
    return _map(w, title, statistic, ax, save, dark)


def activation_profile(
    w: Watch,
    ax: Axes | None = None,
    *,
    statistic: str = "rms",
    save: File | None = None,
    dark: bool | None = None,
) -> Figure:
    """A statistic of outputs over depth, on a logarithmic scale: median, least and greatest of the run.

    `statistic`: "rms", "std" or "absmax". ValueError for another.
    """
    words = _words(statistic)
    if STATISTICS[statistic].scale != "log":
        raise ValueError(f'activation_profile(statistic=...): "rms", "std" or "absmax", got {statistic!r}')
    title = "Outputs over depth"
    grid = tensors_of(w, "output")
    labels = [line.title for line in grid.lines]

    def draw(ax: Axes) -> None:
        if not len(grid):
            say(ax, title, _nothing(w))
            return
        down = np.arange(len(grid), dtype=float)
        profile(ax, labels, down, grid[statistic], grid.bad, BLUE, "median, least and greatest of the run")
        told(ax, title, words, labels)

    return _drawn(draw, ax, save, dark, len(grid))


def zero_fractions(
    w: Watch, ax: Axes | None = None, *, save: File | None = None, dark: bool | None = None
) -> Figure:
    """The share of zeros in outputs, layers by steps, where zeros are counted; 1: nothing but 0."""
    return _map(w, "Zeros in outputs", "zeros", ax, save, dark)


def dead_units(
    w: Watch, ax: Axes | None = None, *, save: File | None = None, dark: bool | None = None
) -> Figure:
    """The share of dead units, layers by closer looks: units of a ReLU that gave 0 for every input that was looked at.

    Where a model has no ReLU as a module: units of its layers that gave nothing above 0 and got no gradient.

    A look is of one batch: a unit that is rarely needed may be dead in one and alive in the next.
    """
    title = "Dead units"
    grid = dead_of(w)

    def draw(ax: Axes) -> None:
        if len(grid):
            heat(ax, title, grid, "zeros", "share of dead units")
        else:
            say(ax, title, _nothing(w) if not w.steps else _NO_LOOKS)

    return _drawn(draw, ax, save, dark, len(grid))


def update_ratios(
    w: Watch, ax: Axes | None = None, *, save: File | None = None, dark: bool | None = None
) -> Figure:
    """Update over weight of each parameter, over steps, on a logarithmic scale.

    Both are root mean squares of the same sample. The band is where trainings usually are. Parameters that are 0, as
    biases are at the start, have no ratio.
    """
    parameters = parameters_of(w)
    return _drawn(partial(_ratios, parameters), ax, save, dark, 0)


def _ratios(parameters: Grid, ax: Axes) -> None:
    ratios(ax, "Update over weight", parameters)


def nonfinite_timeline(
    w: Watch, ax: Axes | None = None, *, save: File | None = None, dark: bool | None = None
) -> Figure:
    """Layers by steps: where outputs and gradients were NaN or infinite, with a star at the first of the run."""
    title = "NaN and Inf"
    outputs = tensors_of(w, "output")
    values = stacked(tensors_of(w, "input"), outputs)
    first = w.first_nonfinite()
    key = first.where.key if first is not None else None
    place = next(
        (
            at
            for at, line in enumerate(values.lines)
            if key and (line.layer, line.path) == (key.layer, key.path)
        ),
        None,
    )

    def draw(ax: Axes) -> None:
        if not len(values):
            say(ax, title, _nothing(w))
            return
        none = "" if first is not None else ": none, all values were finite"
        timeline(ax, title + none, values, tensors_of(w, "gradient"), first, place)

    return _drawn(draw, ax, save, dark, len(values))


def loss(w: Watch, ax: Axes | None = None, *, save: File | None = None, dark: bool | None = None) -> Figure:
    """The loss over steps, with a band from its least to its greatest, and the learning rates on an axis of their own.

    The loss is what `w.log(loss=...)` or `w.step(loss)` was given.
    """
    return _drawn(partial(_loss, w), ax, save, dark, 0)


def _loss(w: Watch, ax: Axes) -> None:
    rates = {name: w.scalars(name) for name in scalar_names(w) if name.partition(".")[0] == "lr"}
    scalar(ax, "Loss and learning rate" if any(rates) else "Loss", w.scalars("loss"), rates)


def overview(w: Watch, *, save: File | None = None, dark: bool | None = None) -> Figure:
    """Four pictures: loss, gradients over depth, outputs by steps, and update ratios.

    In place of the last: where NaN and Inf began, if they did; dead units, where a layer has lost half of its own.
    """
    if save is not None:
        suffix_of(save)
    figure = new_figure((12.5, 8), dark)
    last = update_ratios
    if w.first_nonfinite() is not None:
        last = nonfinite_timeline
    elif dead_in_the_end(w):
        last = dead_units
    axes = figure.subplots(2, 2)
    pictures: tuple[Callable[[Watch, Axes], Figure], ...] = (loss, gradient_flow, activation_map, last)
    for draw, ax in zip(pictures, axes.flat, strict=True):
        draw(w, ax)
    figure.suptitle(extent(w), x=0.01, ha="left", fontsize=11, color=ink_of(axes.flat[0]))
    if save is not None:
        saved(figure, save)
    return figure


def _map(
    w: Watch, title: str, statistic: str, ax: Axes | None, save: File | None, dark: bool | None
) -> Figure:
    grid = tensors_of(w, "output")
    if statistic == "zeros":
        grid = grid.only(np.isfinite(grid["zeros"]).any(1))

    def draw(ax: Axes) -> None:
        if len(grid):
            heat(ax, title, grid, statistic)
        else:
            say(ax, title, _nothing(w) if statistic != "zeros" or not w.steps else _NO_ZEROS)

    return _drawn(draw, ax, save, dark, len(grid))


def _drawn(
    draw: Callable[[Axes], None], ax: Axes | None, save: File | None, dark: bool | None, lines: int
) -> Figure:
    if save is not None:
        suffix_of(save)  # before there is a picture
    figure = figure_with(draw, ax, dark, lines=lines)
    if save is not None:
        saved(figure, save)
    return figure


def _words(statistic: str) -> str:
    if statistic not in STATISTICS:
        raise ValueError(f"statistic={statistic!r}: one of {', '.join(STATISTICS)}")
    return STATISTICS[statistic].words


_NO_LOOKS = "units were not followed: no closer look yet,\nor watch(model, look_closer=False)"
_NO_ZEROS = "zeros were not counted:\nno layer that makes them is watched, or watch(model, zeros=True)"


def _nothing(w: Watch) -> str:
    if not w.steps:
        return "no step has ended yet:\nwatch(model, optimizer), or w.step() after optimizer.step()"
    return "nothing was measured: no watched layer ran\nin a forward that records gradients"


def _no_gradients(w: Watch) -> str:
    if not w.steps or not len(tensors_of(w, "output")):
        return _nothing(w)
    return "no gradient was measured:\nno backward ran before a step ended, or gradients=False"
