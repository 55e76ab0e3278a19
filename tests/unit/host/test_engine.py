"""Docker's state, from docker's own answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from host.engine import KINDS, REMEDIES, State, demand, look
from host.show import Problem
from tests.unit.host.checkout import Checkout

INFO = {
    "ServerVersion": "28.2.2",
    "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}},
    "DockerRootDir": "/",
}
CONTEXT = {"when": "^context inspect", "out": "unix:///var/run/docker.sock\n"}
COMPOSE = {"when": "^compose version", "out": "2.26.1-4\n"}
# As Docker 28.2 and 26.1 say it.
DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
    'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.50/info": dial unix /var/run/docker.sock: connect: permission denied'
)
NOBODY = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


@pytest.fixture
def env(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    monkeypatch.setenv("PATH", checkout.env["PATH"])
    return checkout.env


def info(**more: Any) -> dict[str, Any]:
    return {"when": "^info", "out": json.dumps({**INFO, **more}) + "\n"}


def test_a_ready_engine(checkout: Checkout, env: Mapping[str, str]) -> None:
    checkout.fake("docker").answer(info(), CONTEXT, COMPOSE)
    engine = look(env)
    assert engine.ready
    assert engine.root == Path("/")
    assert engine.hints == ()
    assert str(engine) == "Docker 28.2.2, Compose 2.26.1-4; no sign of GPU support"
    demand(engine)


@pytest.mark.parametrize(
    ("rows", "state", "words"),
    [
        ([], State.NO_CLIENT, "docker is not installed"),
        (
            [{"when": "^info", "out": json.dumps({"ServerErrors": [NOBODY]}), "rc": 1}],
            State.UNREACHABLE,
            "no Docker engine answers: Cannot connect to the Docker daemon at unix:///var/run/docker.sock",
        ),
        ([{"when": "^info", "err": NOBODY + "\n", "rc": 1}], State.UNREACHABLE, "Cannot connect"),
        (
            [{"when": "^info", "out": json.dumps({"ServerErrors": [DENIED]}), "rc": 1}],
            State.NO_PERMISSION,
            "this user may not use it: permission denied while trying to connect",
        ),
        ([{"when": "^info", "out": '{"host": {}, "version": {}}'}], State.PODMAN, "Podman"),
        (
            [info(), {"when": "^compose", "err": "docker: 'compose' is not a docker command.\n", "rc": 1}],
            State.NO_COMPOSE,
            "Compose plugin",
        ),
        ([info(), {"when": "^compose", "out": "v2.17.2\n"}], State.OLD_COMPOSE, "2.17.2, and 2.26 is needed"),
        ([{"when": "^info", "out": "{{json .}}\n"}], State.UNREACHABLE, ""),
    ],
    ids=lambda value: value.name if isinstance(value, State) else "",
)
def test_what_is_in_the_way_is_told_with_its_remedy(
    checkout: Checkout, env: Mapping[str, str], rows: list[dict[str, Any]], state: State, words: str
) -> None:
    if rows:
        checkout.fake("docker").answer(*rows)
    engine = look(env)
    assert engine.state is state
    with pytest.raises(Problem) as caught:
        demand(engine)
    assert words in caught.value.what
    assert "\n" not in caught.value.what
    assert len(caught.value.what) < 150
    assert caught.value.code == 2
    assert "MODE=local" in caught.value.do[-1] or state is State.OLD_COMPOSE


def test_no_permission_names_the_group(checkout: Checkout, env: Mapping[str, str]) -> None:
    assert any("sudo usermod -aG docker $USER" in line for line in REMEDIES[State.NO_PERMISSION])


def test_an_engine_that_never_answers_is_unreachable(
    checkout: Checkout, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.engine.INFO_TIMEOUT_S", 0.3)
    checkout.fake("docker").answer({"when": "", "sleep_s": 30})
    engine = look(env)
    assert engine.state is State.UNREACHABLE
    assert engine.said == "docker gave no answer in 0.3 s"


def test_gpu_hints(checkout: Checkout, env: Mapping[str, str], tmp_path: Path) -> None:
    docker = checkout.fake("docker")
    docker.answer(info(Runtimes={"runc": {}, "nvidia": {}}), CONTEXT, COMPOSE)
    assert look(env).hints == ("its runtime nvidia",)
    docker.answer(info(DiscoveredDevices=[{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]), CONTEXT, COMPOSE)
    assert look(env).hints == ("CDI devices",)
    specs = tmp_path / "cdi"
    specs.mkdir()
    (specs / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    (specs / "other.json").write_text('{"kind": "vendor.com/net"}')
    docker.answer(info(CDISpecDirs=[str(specs), "/nonexistent"]), CONTEXT, COMPOSE)
    engine = look(env)
    assert engine.cdi
    assert engine.hints == ("CDI devices",)
    docker.answer(info(), CONTEXT, COMPOSE)
    checkout.fake("nvidia-container-runtime-hook").answer()
    assert look(env).hints == ("nvidia-container-runtime-hook",)


@pytest.mark.parametrize("address", ["ssh://me@there", "tcp://10.0.0.2:2376"])
def test_an_engine_on_another_machine_is_known_as_such(
    checkout: Checkout, env: Mapping[str, str], address: str
) -> None:
    """Its disk, its devices and its hook are not those of this machine."""
    checkout.fake("docker").answer(info(), COMPOSE)
    checkout.fake("nvidia-container-runtime-hook").answer()
    engine = look({**env, "DOCKER_HOST": address})
    assert engine.ready
    assert not engine.local
    assert engine.root is None
    assert engine.hints == ()


@pytest.mark.parametrize("odd", [7, True, "x", [7], {"a": 1}, [None], [[]]], ids=str)
@pytest.mark.parametrize("key", [*KINDS, "OSType"])
def test_what_docker_tells_in_another_form_ends_nothing(
    checkout: Checkout, env: Mapping[str, str], key: str, odd: object
) -> None:
    """Each key that is read, with each kind of value; the engine may then count as unknown, and no more."""
    checkout.fake("docker").answer(info(**{key: odd}), CONTEXT, COMPOSE)
    engine = look(env)
    assert engine.state in State
    assert all(isinstance(each, str) for each in engine.info.get("SecurityOptions") or [])
