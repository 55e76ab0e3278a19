"""Reports as people see them: whole texts, at 80 columns, without colour."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.unit.selftest.scenarios import SCENARIOS, Scenario
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import examples
from torchtap.selftest.report import draw, main
from torchtap.selftest.result import Report, Result
from torchtap.selftest.runner import judge_all
from torchtap.selftest.status import Level, Status

REPORTS = dict(examples())


def text(report: Report, width: int = 80, **options: bool) -> str:
    out = io.StringIO()
    draw(report, Console(file=out, width=width, highlight=False), **options)
    return out.getvalue()


def of(scenario: Scenario) -> Report:
    results = judge_all(CHECKS, scenario.facts)
    return Report(results=results, device=scenario.facts.device.value, seconds=3.0, torchtap="0.1.0")


EXPECTED = {
    "all is well": """\
PASS    self-test: 24 passed; 4.2 s
on      1 GPU: NVIDIA H200; driver 590.48.01; torch 2.14.1+cu130, CUDA 13.0,
        sm_75 to sm_120; cuDNN 9.24.0
""",
    "warnings": """\
WARN    gpu.ecc  GPU 0: ecc.errors.uncorrected.aggregate.total 2,
        ecc.errors.uncorrected.volatile.total 0
cause   ecc_uncorrected_earlier: GPU 0: 2 uncorrected memory errors over its
        life, none since the driver was loaded
do      Usable. Watch it, and replace it if the number grows
        nvidia-smi -q -d ECC -i 0

WARN    gpu.pcie  GPU 0: pcie.link.width.current 8, pcie.link.width.max 16
cause   pcie_narrow: GPU 0: 8 of 16 PCIe lanes in use, so copies are slower
do      Reseat the card; check riser, slot and BIOS. Some slots are wired that
        way by design
        nvidia-smi -q -d PCIE -i 0

pass    torch.build, torch.cudnn, cpu.matmul, cpu.rnn, device.nodes, driver.smi,
        driver.version, gpu.state, gpu.clocks, gpu.free, gpu.licence, host.shm,
        host.limits, lib.libcuda, gpu.simulated, cuda.init, torch.cuda,
        torch.arch, env.visible, gpu.matmul, gpu.cudnn, gpu.rnn
WARN    self-test: 22 passed, 2 warned; 4.2 s
on      1 GPU: NVIDIA H200; driver 590.48.01; torch 2.14.1+cu130, CUDA 13.0,
        sm_75 to sm_120; cuDNN 9.24.0
""",
    "a container without a GPU": """\
FAIL    device.nodes  no /dev/nvidia*; kernel module loaded; on the PCI bus:
        0000:41:00.0
cause   container_without_gpu: the host runs the NVIDIA driver, but this
        container was started without a GPU
do      On the host, in the Torchtap folder, recreate the container with the GPU
        make up        # or: docker run --gpus all IMAGE

pass    torch.build, torch.cudnn, cpu.matmul, cpu.rnn
skip    19 checks that need device.nodes: not tested
FAIL    self-test: 4 passed, 1 failed, 19 skipped; 4.2 s
on      torch 2.14.1+cu130, CUDA 13.0, sm_75 to sm_120; cuDNN 9.24.0
""",
    "the level burn": """\
skip    gpu.nvlink, gpu.equals, gpu.peers, gpu.nccl: does not apply here
PASS    self-test: 43 passed, 4 skipped; 13 min
on      1 GPU: NVIDIA H200; driver 590.48.01; torch 2.14.1+cu130, CUDA 13.0,
        sm_75 to sm_120; cuDNN 9.24.0
figures gpu.memory tested 128,000 MiB; gpu.bandwidth 4,312 GB/s; gpu.transfer to
        GPU 55.1, from GPU 54.9 GB/s; gpu.throttle SM 1,830 MHz; gpu.speed fp32
        51.2, tf32 401, fp16 742, bf16 781 TFLOP/s; burn.numbers bfloat16 696.4
        TFLOP/s; burn.thermal hottest 68 C; burn.power mean 670 W
""",
    "no GPU, by design": """\
skip    18 checks of a GPU: by design (--device cpu or TORCHTAP_DEVICE=cpu)
PASS    self-test: 6 passed, 18 skipped; 4.2 s
on      torch 2.14.1+cu130, CUDA 13.0, sm_75 to sm_120; cuDNN 9.24.0
""",
}


@pytest.mark.parametrize("title", EXPECTED)
def test_the_whole_report_reads_as_it_should(title: str):
    """Every word and line end."""
    assert text(REPORTS[title]) == EXPECTED[title]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("width", [80, 60])
def test_no_line_is_wider_than_the_terminal(scenario: Scenario, width: int):
    """At 80 columns nothing is cut or wrapped by the terminal; narrower, only what must stay whole."""
    for line in text(of(scenario), width).splitlines():
        assert len(line) <= width or " " not in line.strip() or line.startswith(" " * 8)
        assert line == line.rstrip()
        assert not line.endswith("-")  # an option, a path or a word is never broken in two
        assert width < 80 or len(line) <= 80


@pytest.mark.parametrize("width", [0, 1, 5, 8, 9, 39])
@pytest.mark.parametrize("title", EXPECTED)
def test_an_impossible_width_still_gives_a_report(title: str, width: int):
    """0 is no width at all: 80; else 40 columns, and the terminal wraps."""
    assert text(REPORTS[title], width) == text(REPORTS[title], 40 if width else 80)


def test_a_command_to_paste_is_never_broken():
    """Even on a narrow terminal: it stands on a line of its own."""
    assert "        make up        # or: docker run --gpus all IMAGE\n" in text(
        REPORTS["a container without a GPU"], 40
    )


def test_of_many_gpus_the_least_and_the_most_are_shown():
    """And of pairs of GPUs one range: 56 rates would be a heap."""

    def records(whats: list[str]) -> list[dict[str, object]]:
        return [
            {"gpu": gpu, "what": what, "value": 400.0 + gpu, "unit": "GB/s"}
            for what in whats
            for gpu in range(8)
        ]

    def shown(whats: list[str]) -> str:
        one = Result(id="gpu.peers", status=Status.PASS, seen="", values={"measured": records(whats)})
        return text(Report(results=(one,), device="gpu", seconds=1, torchtap="0"), 200).splitlines()[-1]

    assert shown([""]) == "figures gpu.peers 400 to 407 GB/s"
    assert shown(["to", "from"]) == "figures gpu.peers to 400 to 407, from 400 to 407 GB/s"
    assert shown([f"to GPU {gpu}" for gpu in range(8)]) == "figures gpu.peers 400 to 407 GB/s"


def test_verbose_shows_every_check():
    """One line each, in the order of the checks, with what was seen."""
    lines = text(REPORTS["all is well"], verbose=True).splitlines()
    quick = [check.id for check in CHECKS if check.level is Level.QUICK]
    assert [line.split()[1] for line in lines[: len(quick)]] == quick
    assert "cuInit" not in lines[0]


def test_a_report_in_which_nothing_ran_says_so():
    """It is no pass."""
    only_skips = Report(
        results=(Result(id="gpu.ecc", status=Status.SKIP, seen="left out", cause="left out with --skip"),),
        device="gpu",
        seconds=0.1,
        torchtap="0.1.0",
    )
    assert "UNKNOWN self-test: 1 skipped" in text(only_skips)
    assert "no check ran, so nothing is proved" in text(only_skips)


def test_colour_is_only_added():
    """Without its escape codes the coloured report is the plain one."""
    out = io.StringIO()
    console = Console(
        file=out, width=80, force_terminal=True, no_color=False, color_system="standard", highlight=False
    )
    report = REPORTS["warnings"]
    draw(report, console)
    assert "\x1b[" in out.getvalue()
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()) == text(report)


def test_markup_in_what_a_machine_says_is_shown_as_it_is():
    """A GPU named [red] must not colour the report, nor raise."""
    odd = Result(
        id="gpu.state",
        status=Status.WARN,
        seen="[red]odd[/red] [/]",
        cause="[bold]",
        cause_id="x",
        remedy="[/x]",
    )
    shown = text(Report(results=(odd,), device="gpu", seconds=0.1, torchtap="0.1.0"))
    assert "[red]odd[/red] [/]" in shown
    assert "[/x]" in shown


def test_running_the_module_shows_every_kind(capsys: pytest.CaptureFixture[str]):
    """`python -m torchtap.selftest.report`: a pass, a warning, failures."""
    main()
    shown = capsys.readouterr().out
    assert all(title in shown for title in REPORTS)
    assert all(f"\n{word} " in shown for word in ("PASS", "WARN", "FAIL"))
