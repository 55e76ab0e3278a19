"""Our own engine: its network, its end, and what it leaves. A second one beside the first disturbs neither."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import base, engine, network
from tests.engine.engine import Engine, OwnEngine, own_environment
from tests.image.conftest import wait_until


@pytest.fixture
def second(simulated: Engine, tmp_path: Path) -> Iterator[OwnEngine]:
    """A second engine of our own. It shares the first one's programs, and nothing else."""
    assert isinstance(simulated, OwnEngine)
    state = tmp_path / "second engine"
    state.mkdir()
    (state / "root").symlink_to(simulated.root)
    made = OwnEngine(env=own_environment(state), state=state)
    made.start()
    yield made
    made.remove()


@pytest.fixture
def small(simulated: Engine, second: OwnEngine, tmp_path: Path) -> str:
    """A small image in the second engine."""
    name = base.ensure_base(simulated, base.NO_PYTHON)
    simulated.docker("save", "-o", tmp_path / "small.tar", name)
    second.docker("load", "-i", tmp_path / "small.tar")
    return name


def processes(own: OwnEngine) -> set[int]:
    """The host's ids of all processes in the engine's PID namespace."""
    running = own._running()
    assert running
    inside = Path(f"/proc/{running['pid']}/ns/pid").readlink()
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == inside:
                found.add(int(entry.name))
        except OSError:
            continue  # ended meanwhile
    return found


def fetch(port: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{port}/page", timeout=5) as answer:
        return str(answer.read().decode())


def serve(one: Engine, image: str, *options: str) -> str:
    script = "echo hello > /tmp/page; exec httpd -f -p 80 -h /tmp"
    return one.docker(
        "run", "-d", "--init", "-p", "127.0.0.1::80", *options, image, "sh", "-c", script
    ).stdout.strip()


def test_two_engines_side_by_side_keep_their_networks(
    simulated: Engine, second: OwnEngine, small: str
) -> None:
    """Own bridge, own addresses, and a port on loopback that answers in each."""
    assert isinstance(simulated, OwnEngine)
    assert simulated._network().range != second._network().range
    ids = [(one, serve(one, small)) for one in (simulated, second)]
    try:
        for one, container in ids:
            port = one.docker("port", container, "80").stdout.strip()
            wait_until(lambda port=port: fetch(port) == "hello\n", 10, lambda: "no answer")  # type: ignore[misc]
    finally:
        simulated.docker("rm", "-f", ids[0][1])


def test_started_twice_it_is_the_same_engine(second: OwnEngine) -> None:
    before = second._running()
    second.start()
    assert second._running() == before


def test_two_daemons_never_run_on_the_same_images(second: OwnEngine) -> None:
    """Even where the record of the first one is lost."""
    record = second.state / "running.json"
    kept = record.read_text()
    record.unlink()
    with pytest.raises(engine.EngineError, match="another engine runs in"):
        second.start()
    record.write_text(kept)
    assert second.docker("info").returncode == 0


def test_its_end_leaves_no_process_no_bridge_and_no_rule(second: OwnEngine, small: str) -> None:
    serve(second, small)
    second.docker("network", "create", "another")
    inside, range_ = processes(second), second._network().range
    assert len(inside) >= 5, "init, dockerd, containerd, a shim, the container"
    second.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in inside)
    assert not any(address.startswith(range_[:7]) for _, address in network._addresses(second.root))
    rules = network._in_root(second.root, "iptables-save").stdout
    assert range_ not in rules
    assert second.gpu is None


def test_a_killed_engine_leaves_no_process_and_starts_again_with_its_containers(
    second: OwnEngine, small: str
) -> None:
    container = serve(second, small, "--restart=always")
    running, inside = second._running(), processes(second)
    assert running
    os.kill(running["pid"], signal.SIGKILL)
    second.start()  # at once, while the kernel may still be ending the old one
    assert not any(Path(f"/proc/{pid}").exists() for pid in inside)
    wait_until(
        lambda: json.loads(second.docker("inspect", container).stdout)[0]["State"]["Running"],
        10,
        lambda: second.docker("ps", "-a").stdout,
    )
    port = second.docker("port", container, "80").stdout.strip()
    wait_until(lambda: fetch(port) == "hello\n", 10, lambda: "no answer")


def test_the_machines_folders_are_at_their_places_for_containers(
    second: OwnEngine, small: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("of the host")
    mount = f"{tmp_path}:/seen"
    assert second.docker("run", "--rm", "-v", mount, small, "cat", "/seen/file").stdout == "of the host"
    second.docker("run", "--rm", "-v", mount, small, "sh", "-c", "echo back > /seen/made")
    assert (tmp_path / "made").read_text() == "back\n"


def test_an_engine_that_does_not_start_says_why_and_leaves_nothing(
    second: OwnEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    second.stop()
    monkeypatch.setattr(engine, "_storage_driver", lambda state: "no-such-driver")
    with pytest.raises(
        engine.EngineError, match=r"dockerd ended with exit status 1; the end of .*dockerd\.log"
    ) as e:
        second.start()
    assert "no-such-driver" in str(e.value)
    assert second.gpu is None
    assert network._in_root(second.root, "ip", "link", "show", second._network().bridge).returncode != 0


def test_without_an_overlay_file_system_it_runs_with_vfs_and_says_so(
    second: OwnEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second.stop()
    monkeypatch.setattr(engine, "OVERLAY_TEST", "lowerdir=nowhere,upperdir=upper,workdir=work")
    second.start()
    assert "WARNING no overlay file system" in capsys.readouterr().err
    assert second.docker("info", "--format", "{{.Driver}}").stdout == "vfs\n"
