"""The Compose files, read as YAML with their variables filled in. That Compose takes them: tests/image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoint import proxies
from entrypoint.settings import VARIABLES, Settings
from host.project import DEFAULT_NAME, PASSED_ON
from torchtap.variants import DEFAULT

yaml = pytest.importorskip("yaml", reason="PyYAML comes with JupyterLab (lab.lock)")
ROOT = Path(__file__).parents[3]
FILES = ("compose.yaml", "compose.cpu.yaml", "compose.cdi.yaml", "compose.ca.yaml", "compose.debug.yaml")
# ${NAME}, ${NAME:-default}, ${NAME:?message}
VARIABLE = re.compile(r"\$\{(\w+)(?::(-|\?)([^}$]*))?\}")


class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
    """Knows Compose's own tags: !reset and !override."""


for tag in ("!reset", "!override"):
    Loader.add_constructor(tag, lambda loader, node: {node.tag: loader.construct_sequence(node, deep=True)})


def filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Variables replaced, as Compose does it. KeyError for one that has to be given."""
    if isinstance(value, dict):
        return {name: filled(inner, variables) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        return variables.get(name) or (variables[name] if kind == "?" else default or "")

    while VARIABLE.search(value):  # a default may be a variable itself: innermost first
        value = VARIABLE.sub(replace, value)
    return value


def load(name: str, **variables: str) -> dict[str, Any]:
    return filled(yaml.load((ROOT / name).read_text(), Loader), variables)  # type: ignore[no-any-return]


def dev(name: str = "compose.yaml", **variables: str) -> dict[str, Any]:
    return load(name, **variables)["services"]["dev"]  # type: ignore[no-any-return]


def test_one_service_that_is_built_here() -> None:
    assert list(load("compose.yaml")["services"]) == ["dev"]
    assert dev()["image"] == f"torchtap:{DEFAULT}"
    assert dev()["pull_policy"] == "build"
    assert dev(VARIANT="cu128")["image"] == "torchtap:cu128"
    assert dev(VARIANT="cu128")["build"]["args"]["VARIANT"] == "cu128"


def test_ports_are_published_on_loopback_unless_the_user_says_otherwise_by_name() -> None:
    assert dev()["ports"] == ["127.0.0.1:8888:8888", "127.0.0.1:2222:22"]
    assert dev(JUPYTER_PORT="18888", SSH_PORT="12222")["ports"] == [
        "127.0.0.1:18888:8888",
        "127.0.0.1:12222:22",
    ]
    assert dev(BIND_ADDRESS="0.0.0.0")["ports"] == ["0.0.0.0:8888:8888", "0.0.0.0:2222:22"]


def test_the_gpu_is_asked_for() -> None:
    (device,) = dev()["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["all"], "capabilities": ["gpu"]}
    (chosen,) = dev(GPUS="MIG-0123")["deploy"]["resources"]["reservations"]["devices"]
    assert chosen["device_ids"] == ["MIG-0123"]


def test_the_cpu_file_takes_the_gpu_away_and_says_that_it_is_meant() -> None:
    service = dev("compose.cpu.yaml")
    assert service["deploy"]["resources"]["reservations"]["devices"] == {"!reset": []}
    assert service["environment"] == {"TORCHTAP_DEVICE": "cpu", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_the_cdi_file_replaces_the_device() -> None:
    devices = dev("compose.cdi.yaml", GPUS="1")["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {
        "!override": [{"driver": "cdi", "device_ids": ["nvidia.com/gpu=1"], "capabilities": ["gpu"]}]
    }


def test_certificates_have_to_be_named() -> None:
    with pytest.raises(KeyError, match="TORCHTAP_CA_BUNDLE"):
        load("compose.ca.yaml")
    found = load("compose.ca.yaml", TORCHTAP_CA_BUNDLE="/ca.pem")
    assert found["secrets"] == {"ca_bundle": {"file": "/ca.pem"}}
    build_and_run = found["services"]["dev"]
    assert build_and_run == {"build": {"secrets": ["ca_bundle"]}, "secrets": ["ca_bundle"]}


@pytest.mark.parametrize("name", FILES)
def test_no_second_init_and_nothing_more_than_needed(name: str) -> None:
    """tini is PID 1 already; an engine's init above it would take the stop signal's place in the order."""
    for forbidden in ("init", "privileged", "network_mode", "pid", "ipc"):
        assert forbidden not in dev(name, TORCHTAP_CA_BUNDLE="x"), forbidden


def test_roots_powers_are_the_documented_minimum() -> None:
    """Which of them is needed for what is shown on a real engine: tests/image/test_hardening.py."""
    assert dev()["cap_drop"] == ["ALL"]
    assert dev()["cap_add"] == [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "KILL",
        "SETGID",
        "SETUID",
        "SYS_CHROOT",
    ]
    assert dev()["security_opt"] == ["no-new-privileges:true"]
    assert dev("compose.debug.yaml") == {"cap_add": ["SYS_PTRACE"]}
    for name in set(FILES) - {"compose.yaml", "compose.debug.yaml"}:
        assert not {"cap_add", "cap_drop", "security_opt"} & set(dev(name, TORCHTAP_CA_BUNDLE="x")), name


@pytest.mark.parametrize("given", ["HTTPS_PROXY", "https_proxy"])
def test_a_proxy_set_on_the_host_reaches_build_and_container_in_either_spelling(given: str) -> None:
    """And hides none of Docker's own config.json: that gives both spellings, and in the container one is enough."""
    service = dev(**{given: "http://proxy:3128"})
    assert service["environment"]["HTTPS_PROXY"] == "http://proxy:3128"
    assert not [name for name in service["environment"] if name.islower()]
    passed_on = {name for name, value in service["build"]["args"].items() if value is None}
    assert passed_on == {
        spelled for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") for spelled in (name, name.lower())
    }


def test_memory_limits_that_training_needs() -> None:
    assert dev()["shm_size"] == "8gb"
    assert dev()["ulimits"] == {"memlock": "-1", "stack": 67108864}


def test_the_projects_name_is_what_make_takes_it_for() -> None:
    assert load("compose.yaml")["name"] == DEFAULT_NAME


def test_state_lives_in_volumes_and_code_on_the_host() -> None:
    assert dev()["volumes"] == ["./workspace:/workspace", "home:/home/dev", "state:/var/lib/torchtap"]
    assert set(load("compose.yaml")["volumes"]) == {"home", "state"}


def test_a_crash_restarts_it_and_logs_do_not_fill_the_disk() -> None:
    assert dev()["restart"] == "unless-stopped"
    assert dev()["logging"] == {
        "driver": "json-file",
        "options": {"max-size": "10m", "max-file": "3"},
    }


@pytest.mark.parametrize("seconds", ["", "60"], ids=["default", "set"])
def test_compose_and_the_image_have_the_same_grace_period(seconds: str) -> None:
    service = dev(STOP_GRACE=seconds)
    grace = service["environment"]["TORCHTAP_STOP_GRACE"]
    assert service["stop_grace_period"] == f"{grace}s"
    assert grace == (seconds or "30")


def test_variables_are_those_of_the_image_and_their_defaults_are_accepted() -> None:
    environment = dev()["environment"]
    known = {variable.name for variable in VARIABLES}
    assert set(environment) <= known | set(proxies.NAMES)
    settings = Settings.read(environment)
    assert (settings.selftest, settings.stop_grace_s, settings.uid) == ("warn", 30.0, None)


def test_variables_that_the_head_names_are_those_that_are_read() -> None:
    text = (ROOT / "compose.yaml").read_text()
    head = text[: text.index("\nname:")]
    named = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", head.partition("Variables,")[2]))
    read = {match[1] for match in VARIABLE.finditer(text)}
    assert named <= read


def test_every_variable_that_make_passes_on_is_read() -> None:
    read = {match[1] for name in FILES for match in VARIABLE.finditer((ROOT / name).read_text())}
    assert set(PASSED_ON) - {"COMPOSE_PROJECT_NAME"} <= read


@pytest.mark.parametrize("name", FILES)
def test_no_secret_has_its_place_in_a_file(name: str) -> None:
    assert not re.search(r"(?i)token|password|BEGIN", (ROOT / name).read_text())
