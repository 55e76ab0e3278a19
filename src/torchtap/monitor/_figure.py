"""Figures for pictures of a watch: made without pyplot, readable on dark and light, saved whole or not at all."""

from __future__ import annotations

import io
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

# Of middle lightness: they stand out from black and from white.
BLUE, ORANGE, RED, GREY = "#3987d6", "#e08214", "#e5484d", "#888888"
_DARK, _LIGHT = "#15191f", "#ffffff"
_INK = {"dark": "#d5dae1", "light": "#24292f", "unknown": "#808890"}
"""Of text and axes, by what they stand on."""
_FORMATS = (".png", ".svg", ".pdf")
_LINE_IN = 0.155
"""Inches that a layer's name takes."""
LONGEST = 30
"""Characters of a layer's name."""


def figure_with(
    draw: Callable[[Axes], None], ax: Axes | None, dark: bool | None, *, lines: int = 0, wide: float = 7.5
) -> Figure:
    """Draw into the axes given, or into a figure of its own; `lines` stand below each other in it."""
    if ax is None:
        figure = new_figure((wide, min(max(3.6, 1.4 + lines * _LINE_IN), 12.0)), dark)
        ax = figure.add_subplot()
    draw_into(ax, draw)
    return whole(ax)


def whole(ax: Axes) -> Figure:
    """The figure that these axes are in, be it within a SubFigure."""
    figure: Any = ax.figure
    while getattr(figure, "figure", figure) is not figure:
        figure = figure.figure
    return cast("Figure", figure)


def new_figure(size: tuple[float, float], dark: bool | None) -> Figure:
    """An empty figure that no pyplot knows of and that Jupyter shows."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need Matplotlib: pip install "torchtap[lab]"') from error
    colour = None if dark is None else _DARK if dark else _LIGHT
    figure = Figure(figsize=size, facecolor=colour, layout="constrained")
    # Jupyter knows how to show a Figure only once pyplot was imported.
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, facecolor=figure.get_facecolor())
    return file.getvalue()


def draw_into(ax: Axes, draw: Callable[[Axes], None]) -> None:
    """Draw, in ink that can be read on what is there."""
    ink = ink_of(ax)
    red, green, blue, alpha = _background(ax)
    if alpha > 0:
        ax.set_facecolor((red, green, blue, alpha))
    draw(ax)
    dress(ax, ink)


def _background(ax: Axes) -> tuple[float, float, float, float]:
    from matplotlib.colors import to_rgba

    return to_rgba(whole(ax).get_facecolor())


def ink_of(ax: Axes) -> str:
    """The colour of text in these axes."""
    red, green, blue, alpha = _background(ax)
    if alpha < 0.5:
        return _INK["unknown"]
    return _INK["light" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "dark"]


def dress(ax: Axes, ink: str) -> None:
    """Give text, ticks and frame the ink's colour."""
    ax.tick_params(which="both", colors=ink, labelsize=8)
    for text in (ax.xaxis.label, ax.yaxis.label, ax.xaxis.get_offset_text(), ax.yaxis.get_offset_text()):
        text.set_color(ink)
        text.set_fontsize(8)
    ax.spines[["top", "right"]].set_visible(False)
    for spine in ax.spines.values():
        spine.set_edgecolor(GREY)
    legend = ax.get_legend()
    if legend is not None:
        legend.set_frame_on(False)
        for text in legend.get_texts():
            text.set_color(ink)
            text.set_fontsize(8)


def titled(ax: Axes, title: str) -> None:
    """A title above the left edge."""
    ax.set_title(title, loc="left", fontsize=10, fontweight="bold", color=ink_of(ax), parse_math=False)


def say(ax: Axes, title: str, text: str) -> None:
    """In place of a picture: why there is none."""
    titled(ax, title)
    ax.set_xticks([])
    ax.set_yticks([])
    note(ax, 0.5, 0.5, text, ink_of(ax), ax.transAxes, "center", "center")


def note(
    ax: Axes,
    x: float,
    y: float,
    text: str,
    colour: str,
    transform: Transform,
    across: Literal["left", "center", "right"] = "left",
    along: Literal["top", "center", "bottom"] = "top",
) -> None:
    """Text at a place in these coordinates, which lies on the given side of it."""
    ax.text(x, y, text, color=colour, fontsize=8, ha=across, va=along, transform=transform, parse_math=False)


def layers_down(ax: Axes, labels: Sequence[str]) -> None:
    """Name the lines of the vertical axis, the first on top; as many names as there is room for."""
    height = ax.get_position().height * whole(ax).get_figheight()
    every = max(1, -(-len(labels) // max(2, int(height / _LINE_IN))))
    places = range(0, len(labels), every)
    ax.set_yticks(list(places), [shortened(labels[place]) for place in places], parse_math=False)
    ax.set_ylim(len(labels) - 0.5, -0.5)


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name without its middle: the end says which layer it is, the beginning where.

    >>> shortened("encoder.layers.11.attention.self.query", 20)
    'encoder…n.self.query'
    """
    if len(name) <= longest:
        return name
    end = longest * 3 // 5
    return f"{name[: longest - end - 1]}…{name[-end:]}" if longest > 1 else "…"


def steps_along(ax: Axes) -> None:
    """Whole steps on the horizontal axis."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.set_xlabel("step")


def log_ticks(axis: Axis) -> None:
    """Name the powers of ten, and where fewer than two are in sight their doubles and halves too."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axis.get_view_interval()
    if math.floor(math.log10(high)) > math.ceil(math.log10(low)):
        axis.set_minor_formatter(NullFormatter())
        return
    axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    for use in (axis.set_major_formatter, axis.set_minor_formatter):
        use(StrMethodFormatter("{x:.3g}"))


def legend_below(ax: Axes) -> None:
    """Outside, where nothing is covered."""
    inches = ax.get_position().height * whole(ax).get_figheight()
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.55 / inches),
        ncols=4,
        borderaxespad=0,
        columnspacing=1.2,
        handletextpad=0.4,
        fontsize=8,
        frameon=False,
    )


def suffix_of(file: str | os.PathLike[str]) -> str:
    """The format that a file's name asks for.

    ValueError for one that there is not, FileNotFoundError where its folder is not there.
    """
    suffix = Path(file).suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(f"save={os.fspath(file)!r}: the name ends in one of {', '.join(_FORMATS)}")
    if not Path(file).parent.is_dir():
        raise FileNotFoundError(f"save={os.fspath(file)!r}: there is no folder {Path(file).parent}")
    return suffix[1:]


def saved(figure: Figure, file: str | os.PathLike[str]) -> None:
    """Write the figure to a file that is there whole or not at all."""
    path = Path(file)
    options: dict[str, Any] = {"facecolor": figure.get_facecolor(), "transparent": False, "dpi": 150}
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as opened:
            figure.savefig(opened, format=suffix_of(path), **options)
        mask = os.umask(0)
        os.umask(mask)
        Path(part).chmod(0o666 & ~mask)  # mkstemp makes it the owner's alone
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
