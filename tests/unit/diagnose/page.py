"""The section of docs/cases.md about small trainings, from their table: `python -m tests.unit.modes.cases.page`."""

from __future__ import annotations

from tests.unit.diagnose.training import SEEDS, trainings

_SECTION = """
# Small trainings, and what `diagnose` says

| trainings | number | what comes out |
|---|---|---|
| with one fault | {broken} | {broken} with the right finding first |
| healthy | {healthy} | {healthy} without any finding |

Each runs some dozen steps on one thread of a CPU, and was judged with {seeds} seeds: the tests run the first, and the
others where slow tests run. Where two findings say the same of one fault, either may come first.
[docs/diagnose.md](diagnose.md) explains the findings. To run one: `pytest tests/unit/diagnose -k dead_by_bias`.

| fault | what is wrong | found first |
|---|---|---|
{faults}

Healthy ones:

| training | what it is |
|---|---|
{well}
"""


def section() -> str:
    """Its text."""
    broken, healthy = trainings(broken=True), trainings(broken=False)
    return _SECTION.format(
        broken=len(broken),
        healthy=len(healthy),
        seeds=("no", "one", "two", "three")[len(SEEDS)],
        faults="\n".join(
            f"| `{each.name}` | {each.what} | {' or '.join(f'`{name}`' for name in each.expected)} |"
            for _, each in sorted(broken.items())  # as registered would be as imported
        ),
        well="\n".join(f"| `{each.name}` | {each.what} |" for _, each in sorted(healthy.items())),
    )
