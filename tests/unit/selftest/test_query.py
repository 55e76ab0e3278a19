"""Asking nvidia-smi: emulated hosts as real processes, and drivers that refuse fields."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.engine.simulate import hosts, smi
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.facts import SmiFacts
from torchtap.selftest.limits import MAX_REFUSALS
from torchtap.selftest.process import Answer
from torchtap.selftest.query import ALSO, REMAPPED_ROWS, ask_smi, find_smi, judge_answer
from torchtap.selftest.smi.nvlink import read_nvlink

FIELDS = [read.removeprefix("smi:") for check in CHECKS for read in check.reads if read.startswith("smi:")]


@pytest.fixture
def emulate(tmp_path: Path):
    """Make an emulated host's nvidia-smi and ask it, as a process."""

    def ask(name: str, timeout_s: float = 20, also: tuple[str, ...] = (), **changes: object) -> SmiFacts:
        host = hosts.parse({**written(name), **changes}, name)
        script = tmp_path / "nvidia-smi"
        script.write_text(smi.render(host))
        script.chmod(0o755)
        return ask_smi(FIELDS, also=also, timeout_s=timeout_s, find=lambda: str(script))

    return ask


def written(name: str) -> dict[str, object]:
    values: dict[str, object] = json.loads((hosts.HOSTS / name / "host.json").read_text())
    return values


def causes(facts: SmiFacts) -> tuple[tuple[int | None, str], ...]:
    assert facts.judgement is not None
    return facts.judgement.causes


@pytest.mark.parametrize(
    ("name", "verdict", "expected"),
    [
        ("h200-good", "pass", ()),
        ("h100x8", "pass", ()),
        ("rtx2080s-610", "pass", ()),
        ("t4-old-driver-550", "pass", ()),
        ("v100-580", "pass", ()),
        ("h100-mig", "pass", ()),
        ("h100-mig-no-instances", "fail", ((None, "mig_no_instance"),)),
        ("one-of-two-lost", "fail", ((1, "gpu_lost"),)),
        ("fabric-not-started", "fail", ((0, "fabric_not_ready"),)),
        ("driver-not-loaded", "fail", ((None, "driver_not_loaded"),)),
        ("no-devices", "fail", ((None, "no_devices"),)),
        ("no-permission", "fail", ((None, "no_permission"),)),
        ("nvml-unknown-error", "fail", ((None, "devices_revoked"),)),
        ("version-mismatch", "fail", ((None, "driver_library_mismatch"),)),
    ],
)
def test_an_emulated_host_is_judged_through_a_real_process(
    emulate, name: str, verdict: str, expected: object
):
    """Verdict and causes of each host."""
    facts = emulate(name)
    assert facts.judgement is not None
    assert (facts.judgement.verdict.value, causes(facts)) == (verdict, expected)


def test_garbage_is_unknown(emulate):
    """Bytes that mean nothing, with exit status 0."""
    facts = emulate("garbage")
    assert facts.judgement is not None
    assert facts.judgement.verdict.value == "unknown"
    assert facts.rows == ()


def test_a_hang_ends_after_one_question(emulate):
    """Nothing more is asked of a driver that does not answer."""
    facts = emulate("hang", timeout_s=1)
    assert causes(facts) == ((None, "smi_hung"),)
    assert [answer.timed_out for answer in facts.answers] == [True]


@pytest.mark.parametrize(
    "driver", ["390.157", "418.226.00", "450.248.02", "470.256.02", "535.261.03", "550.163.01"]
)
def test_older_drivers_are_asked_only_what_they_know(emulate, driver: str):
    """No refusal, so no call is lost: the table of fields is right for drivers that were looked at."""
    facts = emulate("v100-580", driver=driver, cuda="9.1")
    assert facts.refused == ()
    assert len(facts.answers) <= 2
    assert len(facts.rows) == 2


def test_fields_of_an_unknown_driver_are_dropped_as_they_are_refused(emulate):
    """560 is emulated as 550, which refuses what came later; the rest is still read."""
    facts = emulate("v100-580", driver="560.35.05", cuda="12.6")
    assert "gpu_recovery_action" in facts.refused
    assert facts.judgement is not None
    assert facts.judgement.verdict.value == "pass"
    assert facts.rows[0].text("compute_cap") == "7.0"


def test_asking_stops_after_a_bounded_number_of_refusals():
    """A driver that refuses everything costs a bounded number of calls, and loses only what it refuses."""
    calls = []

    def run(command: list[str], *, timeout_s: float) -> Answer:
        calls.append(command)
        fields = command[1].partition("=")[2].split(",")
        if "name" in fields:
            cells = {"index": "0", "name": "NVIDIA T4", "uuid": "GPU-00000074-0000-0000-0000-000000000000"}
            text = ", ".join(cells.get(field, "[N/A]") for field in fields)
            return Answer(command=tuple(command), text=text, rc=0)
        return Answer(
            command=tuple(command), text=f'Field "{fields[1]}" is not a valid field to query.\n\n', rc=2
        )

    facts = ask_smi(FIELDS, find=lambda: "nvidia-smi", run=run)
    assert len(calls) == 1 + MAX_REFUSALS + 1
    assert facts.judgement is not None
    assert facts.judgement.verdict.value == "pass"
    assert set(facts.refused) >= {"gpu_recovery_action", "fabric.state", "compute_cap"}


def test_both_questions_make_one_row_a_gpu(emulate):
    """Cells of the second question stand beside those of the first."""
    rows = emulate("h100x8").rows
    assert [row.gpu for row in rows] == list(range(8))
    assert {(row.text("name"), row.text("fabric.state")) for row in rows} == {
        ("NVIDIA H100 80GB HBM3", "Completed")
    }


def test_mig_instances_are_listed_where_mig_is_on(emulate):
    """And nowhere else."""
    assert [len(gpu.mig) for gpu in emulate("h100-mig").listed] == [4]
    assert emulate("h200-good").listed == ()


def test_a_missing_nvidia_smi_is_no_error(monkeypatch: pytest.MonkeyPatch):
    """There is nothing to ask, and the facts say so."""
    facts = ask_smi(FIELDS, find=lambda: None)
    assert (facts.path, facts.judgement, facts.answers) == (None, None, ())


def test_noise_on_standard_error_does_not_spoil_a_good_answer(tmp_path: Path):
    """As the loader writes about LD_PRELOAD; where nvidia-smi fails it is the reason."""
    script = tmp_path / "nvidia-smi"
    script.write_text(smi.render(hosts.load("h200-good")).replace("set -f\n", "set -f\necho noise >&2\n", 1))
    script.chmod(0o755)
    facts = ask_smi(FIELDS, find=lambda: str(script))
    assert facts.judgement is not None
    assert facts.judgement.verdict.value == "pass"
    script.write_text(
        "#!/bin/sh\necho 'nvidia-smi: error while loading shared libraries: libnvidia-ml.so.1: cannot open "
        "shared object file: No such file or directory' >&2\nexit 127\n"
    )
    assert causes(ask_smi(FIELDS, find=lambda: str(script))) == ((None, "driver_libraries_missing"),)


@pytest.mark.parametrize(
    ("content", "mode", "cause"),
    [
        (b"\x7fELFgarbage", 0o755, "smi_broken"),
        (b"#!/bin/sh\n", 0o644, "smi_broken"),
        (b"#!/bin/sh\nkill -SEGV $$\n", 0o755, "smi_crashed"),
        (b"#!/bin/sh\nexec yes\n", 0o755, "smi_too_long"),
        (b"#!/bin/sh\nexit 0\n", 0o755, "smi_unreadable"),
        (b"#!/bin/sh\nexit 9\n", 0o755, "driver_not_loaded"),
        (b"#!/bin/sh\nexit 255\n", 0o755, "smi_unreadable"),
        (b"#!/bin/sh\nhead -c 100000 /dev/urandom\n", 0o755, "smi_unreadable"),
    ],
)
def test_a_file_that_is_no_nvidia_smi(tmp_path: Path, content: bytes, mode: int, cause: str):
    """Broken, not executable, crashing, babbling, silent."""
    script = tmp_path / "nvidia-smi"
    script.write_bytes(content)
    script.chmod(mode)
    facts = ask_smi(FIELDS, timeout_s=10, find=lambda: str(script))
    assert {said for _, said in causes(facts)} == {cause}
    assert facts.judgement is not None
    assert facts.judgement.verdict.value in ("fail", "unknown")


def test_nvidia_smi_is_found_on_path_even_if_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that the report can say what is wrong with it."""
    script = tmp_path / "nvidia-smi"
    script.write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/nowhere")
    assert find_smi() == str(script)
    script.chmod(0o755)
    assert find_smi() == str(script)


@pytest.mark.parametrize(
    ("first", "second"), [((0, 1), (0,)), ((0,), (0, 1)), ((1,), (0, 1)), ((0, 0), (0, 0)), ((0, 1), (0, 0))]
)
def test_a_gpu_that_is_not_in_every_answer_is_unknown(first: tuple[int, ...], second: tuple[int, ...]):
    """It may be on its way out; what one answer says of it does not make it well."""

    def run(command: list[str], *, timeout_s: float) -> Answer:
        fields = command[1].partition("=")[2].split(",")
        shown = first if "name" in fields else second
        texts = [
            {"index": str(n), "name": "NVIDIA T4", "uuid": f"GPU-0000007{n}-0000-0000-0000-000000000000"}
            for n in shown
        ]
        known = {"compute_cap": "7.5", "gpu_recovery_action": "None"}
        lines = [
            ", ".join(cells[field] if field in cells else known.get(field, "[N/A]") for field in fields)
            for cells in texts
        ]
        return Answer(command=tuple(command), text="\n".join(lines), rc=0)

    facts = ask_smi(FIELDS, find=lambda: "nvidia-smi", run=run)
    assert facts.judgement is not None
    assert facts.judgement.verdict.value == "unknown"
    assert {cause for _, cause in facts.judgement.causes} == {"smi_unreadable"}


def test_an_index_that_changes_its_gpu_is_unknown():
    """One was lost between the questions and the others moved up: cells of two GPUs make no row."""

    def run(command: list[str], *, timeout_s: float) -> Answer:
        fields = command[1].partition("=")[2].split(",")
        number = 0 if "name" in fields else 1
        known = {
            "index": "0",
            "name": "NVIDIA T4",
            "uuid": f"GPU-0000007{number}-0000-0000-0000-000000000000",
        }
        return Answer(
            command=tuple(command), text=", ".join(known.get(each, "[N/A]") for each in fields), rc=0
        )

    facts = ask_smi(FIELDS, find=lambda: "nvidia-smi", run=run)
    assert facts.judgement is not None
    assert (facts.judgement.verdict.value, causes(facts)) == ("unknown", ((0, "smi_unreadable"),))


def test_a_gpu_in_mig_mode_that_is_not_listed_is_unknown():
    """`-L` names every GPU that the questions before named."""

    def run(command: list[str], *, timeout_s: float) -> Answer:
        known = {"name": "NVIDIA H100", "mig.mode.current": "Enabled", "compute_cap": "9.0"}
        uuids = [f"GPU-0000007{n}-0000-0000-0000-000000000000" for n in (0, 1)]
        if command[1] == "-L":
            mig = "  MIG 1g.10gb     Device  0: (UUID: MIG-00000070-0000-0000-0000-000000000000)"
            return Answer(
                command=tuple(command), text=f"GPU 0: NVIDIA H100 (UUID: {uuids[0]})\n{mig}\n", rc=0
            )
        fields = command[1].partition("=")[2].split(",")
        lines = [
            ", ".join({**known, "index": str(n), "uuid": uuids[n]}.get(field, "[N/A]") for field in fields)
            for n in (0, 1)
        ]
        return Answer(command=tuple(command), text="\n".join(lines), rc=0)

    facts = ask_smi(FIELDS, find=lambda: "nvidia-smi", run=run)
    assert facts.judgement is not None
    assert facts.judgement.verdict.value == "unknown"
    assert (1, "smi_unreadable") in facts.judgement.causes


@pytest.mark.parametrize(
    ("bad", "verdict", "expected"),
    [
        ({}, "pass", ()),
        ({"remapped_rows.pending": "1"}, "fail", ((0, "remap_pending"),)),
        ({"remapped_rows.failure": "1"}, "fail", ((0, "remap_failed"),)),
        ({"remapped_rows.uncorrectable": "512"}, "fail", ((0, "remap_exhausted"),)),
    ],
)
def test_older_drivers_tell_remapped_rows_when_asked_for_them_alone(
    emulate, bad: dict[str, str], verdict: str, expected: object
):
    """535 and 550 know them only as --query-remapped-rows, by PCI address and with 0 and 1."""
    gpu = {**hosts.load("h200-good").gpus[0], **dict.fromkeys(REMAPPED_ROWS, "0"), **bad}
    facts = emulate("h200-good", driver="550.163.01", cuda="12.4", gpus=[gpu])
    assert [answer.command[1].partition("=")[0] for answer in facts.answers] == [
        *("--query-gpu", "--query-gpu", "--query-remapped-rows")
    ]
    assert facts.judgement is not None
    assert (facts.judgement.verdict.value, causes(facts)) == (verdict, expected)
    assert facts.rows[0].text("remapped_rows.correctable") == "0"


def test_a_driver_that_tells_remapped_rows_is_not_asked_twice(emulate):
    """590 and newer; and a board without ECC has none."""
    assert len(emulate("h200-good").answers) == 2
    assert len(emulate("rtx2080s-610", driver="550.163.01", cuda="12.4").answers) == 2


def test_a_refused_question_for_remapped_rows_says_nothing_about_the_gpu():
    """As a driver answers that has no such option."""

    def run(command: list[str], *, timeout_s: float) -> Answer:
        if "remapped" in command[1].partition("=")[0]:
            return Answer(
                command=tuple(command), text="ERROR: Option --query-remapped-rows is not recognized.", rc=255
            )
        known = {"index": "0", "name": "NVIDIA A100", "compute_cap": "8.0", "driver_version": "535.261.03"}
        known |= {
            "uuid": "GPU-00000074-0000-0000-0000-000000000000",
            "ecc.errors.uncorrected.volatile.total": "0",
        }
        fields = command[1].partition("=")[2].split(",")
        return Answer(
            command=tuple(command), text=", ".join(known.get(each, "[N/A]") for each in fields), rc=0
        )

    facts = ask_smi(FIELDS, find=lambda: "nvidia-smi", run=run)
    assert facts.judgement is not None
    assert facts.judgement.verdict.value == "pass"
    assert set(REMAPPED_ROWS) <= set(facts.refused)


def test_other_questions_are_asked_only_where_they_have_an_answer(emulate):
    """An idle single GPU that is no virtual one costs no further call."""
    idle = emulate("h200-good", also=tuple(ALSO))
    assert dict(idle.also) == {}
    assert len(idle.answers) == 2
    gpu = {**hosts.load("h200-good").gpus[0], "memory.used": "70000"}
    app = {"uuid": gpu["uuid"], "pid": "4711", "process_name": "python", "used_memory": "520"}
    busy = emulate("h200-good", also=tuple(ALSO), gpus=[gpu], compute_apps=[app])
    assert busy.also["processes"].text.strip().endswith("4711, 520")


def test_a_hang_at_another_question_is_a_hang():
    """The driver stopped answering in between."""

    def run(command: list[str], *, timeout_s: float) -> Answer:
        if command[1] == "nvlink":
            return Answer(command=tuple(command), timed_out=True, seconds=20.0)
        fields = command[1].partition("=")[2].split(",")
        uuid = "GPU-0000007{n}-0000-0000-0000-000000000000"
        cells = {"index": "{n}", "name": "NVIDIA T4", "uuid": uuid}
        row = ", ".join(cells.get(each, "[N/A]") for each in fields)
        lines = [row.replace("{n}", str(n)) for n in (0, 1)]
        return Answer(command=tuple(command), text="\n".join(lines), rc=0)

    facts = ask_smi(["index"], also=["nvlink"], find=lambda: "nvidia-smi", run=run)
    assert facts.hung
    assert causes(facts) == ((None, "smi_hung"),)


def test_530_is_asked_for_the_clock_reasons_by_their_new_name():
    """It alone refuses the old one; a GPU that is slowed down is still found."""

    def run(command: list[str], *, timeout_s: float) -> Answer:
        fields = command[1].partition("=")[2].split(",")
        if "clocks_throttle_reasons.active" in fields:
            text = 'Field "clocks_throttle_reasons.active" is not a valid field to query.\n\n'
            return Answer(command=tuple(command), text=text, rc=2)
        known = {"index": "0", "name": "NVIDIA A100", "compute_cap": "8.0", "driver_version": "530.30.02"}
        known |= {"uuid": "GPU-00000074-0000-0000-0000-000000000000", "clocks_event_reasons.active": "0x40"}
        return Answer(
            command=tuple(command), text=", ".join(known.get(each, "[N/A]") for each in fields), rc=0
        )

    facts = ask_smi(FIELDS, find=lambda: "nvidia-smi", run=run)
    assert causes(facts) == ((0, "thermal_slowdown"),)
    assert facts.refused == ("clocks_throttle_reasons.active",)


def test_nvlinks_of_an_emulated_host_are_asked_where_there_are_several_gpus(emulate):
    """Eight H100 with eighteen links each."""
    gpus, strays = read_nvlink(emulate("h100x8", also=("nvlink",)).also["nvlink"].text)
    assert [(gpu.index, gpu.up, gpu.down) for gpu in gpus] == [(n, 18, ()) for n in range(8)]
    assert strays == ()


def test_an_answer_without_end_is_no_answer():
    """Whatever its first megabytes say."""
    text = "0, NVIDIA T4, GPU-00000074-0000-0000-0000-000000000000\n"
    command = ("nvidia-smi", "--query-gpu=index,name,uuid", "--format=csv,noheader,nounits")
    judged = judge_answer(Answer(command=command, text=text, rc=0, too_long=True))
    assert (judged.verdict.value, judged.causes) == ("unknown", ((None, "smi_too_long"),))
    assert judge_answer(Answer(command=command, text=text, rc=0)).verdict.value == "pass"
