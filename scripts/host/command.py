"""The frame around every command: a `Problem` becomes its lines and its exit code, Ctrl-C becomes 130."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from host import show

INTERRUPTED = 130


def run(main: Callable[[Sequence[str]], int]) -> int:
    """Call a command's `main` with its arguments and return the exit code."""
    name = Path(sys.argv[0]).name
    try:
        return main(sys.argv[1:])
    except show.Problem as trouble:
        show.problem(name, trouble)
        return trouble.code
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `make logs | head`
        sys.stderr.close()
        return 0
