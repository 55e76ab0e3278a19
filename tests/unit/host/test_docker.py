"""How GPUs are asked for, and what Compose is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from host import docker
from host.engine import Engine, State
from host.gpu import HostGpus
from host.keys import Keys
from host.paths import Paths
from host.plan import Plan, decide
from host.settings import Settings, settle
from tests.unit.host.checkout import Checkout

NO_KEYS = Keys((), "")


def plan(settings: Settings) -> Plan:
    return decide(settings, Engine(State.READY), HostGpus())


@pytest.mark.parametrize(
    ("gpus", "run", "which", "cdi"),
    [
        ("0", '--gpus "device=0"', 'device_ids: ["0"]', 'device_ids: ["nvidia.com/gpu=0"]'),
        (
            "0,1",
            '--gpus "device=0,1"',
            'device_ids: ["0", "1"]',
            'device_ids: ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]',
        ),
        (
            "MIG-aa",
            '--gpus "device=MIG-aa"',
            'device_ids: ["MIG-aa"]',
            'device_ids: ["nvidia.com/gpu=MIG-aa"]',
        ),
        ("count=2", "--gpus 2", "count: 2", 'device_ids: ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]'),
    ],
)
def test_chosen_gpus_in_each_dialect(gpus: str, run: str, which: str, cdi: str) -> None:
    by_runtime, by_cdi = docker.ways(gpus)
    assert " ".join(by_runtime.run) == run
    assert f"            - driver: nvidia\n              {which}\n" in by_runtime.override
    assert f"            - driver: cdi\n              {cdi}\n" in by_cdi.override


@pytest.mark.parametrize("gpus", ["", "all"])
def test_all_gpus_need_no_file_of_their_own(gpus: str) -> None:
    assert [(way.override, way.files[-1]) for way in docker.ways(gpus)] == [
        ("", "compose.yaml"),
        ("", "compose.cdi.yaml"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n',
            'could not select device driver "" with capabilities: [[gpu]]',
        ),
        (
            "docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI "
            "runtime create failed: runc create failed: unable to start container process: error during container "
            "init: error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver to "
            "a newer version, or use an earlier cuda container: unknown.\n",
            "requirement error: unsatisfied condition: cuda>=13.0, please update your driver to a newer version, "
            "or use an earlier cuda container",
        ),
        (
            "docker: Error response from daemon: OCI runtime create failed: stderr: Auto-detected mode as 'legacy'\n"
            "nvidia-container-cli: device error: 5: unknown device: unknown.\n",
            "device error: 5: unknown device",
        ),
        ("", ""),
    ],
)
def test_the_engines_reason_is_found_in_what_it_says(text: str, reason: str) -> None:
    assert docker.refusal(text) == reason


def test_a_gpu_that_is_handed_out_but_sick_is_still_gpu_mode(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test then says what is wrong; falling back to the CPU would hide it."""
    monkeypatch.setenv("PATH", checkout.env["PATH"])
    fake = checkout.fake("docker")
    fake.answer(
        {"when": "--gpus", "rc": 15, "out": "Unable to determine the device handle for GPU0: GPU is lost\n"}
    )
    proof = docker.prove("torchtap:cu130", "")
    assert proof.way is not None
    assert "GPU is lost" in proof.words
    missing = 'OCI runtime create failed: exec: "nvidia-smi": executable file not found in $PATH: unknown.\n'
    fake.answer({"when": "--gpus", "rc": 127, "err": "docker: Error response from daemon: " + missing})
    assert docker.prove("torchtap:cu130", "").words == "given, but without nvidia-smi"


def test_a_proof_that_hangs_is_ended_and_its_container_removed(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", checkout.env["PATH"])
    monkeypatch.setattr(docker, "PROOF_TIMEOUT_S", 0.5)
    fake = checkout.fake("docker").answer({"when": "^run", "sleep_s": 30}, {"when": "^rm"})
    assert docker.prove("x", "").way is None
    assert fake.called(f"^rm --force torchtap-proof-{os.getpid()}$")


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (1234, {}, (1234, 567)),
        (1234, {"SUDO_UID": "1"}, (1234, 567)),
        (0, {"SUDO_UID": "1001", "SUDO_GID": "1002"}, (1001, 1002)),
        (0, {}, None),
    ],
    ids=["a user", "no root, no sudo", "behind sudo", "root itself"],
)
def test_whose_ids_the_container_gets(
    monkeypatch: pytest.MonkeyPatch, uid: int, environ: dict[str, str], expected: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: 567)
    assert docker.owner(environ) == expected


def test_compose_hears_of_every_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 567)
    settings = settle(
        {"BIND_ADDRESS": "::1", "SHM_SIZE": "16gb", "TORCHTAP_CA_BUNDLE": "/ca.pem", "GPUS": "0"}, {}
    )
    way = docker.ways("0")[0]
    keys = Keys(("ssh-ed25519 AA", "ssh-rsa BB"), "")
    assert docker.compose_variables(Paths(tmp_path), settings, plan(settings), way, keys, {}) == {
        "COMPOSE_FILE": "compose.yaml:.torchtap/compose.gpus.yaml:compose.ca.yaml",
        "VARIANT": "cu130",
        "HOST_UID": "1234",
        "HOST_GID": "567",
        "BIND_ADDRESS": "[::1]",
        "SHM_SIZE": "16gb",
        "TORCHTAP_CA_BUNDLE": "/ca.pem",
        "SSH_PUBLIC_KEY": "ssh-ed25519 AA\nssh-rsa BB",
    }


def test_what_was_not_chosen_does_not_come_from_the_shell() -> None:
    """SSH_KEY=none with an exported SSH_PUBLIC_KEY must not let a key in."""
    environ = {"SSH_PUBLIC_KEY": "ssh-ed25519 AA", "GPUS": "0,1", "COMPOSE_FILE": "x", "PATH": "/bin"}
    assert docker.environment(environ, {"VARIANT": "cu130"}) == {"PATH": "/bin", "VARIANT": "cu130"}


def test_plain_compose_means_the_same_afterwards(tmp_path: Path) -> None:
    """What make decided stands in `.env`, where `docker compose up` finds it."""
    settings = settle({}, {"VARIANT": ("cu128", 1)})
    chosen = docker.compose_variables(Paths(tmp_path), settings, plan(settings), None, NO_KEYS, {})
    docker.remember(Paths(tmp_path), settings, chosen, None)
    text = (tmp_path / ".env").read_text()
    assert "COMPOSE_FILE=compose.yaml:compose.cpu.yaml\n" in text
    assert "VARIANT" not in text  # the user's own line has it
