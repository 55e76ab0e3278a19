"""From rules and runs to diagnoses: which are true, and which of them explains which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torchtap._findings import Severity
from torchtap.diagnose._diagnosis import Diagnoses, Diagnosis
from torchtap.diagnose._reading import listed
from torchtap.diagnose.rule import Rule, Seen
from torchtap.diagnose.rules import RULES
from torchtap.monitor._watch import Watch
from torchtap.monitor.ranks import Ranks
from torchtap.monitor.run import Run

_WEIGHT = {Severity.ERROR: 0, Severity.WARN: 0, Severity.INFO: 1}


def diagnose(given: Watch | Run | Ranks, *, rules: Iterable[Rule] = RULES) -> Diagnoses:
    """What is wrong with a training that was watched, the likeliest root cause first; empty where nothing is.

    Looks at what was measured until now and changes nothing. Of the ranks of a distributed training, as
    `torchtap.monitor.gather` brings them together, what must be equal on all is compared, and nothing else. What a
    finding explains is in its `symptoms` and not in the list. Raises RuntimeError for a watch that did not look closer.

    >>> import torch
    >>> import torchtap
    >>> net = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    >>> with torchtap.watch(net, optimizer) as watch:
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         loss = net(torch.randn(8, 4)).square().mean()
    ...         loss.backward()
    ...         watch.log(loss=loss)
    ...         optimizer.step()
    >>> [each.id for each in diagnose(watch)]
    ['lr.zero']
    """
    seen = given.run() if isinstance(given, Watch) else given
    found = {}
    for rule in rules:
        if isinstance(seen, Ranks):
            places = list(rule.over_ranks(seen, rule.limit())) if rule.over_ranks is not None else []
        else:
            places = list(rule.find(seen, rule.limit())) if rule.find is not None else []
        if places:
            found[rule.id] = rule, places
    found = {
        name: (rule, places)
        for name, (rule, places) in found.items()
        if not rule.only_with or any(each in found for each in rule.only_with)
    }
    return _rooted(
        [_made(rule, places) for rule, places in found.values()],
        {name: rule for name, (rule, _) in found.items()},
    )


def _made(rule: Rule, places: Sequence[Seen]) -> Diagnosis:
    """One diagnosis of a rule: of the first place, with the others by name."""
    first = places[0]
    names = tuple(dict.fromkeys(each.where for each in places))
    told = rule.seen.format(**first.slots)
    if len(names) > 1:
        told += f"; the same at {listed(names[1:])}"
    return Diagnosis(
        id=rule.id,
        severity=first.severity or rule.severity,
        where=first.where,
        seen=told,
        cause=rule.cause.format(**first.slots),
        remedy=rule.remedy.format(**first.slots),
        fine_when=rule.fine_when,
        places=names,
    )


def _rooted(found: list[Diagnosis], rules: dict[str, Rule]) -> Diagnoses:
    """The root causes, each with what it explains; in the order of the rules, what may be on purpose last."""
    causes = {
        each.id: next(
            (root.id for root in found if each.id in rules[root.id].explains and root.id != each.id), None
        )
        for each in found
    }
    roots: dict[str, list[Diagnosis]] = {}
    for each in found:
        root, passed = each.id, {each.id}
        while (above := causes[root]) is not None and above not in passed:
            root = above
            passed.add(root)
        roots.setdefault(root, []).append(each)
    made = [
        replace(each, symptoms=tuple(other for other in roots[each.id] if other.id != each.id))
        for each in found
        if each.id in roots
    ]
    return Diagnoses(sorted(made, key=lambda each: _WEIGHT[each.severity]))
