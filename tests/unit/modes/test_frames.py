"""Places: whose line it was, in words that a reader knows, without keeping a frame."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap.modes._frames import Place, Stack, first_argument, shown, stack_from

HERE = Path(__file__)


class Recording(nn.Module):
    """Keeps where its forward was called from."""

    stack: Stack

    def forward(self, x: Tensor) -> Tensor:
        self.stack = stack_from(sys._getframe())
        return x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Recording()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result


def lines(stack: Stack) -> list[str]:
    return [place.text for place in stack.places]


def run(source: str, file: str, **names: Any) -> dict[str, Any]:
    """Run source as if it stood in that file."""
    exec(compile(source, file, "exec"), names)
    return names


def test_the_line_in_the_model_and_the_line_that_called_it() -> None:
    model = Outer()
    model(torch.zeros(1))  # the training loop
    assert lines(model.inner.stack) == [
        "self.stack = stack_from(sys._getframe())",
        "result: Tensor = self.inner(x)",
        "model(torch.zeros(1))  # the training loop",
    ]


def test_a_direct_call_of_forward_is_followed_out_too() -> None:
    model = Outer()
    model.forward(torch.zeros(1))  # no __call__
    caller = model.inner.stack.caller
    assert caller is not None
    assert caller.text == "model.forward(torch.zeros(1))  # no __call__"


class Encoder(Outer):
    """Has methods that are called without __call__, as saliency and generation do."""

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        return self.scores(x)

    def scores(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result

    def fit(self, x: Tensor) -> None:
        torch.autograd.grad(self.scores(x.requires_grad_()).sum(), [x])  # its own loop


def test_methods_of_a_model_are_followed_out_to_the_line_that_called_the_first() -> None:
    model = Encoder()

    def saliency(x: Tensor) -> None:
        model.encode(x)  # the user's line

    saliency(torch.zeros(1))
    stack = model.inner.stack
    assert [place.function for place in stack.places] == ["forward", "scores", "encode", "saliency"]
    assert stack.caller is not None
    assert stack.caller.text == "model.encode(x)  # the user's line"


def test_a_method_that_trains_is_the_loop_itself() -> None:
    model = Encoder()
    model.fit(torch.zeros(1))
    caller = model.inner.stack.caller
    assert caller is not None
    assert caller.text.endswith("# its own loop")


def test_lines_outside_the_outermost_module_are_left_out() -> None:
    def step() -> None:
        model(torch.zeros(1))

    def epoch() -> None:
        step()

    model = Recording()
    epoch()
    assert [place.function for place in model.stack.places] == ["forward", "step"]


@pytest.mark.parametrize(
    ("model_in", "loop_in", "caller"),
    [
        ("/venv/lib/python3/site-packages/transformers/lstm.py", "/home/me/train.py", "/home/me/train.py"),
        ("/home/me/model.py", "/venv/site-packages/lightning/loop.py", "/home/me/model.py"),
        (
            "/venv/site-packages/transformers/lstm.py",
            "/venv/site-packages/lightning/loop.py",
            "test_frames.py",
        ),
    ],
    ids=["packaged-model", "packaged-trainer", "both-packaged"],
)
def test_the_caller_is_a_line_of_the_users_own_wherever_there_is_one(
    model_in: str, loop_in: str, caller: str
) -> None:
    made = run(
        "class Model(nn.Module):\n    def forward(self, x):\n        self.stack = stack_from(sys._getframe())\n",
        model_in,
        nn=nn,
        sys=sys,
        stack_from=stack_from,
    )
    model = made["Model"]()
    run("def fit(model, x):\n    model(x)\n", loop_in)["fit"](model, torch.zeros(1))
    here, found = model.stack.here, model.stack.caller
    assert here.file == model_in
    assert found.file.endswith(caller)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (str(Path.cwd() / "src" / "model.py"), str(Path("src") / "model.py")),
        ("/somewhere/else/model.py", "/somewhere/else/model.py"),
        ("/venv/lib/python3.12/site-packages/transformers/trainer.py", "transformers/trainer.py"),
        ("/usr/lib/python3/dist-packages/trainer.py", "trainer.py"),
        ("<stdin>", "<stdin>"),
    ],
)
def test_a_file_is_shown_as_short_as_it_is_clear(file: str, expected: str) -> None:
    assert shown(file) == expected


def test_a_place_tells_its_line_and_function() -> None:
    place = Place(test_a_place_tells_its_line_and_function.__code__, 1)
    assert place.text == HERE.read_text().splitlines()[0]
    assert str(place).endswith("test_frames.py:1")
    assert place.function == "test_a_place_tells_its_line_and_function"


def test_the_source_of_a_line_that_cannot_be_read_is_empty() -> None:
    code = compile("1", "<gone>", "eval")
    assert Place(code, 1).text == ""


def test_no_stack_has_neither_here_nor_caller() -> None:
    empty = stack_from(None)
    assert (empty.places, empty.here, empty.caller) == ((), None, None)


def test_a_stack_keeps_nothing_alive_that_its_functions_held() -> None:
    class Big:
        pass

    def held() -> tuple[Stack, weakref.ref[Big]]:
        big = Big()
        return stack_from(sys._getframe()), weakref.ref(big)

    stack, big = held()
    gc.collect()
    assert big() is None
    assert stack.places[0].function == "held"


def test_a_recursion_costs_no_more_than_its_innermost_frames() -> None:
    def deep(n: int) -> Stack:
        return deep(n - 1) if n else stack_from(sys._getframe())

    assert len(deep(500).places) <= 60


def test_threads_end_at_the_users_function_and_not_in_the_standard_library() -> None:
    import threading

    found: list[Stack] = []
    thread = threading.Thread(target=lambda: found.append(stack_from(sys._getframe())))
    thread.start()
    thread.join()
    assert [place.file for place in found[0].places] == [__file__]


def test_the_first_argument_of_a_method_is_its_self() -> None:
    def frame(first: object, _second: object) -> object:
        return first_argument(sys._getframe())

    def none() -> object:
        return first_argument(sys._getframe())

    functions: list[tuple[Callable[[], object], object]] = [(lambda: frame("a", "b"), "a"), (none, None)]
    assert [call() for call, _ in functions] == [expected for _, expected in functions]
