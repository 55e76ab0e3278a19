"""Readings of hours in a bounded place."""

from __future__ import annotations

from collections.abc import Mapping

from torchtap.selftest.burn.records import Readings


class Series:
    """Sums up readings as they come.

    >>> series = Series()
    >>> for value in (3.0, 1.0, 2.0):
    ...     series.add(value)
    >>> series.readings()
    Readings(count=3, first=3.0, last=2.0, least=1.0, most=3.0, mean=2.0)
    """

    def __init__(self) -> None:
        self._count, self._sum = 0, 0.0
        self._first = self._last = self._least = self._most = 0.0

    def add(self, value: float) -> None:
        """One more reading."""
        if not self._count:
            self._first = self._least = self._most = value
        self._count += 1
        self._sum += value
        self._last = value
        self._least, self._most = min(self._least, value), max(self._most, value)

    @property
    def count(self) -> int:
        """How many there were."""
        return self._count

    def readings(self) -> Readings:
        """What is known of them."""
        return Readings(
            count=self._count,
            first=self._first,
            last=self._last,
            least=self._least,
            most=self._most,
            mean=round(self._sum / self._count, 3) if self._count else 0.0,
        )


class Course:
    """A thinned record: at most `points` moments, evenly spread. When it is full, every second one is dropped.

    >>> course = Course(4)
    >>> for second in range(100):
    ...     course.add({"s": float(second)})
    >>> [moment["s"] for moment in course.moments]
    [0.0, 32.0, 64.0, 96.0]
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._every = 1
        self._seen = 0
        self._moments: list[Mapping[str, float]] = []

    def add(self, moment: Mapping[str, float]) -> None:
        """One more moment; kept if it is one of those that are."""
        if self._seen % self._every == 0:
            if len(self._moments) == self._points:
                self._moments = self._moments[::2]
                self._every *= 2
            if self._seen % self._every == 0:
                self._moments.append(moment)
        self._seen += 1

    @property
    def moments(self) -> tuple[Mapping[str, float], ...]:
        """Those that were kept."""
        return tuple(self._moments)
