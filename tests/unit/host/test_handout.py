"""How GPUs are asked for, and what an engine's refusal means."""

from __future__ import annotations

import os

import pytest

from host import handout
from tests.unit.host.checkout import Checkout


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
    by_runtime, by_cdi = handout.ways(gpus)
    assert " ".join(by_runtime.run) == run
    assert f"            - driver: nvidia\n              {which}\n" in by_runtime.override
    assert f"            - driver: cdi\n              {cdi}\n" in by_cdi.override


@pytest.mark.parametrize("gpus", ["", "all"])
def test_all_gpus_need_no_file_of_their_own(gpus: str) -> None:
    assert [(way.override, way.files[-1]) for way in handout.ways(gpus)] == [
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
    assert handout.refusal(text) == reason


def test_a_gpu_that_is_handed_out_but_sick_is_still_gpu_mode(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test then says what is wrong; falling back to the CPU would hide it."""
    monkeypatch.setenv("PATH", checkout.env["PATH"])
    fake = checkout.fake("docker")
    fake.answer(
        {"when": "--gpus", "rc": 15, "out": "Unable to determine the device handle for GPU0: GPU is lost\n"}
    )
    proof = handout.prove("torchtap:cu130", "")
    assert proof.way is not None
    assert "GPU is lost" in proof.words
    missing = 'OCI runtime create failed: exec: "nvidia-smi": executable file not found in $PATH: unknown.\n'
    fake.answer({"when": "--gpus", "rc": 127, "err": "docker: Error response from daemon: " + missing})
    assert handout.prove("torchtap:cu130", "").words == "given, but without nvidia-smi"


def test_a_proof_that_hangs_is_ended_and_its_container_removed(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", checkout.env["PATH"])
    monkeypatch.setattr(handout, "PROOF_TIMEOUT_S", 0.5)
    fake = checkout.fake("docker").answer({"when": "^run", "sleep_s": 30}, {"when": "^rm"})
    assert handout.prove("x", "").way is None
    assert fake.called(f"^rm --force torchtap-proof-{os.getpid()}$")
