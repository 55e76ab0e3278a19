"""Writers in a thread of their own, behind a queue with an end: a slow disk does not slow the training."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import warnings
import weakref
from collections.abc import Sequence

from torchtap.monitor.writers.record import About, Record, Writer

CAPACITY = 256
"""Steps that may wait to be written."""
_LONGEST_S = 60.0  # that closing waits for what still waits to be written


class WriterWarning(RuntimeWarning):
    """Steps were not written: a writer failed, or was too slow."""


class Background:
    """Hands records to writers. Never waits, unless `block`: what does not fit is counted and dropped."""

    def __init__(self, writers: Sequence[Writer], about: About, *, block: bool = False) -> None:
        self.dropped = 0
        """Steps that were not written because too many waited."""
        self.failed: list[tuple[Writer, BaseException]] = []
        self._block = block
        self._writers = list(writers)
        for writer in self._writers:
            writer.start(about)
        self._queue: queue.Queue[Record | None] = queue.Queue(CAPACITY)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="torchtap writer", daemon=True)
        self._thread.start()
        # A daemon thread is stopped in the middle of a line when Python ends: end it before.
        mine = weakref.ref(self)
        self._at_exit = lambda: background.close() if (background := mine()) else None
        atexit.register(self._at_exit)

    def put(self, record: Record) -> None:
        """Have it written soon."""
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(record, block=self._block)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, and close the writers. Doing it again does nothing."""
        atexit.unregister(self._at_exit)
        if self._thread.is_alive():
            self._closing = True
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=_LONGEST_S)
                self._thread.join(_LONGEST_S)
            if self._thread.is_alive():
                warnings.warn(
                    f"writers did not end in {_LONGEST_S:.0f} s; {self._queue.qsize()} steps wait to be written",
                    WriterWarning,
                    stacklevel=3,
                )
            elif self.dropped:
                warnings.warn(
                    f"{self.dropped} steps were not written: the writers were too slow. Give every=10, or block=True",
                    WriterWarning,
                    stacklevel=3,
                )

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            for writer in list(self._writers):
                try:
                    writer.write(record)
                except Exception as error:
                    self._end(writer, error, record.step)
            if self._closing and self._queue.empty():  # it was too full to be told the end
                break
        for writer in self._writers:
            try:
                writer.close()
            except Exception as error:
                self._end(writer, error, None)

    def _end(self, writer: Writer, error: Exception, step: int | None) -> None:
        self._writers = [each for each in self._writers if each is not writer]
        self.failed.append((writer, error))
        when = "while closing" if step is None else f"at step {step}: steps from here on are not written"
        # As an error, where warnings are errors, it would end the other writers, too.
        with contextlib.suppress(WriterWarning):
            warnings.warn(f"{writer} failed {when}: {error}", WriterWarning, stacklevel=2)
