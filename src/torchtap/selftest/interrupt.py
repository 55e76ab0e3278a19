"""Ctrl-C, SIGTERM and SIGHUP: the first ends a self-test with what was found so far, a second one ends it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torchtap.selftest.process import end_all

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Whether somebody asked to stop, and how. Called, it says whether: what `run(stop=...)` wants.

    >>> interrupt = Interrupt()
    >>> interrupt(), interrupt.exit_code
    (False, 0)
    """

    def __init__(self) -> None:
        self.signal = 0  # the number of the signal that asked

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal != 0

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, as a shell says it; 0 where nobody asked."""
        return 128 + self.signal if self.signal else 0

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self.signal and number == signal.SIGHUP:
            return  # a lost connection is told by the kernel and by the shell: nobody grew impatient
        if self.signal:  # the second time: whoever asks twice does not want to wait
            end_all()
            os._exit(128 + number)
        self.signal = number


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within this, the signals are noted instead of ending the program. For the main thread only.

    A signal that is ignored stays ignored, as of a command that was started with nohup or in the background.
    """
    interrupt = Interrupt()
    before = {each: signal.getsignal(each) for each in SIGNALS}
    mine = [each for each, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for each in mine:
            signal.signal(each, interrupt._heard)
        yield interrupt
    finally:
        for each in mine:
            signal.signal(each, before[each])
