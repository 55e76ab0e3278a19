"""SSH: keys and host keys, what editors and copying programs need, long runs, many commands, crashes, stop."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import OFF, POWERS, SSH_OPTIONS, Container, Run, containers, free_port, wait_until

# As compose.yaml starts it: with few of root's powers.
COMPOSE = ("--cap-drop=ALL", *(f"--cap-add={power}" for power in POWERS), "--security-opt=no-new-privileges")


def command(container: Container, *options: str) -> list[str]:
    """The words of `ssh OPTIONS dev@container`."""
    return [
        "ssh",
        *SSH_OPTIONS,
        "-p",
        str(container.port(22)),
        "-i",
        str(container.key),
        *options,
        "dev@127.0.0.1",
    ]


@contextlib.contextmanager
def running(*words: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the test's own, ended with it."""
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, **{**silent, **options})  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ready(container: Container) -> Container:
    """Role ssh has answered; faster than waiting for Docker's next health check."""
    wait_until(lambda: container.ssh("true", check=False).returncode == 0, 30, lambda: container.logs)
    return container


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@pytest.fixture(scope="module")
def box(engine: Engine, image: str, ssh_key: Path) -> Iterator[Container]:
    """A container in role ssh, for tests that leave it as it is."""
    with containers(engine, image, ssh_key) as start:
        yield ready(start("ssh", key=True, env=OFF, options=COMPOSE))


# ---- what editors need ----
SERVER = """
set -e
cd /workspace
cat >server.py <<'END'
import http.server, os
print(os.environ["PATH"], flush=True)
http.server.HTTPServer(("127.0.0.1", 45678), http.server.SimpleHTTPRequestHandler).serve_forever()
END
nohup python server.py >server.log 2>/dev/null </dev/null &
for _ in $(seq 100); do [ -s server.log ] && break; sleep 0.1; done
cat server.log
"""


@pytest.mark.parametrize("shell", ["bash", "sh", "bash -s"])
def test_a_script_on_stdin_runs_as_vs_code_sends_it(box: Container, shell: str) -> None:
    said = box.ssh(
        shell, input="read -r line <<'END'\na b\nEND\necho \"$line\"; uname -s; command -v python\n"
    ).stdout
    assert said.split("\n")[:3] == ["a b", "Linux", "/opt/torchtap/bin/python"]


def test_c1_a_server_started_over_ssh_outlives_the_connection_and_is_reached_through_it(
    box: Container,
) -> None:
    """What VS Code Remote does: a script on stdin starts a server, then ports are forwarded to it (-D, and -L)."""
    path = box.ssh("bash", input=SERVER).stdout
    assert path == box.ssh("echo $PATH").stdout
    local, socks = free_port(), free_port()
    words = command(
        box, "-N", "-L", f"{local}:127.0.0.1:45678", "-D", str(socks), "-o", "ExitOnForwardFailure=yes"
    )
    with running(*words):
        wait_until(lambda: answers(local) and answers(socks), 20, lambda: "nothing is forwarded")
        with urllib.request.urlopen(f"http://127.0.0.1:{local}/server.log", timeout=10) as page:
            assert page.read().decode() == path
        with socket.create_connection(("127.0.0.1", socks), timeout=10) as proxy:
            proxy.sendall(b"\5\1\0")
            assert proxy.recv(2) == b"\5\0"
            proxy.sendall(b"\5\1\0\1\x7f\0\0\1" + (45678).to_bytes(2, "big"))
            assert proxy.recv(10)[1] == 0
            proxy.sendall(b"GET /server.log HTTP/1.0\r\n\r\n")
            assert proxy.makefile("rb").read().endswith(path.encode())


def test_the_agent_is_forwarded_and_can_be_used(box: Container, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    with running("ssh-agent", "-D", "-a", str(agent)):
        wait_until(agent.exists, 10, lambda: "no agent")
        environment = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
        in_tmux = "tmux -L agent new-session -d 'ssh-add -l >/workspace/in-tmux; sleep 9'"
        subprocess.run(["ssh-add", "-q", str(box.key)], env=environment, check=True)
        said = subprocess.run(
            [*command(box, "-A"), f"ssh-add -l; {in_tmux}; sleep 1"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert "ED25519" in said.stdout, said
    assert box.exec("cat", "/workspace/in-tmux").stdout in said.stdout


def test_rsync_copies_both_ways(box: Container) -> None:
    """Its own client, from inside: the tests' machine need not have it."""
    box.exec("sh", "-c", "umask 077; cat >/tmp/key", input=box.key.read_text())
    ssh = f"ssh {shlex.join(SSH_OPTIONS)} -i /tmp/key"
    box.exec(
        "sh",
        "-c",
        "mkdir -p '/tmp/data/ü b'; seq 10000 >'/tmp/data/ü b/numbers'; ln -s numbers '/tmp/data/ü b/link'",
    )
    box.exec("rsync", "-a", "-e", ssh, "/tmp/data/", "dev@127.0.0.1:/workspace/data/")
    box.exec("rsync", "-a", "-e", ssh, "dev@127.0.0.1:/workspace/data/", "/tmp/back/")
    assert box.exec("diff", "-r", "/tmp/data", "/tmp/back").stdout == ""


def test_fifty_connections_at_once_are_let_in(box: Container) -> None:
    """sshd's own limit turns some away beyond ten that have not logged in yet."""
    words = [*command(box), "echo in"]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(running(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
            for _ in range(50)
        ]
        said = [process.communicate(timeout=120)[0].decode() for process in started]
    assert said == ["in\n"] * 50


# ---- terminals and locales ----
@pytest.mark.parametrize(
    "term",
    [
        "xterm-256color",
        "xterm-kitty",
        "xterm-ghostty",
        "alacritty",
        "foot",
        "tmux-256color",
        "screen-256color",
        "nonsense",
    ],
)
def test_programs_work_in_any_terminal(box: Container, term: str) -> None:
    script = (
        "tput clear >/dev/null && [ $(tput colors) -ge 256 ] && echo colours;"
        f"tmux -L {term} new-session -d true && echo tmux; printf 'a\\n' | less -FX;"
        "vim -u NONE -c q && echo; echo vim"
    )
    done = subprocess.run(
        [*command(box, "-tt"), script],
        env={**os.environ, "TERM": term}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = done.stdout.replace("\r", "").split("\n")
    assert {"colours", "tmux", "vim"} <= set(said), done
    assert not re.search(
        "(?i)unknown|not fully functional|unsuitable|cannot find|E55[78]", done.stdout + done.stderr
    )


@pytest.mark.parametrize("name", ["LANG", "LC_ALL", "LC_CTYPE"])
def test_a_clients_locale_does_no_harm(box: Container, name: str) -> None:
    """It is not installed here: perl and bash would warn at each start, and Python might leave UTF-8."""
    script = (
        "perl -e 'print 1'; bash -lc 'printf 2'; python -c \"import sys; print(sys.stdout.encoding, 'ü')\""
    )
    done = subprocess.run(
        [*command(box, "-o", f"SendEnv={name}"), script],
        env={**os.environ, name: "de_DE.UTF-8"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("12utf-8 ü\n", "")


def test_screen_starts_without_its_page_and_holds_a_session(box: Container) -> None:
    typed = "echo in-$((40 + 2)); exit\n"
    said = box.ssh("screen", options=("-tt",), input=typed).stdout
    assert "in-42" in said
    assert "Press Space" not in said
    box.ssh("screen -dmS work sleep 1000")
    assert re.search(r"\d+\.work\s", box.ssh("screen -ls", check=False).stdout)


def test_screen_and_tmux_work_with_a_read_only_root(run: Run) -> None:
    """Their sockets lie in /run and /tmp, which are new and empty then."""
    options = (
        "--read-only",
        "--tmpfs",
        "/run",
        "--tmpfs",
        "/tmp",
        "-v",
        "/home/dev",
        "-v",
        "/var/lib/torchtap",
    )
    container = ready(run("ssh", key=True, env=OFF, options=(*options, "-v", "/workspace")))
    said = container.ssh(
        "screen -dmS work sleep 100; tmux new-session -d -s other 'sleep 100'; screen -ls; tmux ls"
    )
    assert re.search(r"\d+\.work\s(?s:.*)\nother: ", said.stdout), said


def test_tmux_by_ssh_t_is_a_session_of_ones_own(box: Container) -> None:
    box.ssh("tmux -L t", options=("-tt",), input="echo in-$((40 + 2)) >/workspace/tmux-said; exit\n")
    assert box.exec("cat", "/workspace/tmux-said").stdout == "in-42\n"


# ---- commands ----
@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 130, 255])
def test_exit_code_of_a_command_over_ssh_is_kept(box: Container, code: int) -> None:
    assert box.ssh(f"exit {code}", check=False).returncode == code
    assert box.exec("sh", "-c", f"exit {code}", check=False).returncode == code


def processes(container: Container) -> list[str]:
    """State and name of each, less those that this question itself is made of."""
    lines = container.exec("ps", "axo", "stat=,comm=", root=True).stdout.splitlines()
    return sorted(line.strip() for line in lines if line.split()[-1] != "ps")


def test_no_zombies_after_a_thousand_short_commands(box: Container, tmp_path: Path) -> None:
    """900 in channels of one connection, as editors do, and 100 in connections of their own, four at a time.
    Every ninth of both leaves an orphan behind, for PID 1 to reap."""
    before = processes(box)
    control = tmp_path / "c"
    of_its_own = command(box)  # once: it asks Docker for the port
    over_one = [*of_its_own[:-1], "-S", str(control), of_its_own[-1]]
    orphan = "sh -c 'sleep 0.2 >/dev/null 2>&1 &'"

    def ask(number: int) -> int:
        words = over_one if number % 10 else of_its_own
        return subprocess.run([*words, orphan if number % 9 == 0 else "true"], check=False).returncode

    with running(*over_one[:-1], "-M", "-N", over_one[-1]):
        wait_until(control.exists, 20, lambda: "no master connection")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert set(pool.map(ask, range(1, 1001))) == {0}
    wait_until(lambda: len(processes(box)) <= len(before), 20, lambda: f"{before}\n{processes(box)}")
    assert not [line for line in processes(box) if line.startswith("Z")]


# ---- whose what is ----
def test_the_user_can_change_nothing_that_decides_about_logins(box: Container) -> None:
    closed = "/etc/torchtap /etc/ssh /run/sshd /run/torchtap /var/lib/torchtap/ssh /opt/torchtap"
    found = box.exec(
        "sh", "-c", f"find {closed} -writable ! -type l ! -path '*/jupyter*' 2>/dev/null; true"
    ).stdout
    assert found == ""
    assert box.exec("stat", "-c", "%U %a", "/run/sshd", "/etc/torchtap/sshd_config", root=True).stdout.split() == [
        "root", "755", "root", "644",
    ]  # fmt: skip
    for path in ("/run/torchtap/ssh_host_ed25519_key", "/var/lib/torchtap/ssh"):
        assert box.exec("head", "-c1", path, check=False).returncode != 0
    assert box.exec("rm", "-rf", "/var/lib/torchtap/ssh", check=False).returncode != 0


def test_c31_fingerprints_are_shown_and_make_the_first_login_sure(box: Container, tmp_path: Path) -> None:
    port = str(box.port(22))
    for root in (True, False):
        shown, line = box.exec("torchtap-fingerprints", "127.0.0.1", port, root=root).stdout.splitlines()
        assert f"INFO    ssh: host key {shown}\n" in box.logs
    known = tmp_path / "known_hosts"
    known.write_text(line + "\n")
    sure = [word.replace("=no", "=yes").replace("/dev/null", str(known)) for word in command(box)]
    assert subprocess.run([*sure, "true"], check=False).returncode == 0
    known.write_text(line.replace("AAAAI", "AAAAJ") + "\n")
    assert subprocess.run([*sure, "true"], check=False, capture_output=True).returncode == 255
    assert "usage: torchtap-fingerprints" in box.exec("torchtap-fingerprints", "--help").stdout


# ---- host keys ----
def fingerprint(container: Container) -> str:
    """As the client sees it."""
    scanned = subprocess.run(
        ["ssh-keyscan", "-t", "ed25519", "-p", str(container.port(22)), "127.0.0.1"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", "-"], input=scanned, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()[1]


def test_c31_host_keys_are_kept_mended_and_never_exchanged_in_silence(run: Run, tmp_path: Path) -> None:
    """Recreated containers, a volume with everything 0777 and of another user, and a key cut off by a crash."""
    state = tmp_path / "state"
    state.mkdir()
    options = ("-v", f"{state}:/var/lib/torchtap", *COMPOSE)
    first = fingerprint(ready(run("ssh", key=True, env=OFF, options=options)))
    key = state / "ssh/ssh_host_ed25519_key"
    for path in (state / "ssh", key, key.with_suffix(".pub")):
        path.chmod(0o777)
        os.chown(path, 4321, 4321)
    key.with_suffix(".pub").unlink()
    mended = ready(run("ssh", key=True, env=OFF, options=options))
    assert fingerprint(mended) == first
    assert [oct(path.stat().st_mode & 0o777) for path in (state / "ssh", key)] == ["0o700", "0o600"]
    assert (key.stat().st_uid, key.with_suffix(".pub").exists()) == (0, True)
    key.write_bytes(key.read_bytes()[:100])
    said = r"ERROR   ssh: the host key in /var/lib/torchtap/ssh cannot be used; a new one is made"
    renewed = ready(run("ssh", key=True, env=OFF, options=options, allow=(said,)))
    assert fingerprint(renewed) != first
    assert (state / "ssh/ssh_host_ed25519_key.damaged-1").stat().st_size == 100
    assert f"host key {fingerprint(renewed)}" in renewed.logs


def test_two_containers_that_start_at_once_on_one_state_volume_share_one_key(
    run: Run, tmp_path: Path
) -> None:
    options = ("-v", f"{tmp_path}:/var/lib/torchtap")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: run("ssh", key=True, env=OFF, options=options), range(2)))
    assert len({fingerprint(ready(container)) for container in both}) == 1


# ---- keys ----
def make_key(path: Path) -> str:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True
    )
    return path.with_suffix(".pub").read_text().strip()


def lets_in(container: Container, key: Path) -> bool:
    return Container(container.engine, container.id, key).ssh("true", check=False).returncode == 0


def test_keys_come_from_everywhere_and_go_at_the_next_start(run: Run, tmp_path: Path) -> None:
    """Variable (two, written as an env file writes them), file, directory and secret, all at once; a restart takes back
    what was removed."""
    names = ("variable", "second", "file", "directory", "authorized", "secret")
    public = {name: make_key(tmp_path / name) for name in names}
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "file.pub").rename(tmp_path / "given")
    (folder / "laptop.pub").write_text(public["directory"] + "\n")
    (folder / "authorized_keys").write_text(public["authorized"] + "\n")
    (folder / "id_ed25519").write_text("not opened\n")
    mounts = {"given": "/keys", "folder": "/folder:ro", "secret.pub": "/run/secrets/ssh_public_key:ro"}
    container = ready_for(
        run(
            "ssh",
            env={
                **OFF,
                "SSH_PUBLIC_KEY": rf"{public['variable']}\n{public['second']}",
                "SSH_PUBLIC_KEY_FILE": "/keys",
                "SSH_PUBLIC_KEY_DIR": "/folder",
            },
            options=tuple(f"--volume={tmp_path}/{here}:{there}" for here, there in mounts.items()),
        ),
        tmp_path / "variable",
    )
    assert [name for name in names if not lets_in(container, tmp_path / name)] == []
    assert "6 public keys" in container.logs
    (tmp_path / "given").write_text(public["variable"] + "\n")
    (folder / "laptop.pub").unlink()
    container.engine.docker("restart", container.id)
    ready_for(container, tmp_path / "variable")
    assert [name for name in names if not lets_in(container, tmp_path / name)] == ["file", "directory"]
    assert container.exec("test", "-e", "/home/dev/.ssh/authorized_keys", check=False).returncode == 1


def ready_for(container: Container, key: Path) -> Container:
    wait_until(lambda: lets_in(container, key), 30, lambda: container.logs)
    return container


def test_without_the_capability_for_logins_sshd_is_not_started_and_the_log_says_so(run: Run) -> None:
    """Elsewhere sshd listens then, looks healthy, and ends every login."""
    said = "ERROR   ssh: not started: CAP_SYS_CHROOT is missing"
    container = run(key=True, env=OFF, options=("--cap-drop", "SYS_CHROOT"), allow=(said,)).wait_healthy()
    assert "        Add: --cap-add SYS_CHROOT\n" in container.logs
    assert "sshd" not in container.exec("ps", "axo", "comm", root=True).stdout


def test_without_the_capability_for_terminals_commands_work_and_the_log_says_so(run: Run) -> None:
    options = ("--cap-drop", "AUDIT_WRITE")
    said = "ERROR   ssh: CAP_AUDIT_WRITE is missing, so sshd will end every login with a terminal"
    container = ready(run("ssh", key=True, env=OFF, options=options, allow=(said,)))
    assert container.ssh("echo in").stdout == "in\n"
    # Should this ever work, the notice can go, and the capability from compose.yaml.
    assert container.ssh("echo in", options=("-tt",), check=False).returncode == 255


@pytest.mark.parametrize(
    ("word", "role"), [("sshd", "ssh"), ("jupyter-lab", "jupyter"), ("notebook", "jupyter")]
)
def test_a_program_meant_as_a_role_is_answered_with_the_role(
    engine: Engine, image: str, word: str, role: str
) -> None:
    done = engine.docker("run", "--rm", image, word, check=False)
    assert (done.returncode, done.stderr) == (
        127,
        f"ERROR   start: {word!r} alone is not a role; the role is called {role}\n",
    )


# ---- long runs, crashes ----
def alive(container: Container, name: str) -> bool:
    return container.exec("pgrep", "-f", f"^sleep {name}$", check=False).returncode == 0


def test_a_long_run_survives_its_connection(box: Container) -> None:
    """The client is killed, as a laptop that is closed. What was only in the session ends, and nothing hangs on."""
    script = (
        "tmux -L long new-session -d 'sleep 40001'; nohup sleep 40002 >/dev/null 2>&1 &"
        " setsid sleep 40003 & sleep 40004"
    )
    with running(*command(box, "-tt"), script) as client:
        wait_until(lambda: all(alive(box, f"4000{n}") for n in (1, 2, 3, 4)), 20, lambda: "not started")
        client.kill()
    wait_until(lambda: not alive(box, "40004"), 20, lambda: "the session's own command goes on")
    assert [alive(box, f"4000{n}") for n in (1, 2, 3)] == [True] * 3


KILLED = r"WARNING {}: ended \(signal 9, SIGKILL\)"


def test_sshd_killed_is_started_again_and_sessions_go_on(run: Run) -> None:
    container = ready(run("ssh", key=True, env=OFF, allow=(KILLED.format("sshd"),)))
    with running(*command(container), "sleep 50001"):
        wait_until(lambda: alive(container, "50001"), 20, lambda: "not started")
        container.exec("pkill", "-KILL", "-o", "-x", "sshd", root=True)
        began = time.monotonic()
        ready(container)
        assert time.monotonic() - began < 5
        assert alive(container, "50001")


def test_a_tmux_session_survives_a_crash_and_a_restart_of_jupyter(run: Run) -> None:
    container = run(key=True, env=OFF, allow=(KILLED.format("jupyter"),)).wait_healthy()
    token = container.token
    container.ssh("tmux new-session -d -s work 'sleep 60001'")
    for end in (("pkill", "-KILL", "-f", "jupyter-lab"), ("s6-svc", "-r", "/run/torchtap/services/jupyter")):
        before = jupyter(container)
        container.exec(*end, root=True)

        def ended(before: str = before) -> bool:
            return jupyter(container) != before

        wait_until(ended, 20, lambda: "JupyterLab has not ended")
        wait_until(lambda: answers_to(container, token), 60, lambda: container.logs)
        assert "work" in container.ssh("tmux list-sessions").stdout
        assert alive(container, "60001")


def jupyter(container: Container) -> str:
    return container.exec("pgrep", "-o", "-f", "jupyter-lab", root=True, check=False).stdout


def answers_to(container: Container, token: str) -> bool:
    with contextlib.suppress(OSError):
        return container.api("/api/status", token)[0] == 200
    return False


def test_a_dangling_link_in_the_home_does_not_disturb_a_restart(run: Run) -> None:
    container = ready(run("ssh", key=True, env=OFF))
    container.ssh(
        "cd ~; ln -sf /nowhere/at/all .bashrc; ln -s /nowhere .profile.mine;"
        " mkdir -p .ssh; ln -s /nowhere .ssh/authorized_keys"
    )
    container.engine.docker("restart", container.id)
    assert ready(container).ssh("readlink ~/.bashrc; bash -lc 'command -v python'").stdout.split() == [
        "/nowhere/at/all", "/opt/torchtap/bin/python",
    ]  # fmt: skip


def test_with_the_pid_namespace_of_the_host_it_serves_and_ends_only_its_own(run: Run) -> None:
    container = ready(run("ssh", key=True, env=OFF, options=("--pid", "host")))
    container.ssh("tmux new-session -d 'sleep 70001'")
    with running("sleep", "70002") as of_the_host:
        code, seconds = container.stop()
        assert of_the_host.poll() is None
    assert code in (0, 143)
    assert seconds < 8


# ---- stop ----
SAVING = """
import signal, sys, time
def save(*_):
    time.sleep(2)
    open("/workspace/saved", "w").write(repr(time.time()))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("/workspace/started", "w").close()
while True:
    time.sleep(0.1)
"""
BUSY = """
import time
try:
    open("/workspace/kernel-busy", "w").close()
    while True:
        sum(range(10_000))
finally:
    open("/workspace/kernel-finally", "w").write(repr(time.time()))
"""


def test_c28_stop_under_load_is_in_order_and_in_time(run: Run, tmp_path: Path) -> None:
    """docker-stacks#275. Twenty sessions, a busy kernel, and a run in tmux that takes two seconds to save."""
    folder = tmp_path / "work"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    # An interrupted kernel may say that its socket is gone.
    container = run(
        key=True, env=OFF, options=("-v", f"{folder}:/workspace"), allow=(r"(?s).*",)
    ).wait_healthy()
    container.ssh("cat >/workspace/train.py; tmux new-session -d 'python /workspace/train.py'", input=SAVING)
    with contextlib.ExitStack() as stack:
        for number in range(20):
            stack.enter_context(
                running(*command(container, *(("-tt",) if number % 2 else ())), f"sleep 8000{number:02}")
            )
        container.kernel(BUSY, wait=False)

        def busy() -> str:
            return container.exec("pgrep", "-fc", "^sleep 8000", check=False).stdout.strip()

        wait_until(
            lambda: busy() == "20" and (folder / "started").exists(),
            60,
            lambda: f"{busy()}\n{container.logs}",
        )
        code, seconds = container.stop()
    assert code == 0
    assert (folder / "kernel-finally").exists(), container.logs
    assert (folder / "saved").exists(), container.logs
    assert float((folder / "kernel-finally").read_text()) < float((folder / "saved").read_text())
    assert "did not end" not in container.logs
    assert 2 < seconds < 8
