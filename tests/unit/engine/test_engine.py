"""Which engine is used, what is refused, and how docker commands fail. Starting one is tested in tests/image."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import engine
from tests.engine.engine import Engine, EngineError, EngineUnavailable, OwnEngine, ensure, own_variables
from tests.engine.processes import start_time


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without an engine of its own, whatever this one has."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", engine.STATE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engine, "DEFAULT_SOCKET", tmp_path / "none.sock")


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Path]:
    """A socket that answers /_ping as an engine does."""
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
        server.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=5)


def client(folder: Path, script: str) -> dict[str, str]:
    """An environment with a fake docker client."""
    folder.mkdir(exist_ok=True)
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_reachable_engine_is_used_and_not_owned(monkeypatch: pytest.MonkeyPatch, answering: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{answering}")
    found = ensure()
    assert not found.owned
    assert found.env["DOCKER_HOST"] == f"unix://{answering}"


def test_the_default_socket_counts_too(monkeypatch: pytest.MonkeyPatch, answering: Path) -> None:
    monkeypatch.setattr(engine, "DEFAULT_SOCKET", answering)
    assert not ensure().owned


def test_own_means_own_although_another_is_reachable(
    monkeypatch: pytest.MonkeyPatch, answering: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{answering}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineUnavailable, match="needs root"):
        ensure(own=True, state=tmp_path / "state")


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("os.geteuid", lambda: 1000, "starting one of our own needs root"),
        ("sys.platform", "darwin", "needs Linux"),
        ("privateroot.is_installed", lambda name: False, "needs Debian's apt-get"),
    ],
)
def test_a_machine_that_cannot_run_one_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attribute: str, value: object, says: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(f"tests.engine.engine.{attribute}", value)
    with pytest.raises(EngineUnavailable) as caught:
        ensure(state=tmp_path / "state")
    assert str(caught.value).startswith("no Docker engine is reachable, and ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refused_namespaces_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine, "NEW_NAMESPACES", ("sh", "-c", "echo Operation not permitted >&2; exit 1"))
    with pytest.raises(
        EngineUnavailable, match=r"new namespaces are refused here \(Operation not permitted\)"
    ):
        ensure(state=tmp_path / "state")


def test_an_engine_that_is_not_ours_is_neither_restarted_nor_stopped() -> None:
    foreign = Engine(env={})
    with pytest.raises(EngineError, match="cannot restart an engine that is not ours"):
        foreign.restart("none")
    with pytest.raises(EngineError, match="cannot simulate 'h200-good' on an engine that is not ours"):
        foreign.simulate("h200-good")
    foreign.stop()


@pytest.mark.parametrize("content", [None, b"", b"not a socket"])
def test_what_does_not_answer_is_no_engine(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "dead.sock"
    if content is not None:
        path.write_bytes(content)
    assert not engine.answers(path)


def test_a_socket_left_by_a_dead_engine_is_no_engine(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "left.sock"))
    assert not engine.answers(tmp_path / "left.sock")


def own(state: Path) -> OwnEngine:
    return OwnEngine(env={}, state=state)


@pytest.mark.parametrize(
    "record",
    [
        None,
        "",
        '{"pid": ',
        json.dumps({"launcher": os.getpid(), "started": "1", "gpu": "hook"}),
        json.dumps({"launcher": 2**22 + 1, "started": "1", "gpu": "hook"}),
    ],
    ids=["none", "empty", "torn", "pid given to another", "no such pid"],
)
def test_a_stale_record_means_not_running(tmp_path: Path, record: str | None) -> None:
    if record is not None:
        (tmp_path / "running.json").write_text(record)
    assert own(tmp_path).gpu is None


def test_a_true_record_means_running(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout
        child = int(launcher.stdout.readline())
        record = {"launcher": launcher.pid, "started": start_time(launcher.pid), "gpu": "cdi"}
        (tmp_path / "running.json").write_text(json.dumps(record))
        running = own(tmp_path)._running()
        os.kill(child, signal.SIGTERM)
    assert running == {**record, "pid": child}
    assert own(tmp_path).gpu is None


def test_stopping_what_does_not_run_is_fine(tmp_path: Path) -> None:
    own(tmp_path).stop()
    own(tmp_path).stop()


def test_a_failing_command_says_command_status_and_reason(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        Engine(env=client(tmp_path / "bin", "echo 'no such image: x y' >&2; exit 125")).docker("run", "x y")
    assert str(caught.value) == "docker run 'x y': exit status 125\nno such image: x y"


def test_a_failing_command_can_be_looked_at(tmp_path: Path) -> None:
    done = Engine(env=client(tmp_path / "bin", "printf '\\377ok'; exit 3")).docker("ps", check=False)
    assert (done.returncode, done.stdout) == (3, "\N{REPLACEMENT CHARACTER}ok")


@pytest.mark.parametrize(("hiccups", "status"), [(2, 0), (3, 1)], ids=["passes", "stays"])
def test_what_runc_could_not_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hiccups: int, status: int
) -> None:
    """Seen in a build on a busy machine: no step of it had run, and the next try went through."""
    monkeypatch.setattr(engine, "PAUSE_S", 0.0)
    script = f"""echo >> tries
[ $(wc -l < tries) -gt {hiccups} ] && exit 0
echo 'runc run failed: unable to start container process: read init-p: connection reset by peer' >&2; exit 1"""
    done = Engine(env=client(tmp_path / "bin", script)).docker("build", ".", check=False, cwd=tmp_path)
    assert (done.returncode, (tmp_path / "tries").read_text()) == (status, "\n" * 3)


def test_a_command_that_fails_by_itself_is_tried_once(tmp_path: Path) -> None:
    fake = Engine(env=client(tmp_path / "bin", "echo >> tries; exit 1"))
    fake.docker("build", ".", check=False, cwd=tmp_path)
    assert (tmp_path / "tries").read_text() == "\n"


def test_input_folder_and_environment_reach_the_client(tmp_path: Path) -> None:
    fake = Engine(env=client(tmp_path / "bin", 'cat; pwd; echo "$NAME"'))
    done = fake.docker("x", input="in\n", cwd=tmp_path, env={"NAME": "value"})
    assert done.stdout == f"in\n{tmp_path}\nvalue\n"


def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"docker wait x: no end after 0\.3 s"):
        Engine(env=client(tmp_path / "bin", "exec sleep 60")).docker("wait", "x", timeout=0.3)


def test_the_client_is_added_only_where_there_is_none(tmp_path: Path) -> None:
    path = client(tmp_path / "there", "exit 0")["PATH"]
    assert "PATH" not in own_variables(tmp_path, path)
    assert own_variables(tmp_path, str(tmp_path / "empty"))["PATH"] == f"{tmp_path}/bin:{tmp_path}/empty"


def test_printed_environment_survives_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "it's a $HOME folder"
    assert engine._print_env(own(state)) == 0
    script = capsys.readouterr().out + 'printf %s "$DOCKER_HOST"'
    said = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True).stdout
    assert said == own_variables(state, "")["DOCKER_HOST"]


def test_a_deep_state_folder_has_its_socket_elsewhere(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes."""
    deep = tmp_path / ("d" * 90)
    assert len(str(engine._socket_folder(deep) / "docker.sock")) < 100
    assert engine._socket_folder(deep) != engine._socket_folder(deep / "other")
    assert engine._socket_folder(Path("/short")) == Path("/short/sockets")


def test_status_of_nothing_is_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setenv(engine.STATE_VARIABLE, str(tmp_path))
    assert engine.main(["status"]) == 1
    assert capsys.readouterr().out == f"not running ({tmp_path})\n"


def test_the_command_line_says_why_not_and_ends_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.setenv(engine.STATE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert engine.main(["start"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
