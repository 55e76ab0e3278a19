"""The simulated nvidia-smi says, byte for byte, what was recorded from real ones."""

from __future__ import annotations

import csv
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.simulate import fields, smi
from tests.engine.simulate.hosts import RECORDED, Host, load, names, parse

SHELLS = (("sh",), ("bash", "--posix"))
Done = subprocess.CompletedProcess[bytes]
COMMANDS = {
    row["file"]: row["command"]
    for row in csv.DictReader(
        (RECORDED / "manifest.tsv").open(newline=""), delimiter="\t", quoting=csv.QUOTE_NONE
    )
}


def recorded(number: int) -> tuple[bytes, list[str]]:
    """A recorded output, and the arguments it was asked with."""
    (file,) = (file for file in COMMANDS if file.startswith(f"{number:02d}_"))
    return (RECORDED / file).read_bytes(), COMMANDS[file].split()[1:]


@pytest.fixture(params=SHELLS, ids=lambda shell: Path(shell[0]).name)
def ask(request: pytest.FixtureRequest, tmp_path: Path):
    """Run the script of a host, with each shell that may be /bin/sh."""

    def run(host: Host | str, *arguments: str, cuda_visible: bool = True) -> Done:
        script = tmp_path / "nvidia-smi"
        text = smi.render(load(host) if isinstance(host, str) else host, cuda_visible=cuda_visible)
        script.write_text(text)
        command = [*request.param, script, *arguments]
        return subprocess.run(command, capture_output=True, check=False, timeout=20)

    return run


def host(driver: str, **more: object) -> Host:
    return parse({"driver": driver, "cuda": "12.4", **more}, "made")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1, "h200-good"),
        (4, "h100-mig"),
        (9, "rtx2080s-610"),
        (10, "h100x8"),
        (45, "one-of-two-lost"),
        (47, "t4-old-driver-550"),
    ],
)
def test_a_recorded_query_is_answered_byte_for_byte(ask, number: int, name: str) -> None:
    output, arguments = recorded(number)
    done = ask(name, *arguments)
    assert (done.stdout, done.returncode, done.stderr) == (output, 0, b"")


def test_fields_are_projected_in_the_order_asked(ask) -> None:
    done = ask("h100x8", "--query-gpu=uuid,index", "--format=csv,noheader,nounits", "-i", "3")
    assert done.stdout == b"GPU-11111111-2222-3333-4444-555555555503, 3\n"


def test_an_unknown_field_is_refused_as_recorded(ask) -> None:
    """44: driver 470 does not know the field; no row is printed, and only the first such field is named."""
    output, arguments = recorded(44)
    old = host("470.256.02", gpus=({"name": "Tesla T4"},))
    done = ask(old, arguments[0].replace("=", "=index,") + ",bogus", *arguments[1:])
    assert (done.stdout, done.returncode) == (output, 2)


@pytest.mark.parametrize("driver", ["390.157", "470.256.02", "550.163.01", "610.57.04"])
def test_exactly_the_fields_of_a_driver_are_answered(ask, driver: str) -> None:
    asked = sorted(fields.valid(driver))
    done = ask(host(driver, gpus=({},)), f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits")
    assert done.returncode == 0
    assert len(done.stdout.split(b", ")) == len(asked)
    every = fields.valid("610.57.04") | fields.valid("535.261.03")
    for name in (*sorted(every - fields.valid(driver))[:3], "no.such.field"):
        done = ask(host(driver, gpus=({},)), f"--query-gpu={name}", "--format=csv")
        assert done.stdout.decode() == f'Field "{name}" is not a valid field to query.\n\n'


def test_header_and_units_are_those_recorded(ask) -> None:
    output, arguments = recorded(20)
    gb10 = {"utilization.gpu": "0", "power.draw": "11.17", "temperature.gpu": "35"}
    assert ask(host("580.173.02", gpus=(gb10,)), *arguments).stdout == output


def test_aliases_answer_with_the_same_cell(ask) -> None:
    asked = "--query-gpu=gpu_name,gpu_uuid,clocks_throttle_reasons.active"
    done = ask("h200-good", asked, "--format=csv,nounits")
    header, row = done.stdout.decode().splitlines()
    assert header == "name, uuid, clocks_event_reasons.active"
    assert row == "NVIDIA H200, GPU-11111111-2222-3333-4444-555555555500, 0x0000000000000001"


def test_remapped_rows_have_their_own_query(ask) -> None:
    output, arguments = recorded(49)
    rows = {f"remapped_rows.{kind}": "0" for kind in ("correctable", "uncorrectable", "pending", "failure")}
    two = (
        {**rows, "pci.bus_id": "00000000:1A:00.0"},
        {**rows, "pci.bus_id": "00000000:1B:00.0", "index": "1"},
    )
    assert ask(host("550.163.01", gpus=two), *arguments).stdout == output


def test_running_programs_are_listed_by_query_and_table(ask) -> None:
    app = {"gpu_uuid": "GPU-1", "pid": "4711", "process_name": "python", "used_gpu_memory": "512"}
    busy = host("590.48.01", gpus=({"uuid": "GPU-1", "name": "NVIDIA H200"},), compute_apps=(app,))
    asked = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    assert ask(busy, asked, "--format=csv,noheader").stdout == b"GPU-1, 4711, python, 512 MiB\n"
    line = next(line for line in ask(busy).stdout.decode().splitlines() if "4711" in line)
    assert (
        line == "|    0   N/A  N/A            4711      C   python                                  512MiB |"
    )


@pytest.mark.parametrize(("number", "name"), [(12, "h200-good"), (13, "rtx2080s-610")])
def test_table_is_the_recorded_one_but_for_date_and_programs(ask, number: int, name: str) -> None:
    output, _ = recorded(number)
    lines, wanted = ask(name).stdout.decode().splitlines(), output.decode().splitlines()
    assert re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}", lines[0])
    assert re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}", wanted[0])
    # The query and the table of the 2080 were not recorded in the same second: 39.17 W and 38 W.
    assert [line.replace(" 39W", " 38W") for line in lines[1:18]] == wanted[1:18]


@pytest.mark.parametrize(("number", "name"), [(14, "h200-good"), (15, "rtx2080s-610")])
def test_version_is_the_recorded_one(ask, number: int, name: str) -> None:
    assert ask(name, "--version").stdout == recorded(number)[0]


@pytest.mark.parametrize("option", ["-L", "--list-gpus"])
def test_list_is_the_recorded_one(ask, option: str) -> None:
    masked = load("h100-mig")
    zeros = {**masked.gpus[0], "uuid": "GPU-00000000-0000-0000-0000-000000000000"}
    assert ask(replace(masked, gpus=(zeros,)), option).stdout == recorded(17)[0]
    assert ask("h100-mig-no-instances", option).stdout == recorded(18)[0]


def test_links_are_up_down_or_none(ask) -> None:
    cells = {"gpus": [{"name": "NVIDIA A"}, {"name": "NVIDIA B"}], "nvlink": {"0": [26.562, None]}}
    done = ask(host("550.163.01", **cells), "nvlink", "-s")
    gpu = "(UUID: GPU-00000000-0000-0000-0000-00000000000"
    assert done.stdout.decode().splitlines() == [
        f"GPU 0: NVIDIA A {gpu}0)",
        "\t Link 0: 26.562 GB/s",
        "\t Link 1: <inactive>",
        f"GPU 1: NVIDIA B {gpu}1)",
        "NVML: Unable to retrieve NVLink information as all links are inActive",
    ]


def test_cuda_version_reads_not_available_without_libcuda(ask) -> None:
    assert b"CUDA Version: N/A " in ask("h200-good", cuda_visible=False).stdout
    assert b"CUDA Version        : N/A\n" in ask("h200-good", "--version", cuda_visible=False).stdout


@pytest.mark.parametrize(
    ("number", "name", "rc"),
    [
        (32, "nvml-unknown-error", 255),
        (33, "no-permission", 4),
        (34, "driver-not-loaded", 9),
        (36, "no-devices", 6),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("-L",), ("--version",), ("--query-gpu=name", "--format=csv")])
def test_a_driver_that_does_not_start_answers_every_question_alike(
    ask, number: int, name: str, rc: int, arguments: tuple[str, ...]
) -> None:
    done = ask(name, *arguments)
    assert (done.stdout, done.returncode, done.stderr) == (recorded(number)[0], rc, b"")


def test_mismatch_reads_as_recorded_but_for_the_version(ask) -> None:
    done = ask("version-mismatch")
    assert (done.stdout.replace(b"580.95", b"570.124"), done.returncode) == (recorded(30)[0], 18)


def test_a_lost_gpu_ends_the_table_but_not_the_query(ask) -> None:
    done = ask("one-of-two-lost")
    assert (done.stdout, done.returncode) == (recorded(40)[0], 15)
    done = ask("one-of-two-lost", "--query-gpu=driver_version,pstate,name", "--format=csv,noheader")
    rows = b"590.48.01, [N/A], NVIDIA H100 80GB HBM3\n590.48.01, [GPU is lost], NVIDIA H100 80GB HBM3\n"
    assert (done.stdout, done.returncode) == (rows, 0)


def test_an_unknown_option_is_refused_as_recorded(ask) -> None:
    output, arguments = recorded(51)
    done = ask("h200-good", *arguments)
    assert (done.stdout, done.returncode) == (output, 255)


def test_a_gpu_that_is_not_there_is_not_found(ask) -> None:
    done = ask("h200-good", "-i", "99", "--query-gpu=name", "--format=csv")
    assert (done.stdout, done.returncode) == (recorded(36)[0], 6)


@pytest.mark.parametrize("arguments", [("-q",), ("nvlink", "-e"), ("-i", "0")])
def test_what_is_not_simulated_says_so(ask, arguments: tuple[str, ...]) -> None:
    done = ask("h200-good", *arguments)
    assert b"is not simulated" in done.stdout
    assert done.returncode == 255


def test_garbage_arrives_byte_for_byte(ask) -> None:
    done = ask("garbage", "-L")
    assert (done.stdout, done.returncode) == (load("garbage").answers["all"].text, 0)


def test_cells_are_never_evaluated(ask, tmp_path: Path) -> None:
    name = f"$(touch {tmp_path}/ran) `id` 'quoted' %s \\n *"
    done = ask(host("590.48.01", gpus=({"name": name},)), "--query-gpu=name", "--format=csv,noheader")
    assert done.stdout.decode() == name + "\n"
    assert not (tmp_path / "ran").exists()


def test_a_slow_host_answers_late(ask) -> None:
    began = time.monotonic()
    assert ask(replace(load("slow"), latency_s=0.5), "-L").stdout == ask("h200-good", "-L").stdout
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("heeds_sigterm", [True, False])
def test_a_hanging_one_is_one_process_that_only_a_kill_surely_ends(
    tmp_path: Path, heeds_sigterm: bool
) -> None:
    """A child of it would keep the caller's pipe open after the kill, and `communicate` waiting."""
    script = tmp_path / "nvidia-smi"
    script.write_text(smi.render(replace(load("hang"), heeds_sigterm=heeds_sigterm)))
    with subprocess.Popen(["sh", script], stdout=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.5)
        process.terminate()
        if heeds_sigterm:
            process.wait(timeout=5)
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        process.kill()
        assert process.communicate(timeout=5)[0] == b""


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_host_makes_a_script_that_shells_accept(name: str, shell: str, tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(smi.render(load(name)))
    assert subprocess.run([shell, "-n", script], capture_output=True, check=False).stderr == b""
