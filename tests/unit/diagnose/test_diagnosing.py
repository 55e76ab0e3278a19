"""What `diagnose` gives: words, JSON types, symptoms under their cause; and from what it can be made."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.diagnose.training import classes, fit, mlp, trainings
from torchtap.diagnose import diagnose
from torchtap.monitor._watch import Watch
from torchtap.monitor.distributed import _view
from torchtap.monitor.ranks import Ranks


def _first(name: str) -> str:
    return str(diagnose(trainings(broken=True)[name].run())[0])


def test_dead_relu_is_told_with_the_line_for_the_layer_before_it() -> None:
    told = _first("dead_by_bias")
    assert told.startswith("warn   relu.dead at 1: 100% of 64 units gave 0")
    assert 'nn.init.kaiming_normal_(model[0].weight, nonlinearity="relu")' in told
    assert "\nhence  " in told


def test_tiny_batch_is_told_with_the_group_norm_in_its_place() -> None:
    assert "model[1] = nn.GroupNorm(16, 32)" in _first("batch_norm_of_two_rows")


def test_b11_names_the_initialisation() -> None:
    """B11: zeros after ReLU, the loss does not fall, and Kaiming initialisation mends it."""
    found = diagnose(trainings(broken=True)["too_wide_weights"].run())
    assert "kaiming_normal_" in found[0].remedy
    torch.manual_seed(0)
    model = mlp(20, 128, 128, 128, 128, 4)
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.kaiming_normal_(each.weight, nonlinearity="relu")
            nn.init.zeros_(each.bias)
    assert (
        diagnose(fit(model, classes(), optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)))
        == []
    )


def test_to_dict_is_json_with_symptoms() -> None:
    (found,) = diagnose(trainings(broken=True)["dead_by_bias"].run())
    made = json.loads(json.dumps(found.to_dict()))
    assert made["id"] == "relu.dead"
    assert made["severity"] == "warn"
    assert {each["id"] for each in made["symptoms"]} == {each.id for each in found.symptoms} != set()


def test_run_can_be_sent() -> None:
    run = trainings(broken=True)["dead_by_bias"].run().run()
    sent = pickle.loads(pickle.dumps(run))  # our own
    assert [each.to_dict() for each in diagnose(sent)] == [each.to_dict() for each in diagnose(run)]


def test_nothing_watched_gives_nothing() -> None:
    with Watch(nn.Linear(2, 2)) as watch:
        assert diagnose(watch) == []
    assert diagnose(watch) == []


def test_watch_can_be_asked_while_training_goes_on() -> None:
    model, data = mlp(20, 32, 4), classes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Watch(model, optimizer) as watch:
        for step in range(12):
            x, y = data(step)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert [each.id for each in diagnose(watch)] == ["lr.zero"]
        optimizer.param_groups[0]["lr"] = 0.1
        for step in range(60):
            x, y = data(step)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert diagnose(watch) == []


def _ranks(*, shift: float = 0.0, bad: int | None = None, apart: bool = False) -> Ranks:
    """Two ranks of one training, in one process: each sees what an all-reduce would give."""
    runs = []
    for rank in range(2):
        torch.manual_seed(0)
        model, data = mlp(20, 32, 4), classes()
        if rank == 1:
            with torch.no_grad():
                model[0].weight += shift
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Watch(model, optimizer) as watch:
            for step in range(30):
                x, y = data(step)
                if apart and rank == 1:
                    y = y.flip(0)
                if rank == bad and step == 7:
                    x[0, 0] = float("nan")
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        runs.append(_view(watch, rank))
    return Ranks(tuple(runs))


def test_equal_ranks_give_nothing() -> None:
    assert _ranks().diagnose() == []


@pytest.mark.parametrize(
    ("ranks", "first", "words"),
    [
        (lambda: _ranks(bad=1), "ranks.nonfinite", "rank 1 first, in step 7"),
        (lambda: _ranks(shift=0.01), "ranks.gradients_differ", "in step 0"),
        (
            lambda: _ranks(apart=True),
            "ranks.gradients_differ",
            "on rank 0, 0.01606 on rank 1; the same at 0.bias",
        ),
    ],
    ids=["nan-on-one-rank", "other-weights-from-the-start", "gradients-not-averaged"],
)
def test_ranks_that_differ_are_told(ranks: Callable[[], Ranks], first: str, words: str) -> None:
    (found,) = ranks().diagnose()
    assert found.id == first
    assert words in found.seen
