"""Running programs: time limits hold, absence raises nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from host import local, proc

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def test_an_answer() -> None:
    done = proc.ask(
        [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"]
    )
    assert (done.rc, done.out, done.err, done.ok, done.said) == (3, "out\n", "err\n", False, "err")


def test_a_program_that_is_not_there() -> None:
    done = proc.ask(["/nonexistent/tool"])
    assert done.rc == proc.NOT_FOUND
    assert "No such file" in done.said


def test_a_time_limit_holds_and_is_told() -> None:
    began = time.monotonic()
    done = proc.ask([sys.executable, "-c", STUBBORN], timeout_s=0.5)
    assert time.monotonic() - began < 5
    assert done.rc == proc.TIMED_OUT
    assert done.said.endswith("gave no answer in 0.5 s")


def test_a_long_wait_for_an_answer_is_told() -> None:
    seen: list[tuple[float, str]] = []
    proc.ask([sys.executable, "-c", STUBBORN], timeout_s=1.5, tick=lambda s, text: seen.append((s, text)))
    assert seen
    assert seen[0][0] >= 1
    assert seen[0][1].endswith("has not answered yet")


def test_a_quick_answer_is_not_commented() -> None:
    seen: list[str] = []
    assert proc.ask([sys.executable, "-c", "print(1)"], tick=lambda _, text: seen.append(text)).out == "1\n"
    assert seen == []


def test_output_that_is_no_text_raises_nothing() -> None:
    program = "import os; os.write(1, bytes([0xff, 0xfe]))"
    assert proc.ask([sys.executable, "-c", program]).out == "\ufffd\ufffd"


def test_following_shows_the_last_line_beside_the_time() -> None:
    seen: list[tuple[float, str]] = []
    program = "import time\nfor n in range(6): print('step', n, flush=True); time.sleep(.1)"
    done = proc.follow([sys.executable, "-c", program], lambda s, text: seen.append((s, text)), every_s=0.1)
    assert done.ok
    assert done.out.splitlines() == [f"step {n}" for n in range(6)]
    assert any(text.startswith("step ") for _, text in seen)
    assert [s for s, _ in seen] == sorted(s for s, _ in seen)


def test_following_a_program_that_is_not_there() -> None:
    assert proc.follow(["/nonexistent/tool"], lambda _s, _t: None).rc == proc.NOT_FOUND


def test_what_the_program_started_is_gone_too(tmp_path: Path) -> None:
    """A child that ignores SIGTERM, as nvidia-smi in a driver call does."""
    file = tmp_path / "pid"
    done = proc.ask(["sh", "-c", f'{sys.executable} -c "{STUBBORN}" & echo $! >{file}; wait'], timeout_s=1)
    assert done.rc == proc.TIMED_OUT
    deadline = time.monotonic() + 5
    while local.start_ticks(int(file.read_text())) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert local.start_ticks(int(file.read_text())) is None


WAITS = "trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
RUNS = f"""
import os, sys
sys.path.insert(0, {str(Path(proc.__file__).parents[1])!r})
from host import proc
sys.exit(proc.foreground(["sh", "-c", {WAITS!r}], env=os.environ))
"""


def test_a_program_in_the_foreground_hears_sigterm_and_its_code_is_kept() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", RUNS], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout
    assert child.stdout.readline() == "ready\n"
    child.terminate()
    try:
        assert child.communicate(timeout=10)[0] == "told\n"
    finally:
        proc.kill_group(child.pid)
    assert child.returncode == 7


def test_a_program_in_the_foreground_that_a_signal_ends_and_one_that_is_not_there() -> None:
    assert proc.foreground(["sh", "-c", "kill -KILL $$"], env=os.environ) == 137
    assert proc.foreground(["no-such-program-here"], env=os.environ) == proc.NOT_FOUND
