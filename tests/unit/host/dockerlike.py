"""Answers of a fake docker that behaves like an engine with one Compose project: rows for `checkout.Fake`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
UP = "compose up"
# No DockerRootDir: how full this machine is must not decide a test.
INFO = {"ServerVersion": "28.2.2", "Runtimes": {"runc": {}}}
NO_GPU = (
    'docker: Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]\n\n'
    "Run 'docker run --help' for more information\n"
)
NO_CDI = (
    "docker: Error response from daemon: CDI device injection failed: "
    "unresolvable CDI devices nvidia.com/gpu=all\n"
)
# What Compose says to a `.env` that it cannot read, whatever it is asked.
BROKEN: Row = {
    "when": "^compose (?!version)",
    "rc": 1,
    "err": 'time="2026-01-01" level=warning msg="a variable is not set"\n'
    "failed to read .env: required variable UNSET is missing a value: boo\n",
}
# What Compose says of compose.yaml, as far as the self-test's container needs it.
CONFIG = json.dumps(
    {"services": {"dev": {"shm_size": "8589934592", "ulimits": {"memlock": -1, "stack": 67108864}}}}
)
TOKEN = "0123456789abcdef"


def container(
    status: str = "running", health: str = "healthy", output: str = "", **more: Any
) -> dict[str, Any]:
    """What docker inspect says of the service's container."""
    return {
        "Id": "c0ffee",
        "Name": "/torchtap-dev-1",
        "RestartCount": 0,
        "State": {
            "Status": status,
            "Running": status == "running",
            "ExitCode": 1 if status == "exited" else 0,
            "StartedAt": "2026-01-01T00:00:00.5Z",
            "Health": {"Status": health, "Log": [{"Output": output}]},
        },
        "Config": {"Image": "torchtap:cu130", "Env": []},
        "HostConfig": {"DeviceRequests": None},
        "Mounts": [],
        "NetworkSettings": {
            "Ports": {
                "8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": "48888"}],
                "22/tcp": [{"HostIp": "127.0.0.1", "HostPort": "42222"}],
            }
        },
        **more,
    }


def report(verdict: str = "pass", *results: Mapping[str, Any]) -> str:
    """`stat` and `cat` of a self-test report newer than the container."""
    return "1893456000\n" + json.dumps(
        {"schema": 1, "verdict": verdict, "results": results or [{"status": "pass"}]}
    )


def engine(
    *first: Row, info: Mapping[str, Any] | None = None, inspect: Mapping[str, Any] | None = None
) -> list[Row]:
    """Rows for a working engine without a GPU; `first` come before them and so win."""
    return [
        *first,
        {"when": "^info", "out": json.dumps({**INFO, **(info or {})})},
        {"when": "^compose version", "out": "2.30.1\n"},
        {"when": "^context inspect", "out": "unix:///var/run/docker.sock\n"},
        {"when": "^ps --filter", "out": ""},
        {"when": "^compose config --format json", "out": CONFIG},
        {"when": "^compose config"},
        {"when": "^compose ps", "after": UP, "until": "compose down", "out": "c0ffee\n"},
        {"when": "^compose ps", "out": ""},
        {"when": "^inspect", "out": json.dumps([inspect or container()])},
        {"when": "^image inspect", "after": "compose build", "out": "sha256:1\n"},
        {"when": "^image inspect", "rc": 1, "err": "No such image\n"},
        {"when": "^compose build", "err": "#1 building\n"},
        {"when": "^run .*--gpus", "rc": 125, "err": NO_GPU},
        {"when": "^run .*--device", "rc": 125, "err": NO_CDI},
        {"when": "^cp ", "rc": 1, "err": "no such file\n"},
        {"when": "^rm --force"},
        {"when": "^compose up"},
        {"when": "^compose down"},
        {"when": "^logs", "out": "the last words\n"},
        {"when": "exec .*torchtap-url", "out": f"http://127.0.0.1:8888/lab?token={TOKEN}\n"},
        {"when": "exec .*selftest.json", "out": report()},
        {"when": "exec .*started.json", "out": '{"uid": 1000, "gid": 1001, "services": ["sshd", "jupyter"]}'},
        {"when": "exec .*host_ed25519_key.pub", "out": "ssh-ed25519 AAAA torchtap\n"},
        {"when": "exec .*session", "out": "in the container\n"},
    ]


def gpu(listing: str = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\n") -> Row:
    """The engine hands out a GPU."""
    return {"when": "^run .*--gpus", "out": listing}
