"""docs/diagnose.md: all rules, from the rules themselves.

`python -m torchtap.diagnose.page docs/diagnose.md` writes it; a test compares page and code.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from torchtap.diagnose.rule import Rule
from torchtap.diagnose.rules import RULES

_HEAD = """\
# What `diagnose` finds

`w.diagnose()` looks at what was measured and tells what is wrong, the likeliest root cause first.
What a finding explains is told with it ("hence") and not by itself. A healthy training gives no finding;
[cases.md](cases.md) has the trainings that this is tested by.

```python
with torchtap.watch(model, optimizer) as w:
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        w.log(loss=loss)
        optimizer.step()
print(w.diagnose())
```

`error`: a number is lost, or replicas are no longer one model. `warn`: training goes wrong without any error. `info`:
it may be on purpose. Rules about ranks look at all of them: `gather(w).diagnose()`, see
[distributed.md](distributed.md).

What cannot be told from the outside: that labels belong to other inputs, that a loss measures the wrong thing, or that
one whole tensor given in every step is not the whole data set. Activations by functions (`F.relu`) and
`F.scaled_dot_product_attention` are seen only by what they leave in the layers before them. This page is made by
`python -m torchtap.diagnose.page docs/diagnose.md`.

| rule | severity | is true when |
|---|---|---|
{table}
"""


def page() -> str:
    """The text of docs/diagnose.md."""
    rows = (
        f"| [`{rule.id}`](#{_anchor(rule.id)}) | {rule.severity.value} | {rule.definition} |"
        for rule in RULES
    )
    return "\n".join([_HEAD.format(table="\n".join(rows)), *map(_section, RULES)])


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _section(rule: Rule) -> str:
    lines = [
        f"## {rule.id}",
        "",
        f"*{rule.severity.value}.* {rule.definition}",
        "",
        f"- looks at: {rule.looks_at}",
        f"- seen: {_slots(rule.seen)}",
        f"- cause: {_slots(rule.cause)}",
        f"- do: {_slots(rule.remedy)}",
        f"- no problem when: {rule.fine_when}",
    ]
    if rule.limits:
        lines += ["- limits: " + "; ".join(_limit(*each) for each in _limits(rule))]
    if rule.only_with:
        lines += [f"- told only with one of: {_names(rule.only_with)}"]
    if rule.explains:
        lines += [f"- explains: {_names(rule.explains)}"]
    return "\n".join([*lines, ""])


def _limits(rule: Rule) -> list[tuple[str, float, str, str]]:
    return [(each.name, each.value, each.unit, each.source) for each in rule.limits]


def _limit(name: str, value: float, unit: str, source: str) -> str:
    return f"`{name}` {value:g}{' ' + unit if unit else ''}{f' ({source})' if source else ''}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _slots(text: str) -> str:
    """Slots as a reader sees them, so that a text does not look like code."""
    return re.sub(r"\{(\w+)[^}]*\}", lambda slot: f"*{slot[1].replace('_', ' ')}*", text)


def main() -> None:
    """Write the page that is named."""
    where = Path(sys.argv[1])
    temporary = where.with_suffix(".part")
    temporary.write_text(page(), encoding="utf-8")
    os.replace(temporary, where)  # noqa: PTH105


if __name__ == "__main__":
    main()
