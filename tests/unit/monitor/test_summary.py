"""The table of a watch: its numbers, its width, its colours."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from tests.unit.monitor.runs import net, trained
from torchtap.monitor import watch
from torchtap.monitor._parameters import COLUMNS
from torchtap.monitor._summary import sparkline
from torchtap.monitor.stats import kernel


def rows(w, width: int = 120) -> list[list[str]]:
    """The table's cells, the head first."""
    lines = [line for line, _ in w.summary().lines(width)]
    return [re.split(r"\s{2,}", line.strip()) for line in lines[1 : 2 + len(w.layers)]]


def test_a_line_a_layer_with_the_numbers_of_the_end():
    model = net()
    w = trained(model, 3)
    summary = w.summary()
    first = summary.layers[0]
    output, gradient = w.series("0"), w.series("0", "gradient")
    assert (first.name, first.kind, first.calls) == ("0", "Linear", 3)
    assert first.rms == pytest.approx(output["rms"][-1])
    assert first.absmax == pytest.approx(output["absmax"][-1])
    assert np.isnan(first.zeros)
    assert first.gradient == pytest.approx(gradient["rms"][-1])
    weight = w._parameter_history.series(0).values[-1]
    assert first.ratio == pytest.approx(weight[COLUMNS.index("update")] / weight[COLUMNS.index("sampled")])
    assert first.over_time == pytest.approx(output["rms"].tolist())
    assert summary.layers[1].zeros == pytest.approx(w.series("1")["zeros"][-1])
    head, *lines = rows(w)
    assert head == [
        "layer",
        "class",
        "calls",
        "rms",
        "absmax",
        "zeros",
        "grad rms",
        "upd/weight",
        "rms over time",
    ]
    assert [line[:3] for line in lines[:2]] == [["0", "Linear", "3"], ["1", "ReLU", "3"]]
    assert f"{w.series('1')['zeros'][-1]:.0%}" in lines[1]
    loss = w.scalars("loss")["mean"][-1]
    assert (
        str(summary).splitlines()[0]
        == f"Sequential: 5 layers, 3 steps, shown: step 2, loss {loss:.4g}, lr 0.05"
    )


def test_calls_and_tensors_are_taken_together():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 2)

        def forward(self, x):
            out, (h, c) = self.rnn(x)
            again, _ = self.rnn(x)
            return (out + again + h + c).sum(1, keepdim=True)

    w = trained(Net(), 2)
    (line,) = w.summary().layers
    parts = [w.series("rnn", call=call, path=path) for call in (0, 1) for path in ("0", "1.0", "1.1")]
    squares = sum(part["rms"][-1] ** 2 * part["count"][-1] for part in parts)
    assert line.rms == pytest.approx((squares / sum(part["count"][-1] for part in parts)) ** 0.5, rel=1e-5)
    assert line.absmax == max(part["absmax"][-1] for part in parts)
    assert line.calls == 4


def test_nan_has_its_step_a_cross_and_red():
    w = trained(net(), 4, nan_at=2)
    summary = w.summary()
    assert (summary.layers[0].output_bad_from, summary.layers[0].gradient_bad_from) == (2, 2)
    assert rows(w)[0][-1] == "NaN/Inf from"
    assert rows(w)[1][-1] == "out 2, grad 2"
    assert rows(w)[1][-2].endswith("xx")
    assert "NaN" in rows(w)[1]
    assert [style for _, style in summary.lines()][:3] == ["bold", "dim", "red"]
    text = " ".join(str(summary).split())
    assert "first NaN or Inf: step 2: 1 of 64 values of the input" in text
    assert "loss NaN or Inf" in text


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("nan_at", [None, 2])
def test_it_is_as_wide_as_the_terminal_and_keeps_what_matters(width, nan_at, monkeypatch):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_backbone_with_a_very_long_name_indeed = net()

        def forward(self, x):
            return self.a_backbone_with_a_very_long_name_indeed(x)

    w = trained(Net(), 4, nan_at=nan_at)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(w.summary()).splitlines()
    assert max(map(len, lines)) <= width
    assert "rms" in lines[1] or nan_at
    if width >= 40 and nan_at:
        assert "NaN/Inf from" in lines[1]
    assert all(line.split()[0].endswith(str(at)) for at, line in enumerate(lines[2:7]) if width >= 40)


def test_narrow_terminals_lose_the_course_first_and_the_class_before_the_numbers():
    heads = {width: rows(trained(net(), 3), width)[0] for width in (100, 80, 60, 40)}
    assert "rms over time" in heads[100]
    assert "rms over time" not in heads[60]
    assert "absmax" not in heads[40]
    assert "grad rms" in heads[40]


class TestColours:
    def shown(self, terminal: bool) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=100)
        console.print(trained(net(), 3, nan_at=1).summary())
        return file.getvalue()

    def test_on_a_terminal(self, monkeypatch):
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        assert "\x1b[31m" in self.shown(True)

    def test_not_where_no_color_is_set(self, monkeypatch):
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b[31m" not in self.shown(True)

    def test_not_in_a_file(self, tmp_path):
        file = io.StringIO()
        summary = trained(net(), 3, nan_at=1).summary()
        summary.show(file)
        assert "\x1b" not in file.getvalue()
        assert "NaN/Inf from" in file.getvalue()
        assert "\x1b" not in str(summary)


def test_a_watch_that_measured_nothing_says_what_to_do():
    with watch(net()) as w:
        text = str(w.summary())
    assert text.splitlines()[-1].startswith("no step has ended yet: watch(model, optimizer), or w.step()")
    assert rows(w)[1] == ["0", "Linear", "never"]


def test_layers_that_never_ran_are_named_and_stand_last():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(1, 1)
            self.used = nn.Linear(4, 1)

        def forward(self, x):
            return self.used(x)

    summary = trained(Net(), 1).summary()
    assert [layer.name for layer in summary.layers] == ["used", "unused"]
    assert str(summary).splitlines()[-1] == "never called: unused"


def test_what_is_not_measured_is_told_with_the_reason():
    class Whole(nn.Module):
        def forward(self, x):
            return (x > 0).long()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = Whole()
            self.linear = nn.Linear(4, 1)

        def forward(self, x):
            return self.linear(x + self.whole(x))

    assert "not measured: 2 outputs of whole: int64 values" in str(trained(Net(), 2).summary())


def test_jupyter_gets_a_table_in_which_names_are_text():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"<b>": nn.Linear(4, 1)})

        def forward(self, x):
            return self.parts["<b>"](x)

    html = trained(Net(), 2, nan_at=1).summary()._repr_html_()
    assert "<b>:" not in html.replace("<p><b>", "")
    assert ">parts.&lt;b&gt;</td>" in html
    assert html.count("<tr>") == html.count("</tr>") == 2
    assert "#e5484d" in html


def test_a_name_cannot_move_the_cursor():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"a\x1b[2J": nn.Linear(4, 1)})

        def forward(self, x):
            return self.parts["a\x1b[2J"](x)

    assert "\x1b" not in str(trained(Net(), 1).summary())


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([], ""),
        ([1.0], "▄"),
        ([0.0, 0.0], "▄▄"),
        ([0.0, 7.0], "▁█"),
        ([torch.nan] * 3, "xxx"),
        (list(range(8)), "▁▂▃▄▅▆▇█"),
        ([0.0] * 31 + [torch.nan], "▄" * 15 + "x"),
    ],
)
def test_sparklines(values, wanted):
    assert sparkline(values) == wanted


def test_zeros_are_the_last_that_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the C kernel that is in each tenth step."""
    monkeypatch.setattr(kernel, "found", lambda: kernel.Found(None, "left out"))
    w = trained(net(), 14)
    counted = w.series("1")["zeros"]
    assert np.isnan(counted[-1])
    assert w.summary().layers[1].zeros == pytest.approx(counted[10])


def test_dead_units_are_told_in_words() -> None:
    model = net(4)
    with torch.no_grad():
        for place in (2, 4):
            model[place].bias.fill_(-100.0)
    assert "dead units in the last look: 3 100%, 5 100%" in str(trained(model, 6).summary())
    assert "dead units" not in str(trained(net(), 6).summary())
