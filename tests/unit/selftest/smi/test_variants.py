"""Kinds of output beyond the recorded ones: drivers 352 to 610, shells, kernel logs, and what a terminal adds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.selftest.smi.test_recorded import CASES, FOLDER
from torchtap.selftest.causes import CAUSES
from torchtap.selftest.smi import Judgement, Kind, judge


class Variant(NamedTuple):
    """One output and what must be said of it. `causes` None: whatever they are."""

    name: str
    text: str
    command: str
    rc: int | None
    verdict: str
    causes: frozenset[tuple[int | None, str]] | None


def read(file: Path) -> list[Variant]:
    """The file's head says its form."""
    parts = re.split(r"^#### (.*)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    variants = []
    for head, text in zip(parts[::2], parts[1::2], strict=True):
        name, command, rc, verdict, causes = (part.strip() for part in head.split(" | "))
        named = [each.rpartition(":") for each in causes.split() if each not in "-*"]
        expected = frozenset((int(gpu) if gpu else None, cause) for gpu, _, cause in named)
        known = None if rc == "-" else int(rc)
        asked = "" if command == "-" else command
        variants.append(Variant(name, text, asked, known, verdict, None if causes == "*" else expected))
    return variants


VARIANTS = read(FOLDER / "variants.txt")


def said(judged: Judgement) -> tuple[str, frozenset[tuple[int | None, str]]]:
    return judged.verdict.value, frozenset(judged.causes)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_is_judged_as_it_should(variant: Variant):
    """Verdict and causes; an unknown one only has to be unknown."""
    verdict, causes = said(judge(variant.text, variant.rc, variant.command))
    assert (verdict, causes if variant.causes is not None else None) == (variant.verdict, variant.causes)
    assert {cause for _, cause in causes} <= CAUSES.keys()


def test_there_are_variants_of_every_kind():
    """At least forty, unique, with every verdict."""
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 40
    assert {variant.verdict for variant in VARIANTS} == {"pass", "warn", "fail", "unknown", "retry"}


AROUND: dict[str, Callable[[str], str]] = {
    "as Windows ends lines": lambda text: text.replace("\n", "\r\n"),
    "with a byte-order mark": lambda text: f"\ufeff{text}",
    "in colour": lambda text: f"\x1b[1;32m{text.rstrip()}\x1b[0m\n",
    "with colours made visible": lambda text: f"\\x1b[32m{text.rstrip()}\\x1b[0m\n",
    "after a prompt": lambda text: f"dev@gpu-node-7:~$ nvidia-smi\n{text}\ndev@gpu-node-7:~$ ",
    "after root's prompt": lambda text: (
        f"[root@gpu-node-7 ~]# sudo nvidia-smi\n{text}\n[root@gpu-node-7 ~]# "
    ),
    "under watch": lambda text: (
        f"Every 2.0s: nvidia-smi        gpu-node-7: Mon Nov 30 10:00:00 2026\n\n{text}"
    ),
    "with blank lines": lambda text: f"\n\n{text}\n\n",
    "with blanks that do not break": lambda text: text.replace("  ", "\xa0 "),
}


@pytest.mark.parametrize("way", AROUND)
@pytest.mark.parametrize(
    "case", [each for each in CASES if each["kind"] != "timeout"], ids=lambda case: case["num"]
)
def test_what_a_terminal_adds_changes_nothing(case: dict[str, str], way: str):
    """Every recorded output, copied in nine ways."""
    text, rc = (FOLDER / case["file"]).read_text(), int(case["rc"]) if case["rc"] else None
    plain = judge(text, rc, case["command"], Kind(case["kind"]))
    assert said(judge(AROUND[way](text), rc, case["command"], Kind(case["kind"]))) == said(plain)


def test_a_prompt_tells_the_command():
    """A csv has no columns without one."""
    text = "dev@gpu:~$ nvidia-smi --query-gpu=index,temperature.gpu --format=csv,noheader\n0, [GPU is lost]\n"
    assert said(judge(text)) == ("fail", frozenset({(0, "gpu_lost")}))


@pytest.mark.parametrize(
    "start", ["1, NVIDIA A100", "1, NVIDIA A100, 81920, 3", "1, NVIDIA A100, 81920, 33", "lorem"]
)
def test_a_row_in_one_line_with_a_warning_is_not_read(start: str):
    """Whether it is whole cannot be told; before or behind the warning."""
    command = "nvidia-smi --query-gpu=index,name,memory.total,temperature.gpu --format=csv,noheader,nounits"
    warning = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    for line in (start + warning, warning + start):
        verdict, causes = said(judge(f"0, NVIDIA A100, 81920, 33\n{line}\n", 14, command))
        assert (verdict, (None, "inforom_corrupt") in causes) == ("unknown", True)
