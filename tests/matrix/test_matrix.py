"""Watching changes nothing: a sample of the matrix, and that the matrix would see it if something changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import nn

import torchtap
from tests.matrix import compare as comparing
from tests.matrix import huggingface, nets, vision
from tests.matrix.cases import Case
from tests.matrix.compare import compare
from tests.matrix.page import PAGE, page
from torchtap.variants import DEFAULT, VARIANTS

HUGGING_FACE = [row.name for row in huggingface.ROWS if row.sampled]
fits = torch.__version__.partition("+")[0] == VARIANTS[DEFAULT].torch and (
    torch.version.cuda == VARIANTS[DEFAULT].cuda
)
with_torchvision = pytest.mark.skipif(
    not fits, reason=f"dev.lock's torchvision is built for PyTorch {VARIANTS[DEFAULT].torch} {DEFAULT}"
)


@lru_cache(maxsize=1)
def torchvision_cases() -> dict[str, Case]:
    return {case.name: case for case in vision.cases()}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch) -> Iterator[None]:
    """And nothing is looked for on the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(case: Case) -> None:
    row = compare(case)
    assert (row.watched, row.captured) == ("equal", "equal")
    assert row.guarded == []
    assert row.hooks_left == 0
    assert row.outputs > 0
    assert row.gradients > 0


@with_torchvision
@pytest.mark.parametrize("name", sorted(vision.SAMPLE))
def test_a_watched_torchvision_model_is_the_bare_one_bit_by_bit(name):
    check(torchvision_cases()[name])


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_watched_transformers_model_is_the_bare_one_bit_by_bit(name):
    check(next(case for case in huggingface.cases() if case.name == name))


@pytest.mark.parametrize("case", nets.cases(), ids=lambda case: case.name)
def test_a_watched_hard_case_is_the_bare_one_bit_by_bit(case):
    check(case)


def test_the_sample_is_as_large_as_it_is_said_to_be():
    assert len(vision.SAMPLE) == 20
    assert len(HUGGING_FACE) == 10
    assert len(huggingface.ROWS) >= 30


# ---- that it would see it ----
def small() -> Case:
    def batch() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(3, 4),), {}

    return Case("small", "own", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), batch)


def last_bit(model: nn.Sequential) -> Any:
    def change(_: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return torch.nextafter(output, torch.full_like(output, 9.0))

    return model[2].register_forward_hook(change)


def random_number(model: nn.Module) -> Any:
    return model.register_forward_hook(lambda *_: (torch.rand(1), None)[1])


def numpys_random_number(model: nn.Module) -> Any:
    import numpy as np

    return model.register_forward_hook(lambda *_: (np.random.rand(1), None)[1])


def gradient(model: nn.Sequential) -> Any:
    return next(model.parameters()).register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]


def buffer(model: nn.Module) -> Any:
    model.register_buffer("calls", torch.zeros(1))
    return model.register_forward_hook(lambda *_: None)


HARMS = {
    last_bit: "step 0, output ",
    random_number: "random state of PyTorch",
    numpys_random_number: "random state of numpy",
    gradient: "step 0, gradient of 0.weight",
    buffer: "state_dict names",
}


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_harm_is_seen_and_named(harm, monkeypatch):
    watch = torchtap.watch

    @contextmanager
    def harmful(model, *args, **options):
        with watch(model, *args, **options) as w:
            handle = harm(model)
            yield w
            handle.remove()

    monkeypatch.setattr(comparing, "watch", harmful)
    row = compare(small())
    # A random number drawn in the first step shows in the second step's batch already.
    assert row.watched == HARMS[harm] or (harm is random_number and row.watched.startswith("step 1"))
    assert row.captured == "equal"
    assert not row.good


def test_a_hook_that_stays_is_seen(monkeypatch):
    watch = torchtap.watch

    def leaving(model, *args, **options):
        model[0].register_forward_hook(lambda *_: None)
        return watch(model, *args, **options)

    monkeypatch.setattr(comparing, "watch", leaving)
    row = compare(small())
    assert row.hooks_left == 1
    assert not row.good


def test_a_model_that_cannot_be_trained_is_no_success():
    def batch() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(3, 5),), {}

    row = compare(Case("wrong", "own", small().build, batch))
    assert row.watched.startswith("the bare run raised RuntimeError: mat1 and mat2")
    assert not row.good


# ---- the page ----
def test_the_page_counts_what_is_equal_and_says_what_differs_and_what_was_not_run():
    good, bad = compare(small()).to_dict(), {**compare(small()).to_dict(), "name": "bad | one"}
    bad["watched"] = "step 0, loss"
    run = {"date": "2026-12-01", "libraries": {"PyTorch": "2.14.1"}, "path": "x", "rows": [good, bad]}
    every = [small(), replace(small(), name="bad | one"), replace(small(), name="third")]
    text = page([run], every)
    assert "**1 of 2 models are equal in all bits**" in text
    assert "1 more were not run yet" in text
    assert text.endswith("\nthird\n")
    assert "| small | 30 | equal | equal | nothing | 0 | 4, 4, 4, 4 |" in text
    assert "| bad \\| one | 30 | **step 0, loss** | equal |" in text


@with_torchvision
def test_the_page_in_docs_names_every_model_of_the_matrix():
    text = PAGE.read_text()
    run, _, missing = text.partition("## Not run yet")
    names = {line.split(" | ")[0].removeprefix("| ") for line in run.splitlines() if line.startswith("| ")}
    names |= set(missing.strip().split(", "))
    every = [*nets.cases(), *torchvision_cases().values(), *huggingface.cases()]
    assert [case.name for case in every if case.name not in names] == []
    assert "**step" not in text
    assert "raised" not in text
