"""Pictures of a watch: what they draw is what was measured."""

from __future__ import annotations

import io
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from torch import nn

from tests.unit.monitor.runs import net, trained
from torchtap.monitor import plots as drawn_by
from torchtap.monitor import watch
from torchtap.monitor._figure import BLUE, GREY, ORANGE, RED
from torchtap.monitor._grid import parameters_of, tensors_of
from torchtap.monitor._heat import FINITE, GRADIENT, OUTPUT, kinds_of

plots: Any = drawn_by  # Matplotlib types what it draws too loosely to be looked at
NAMES = (
    "gradient_flow",
    "activation_map",
    "activation_profile",
    "zero_fractions",
    "dead_units",
    "update_ratios",
    "nonfinite_timeline",
    "loss",
    "overview",
)


def texts(figure: Figure) -> str:
    """All text within the axes."""
    return "\n".join(text.get_text() for ax in figure.axes for text in ax.texts)


def names(figure: Figure) -> list[str]:
    """Of the layers, from top to bottom."""
    ax = figure.axes[0]
    low, high = sorted(ax.get_ylim())
    places = zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
    return [label.get_text() for place, label in places if low <= place <= high]


def line(figure: Any, label: str) -> Any:
    """The line of this name in the legend."""
    (found,) = [each for ax in figure.axes for each in ax.lines if each.get_label() == label]
    return found


class TestGradientFlow:
    def test_a_line_through_the_medians_and_a_band_around(self):
        w = trained(net(), 6)
        figure = plots.gradient_flow(w)
        rms = np.array([w.series(layer.name, "gradient")["rms"] for layer in w.layers])
        drawn = line(figure, "of outputs")
        np.testing.assert_allclose(drawn.get_xdata(), np.median(rms, 1), rtol=1e-6)
        assert drawn.get_ydata().tolist() == [0, 1, 2, 3, 4]
        assert names(figure) == ["0 Linear", "1 ReLU", "2 Linear", "3 ReLU", "4 Linear"]
        ax = figure.axes[0]
        assert ax.get_xscale() == "log"
        assert ax.get_ylim() == (4.5, -0.5)  # the first layer on top
        band = ax.collections[0].get_paths()[0].vertices
        assert band[:, 0].min() == pytest.approx(rms.min(), rel=1e-5)
        assert band[:, 0].max() == pytest.approx(rms.max(), rel=1e-5)

    def test_a_parameter_stands_at_its_layer(self):
        w = trained(net(), 3)
        figure = plots.gradient_flow(w)
        drawn = line(figure, "of parameters")
        assert drawn.get_ydata().tolist() == [0, 0, 2, 2, 4, 4]
        medians = np.median(parameters_of(w)["gradient"], 1)
        np.testing.assert_allclose(drawn.get_xdata(), medians)
        without = plots.gradient_flow(w, parameters=False)
        assert "of parameters" not in [each.get_label() for each in without.axes[0].lines]

    def test_gradients_of_zero_stand_at_the_edge(self):
        model = net()
        with torch.no_grad():
            model[2].bias.fill_(-100.0)  # nothing gets through the ReLU behind it
        figure = plots.gradient_flow(trained(model, 3))
        assert line(figure, "0 in most steps").get_ydata().tolist() == [0, 1, 2]
        assert np.isnan(line(figure, "of outputs").get_xdata()[:3]).all()

    def test_nan_is_marked_and_hides_no_earlier_step(self):
        figure = plots.gradient_flow(trained(net(), 4, nan_at=2))
        assert line(figure, "NaN or Inf").get_ydata().tolist() == [0, 1, 2, 3, 4]
        assert np.isfinite(line(figure, "of outputs").get_xdata()).all()

    def test_without_gradients_of_outputs_those_of_parameters_are_there(self):
        figure = plots.gradient_flow(trained(net(), 2, gradients=False))
        assert names(figure)[0] == "0 Linear"
        assert line(figure, "of parameters").get_ydata().tolist() == [0, 0, 2, 2, 4, 4]


class TestMaps:
    @pytest.mark.parametrize("statistic", ["rms", "std", "absmax", "mean", "min", "max"])
    def test_cells_are_layers_by_steps(self, statistic):
        w = trained(net(), 3)
        figure = plots.activation_map(w, statistic=statistic)
        drawn = figure.axes[0].collections[0].get_array()
        wanted = [w.series(layer.name)[statistic] for layer in w.layers]
        np.testing.assert_allclose(drawn, wanted, rtol=1e-6)
        assert figure.axes[0].get_xlim() == (0, 3)
        assert names(figure) == ["0 Linear", "1 ReLU", "2 Linear", "3 ReLU", "4 Linear"]

    def test_a_point_of_many_steps_is_as_wide_as_they_are(self):
        figure = plots.activation_map(trained(net(2), 40))
        edges = figure.axes[0].collections[0].get_coordinates()[0, :, 0]
        assert edges[:3].tolist() == [0, 2, 4]
        assert edges[-1] == 40

    def test_steps_that_were_not_measured_leave_no_gap(self):
        figure = plots.activation_map(trained(net(2), 21, every=10))
        assert figure.axes[0].collections[0].get_coordinates()[0, :, 0].tolist() == [0, 10, 20, 30]

    def test_nan_is_red_and_nothing_else_is(self):
        figure = plots.activation_map(trained(net(), 4, nan_at=2))
        values, bad = figure.axes[0].collections[:2]
        assert (~bad.get_array().mask).tolist() == [[False, False, True, True]] * 5
        assert bad.get_cmap()(0) == to_rgba(RED)
        assert not values.get_array().mask[:, :2].any()

    def test_an_output_of_zero_has_the_lowest_colour(self):
        model = net()
        with torch.no_grad():
            model[2].bias.fill_(-100.0)
        mesh = plots.activation_map(trained(model, 2)).axes[0].collections[0]
        assert mesh.get_array()[3].tolist() == [mesh.norm.vmin] * 2
        assert mesh.norm.vmin > 0

    def test_zeros_are_of_the_layers_that_count_them(self):
        w = trained(net(), 3)
        figure = plots.zero_fractions(w)
        assert names(figure) == ["1 ReLU", "3 ReLU"]
        mesh = figure.axes[0].collections[0]
        np.testing.assert_allclose(mesh.get_array(), [w.series(name)["zeros"] for name in ("1", "3")])
        assert (mesh.norm.vmin, mesh.norm.vmax) == (0, 1)

    def test_dead_units_are_of_the_looks(self):
        """The second half of the first layer's units lives no more; of the second all do not."""
        model = net()
        with torch.no_grad():
            model[0].bias[4:] = -100.0
            model[2].bias.fill_(-100.0)
        w = trained(model, 21)
        figure = plots.dead_units(w)
        mesh = figure.axes[0].collections[0]
        rows = dict(zip(names(figure), mesh.get_array().tolist(), strict=True))
        assert rows["1 ReLU"] == [1.0, 1.0, 1.0, 1.0] or rows["1 ReLU"][0] >= 0.5
        assert rows["3 ReLU"] == [1.0] * 4
        assert mesh.get_coordinates()[0, :, 0].tolist()[:4] == [0, 5, 10, 20]
        titles = [ax.get_title(loc="left") for ax in plots.overview(w).axes]
        assert "Dead units" in titles
        assert "Dead units" not in [
            ax.get_title(loc="left") for ax in plots.overview(trained(net(), 21)).axes
        ]

    def test_where_nobody_looked_at_units_that_is_said(self):
        assert "look_closer=False" in texts(plots.dead_units(trained(net(), 3, look_closer=False)))

    def test_an_unknown_statistic(self):
        w = trained(net(), 1)
        with pytest.raises(ValueError, match=r"statistic='median': one of rms, std"):
            plots.activation_map(w, statistic="median")
        with pytest.raises(ValueError, match=r'"rms", "std" or "absmax", got \'mean\''):
            plots.activation_profile(w, statistic="mean")

    def test_a_profile_is_of_the_statistic(self):
        w = trained(net(), 5)
        drawn = line(plots.activation_profile(w, statistic="absmax"), "median, least and greatest of the run")
        wanted = [np.median(w.series(layer.name)["absmax"]) for layer in w.layers]
        np.testing.assert_allclose(drawn.get_xdata(), wanted, rtol=1e-6)


class TestUpdateRatios:
    def test_a_line_a_parameter_and_the_usual_band(self):
        w = trained(net(2), 4)
        figure = plots.update_ratios(w)
        series = w._parameter_history.series(0).values
        np.testing.assert_allclose(
            line(figure, "0.weight").get_ydata(), series[:, 2] / series[:, 3], rtol=1e-5
        )
        ax = figure.axes[0]
        assert ax.get_yscale() == "log"
        (band,) = [each for each in ax.patches if each.get_label() == "usual: 1e-4 to 1e-2"]
        assert (band.get_y(), band.get_y() + band.get_height()) == (1e-4, 1e-2)

    def test_many_parameters_have_a_median_and_colours_by_depth(self):
        w = trained(net(6), 3)
        figure = plots.update_ratios(w)
        ratio = parameters_of(w)["ratio"]
        np.testing.assert_allclose(line(figure, "median of all parameters").get_ydata(), np.median(ratio, 0))
        assert line(figure, "first layers").get_color()[:3] == pytest.approx(to_rgba(BLUE)[:3])
        assert line(figure, "last layers").get_color()[:3] == pytest.approx(to_rgba(ORANGE)[:3])

    def test_a_frozen_parameter_is_named(self):
        model = net(2)
        model[0].weight.requires_grad_(False)
        figure = plots.update_ratios(trained(model, 2))
        assert line(figure, "never moved: 0.weight").get_color() == RED

    def test_a_weight_of_zeros_that_does_not_move_is_named_though_it_has_no_ratio(self):
        model = net()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        figure = plots.update_ratios(trained(model, 3))
        assert line(figure, "never moved: 0.weight and 4 more").get_color() == RED
        assert np.isfinite(line(figure, "4.bias").get_ydata()[1:]).all()

    def test_without_an_optimizer_it_says_so(self):
        model = net(2)
        with watch(model) as w:
            model(torch.ones(1, 4)).sum().backward()
            w.step()
        assert "give the optimizer, watch(model, optimizer)" in texts(plots.update_ratios(w))


class TestTimeline:
    def test_where_it_began_has_a_star(self):
        figure = plots.nonfinite_timeline(trained(net(), 6, nan_at=3))
        star = line(figure, "first: step 3")
        assert (star.get_xdata(), star.get_ydata()) == ([3.5], [0])
        assert names(figure)[:2] == ["(input)", "0 Linear"]
        bad = figure.axes[0].collections[1].get_array()
        assert (bad.filled(0) == OUTPUT).tolist() == [[False] * 3 + [True] * 3] * 6

    def test_a_gradient_is_told_from_an_output(self):
        class Root(nn.Module):
            def forward(self, x):
                return (x * 0).sqrt()  # finite; its derivative is not

        w = trained(nn.Sequential(nn.Linear(4, 1), Root()), 1)
        kinds = kinds_of(tensors_of(w, "output"), tensors_of(w, "gradient"))
        assert kinds.tolist() == [[GRADIENT], [FINITE]]
        assert "gradient NaN or Inf" in [
            each.get_label() for each in plots.nonfinite_timeline(w).axes[0].lines
        ]

    def test_a_finite_run_says_so(self):
        figure = plots.nonfinite_timeline(trained(net(), 2))
        assert figure.axes[0].get_title("left") == "NaN and Inf: none, all values were finite"
        assert [each.get_label() for each in figure.axes[0].lines] == ["finite"]


class TestLoss:
    def test_loss_and_learning_rate_have_axes_of_their_own(self):
        w = trained(net(), 5, lr=0.25)
        left, right = plots.loss(w).axes
        np.testing.assert_allclose(left.lines[0].get_ydata(), w.scalars("loss")["mean"])
        assert right.lines[0].get_ydata().tolist() == [0.25] * 5
        assert right.get_ylabel() == "learning rate"

    def test_nan_begins_where_it_began(self):
        figure = plots.loss(trained(net(), 5, nan_at=3))
        assert "NaN or Inf from step 3" in texts(figure)
        assert np.isnan(figure.axes[0].lines[0].get_ydata()[3:]).all()

    def test_all_nan(self):
        assert "NaN or Inf from step 0" in texts(plots.loss(trained(net(), 2, nan_at=0)))


class TestOverview:
    def titles(self, figure: Any) -> list[str]:
        return [ax.get_title("left") for ax in figure.axes if ax.get_title("left")]

    def test_of_a_healthy_run(self):
        figure = trained(net(), 3).plot()
        assert self.titles(figure) == [
            "Loss and learning rate",
            "Gradients over depth",
            "Outputs: root mean square",
            "Update over weight",
        ]

    def test_says_of_how_much_it_is(self):
        assert trained(nn.Linear(4, 1), 1).plot().get_suptitle() == "1 layer, 1 step"

    def test_where_there_was_nan_it_shows_when(self):
        assert self.titles(trained(net(), 3, nan_at=1).plot())[-1] == "NaN and Inf"


@pytest.mark.parametrize("name", NAMES)
class TestEachPicture:
    def test_of_an_empty_watch_says_why(self, name):
        with watch(net()) as w:
            figure = getattr(plots, name)(w)
        assert "w.log(loss=loss)" in texts(figure) if name == "loss" else "no step has ended" in texts(figure)
        figure.savefig(io.BytesIO(), format="png")

    def test_a_format_that_there_is_not_comes_before_all_work(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"ends in one of \.png, \.svg, \.pdf"):
            getattr(plots, name)(
                None if name == "overview" else trained(net(2), 1), save=tmp_path / "a.jpeg2"
            )

    def test_everything_nan_is_drawn(self, name, tmp_path):
        getattr(plots, name)(trained(net(2), 3, nan_at=0), save=tmp_path / "a.png")

    @pytest.mark.parametrize(
        ("dark", "background"), [(True, "#15191f"), (False, "#ffffff"), (None, "#ffffff")]
    )
    def test_ink_stands_out_from_the_background(self, name, dark, background):
        figure = getattr(plots, name)(trained(net(2), 2), dark=dark)
        assert figure.get_facecolor() == to_rgba(background)
        for ax in figure.axes:
            labels = [*ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label, ax.yaxis.label]
            for text in [ax._left_title, *labels]:
                if text.get_text():
                    assert contrast(to_rgba(text.get_color()), to_rgba(background)) > 2.5, text.get_text()


def contrast(one: Any, other: Any) -> float:
    """As WCAG has it."""

    def luminance(colour: Any) -> float:
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return float((high + 0.05) / (low + 0.05))


@pytest.mark.parametrize("colour", [BLUE, ORANGE, RED, GREY])
@pytest.mark.parametrize("background", ["#000000", "#15191f", "#ffffff"])
def test_colours_stand_out_from_black_and_white(colour, background):
    assert contrast(to_rgba(colour), to_rgba(background)) > 2.5


@pytest.mark.parametrize(("suffix", "starts"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
@pytest.mark.parametrize("name", ["activation_map", "overview"])
def test_it_is_saved_whole(name, suffix, starts, tmp_path):
    file = tmp_path / f"picture{suffix}"
    getattr(plots, name)(trained(net(2), 2), save=file)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert file.read_bytes().startswith(starts)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"save=.*: there is no folder .*plots"):
        trained(net(2), 1).plot(save=tmp_path / "plots" / "a.png")


def test_axes_of_ones_own_are_drawn_into():
    figure: Any = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.loss(trained(net(), 2), ax=right) is figure
    assert not left.lines
    assert right.lines
    parts: Any = Figure().subfigures(1, 2)
    ax = parts[0].add_subplot()
    whole = plots.activation_map(trained(net(), 2), ax)
    assert type(whole) is Figure


def test_the_background_of_matplotlib_is_kept():
    with matplotlib.rc_context({"figure.facecolor": "black"}):
        figure = plots.loss(trained(net(), 2))
    assert figure.get_facecolor() == (0, 0, 0, 1)
    assert contrast(to_rgba(figure.axes[0].xaxis.label.get_color()), (0, 0, 0)) > 7


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    file = tmp_path / "a.png"
    file.write_text("before")

    def fails(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(OSError, match="No space left"):
        plots.loss(trained(net(), 1), save=file)
    assert file.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["a.png"]


def test_the_mode_of_a_file_is_the_usual_one(tmp_path):
    plots.loss(trained(net(), 1), save=tmp_path / "a.png")
    (tmp_path / "b").touch()
    assert (tmp_path / "a.png").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_many_layers_with_long_names_are_named_as_far_as_there_is_room():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks_of_the_encoder_backbone = nn.ModuleList(
                nn.ModuleDict({"projection": nn.Linear(4, 4)}) for _ in range(150)
            )

        def forward(self, x):
            for block in self.blocks_of_the_encoder_backbone:
                x = block.get_submodule("projection")(x)
            return x[:, :1]

    figure = trained(Deep(), 1).plot()
    figure.draw_without_rendering()
    for ax in figure.axes[1:3]:
        labels = [label for label in ax.get_yticklabels() if label.get_text()]
        assert 10 <= len(labels) <= 25
        assert labels[0].get_text() == "blocks_of_t…kbone.0.projection"
        boxes = [label.get_window_extent() for label in labels]
        assert not any(above.overlaps(below) for above, below in pairwise(boxes))
        assert ax.get_window_extent().width > 150


def test_a_name_is_no_formula():
    model: Any = nn.ModuleDict({"$x$_a^b": nn.Linear(4, 1)})

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["$x$_a^b"](x)

    figure = plots.activation_map(trained(Net(), 1))
    assert names(figure) == ["parts.$x$_a^b"]
    assert not figure.axes[0].get_yticklabels()[0].get_parse_math()


def test_tensors_of_one_layer_have_lines_of_their_own_and_calls_do_not():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 2)

        def forward(self, x):
            out, (h, c) = self.rnn(x)
            again, _ = self.rnn(x)
            return (out + again + h + c).sum(1, keepdim=True)

    w = trained(Net(), 2)
    grid = tensors_of(w, "output")
    assert [each.label for each in grid.lines] == ["rnn[0]", "rnn[1.0]", "rnn[1.1]"]
    assert grid["count"][0].tolist() == [64, 64]  # of two calls
    assert (
        grid["max"][0].tolist()
        == np.maximum(w.series("rnn", path="0")["max"], w.series("rnn", call=1, path="0")["max"]).tolist()
    )


def test_wrappers_are_no_part_of_the_names_of_parameters():
    w = trained(nn.DataParallel(net(2)), 1)
    parameters = parameters_of(w)
    assert [each.label for each in parameters.lines][:2] == ["0.weight", "0.bias"]
    assert [each.layer for each in parameters.lines] == [0, 0, 2, 2]


def test_parameters_of_a_module_that_is_not_watched_are_those_of_the_one_around_it():
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 1))
    w = trained(model, 1)
    layer = {each.label: w.layers[each.layer].name for each in parameters_of(w).lines}
    assert layer["0.self_attn.out_proj.weight"] == "0.self_attn"


def test_a_figure_shows_itself_in_jupyter_without_pyplot():
    formatter: Any = DisplayFormatter()
    shown, _ = formatter.format(trained(net(2), 1).plot())
    assert shown["image/png"].startswith(b"\x89PNG")


def test_nothing_global_is_changed_and_pyplot_is_not_loaded(tmp_path):
    program = """
import sys
import torchtap.monitor
from torchtap.monitor import plots
assert not any(name.startswith(("matplotlib", "rich", "pandas")) for name in sys.modules)
import matplotlib
before = matplotlib.rcParams.copy()
from tests.unit.monitor.runs import net, trained
w = trained(net(2), 2)
w.plot(save=sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
after = matplotlib.rcParams
assert all(after[name] == before[name] for name in set(after) - {"backend"})
"""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", program, str(tmp_path / "a.svg")]
    subprocess.run(command, check=True, cwd=root, env={"PYTHONPATH": f"{root / 'src'}:{root}"})


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    w = trained(net(2), 1)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "torchtap\[lab\]"'):
        w.plot()
