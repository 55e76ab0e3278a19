"""How GPUs are asked for, in Docker's two dialects, and the proof that this engine hands them out."""

from __future__ import annotations

import json
import os
import re
import resource
from dataclasses import dataclass

from host import proc
from host.engine import CDI_KIND

PROOF_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask the engine for GPUs: on docker's command line, and as Compose files."""

    name: str
    run: tuple[str, ...]
    files: tuple[str, ...]
    override: str = ""  # content of .torchtap/compose.gpus.yaml, where the files alone cannot say it


OVERRIDE = """\
# Written by make from GPUS={gpus}. Do not edit.
services:
  dev:
    deploy:
      resources:
        reservations:
          devices: !override
            - driver: {driver}
              {which}
              capabilities: [gpu]
"""


def ways(gpus: str) -> tuple[Way, Way]:
    """The two ways, for the value of GPUS ("" is all): `--gpus`, then CDI.

    >>> [" ".join(way.run) for way in ways("0,1")]
    ['--gpus "device=0,1"', '--device nvidia.com/gpu=0 --device nvidia.com/gpu=1']
    """
    base, cdi = ("compose.yaml",), ("compose.yaml", "compose.cdi.yaml")
    if gpus in {"", "all"}:
        return Way("--gpus", ("--gpus", "all"), base), Way("CDI", ("--device", f"{CDI_KIND}=all"), cdi)
    number = int(gpus.removeprefix("count=")) if gpus.startswith("count=") else None
    ids = [str(each) for each in range(number)] if number else gpus.split(",")
    which = f"count: {number}" if number else f"device_ids: {json.dumps(ids)}"
    devices = [f"{CDI_KIND}={each}" for each in ids]
    return (
        Way(
            "--gpus",
            ("--gpus", str(number) if number else f'"device={",".join(ids)}"'),
            base,
            OVERRIDE.format(gpus=gpus, driver="nvidia", which=which),
        ),
        Way(
            "CDI",
            tuple(word for device in devices for word in ("--device", device)),
            cdi,
            OVERRIDE.format(gpus=gpus, driver="cdi", which=f"device_ids: {json.dumps(devices)}"),
        ),
    )


@dataclass(frozen=True, slots=True)
class Proof:
    """What a container said when it was started with a GPU. `way` None: the engine refused, `words` is why."""

    way: Way | None
    words: str


def prove(name: str, gpus: str) -> Proof:
    """Start the image with GPUs and let nvidia-smi list them. An engine that starts it has handed them out."""
    refusals = []
    for way in ways(gpus):
        container = f"torchtap-proof-{os.getpid()}"
        command = ["docker", "run", "--rm", "--name", container, "--network", "none", *way.run]
        answer = proc.ask([*command, "--entrypoint", "nvidia-smi", name, "-L"], timeout_s=PROOF_TIMEOUT_S)
        if answer.rc == proc.TIMED_OUT:
            proc.ask(["docker", "rm", "--force", container])
            return Proof(None, f"a container with {way.name} gave no answer in {PROOF_TIMEOUT_S:g} s")
        if answer.ok:
            return Proof(
                way, "; ".join(line.split(" (UUID")[0] for line in answer.out.splitlines() if line.strip())
            )
        if "executable file not found" in answer.err:  # given, but without the utility capability
            return Proof(way, "given, but without nvidia-smi")
        if answer.rc != 125 and "Error response from daemon" not in answer.err:
            return Proof(way, f"nvidia-smi: {answer.said}")
        refusals.append(refusal(answer.err))
    return Proof(None, refusals[0])


def refusal(text: str) -> str:
    """The engine's reason, out of the several lines around it.

    >>> refusal("docker: Error response from daemon: could not select device driver.\\n\\nRun 'docker run --help'")
    'could not select device driver'
    """
    tail = next((text.rpartition(marker)[2] for marker in REASON_FOLLOWS if marker in text), text)
    line = tail.splitlines()[0] if tail else ""
    return re.sub(r"(: unknown)?\.?$", "", line.strip())


# Where the engine's reason begins, most telling first.
REASON_FOLLOWS = ("nvidia-container-cli: ", "CDI device injection failed: ", "Error response from daemon: ")

# What a refusal says, and what then to do; the first that fits.
REFUSALS = (
    ("rlimit type 8", "This engine may not raise the limit of pinned memory:  make up MEMLOCK={memlock}"),
    ("port is already allocated", "Another program was faster:  make up JUPYTER_PORT=… SSH_PORT=…"),
    (
        "requirement error",
        "The host's driver is too old for this image:  make up VARIANT=cu128     (driver 525 or newer)",
    ),
    ("device error", "GPUS names a GPU that is not there; on the host:  nvidia-smi -L"),
    (
        "could not select device driver",
        "Install the NVIDIA Container Toolkit, then:  "
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
    ),
    ("nvml error", "The driver does not answer; on the host:  nvidia-smi"),
    ("driver error", "The driver does not answer; on the host:  nvidia-smi"),
)


TOO_MANY = "GPUS={gpus} asks for {number} GPUs, there are fewer; on the host:  nvidia-smi -L"


def remedies(words: str, gpus: str = "") -> list[str]:
    """What to do about a refusal, by the engine's words; nothing where we know nothing. `gpus`: the value of GPUS.

    >>> remedies("device error: 5: unknown device", "5")
    ['GPUS names a GPU that is not there; on the host:  nvidia-smi -L']
    >>> remedies("device error: 8: unknown device", "count=9")
    ['GPUS=count=9 asks for 9 GPUs, there are fewer; on the host:  nvidia-smi -L']
    """
    if gpus.startswith("count=") and any(each in words for each in ("device error", "unresolvable CDI")):
        return [TOO_MANY.format(gpus=gpus, number=gpus.removeprefix("count="))]
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return [do.format(memlock=limit) for marker, do in REFUSALS if marker in words][:1]
