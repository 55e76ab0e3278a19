"""The command: `scripts/preflight`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence

import torchtap
from host import up
from host.paths import Paths
from host.preflight import checks, facts, page
from host.show import say
from torchtap.selftest.result import EXIT_CODES


def preflight(argv: Sequence[str]) -> int:
    """Look, judge, show. Exit code 0: pass or warn, 1: fail or unknown. Raises `Problem` (2) for bad variables."""
    if argv == ["--markdown"]:
        print(page.check_table())
        return 0
    up.no_arguments([word for word in argv if word != "--json"])
    with contextlib.redirect_stdout(sys.stderr if argv else sys.stdout):  # stdout is the JSON's alone
        situation, found = facts.gather(Paths())
        results = checks.judge_all(found)
        if not argv:
            page.draw(results)
            print()
            tell(situation, found)
    if argv:
        print(json.dumps(page.document(found, results, torchtap.__version__), indent=2))
    else:
        say("verdict", f"{page.verdict(results).value.upper()}: {page.counts(results)}")
        say("next", page.next_step(found, results))
    return EXIT_CODES[page.verdict(results)]


def tell(situation: up.Situation, found: facts.Facts) -> None:
    """What make up would say first."""
    if found.plan:
        up.tell(situation, found.plan)
    if found.image:
        say(
            "image",
            f"{found.image} {'is here' if found.image_here else 'is not built yet: about 3 GB to download'}",
        )
