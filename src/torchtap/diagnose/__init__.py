"""What is wrong with a training, and what to change: rules over what `watch` measured.

`w.diagnose()`, or `diagnose(w)`, gives the findings, the likeliest root cause first, each with what follows from it. A
healthy run gives none. The rules are data (`torchtap.diagnose.rules`); docs/diagnose.md shows them all.
"""

from __future__ import annotations

from torchtap.diagnose._diagnosing import diagnose
from torchtap.diagnose._diagnosis import Diagnoses, Diagnosis
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.diagnose.rules import RULES

__all__ = ["RULES", "Diagnoses", "Diagnosis", "Limit", "Rule", "Seen", "diagnose"]
