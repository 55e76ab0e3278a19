"""The run as a DataFrame: its columns, with pandas or something that stands for it."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.unit.monitor.runs import net, trained
from torchtap.monitor import watch


@pytest.fixture
def pandas(monkeypatch):
    """Stands for pandas: a frame is the columns it was made of."""
    module: Any = types.ModuleType("pandas")
    module.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", module)


@pytest.mark.usefixtures("pandas")
class TestFrame:
    def test_a_row_for_each_point_of_each_tensor(self):
        w = trained(net(), 3)
        frame = w.to_pandas()
        assert list(frame) == [
            *("layer", "class", "direction", "call", "path", "first_step", "last_step"),
            *("min", "max", "mean", "rms", "std", "zeros", "nonfinite", "count", "absmax"),
        ]
        assert {len(column) for column in frame.values()} == {3 * (1 + 2 * 5)}
        of = (frame["layer"] == "2") & (frame["direction"] == "gradient")
        assert frame["first_step"][of].tolist() == [0, 1, 2]
        np.testing.assert_array_equal(frame["rms"][of], w.series("2", "gradient")["rms"])
        np.testing.assert_array_equal(frame["absmax"][of], w.series("2", "gradient")["absmax"])
        assert set(frame["class"][of]) == {"Linear"}
        assert set(frame["layer"][frame["direction"] == "input"]) == {""}

    def test_calls_and_paths_stay_apart(self):
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.LSTM(4, 2)

            def forward(self, x):
                return self.rnn(x)[0] + self.rnn(x)[1][0]

        frame = trained(Net(), 1).to_pandas()
        of = (frame["direction"] == "output") & (frame["layer"] == "rnn")
        assert list(zip(frame["call"][of], frame["path"][of], strict=True)) == [
            (call, path) for call in (0, 1) for path in ("0", "1.0", "1.1")
        ]

    def test_parameters(self):
        w = trained(net(2), 2)
        frame = w.to_pandas("parameters")
        assert frame["parameter"].tolist() == [
            each for each in ("0.weight", "0.bias", "2.weight", "2.bias") for _ in range(2)
        ]
        np.testing.assert_allclose(frame["ratio"], frame["update"] / frame["sampled"])
        assert frame["first_step"].tolist() == [0, 1] * 4

    def test_scalars(self):
        w = trained(net(2), 2, nan_at=1)
        frame = w.to_pandas("scalars")
        assert frame["name"].tolist() == ["loss", "loss", "lr", "lr"]
        assert frame["nonfinite"].tolist() == [0, 1, 0, 0]
        assert np.isnan(frame["mean"][1])

    @pytest.mark.parametrize("of", ["tensors", "parameters", "scalars"])
    def test_of_an_empty_watch_has_columns_and_no_rows(self, of):
        with watch(net()) as w:
            frame = w.to_pandas(of)
        assert frame
        assert {len(column) for column in frame.values()} == {0}


def test_another_word_is_an_error():
    with (
        watch(net()) as w,
        pytest.raises(ValueError, match=r"to_pandas\('layers'\): one of 'tensors', 'parameters'"),
    ):
        w.to_pandas("layers")


def test_without_pandas_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install pandas. Without it, w.series\(layer\)"):
        trained(net(), 1).to_pandas()
