"""Stopping, on real processes: everyone is asked, terminals outlive their programs, and the deadline holds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrypoint import paths, stop
from entrypoint.stop import Process

from . import box as boxes
from .box import Box, wait_until
from .conftest import OTHER, needs_root

DOCKER = Path(__file__).parents[3] / "docker"
SAVES = """
import os, signal, sys, time
def save(*_):
    print("saving", flush=True)
    for _ in range({tenths}):
        time.sleep(0.1)
        print(".", flush=True)  # into a terminal that must still be there
    open("saved", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, save)
open("saves.ready", "w").close()
while True:
    time.sleep(0.05)
"""
STUBBORN = """
import signal, time
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else lambda *_: None)
open("stubborn.ready", "w").close()
while True:
    time.sleep(0.05)
"""
SHELL_IN_A_TERMINAL = """
import os, pty, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "--norc", "-i"])
open("holder.ready", "w").close()
while True:
    try:
        os.read(terminal, 1000)
    except OSError:
        break
os.waitpid(pid, 0)
"""


@pytest.fixture
def box(open_path: Path) -> Iterator[Box]:
    with boxes.opened(open_path) as opened:
        yield opened


class Sent(list[tuple[int, int]]):
    """Sends, and keeps (pid, signal) in order."""

    def __call__(self, pid: int, number: int) -> None:
        self.append((pid, number))
        stop._send(pid, number)


def run(box: Box, limit_s: float) -> tuple[list[Process], Sent, float]:
    """Stop what is in the box: what is left, what was sent, how long it took."""
    sent, began = Sent(), time.monotonic()
    left = stop.stop(began + limit_s, box.look, sent)
    return left, sent, time.monotonic() - began


def by_name(box: Box, name: str) -> Process:
    wait_until(lambda: any(process.name == name for process in box.look()), f"no process {name}")
    return next(process for process in box.look() if process.name == name)


def test_an_empty_container_is_done_at_once(box: Box) -> None:
    left, sent, seconds = run(box, 5)
    assert (left, sent) == ([], [])
    assert seconds < 0.5


def test_a_run_that_saves_gets_the_time_it_needs_and_no_more_is_waited(box: Box) -> None:
    box.python("saves", SAVES.format(tenths=10))
    left, sent, seconds = run(box, 8)
    assert left == []
    assert (box.folder / "saved").exists()
    assert [number for _, number in sent] == [signal.SIGTERM], "asked once, not at every look"
    assert 1.0 <= seconds < 3


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_tmux_keeps_the_terminal_until_the_run_in_it_has_saved(box: Box) -> None:
    (box.folder / "saves.py").write_text(SAVES.format(tenths=5))
    box.run(f"tmux -S ./socket -f /dev/null new-session -d 'exec {sys.executable} -S saves.py'")
    box.wait_for("saves.ready")
    server, train = by_name(box, "tmux: server"), by_name(box, Path(sys.executable).name)
    assert server.holds_terminals
    assert not train.last
    left, sent, _ = run(box, 8)
    assert left == []
    assert (box.folder / "saved").exists()
    assert sent[0] == (train.pid, signal.SIGTERM)
    # The server may end by itself once its last program has.
    assert {pid for pid, _ in sent} <= {train.pid, server.pid}


def test_an_interactive_shell_is_hung_up_after_the_others_are_gone(box: Box) -> None:
    box.python("saves", SAVES.format(tenths=3))
    box.python("holder", SHELL_IN_A_TERMINAL)
    wait_until(lambda: by_name(box, "bash").ignores_sigterm, "bash is not interactive yet")
    shell = by_name(box, "bash")
    left, sent, _ = run(box, 8)
    assert left == []
    assert (box.folder / "saved").exists()
    assert (shell.pid, signal.SIGHUP) in sent
    assert shell.pid != sent[0][0]


def test_one_that_will_not_end_is_left_at_the_deadline_and_named(box: Box) -> None:
    box.python("stubborn", STUBBORN)
    left, sent, seconds = run(box, 1.0)
    assert [(process.name, process.pid) for process in left] == [(left[0].name, sent[0][0])]
    assert 1.0 <= seconds < 1.5


def test_one_that_will_not_end_does_not_keep_a_shell_from_ending_well(box: Box) -> None:
    """The stubborn one uses up the first round; the shell still gets its hang-up, and time to write its history."""
    box.python("stubborn", STUBBORN)
    box.python("holder", SHELL_IN_A_TERMINAL)
    wait_until(lambda: by_name(box, "bash").ignores_sigterm, "bash is not interactive yet")
    shell = by_name(box, "bash")
    left, sent, _ = run(box, 1.0)
    assert (shell.pid, signal.SIGHUP) in sent
    assert shell.pid not in {process.pid for process in left}
    assert len(left) == 1


def test_one_born_after_the_first_round_is_asked_too(box: Box) -> None:
    box.python(
        "parent",
        """
import os, signal, subprocess, sys, time
def end(*_):
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
open("parent.ready", "w").close()
while True:
    time.sleep(0.05)
""",
    )
    left, sent, seconds = run(box, 8)
    assert left == []
    assert len(sent) == len({pid for pid, _ in sent}) == 2
    assert seconds < 5


def test_a_suspended_process_ends_too(box: Box) -> None:
    """Ctrl-Z: without SIGCONT the signal stays pending, and every stop would take the whole grace period."""
    box.run("exec sleep 60")
    sleeper = by_name(box, "sleep")
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: by_name(box, "sleep").suspended, "not suspended")
    left, _, seconds = run(box, 5)
    assert left == []
    assert seconds < 2


def test_a_name_cut_amid_a_character_does_not_end_the_stop(box: Box) -> None:
    """The kernel keeps 15 bytes of a name: of one in Chinese the last character is cut."""
    box.python(
        "named",
        """
import ctypes, time
ctypes.CDLL(None).prctl(15, "训练模型程序".encode(), 0, 0, 0)
open("named.ready", "w").close()
time.sleep(60)
""",
    )
    assert [process.name for process in box.look()] == ["训练模型程"]
    (box.folder / "named.ready").unlink()
    box.python(
        "named",
        """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"x" + "训练模型程序".encode(), 0, 0, 0)
open("named.ready", "w").close()
time.sleep(60)
""",
    )
    left, sent, _ = run(box, 5)
    assert left == []
    assert len(sent) == 2


def test_only_what_descends_from_the_container_is_seen(box: Box) -> None:
    """`--pid host`: /proc shows the host's processes too, and root may end them."""
    outside = subprocess.Popen(["sleep", "60"])
    try:
        box.run("sleep 60; true")
        box.run("(sleep 61 &) ; exec sleep 62")  # the first is an orphan, adopted
        wait_until(lambda: len(box.look()) == 4, f"not four: {box.look()}")
        seen = {process.pid for process in box.look()}
        assert not seen & {outside.pid, os.getpid(), os.getppid(), box.pid, 1}
        assert outside.pid in {process.pid for process in stop.processes(below=os.getpid())}
        left, sent, _ = run(box, 5)
        assert left == []
        assert {pid for pid, _ in sent} == seen
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


def test_zombies_are_not_waited_for(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    wait_until(lambda: "Z" in Path(f"/proc/{child.pid}/stat").read_text().rsplit(")")[1][:3], "no zombie")
    assert child.pid not in {process.pid for process in stop.processes(below=os.getpid())}
    child.wait()


# ---- what root in a container, without CAP_SYS_PTRACE, can find out ----
def seen_without_ptrace(below: int) -> dict[int, bool]:
    """pid: holds terminals, as seen by root without the capability."""
    code = (
        "from entrypoint import stop\n"
        f"for p in stop.processes(below={below}): print(p.pid, int(p.holds_terminals))"
    )
    done = subprocess.run(
        ["setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(DOCKER)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {int(pid): holds == "1" for pid, holds in (line.split() for line in done.stdout.splitlines())}


@needs_root
def test_a_terminals_holder_of_another_user_is_recognised(box: Box) -> None:
    box.python("holder", SHELL_IN_A_TERMINAL, user=OTHER)
    holder = next(p for p in box.look() if p.holds_terminals)
    assert seen_without_ptrace(box.pid)[holder.pid]


@needs_root
@pytest.mark.parametrize(("name", "holds"), [("sshd", True), ("screen", True), ("other", False)])
def test_one_that_hides_what_it_holds_is_judged_by_its_name(box: Box, name: str, holds: bool) -> None:
    """sshd's processes changed their user and screen has a group's rights: nobody may look at their files."""
    box.python(
        "hidden",
        f"""
import ctypes, time
libc = ctypes.CDLL(None)
libc.prctl(15, {name.encode()!r}, 0, 0, 0)
libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
open("hidden.ready", "w").close()
time.sleep(60)
""",
        user=OTHER,
    )
    assert list(seen_without_ptrace(box.pid).values()) == [holds]


# ---- order and time, with a clock of the test's own ----
class World:
    """Processes that end a given time after their signal. `now` moves only when `stop` sleeps."""

    def __init__(self, *processes: tuple[Process, float]) -> None:
        self.ends_after = dict(processes)
        self.clock = 0.0
        self.sent: list[tuple[float, int, int]] = []

    def look(self) -> list[Process]:
        return [
            process
            for process, seconds in self.ends_after.items()
            if not any(pid == process.pid and self.clock >= at + seconds for at, pid, _ in self.sent)
        ]

    def send(self, pid: int, number: int) -> None:
        self.sent.append((self.clock, pid, number))

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def stop(self, deadline: float) -> list[int]:
        left = stop.stop(deadline, self.look, self.send, lambda: self.clock, self.sleep)
        return [process.pid for process in left]


NEVER = 1e9


def test_holders_are_told_only_when_the_others_have_gone() -> None:
    world = World((Process(10, "train"), 2.0), (Process(11, "tmux: server", holds_terminals=True), 0.1))
    assert world.stop(10) == []
    told = {pid: at for at, pid, _ in world.sent}
    assert told[10] == 0
    assert 2.0 <= told[11] < 2.1


def test_holders_are_told_shortly_before_the_deadline_when_the_others_stay() -> None:
    world = World((Process(10, "train"), NEVER), (Process(11, "tmux: server", holds_terminals=True), 0.1))
    assert world.stop(10) == [10]
    told = {pid: at for at, pid, _ in world.sent}
    assert 10 - stop.LAST_S <= told[11] < 10 - stop.LAST_S + 0.1
    assert 10 <= world.clock < 10.1


def test_nobody_is_told_the_same_twice() -> None:
    world = World(
        (Process(10, "train"), NEVER),
        (Process(11, "bash", ignores_sigterm=True), NEVER),
        (Process(12, "vim", suspended=True), NEVER),
    )
    assert world.stop(5) == [10, 11, 12]
    told = [(pid, number) for _, pid, number in world.sent]
    assert sorted(told) == [
        (10, signal.SIGTERM),
        (11, signal.SIGHUP),
        (11, signal.SIGTERM),
        (12, signal.SIGTERM),
        (12, signal.SIGCONT),
    ]


# ---- main ----
def test_time_that_the_services_took_counts(image: Path) -> None:
    run_directory = image / "run/torchtap"
    (run_directory / paths.STARTED).write_text("{}")
    assert stop._seconds_since_the_signal() == 0.0
    (run_directory / stop.STOPPING).touch()
    os.utime(run_directory / stop.STOPPING, (time.time() - 4, time.time() - 4))
    assert 4.0 <= stop._seconds_since_the_signal() < 5.0
    os.utime(run_directory / stop.STOPPING, (time.time() + 99, time.time() + 99))  # the clock was set back
    assert stop._seconds_since_the_signal() == 0.0


MAIN = """
import sys
from pathlib import Path
from entrypoint import paths, stop
paths.RUN_CANDIDATES = (Path({run!r}),)
sys.exit(stop.main())
"""


def in_a_pid_namespace(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script as PID 1 of a container-like namespace: it sees, and reaches, nothing else."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "/bin/sh", "-c", script]
    probe = subprocess.run([*command[:-1], "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no PID namespace here: {probe.stderr.decode().strip()}")
    environment = {**os.environ, "PYTHONPATH": str(DOCKER)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False
    )


@needs_root
@pytest.mark.parametrize(
    ("used_s", "ends_in_s"), [(None, 1.5), (1.0, 0.5), (60.0, 0.5)], ids=["none", "some", "all of it"]
)
def test_main_waits_for_what_is_left_of_the_grace_period_and_names_who_stayed(
    tmp_path: Path, used_s: float | None, ends_in_s: float
) -> None:
    (tmp_path / paths.STARTED).write_text('{"stop_grace_s": 2}')
    if used_s is not None:
        (tmp_path / stop.STOPPING).touch()
        os.utime(tmp_path / stop.STOPPING, (time.time() - used_s,) * 2)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "main.py").write_text(MAIN.format(run=str(tmp_path)))
    python = sys.executable
    script = f"""
        {python} -S stubborn.py & echo $!
        while [ ! -e stubborn.ready ]; do sleep 0.02; done
        begin=$(date +%s%N)
        {python} -S main.py || exit
        echo $(( ($(date +%s%N) - begin) / 1000000 ))
        true"""
    done = in_a_pid_namespace(script, tmp_path)
    assert done.returncode == 0, done.stderr
    pid, milliseconds = done.stdout.split()
    name = Path(python).name
    assert done.stderr == f"WARNING stop: {name} (pid {pid}) did not end in 2 s and will be killed\n"
    assert ends_in_s - 0.05 <= int(milliseconds) / 1000 < ends_in_s + 0.8


@needs_root
def test_main_leaves_alone_what_is_not_this_containers(tmp_path: Path) -> None:
    """PID 1 of other mounts (a host's) and stop's parent not PID 1: only what descends from the parent is ended."""
    (tmp_path / paths.STARTED).write_text('{"stop_grace_s": 2}')
    (tmp_path / "main.py").write_text(MAIN.format(run=str(tmp_path)))
    (tmp_path / "container.sh").write_text(f"sleep 60 &\n{sys.executable} -S main.py\ntrue\n")
    script = """
        sleep 61 & outside=$!
        unshare --mount /bin/sh container.sh
        kill -0 $outside && echo outside lives
        for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"""
    done = in_a_pid_namespace(script, tmp_path)
    assert done.stderr == ""
    assert "outside lives" in done.stdout
    assert "sleep 61" in done.stdout
    assert "sleep 60" not in done.stdout


@needs_root
def test_main_does_not_wait_for_tini_below_another_init(tmp_path: Path) -> None:
    """`docker run --init`: tini is not PID 1 then, and it ends only after stop has."""
    (tmp_path / paths.STARTED).write_text('{"stop_grace_s": 5}')
    (tmp_path / "main.py").write_text(MAIN.format(run=str(tmp_path)))
    (tmp_path / "tini.sh").write_text(f"{sys.executable} -S main.py\ntrue\n")
    script = """
        sleep 60 & other=$!
        begin=$(date +%s%N)
        /bin/sh tini.sh
        echo $(( ($(date +%s%N) - begin) / 1000000 ))
        kill -0 $other 2>/dev/null && echo other lives"""
    done = in_a_pid_namespace(script, tmp_path)
    assert done.stderr == ""
    assert int(done.stdout) < 3000


def test_a_pid_1_among_our_own_mounts_is_ours(tmp_path: Path) -> None:
    """`--init`: tini is not PID 1, but what `docker exec` started is this container's all the same."""
    proc = tmp_path / "proc"
    for name in ("1/ns", "self/ns"):
        (proc / name).mkdir(parents=True)
        (proc / name / "mnt").symlink_to("mnt:[4026531840]")
    assert stop._shared_below(proc) is None
    (proc / "1/ns/mnt").unlink()
    assert stop._shared_below(proc) == os.getppid(), "may not be asked"
    (proc / "1/ns/mnt").symlink_to("mnt:[1]")
    assert stop._shared_below(proc) == os.getppid(), "other mounts"
