"""The variables a user can set: in the environment, on make's command line, or in `.env` (weakest).

One table: `make help`, docs/host.md and the checks come from it. An empty value counts as not set.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from host.show import Problem
from torchtap.selftest.status import Level
from torchtap.variants import VARIANTS


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable. `check` returns what is wrong with a value, in words that follow NAME='value': …"""

    name: str
    default: str  # as shown to people
    meaning: str
    check: Callable[[str], str | None] = lambda _: None


def one_of(*words: str) -> Callable[[str], str | None]:
    """A closed set of words; anything else is answered with the nearest one and all of them."""

    def check(value: str) -> str | None:
        if value in words:
            return None
        near = difflib.get_close_matches(value.lower(), words, n=1)
        return f"one of {', '.join(words)}" + (f" (did you mean {near[0]}?)" if near else "")

    return check


def port(value: str) -> str | None:
    return None if value.isdecimal() and 1 <= int(value) <= 65535 else "a port is a number from 1 to 65535"


def address(value: str) -> str | None:
    try:
        ipaddress.ip_address(value.removeprefix("[").removesuffix("]"))
    except ValueError:
        return "must be an IP address of this host, as in 127.0.0.1 (this machine only) or 0.0.0.0 (everyone)"
    return None


def folder(value: str) -> str | None:
    # Compose takes a bare word for the name of a volume.
    return (
        None
        if value.startswith(("./", "../", "/", "~")) or value == "."
        else "a folder begins with ./, / or ~"
    )


def size(value: str) -> str | None:
    return (
        None
        if re.fullmatch(r"\d+ *[kmg]?b?", value.lower())
        else "a size is a number with b, k, m or g, as in 16gb"
    )


def memlock(value: str) -> str | None:
    return None if value == "-1" or value.isdecimal() else "a number of bytes, or -1 for no limit"


def seconds(value: str) -> str | None:
    return None if value.isdecimal() and 1 <= int(value) <= 86_400 else "whole seconds, from 1 to 86400"


def whole(value: str) -> str | None:
    return None if value.isdecimal() else "whole seconds; 0 is never"


def minutes(value: str) -> str | None:
    return (
        None if value.isdecimal() and 1 <= int(value) <= 10_080 else "whole minutes, from 1 to 10080 (a week)"
    )


def gpu_list(value: str) -> str | None:
    """The grammar of GPUS: all, count=N, or ids (index, index:instance, GPU-… or MIG-…) with commas between.

    >>> gpu_list("0,1"), gpu_list("MIG-3f5a0e64-a4b5-5c6d-8e9f-000000000000"), gpu_list("all")
    (None, None, None)
    >>> gpu_list("0 1")
    "'0 1' is no GPU id. Give all, count=2, or ids with commas: 0,1 or GPU-… or MIG-… (nvidia-smi -L)"
    """
    if value == "all" or re.fullmatch(r"count=[1-9]\d*", value):
        return None
    if value.lower() in {"none", "no", "off", "void"} or value == "count=0":
        return "for no GPU use MODE=cpu"
    forms = "all, count=2, or ids with commas: 0,1 or GPU-… or MIG-… (nvidia-smi -L)"
    ids = value.split(",")
    for each in ids:
        if not re.fullmatch(r"\d+(:\d+)?|(GPU|MIG)-[0-9A-Za-z/-]+", each):
            return f"{each!r} is no GPU id. Give {forms}"
    twice = next((each for each in ids if ids.count(each) > 1), None)
    return f"{twice} is there twice" if twice else None


MODES = ("gpu", "cpu", "local")
LEVELS = tuple(level.value for level in Level)
SETTINGS = (
    Setting("MODE", "chosen", "gpu or cpu (Docker), or local (no Docker)", one_of(*MODES)),
    Setting("VARIANT", "chosen", f"PyTorch and CUDA: {', '.join(VARIANTS)}", one_of(*VARIANTS)),
    Setting("GPUS", "all", "which: 0 or 0,1 or GPU-… or MIG-… or count=2", gpu_list),
    Setting("SSH_KEY", "~/.ssh/*.pub", "the public key to let in: a file, or none"),
    Setting("JUPYTER_PORT", "8888", "port of JupyterLab on this host", port),
    Setting("SSH_PORT", "2222", "port of SSH on this host", port),
    Setting("BIND_ADDRESS", "127.0.0.1", "where both listen; 0.0.0.0: your network too", address),
    Setting("WORKSPACE", "./workspace", "your code: /workspace in the container", folder),
    Setting("SHM_SIZE", "8gb", "shared memory: DataLoader workers, NCCL", size),
    Setting("MEMLOCK", "-1", "bytes of pinned memory; -1: no limit", memlock),
    Setting("STOP_GRACE", "30", "seconds that your processes get at make down", seconds),
    Setting("BUILD", "yes", "no: start the image as it is", one_of("yes", "no")),
    Setting("BASE_IMAGE", "per variant", "another base image to build on"),
    Setting("TORCH_INDEX", "per variant", "another index for PyTorch's wheels"),
    Setting("TORCHTAP_CA_BUNDLE", "none", "PEM file of your own certificate authorities"),
    Setting(
        "TORCHTAP_SELFTEST",
        "warn",
        "at start: warn, strict (must pass) or off",
        one_of("warn", "strict", "off"),
    ),
    Setting("LEVEL", "quick", f"of make selftest: {', '.join(LEVELS)}", one_of(*LEVELS)),
    Setting("MINUTES", "10", "of load, with LEVEL=burn", minutes),
    Setting("TORCHTAP_SAFE", "0", "1: start without the packages you installed", one_of("0", "1")),
    Setting("JUPYTER_CULL_IDLE_S", "0", "seconds until an idle kernel ends; 0: never", whole),
    Setting("TORCHTAP_VENV", ".venv", "the virtual environment of local mode"),
    Setting("PYTHON", "python3", "of this host: 3.10 or newer"),
)
# Read too, where somebody sets them; not worth a line of help.
ALSO_READ = ("SSH_PUBLIC_KEY", "COMPOSE_FILE", "COMPOSE_PROJECT_NAME", "TORCHTAP_IMAGE", "TORCHTAP_DEVICE")
NAMES = tuple(setting.name for setting in SETTINGS)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user set, and where; everything else is the default."""

    values: Mapping[str, str]
    origins: Mapping[str, str]  # name → "the environment" or ".env line 3"

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)

    def where(self, name: str) -> str:
        return self.origins.get(name, "default")


def settle(environ: Mapping[str, str], env_file: Mapping[str, tuple[str, int]]) -> Settings:
    """Merge and check. `env_file`: name → (value, line number). Raises `Problem` for the first bad value.

    >>> settle({"JUPYTER_PORT": "9999"}, {"JUPYTER_PORT": ("8889", 1)}).get("JUPYTER_PORT")
    '9999'
    """
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name, (text, line) in env_file.items():
        if text:
            values[name], origins[name] = text, f".env line {line}"
    for name in {*NAMES, *values, *ALSO_READ}:
        if environ.get(name):
            values[name], origins[name] = environ[name], "the environment"
    for setting in SETTINGS:
        value = values.get(setting.name, "")
        wrong = setting.check(value) if value else None
        if wrong:
            source = "" if origins[setting.name] == "the environment" else f" ({origins[setting.name]})"
            raise Problem(f"{setting.name}={value!r}{source}: {wrong}")
    return Settings(values, origins)
