"""The table of a fleet, as people see it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from torchtap.selftest.fleet.comparing import Merged, merge
from torchtap.selftest.fleet.drawing import draw_merged, main
from torchtap.selftest.fleet.examples import example
from torchtap.selftest.fleet.reading import Bad, HostReport
from torchtap.selftest.status import Status

EXPECTED = """\
FAIL    gpu.state: 1 host, 8 x NVIDIA H200
        node0007
cause   gpu_lost: GPU 1: no answer any more ("GPU is lost")
do      Stop the work on this host and reboot it. If it returns: check seating,
        power and cooling, then replace
        sudo dmesg | grep -iE 'nvrm|xid'

WARN    gpu.ecc: 2 hosts, 8 x NVIDIA H200
        node[0003,0053]
cause   ecc_uncorrected_earlier: GPU 0: 2 uncorrected memory errors over its
        life, none since the driver was loaded (as on node0003)
do      Usable. Watch it, and replace it if the number grows
        nvidia-smi -q -d ECC -i 0

SLOW    node0011 GPU 3: 535.3 TFLOP/s in gpu.speed bf16, 31% below the median
        775.9 of 480 NVIDIA H200
SLOW    node0011 GPU 3: 3,073 GB/s in gpu.bandwidth, 29% below the median 4,309
        of 480 NVIDIA H200
drift   driver: 590.48.01 on 59 hosts; 590.44.01 on node0009
old     node0005: old/node0005.json is older than node0005.json
BAD     node0061.json: cut off: it ends in the middle, in line 3
pass    57 hosts, 8 x NVIDIA H200
        node[0001-0002,0004-0006,0008-0052,0054-0060]
FAIL    60 hosts: 57 passed, 2 warned, 1 failed; 1 slow GPU; 1 unreadable file
"""


def text(merged: Merged, width: int = 80, **options: bool) -> str:
    out = io.StringIO()
    draw_merged(merged, Console(file=out, width=width, highlight=False), **options)
    return out.getvalue()


def test_the_whole_table_reads_as_it_should():
    """Every word and line end, with everything that a merge can say."""
    assert text(example()) == EXPECTED


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int):
    """But names of hosts and commands, which are pasted in one piece."""
    for line in text(example(), width).splitlines():
        assert len(line) <= width or line.startswith(" " * 8)
        assert line == line.rstrip()


def many(number: int, **more: object) -> list[HostReport]:
    return [
        HostReport(host=f"h{at}x", file="", started="", verdict=Status.PASS, versions={}, **more)  # type: ignore[arg-type]
        for at in range(number)
    ]


def test_the_names_of_many_good_hosts_are_left_out():
    """A thousand names help nobody; -v shows them."""
    merged = merge(many(300))
    assert text(merged) == "pass    300 hosts\nPASS    300 hosts: 300 passed\n"
    assert "h0x,h1x,h2x" in text(merged, verbose=True)


def test_of_many_entries_the_first_are_shown_and_the_rest_counted():
    """A hundred bad files are one mistake."""
    shown = text(merge(many(1), [Bad(file=f"{at}.json", why="empty") for at in range(100)]))
    assert shown.count("\nBAD") + shown.startswith("BAD") == 10
    assert "        and 90 more; --json has all\n" in shown
    assert shown.endswith("UNKNOWN 1 host: 1 passed; 100 unreadable files\n")


def test_what_a_file_holds_cannot_move_the_cursor():
    """Names and causes come from other machines."""
    nasty = HostReport(
        host="a\x1b[2J",
        file="\x1b[31m",
        started="",
        verdict=Status.FAIL,
        cause="\x1b[31m",
        remedy="\x07\nrm\x1b",
        versions={},
        gpus=("\x9b",),
    )
    shown = text(merge([nasty], [Bad(file="\x1b]0;x\x07", why="empty")]))
    assert all(char.isprintable() or char == "\n" for char in shown)


def test_running_the_module_shows_one(capsys: pytest.CaptureFixture[str]):
    """`python -m torchtap.selftest.fleet.drawing`."""
    main()
    assert "60 hosts: 57 passed" in capsys.readouterr().out
