"""The pytest plugin's part that needs torch: an emulation, and what the RNN calls of a test were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from torch import Tensor

from torchtap.modes._blame import blame, told
from torchtap.modes._observer import OBSERVER, Listener, RnnCall
from torchtap.modes._refusal import is_explained, is_refusal
from torchtap.modes.emulate import emulate_cudnn

_MOST = 20  # calls of one test that are kept: more than anybody reads


class Session(Listener):
    """An open emulation. Raises `RuntimeError` as `emulate_cudnn` does."""

    def __init__(self) -> None:
        self._calls: list[RnnCall] = []
        with ExitStack() as stack:
            stack.enter_context(emulate_cudnn())
            OBSERVER.listen(self)
            stack.callback(OBSERVER.unlisten, self)
            self.close = stack.pop_all().close

    def begin(self) -> None:
        """A test begins."""
        self._calls.clear()

    def ran_rnn(self, call: RnnCall, _outputs: Sequence[Tensor]) -> None:
        """After an RNN's forward."""
        if call.breaks_backward and call.grad and len(self._calls) < _MOST:
            self._calls.append(call)

    def explain(self, error: BaseException) -> str | None:
        """Which calls may have made a test fail with this error; None where it is another one, or explained already."""
        chain = list(_chain(error))
        if not any(map(is_refusal, chain)) or any(map(is_explained, chain)) or not self._calls:
            return None
        one = "" if len(self._calls) == 1 else "  one of these, or several:\n"
        return one + told(blame(self._calls))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
