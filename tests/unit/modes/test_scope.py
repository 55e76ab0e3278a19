"""Scope: one context for all fixes, entered again and again, and a decorator of functions only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchtap.modes._scope import Scope


def a_scope() -> tuple[Scope[int], list[str]]:
    """A scope, and what has happened to it: entering number 1 is "+1", leaving it "-1"."""
    events: list[str] = []

    @contextmanager
    def scope() -> Iterator[int]:
        number = sum(event[0] == "+" for event in events) + 1
        events.append(f"+{number}")
        try:
            yield number
        finally:
            events.append(f"-{number}")

    return Scope("fix(...)", scope), events


def test_one_object_is_entered_again_and_within_itself() -> None:
    scope, events = a_scope()
    with scope as first, scope as second:
        assert (first, second) == (1, 2)
    with scope:
        assert repr(scope) == "<fix(...), 1 times entered>"
    assert events == ["+1", "+2", "-2", "-1", "+3", "-3"]


def test_an_exception_leaves_it_and_goes_on() -> None:
    scope, events = a_scope()
    with pytest.raises(KeyError, match="mine"), scope:
        raise KeyError("mine")
    assert events == ["+1", "-1"]


def test_what_fails_on_entry_is_not_entered() -> None:
    @contextmanager
    def failing() -> Iterator[None]:
        raise ValueError("not now")
        yield

    scope = Scope("fix(...)", failing)
    with pytest.raises(ValueError, match="not now"), scope:
        pass
    assert repr(scope) == "<fix(...), 0 times entered>"


def test_each_thread_leaves_what_it_entered() -> None:
    """In the order in which they entered, so that a common stack would mix them up."""
    scope, events = a_scope()
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with scope:
            entered.set()
            left.wait(30)

    thread = threading.Thread(target=other)
    with scope:
        thread.start()
        assert entered.wait(30)
    left.set()
    thread.join()
    assert events == ["+1", "+2", "-1", "-2"]


def test_left_in_another_thread_is_one_clear_error() -> None:
    scope, _ = a_scope()
    errors: list[Exception] = []

    def other() -> None:
        try:
            scope.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(error)

    with scope:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert [str(error) for error in errors] == ["fix(...) is left in a thread that has not entered it"]


def test_decorated_functions_keep_name_arguments_and_result_and_enter_at_each_call() -> None:
    scope, events = a_scope()

    @scope
    def halve(number: int, *, twice: bool = False) -> float:
        """Words."""
        events.append("in")
        return number / (4 if twice else 2)

    assert events == []
    assert (halve(8), halve(8, twice=True)) == (4, 2)
    assert events == ["+1", "in", "-1", "+2", "in", "-2"]
    assert (halve.__name__, halve.__doc__) == ("halve", "Words.")


def test_decorated_methods_are_methods() -> None:
    scope, events = a_scope()

    class Trainer:
        @scope
        def validate(self) -> Trainer:
            return self

    trainer = Trainer()
    assert trainer.validate() is trainer
    assert events == ["+1", "-1"]
