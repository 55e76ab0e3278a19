"""Settings: the environment wins over `.env`, and a bad value is answered with the nearest good one."""

from __future__ import annotations

import pytest

from host.settings import SETTINGS, settle
from host.show import Problem


def test_the_environment_wins_over_the_file_and_empty_counts_as_unset() -> None:
    file = {"JUPYTER_PORT": ("8889", 1), "SSH_PORT": ("2223", 2), "MODE": ("", 3), "WORKSPACE": ("./code", 4)}
    settings = settle({"JUPYTER_PORT": "9999", "SSH_PORT": ""}, file)
    assert settings.get("JUPYTER_PORT") == "9999"
    assert settings.get("SSH_PORT") == "2223"
    assert settings.get("MODE") == ""
    assert settings.where("SSH_PORT") == ".env line 2"
    assert settings.where("JUPYTER_PORT") == "the environment"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MODE", "docker", "one of gpu, cpu, local"),
        ("MODE", "GPU", "one of gpu, cpu, local (did you mean gpu?)"),
        ("MODE", "locl", "did you mean local?"),
        ("VARIANT", "cu13", "did you mean cu130?"),
        ("VARIANT", "rocm", "one of cu130, cu128, cu126, cpu"),
        ("GPUS", "0 1", "'0 1' is no GPU id"),
        ("GPUS", "0,", "'' is no GPU id"),
        ("GPUS", "0,1,0", "0 is there twice"),
        ("GPUS", "none", "for no GPU use MODE=cpu"),
        ("GPUS", "count=0", "for no GPU use MODE=cpu"),
        ("GPUS", "gpu-1", "'gpu-1' is no GPU id"),
        ("JUPYTER_PORT", "http", "a port is a number from 1 to 65535"),
        ("JUPYTER_PORT", "70000", "a port is a number from 1 to 65535"),
        ("BIND_ADDRESS", "localhost", "must be an IP address"),
        ("WORKSPACE", "code", "begins with ./, / or ~"),
        ("TORCHTAP_SELFTEST", "stric", "did you mean strict?"),
        ("SHM_SIZE", "lots", "a size is a number"),
        ("STOP_GRACE", "30s", "whole seconds"),
        ("BUILD", "nope", "did you mean no?"),
    ],
)
def test_a_bad_value_is_one_clear_line(name: str, value: str, words: str) -> None:
    with pytest.raises(Problem) as caught:
        settle({name: value}, {})
    assert caught.value.what.startswith(f"{name}={value!r}: ")
    assert words in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.code == 2


def test_a_bad_value_of_the_file_says_so() -> None:
    with pytest.raises(Problem, match=r"MODE='x' \(\.env line 7\)"):
        settle({}, {"MODE": ("x", 7)})


@pytest.mark.parametrize(
    "value",
    [
        "all",
        "0",
        "0,1,7",
        "count=2",
        "0:1",
        "GPU-0e5a7b60-1234-5678-9abc-def012345678",
        "MIG-GPU-0e5a7b60/1/0",
        "0,GPU-ab",
    ],
)
def test_gpus_are_given_as_nvidia_names_them(value: str) -> None:
    assert settle({"GPUS": value}, {}).get("GPUS") == value


@pytest.mark.parametrize("value", ["127.0.0.1", "0.0.0.0", "::1", "[::1]"])
def test_addresses(value: str) -> None:
    assert settle({"BIND_ADDRESS": value}, {}).get("BIND_ADDRESS") == value


def test_the_table_has_each_name_once_and_fits_a_terminal() -> None:
    from host.help import variables

    assert len({each.name for each in SETTINGS}) == len(SETTINGS)
    assert [line for line in variables() if len(line) > 80] == []
