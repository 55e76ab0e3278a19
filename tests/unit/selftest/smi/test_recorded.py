"""The recorded outputs of tests/fixtures/smi: verdict, causes and compat as manifest.tsv says."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from torchtap.selftest.causes import CAUSES
from torchtap.selftest.compat import compat
from torchtap.selftest.smi import judge

FOLDER = Path(__file__).parents[3] / "fixtures" / "smi"
with (FOLDER / "manifest.tsv").open(newline="") as manifest:
    CASES = list(csv.DictReader(manifest, delimiter="\t", quoting=csv.QUOTE_NONE))
# The manifest pairs this one with mig.mode.current=Enabled: its text alone is that of any GPU without MIG.
PAIRED_WITH_MIG = "18_h100_mig_no_instances_list_derived.txt"


def name(case: dict[str, str]) -> str:
    return "smi45-" + re.sub(r"^\d+_|\.txt$", "", case["file"])


def causes(case: dict[str, str]) -> set[tuple[int | None, str]]:
    parts = [each.rpartition(":") for each in case["causes"].split()]
    return {(int(gpu) if gpu else None, cause) for gpu, _, cause in parts}


def judged(case: dict[str, str], rc: str, kind: str | None):
    return judge(
        (FOLDER / case["file"]).read_text(),
        rc=int(rc) if rc else None,
        command=case["command"],
        kind=kind,
        mig_enabled=[0] if case["file"] == PAIRED_WITH_MIG else [],
    )


def test_every_recorded_output_is_a_case():
    """37 files, each with a line in the manifest."""
    assert {case["file"] for case in CASES} == {file.name for file in FOLDER.glob("[0-9]*.txt")}
    assert len(CASES) == 37


@pytest.mark.parametrize("case", CASES, ids=name)
def test_verdict_and_causes_are_the_manifests(case: dict[str, str]):
    """The verdict, and exactly the causes, each of them one of the product's."""
    said = judged(case, case["rc"], case["kind"])
    assert (said.verdict.value, set(said.causes)) == (case["verdict"], causes(case))
    assert {cause for _, cause in said.causes} <= CAUSES.keys()


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_form_is_guessed_from_command_and_text(case: dict[str, str]):
    """Without `kind` the judgement is the same, except that an empty answer only tells with its exit code."""
    said = judged(case, case["rc"], None)
    assert (said.verdict.value, set(said.causes)) == (case["verdict"], causes(case))


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] != "timeout"], ids=name)
def test_text_decides_where_the_exit_code_is_not_known(case: dict[str, str]):
    """The exit code comes last: no recorded output needs it."""
    said = judged(case, "", case["kind"])
    assert (said.verdict.value, set(said.causes)) == (case["verdict"], causes(case))


@pytest.mark.parametrize("case", [case for case in CASES if case["compat"]], ids=name)
def test_compat_names_the_variants_that_fit(case: dict[str, str]):
    """Driver and GPU against each variant, as in "driver=570 gpu='Tesla T4': cu130=driver_too_old ..."."""
    facts = re.fullmatch(r"driver=(\d+) gpu='(.+)': (.+)", case["compat"])
    assert facts is not None
    expected = dict(each.split("=") for each in facts[3].split())
    assert compat((int(facts[1]),), facts[2]) == expected


def test_a_list_alone_cannot_tell_empty_mig_from_no_mig():
    """Failing here would fail every healthy H100 without MIG."""
    text = (FOLDER / PAIRED_WITH_MIG).read_text()
    assert judge(text, rc=0, command="nvidia-smi -L").verdict.value == "pass"
