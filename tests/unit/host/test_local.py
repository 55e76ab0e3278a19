"""Local mode without JupyterLab: what is kept, what counts as ours, how it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from host import local
from host.local import Instance
from host.paths import Paths
from host.settings import settle
from host.show import Problem
from host.venv import Venv


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path)
    made.local.mkdir(parents=True)
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


def instance(pid: int, **more: object) -> Instance:
    made = Instance(pid, local.start_ticks(pid) or 0, local.boot_id(), "127.0.0.1", 8888, "/w", 1.0)
    return replace(made, **more)  # type: ignore[arg-type]


def write(paths: Paths, what: Instance) -> None:
    (paths.local / "running.json").write_text(json.dumps(asdict(what)))


def test_what_runs_is_found_again(paths: Paths, sleeper: subprocess.Popen[bytes]) -> None:
    write(paths, instance(sleeper.pid))
    assert local.running(paths) == instance(sleeper.pid)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot": "another boot"}])
def test_a_process_id_that_was_given_out_again_is_not_ours(
    paths: Paths, sleeper: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    write(paths, instance(sleeper.pid, **change))
    assert local.running(paths) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": "x"}'])
def test_a_damaged_record_is_no_process(paths: Paths, text: str) -> None:
    (paths.local / "running.json").write_text(text)
    assert local.running(paths) is None


def test_stop_asks_first_and_cleans_up(paths: Paths, sleeper: subprocess.Popen[bytes]) -> None:
    what = instance(sleeper.pid)
    write(paths, what)
    local.stop(paths, what)
    assert local.start_ticks(what.pid) is None
    assert not (paths.local / "running.json").exists()


def test_stop_insists_only_after_the_grace(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    what = instance(child.pid)
    began = time.monotonic()
    local.stop(paths, what, patience_s=0.5)
    assert 0.5 <= time.monotonic() - began < 5
    assert local.start_ticks(what.pid) is None
    assert "no end after 0.5 s: killed" in capsys.readouterr().out
    child.stdout.close()


def test_insisting_ends_what_it_started_too(paths: Paths, tmp_path: Path) -> None:
    program = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    script = f"trap '' TERM; {sys.executable} -c \"{program}\" & echo $! >{tmp_path}/pid; wait; wait"
    parent = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    local.stop(paths, instance(parent.pid), patience_s=0.2)
    parent.stdout.close()
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while local.start_ticks(child) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert local.start_ticks(child) is None


def test_stop_does_not_touch_a_stranger(paths: Paths, sleeper: subprocess.Popen[bytes]) -> None:
    local.stop(paths, instance(sleeper.pid, start_ticks=1))
    assert sleeper.poll() is None
    os.kill(sleeper.pid, signal.SIGCONT)


def test_the_token_is_made_once_and_private(paths: Paths) -> None:
    first = local.token(paths)
    assert len(first) == 48
    assert local.token(paths) == first
    file = paths.local / "jupyter-token"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    local.token(paths)
    assert file.stat().st_mode & 0o777 == 0o600
    assert not list(paths.local.glob("*.tmp"))


def test_a_private_file_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even before it is complete."""
    seen: list[int] = []
    write_text = Path.write_text

    def spy(path: Path, text: str) -> int:
        seen.append(path.stat().st_mode & 0o777)
        return write_text(path, text)

    monkeypatch.setattr(Path, "write_text", spy)
    (tmp_path / "x").touch(mode=0o644)
    local.write_private(tmp_path / "x", "secret")
    assert seen == [0o600]
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "x").read_text() == "secret"


def test_an_empty_token_file_never_means_no_token(paths: Paths) -> None:
    (paths.local / "jupyter-token").write_text("\n")
    assert len(local.token(paths)) == 48


def test_two_hosts_with_one_home_do_not_see_each_others_process(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = paths.local
    monkeypatch.setattr("socket.gethostname", lambda: "another-host")
    assert paths.local != here
    assert local.running(paths) is None


def test_the_environment_holds_no_token_and_no_other_jupyter(paths: Paths, tmp_path: Path) -> None:
    environ = {"JUPYTER_TOKEN": "x", "JUPYTER_PORT": "1", "MAKEFLAGS": "w", "PATH": "/bin", "MINE": "1"}
    env = local.environment(paths, settle({"GPUS": "0,1"}, {}), Venv(tmp_path / "v"), environ)
    assert env == {
        "MINE": "1",
        "PATH": f"{tmp_path}/v/bin:/bin",
        "VIRTUAL_ENV": f"{tmp_path}/v",
        "JUPYTER_CONFIG_DIR": str(paths.local / "config"),
        "JUPYTER_RUNTIME_DIR": str(paths.local / "runtime"),
        "TORCHTAP_STATE": str(paths.local),
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


def test_root_is_allowed_only_for_root(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    for uid, allowed in ((0, True), (1000, False)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        made = local.configuration("secret", "127.0.0.1", 8888, Path("/w"))
        assert made["ServerApp"]["allow_root"] is allowed
        assert made["ServerApp"]["ip"] == "127.0.0.1"
        assert made["ServerApp"]["port_retries"] == 0


def test_the_workspace_is_made_or_the_reason_told(paths: Paths) -> None:
    assert local.workspace(paths, settle({}, {})) == paths.root / "workspace"
    (paths.root / "file").touch()
    with pytest.raises(Problem, match=r"WORKSPACE=\./file/x: file is a file, not a folder"):
        local.workspace(paths, settle({"WORKSPACE": "./file/x"}, {}))
    with pytest.raises(Problem, match=r"the workspace x+ cannot be made: File name too long"):
        local.workspace(paths, settle({"WORKSPACE": f"./{'x' * 300}"}, {}))


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert local.tail(log, 2) == ["line 9998", "line 9999"]
    assert local.tail(tmp_path / "none", 2) == []


@pytest.mark.parametrize(
    ("address", "base"),
    [
        ("127.0.0.1", "http://127.0.0.1:8888"),
        ("0.0.0.0", "http://127.0.0.1:8888"),
        ("::1", "http://[::1]:8888"),
    ],
)
def test_the_link_is_one_to_connect_to(address: str, base: str) -> None:
    assert instance(1, address=address).base == base


def test_what_does_not_answer_does_not_answer() -> None:
    assert not local.answers(instance(1, port=1), "x")
