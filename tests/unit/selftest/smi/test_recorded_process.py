"""The recorded outputs once more, through a real process: what is printed, the exit code and the time-out arrive.

The process is the simulated nvidia-smi (tests/engine/simulate). A csv query of recorded cells is answered from those
cells, as a simulated host does it; everything else is said as it was recorded.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.engine.simulate import smi as simulated
from tests.engine.simulate.hosts import Host, parse
from tests.unit.selftest.smi.test_recorded import CASES, FOLDER, PAIRED_WITH_MIG, causes, name
from torchtap.selftest.process import ask
from torchtap.selftest.query import judge_answer
from torchtap.selftest.smi import Kind

KINDS = ("csv", "list", "error", "timeout")
OF_A_PROCESS = [case for case in CASES if case["kind"] in KINDS]
UNSTATED_RC = 255  # where the report does not state it; the verdict must not depend on it


def host(case: dict[str, str]) -> Host:
    """A host whose nvidia-smi answers this case."""
    driver = re.search(r"_(\d{3})_", case["file"])
    says: dict[str, object] = {"driver": f"{driver[1] if driver else 590}.99.99", "cuda": "13.0"}
    if case["kind"] == "timeout":
        says["hangs"] = True
    elif "--query-gpu" in case["command"] and case["command"].endswith("noheader,nounits"):
        says["gpus"] = {"recorded": case["file"]}
    else:
        says["answers"] = {"all": {"recorded": case["file"], "rc": int(case["rc"] or UNSTATED_RC)}}
    return parse(says, "recorded")


@pytest.mark.parametrize("case", OF_A_PROCESS, ids=name)
def test_verdict_and_causes_are_the_manifests_through_a_process(case: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(simulated.render(host(case)))
    program.chmod(0o755)
    hangs = case["kind"] == "timeout"
    words = [] if hangs else shlex.split(case["command"])[1:]
    answer = ask([str(program), *words], timeout_s=0.5 if hangs else 20)
    assert answer.timed_out is hangs
    assert answer.rc == (None if hangs else int(case["rc"] or UNSTATED_RC))
    assert answer.text == ("" if hangs else (FOLDER / case["file"]).read_text())
    mig = [0] if case["file"] == PAIRED_WITH_MIG else []
    for kind in (Kind(case["kind"]), None):  # told, and guessed from command and text
        said = judge_answer(answer, kind, mig)
        assert (said.verdict.value, set(said.causes)) == (case["verdict"], causes(case))


def test_every_kind_that_a_process_can_answer_is_here() -> None:
    assert {case["kind"] for case in OF_A_PROCESS} == set(KINDS)
    assert len(OF_A_PROCESS) == 27
