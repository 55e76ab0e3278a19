"""The variables that start-up reads: one table, from which docs and tests are made too.

>>> Settings.read({"TORCHTAP_SELFTEST": "strict"}).selftest
'strict'
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass


class SettingsError(ValueError):
    """A variable holds a value that start-up cannot use; the message is one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable of the image."""

    name: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    secret: bool = False  # left out of SSH sessions, kernels and terminals


VARIABLES = (
    Variable(
        name="TORCHTAP_SELFTEST",
        default="warn",
        choices=("warn", "strict", "off"),
        meaning="Self-test at start. warn: once the services answer, in the log. strict: before the services start; "
        "a fail ends the container with exit code 1. off: none.",
    ),
    Variable(
        name="TORCHTAP_DEVICE",
        default="auto",
        choices=("auto", "gpu", "cpu"),
        meaning="cpu: this container has no GPU by design, and the self-test does not miss one. gpu: it must have one; "
        "without, the self-test fails and health says so. auto: by what there is.",
    ),
    Variable(
        name="TORCHTAP_STOP_GRACE",
        default="10",
        meaning="Seconds that `docker stop` waits (its --time; stop_grace_period in Compose). Processes get that long.",
    ),
    Variable(
        name="TORCHTAP_SAFE",
        default="0",
        choices=("0", "1"),
        meaning="1: start without the packages that you have installed, from the image's own alone.",
    ),
    Variable(
        name="HOST_UID", default="", meaning="User id of dev. Default: the owner of /workspace, else 1000."
    ),
    Variable(
        name="HOST_GID",
        default="",
        meaning="Group id of dev. Default: HOST_UID where that is set, else the group of /workspace, else 1000.",
    ),
    Variable(name="SSH_PUBLIC_KEY", default="", meaning="Public keys that may log in, one a line."),
    Variable(name="SSH_PUBLIC_KEY_FILE", default="", meaning="A file in the container with such keys."),
    Variable(
        name="SSH_PUBLIC_KEY_DIR",
        default="",
        meaning="A directory in the container: its *.pub files and authorized_keys.",
    ),
    Variable(name="SSH_PORT_IN_CONTAINER", default="22", meaning="Port of sshd inside the container."),
    Variable(
        name="JUPYTER_TOKEN", default="", meaning="JupyterLab's token. Default: made once, kept.", secret=True
    ),
    Variable(
        name="JUPYTER_PORT",
        default="",
        meaning="The host's port that leads to JupyterLab, for the link that torchtap-url prints. It moves nothing. "
        "Default: JupyterLab's own.",
    ),
    Variable(
        name="JUPYTER_PORT_IN_CONTAINER",
        default="8888",
        meaning="Port of JupyterLab inside the container.",
    ),
    Variable(
        name="JUPYTER_OPEN_TO_ANYONE",
        default="0",
        choices=("0", "1"),
        meaning="1: JupyterLab asks for no token and no password. Whoever reaches its port runs code as dev.",
    ),
    Variable(
        name="JUPYTER_CULL_IDLE_S",
        default="0",
        meaning="Seconds after which an idle kernel is ended, unless it is busy or open in a browser. 0: never.",
    ),
)
SECRETS = frozenset(variable.name for variable in VARIABLES if variable.secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The variables, checked."""

    selftest: str
    device: str
    safe: bool
    stop_grace_s: float
    uid: int | None
    gid: int | None
    ssh_public_key: str
    ssh_public_key_file: str
    ssh_public_key_dir: str
    ssh_port: int
    jupyter_token: str
    jupyter_port: int
    jupyter_open: bool
    jupyter_cull_idle_s: int

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Check every variable of the table. Empty counts as unset, as in Compose files.

        Raises `SettingsError` for the first value that cannot be used.

        >>> Settings.read({"TORCHTAP_SELFTEST": "stric"})
        Traceback (most recent call last):
        ...
        entrypoint.settings.SettingsError: TORCHTAP_SELFTEST is 'stric': one of warn, strict, off (did you mean strict?)
        """
        values = {v.name: environment.get(v.name, "").strip() or v.default for v in VARIABLES}
        for variable in VARIABLES:
            if variable.choices and values[variable.name] not in variable.choices:
                raise SettingsError(_not_a_choice(variable, values[variable.name]))
        return cls(
            selftest=values["TORCHTAP_SELFTEST"],
            device=values["TORCHTAP_DEVICE"],
            safe=values["TORCHTAP_SAFE"] == "1",
            stop_grace_s=_seconds(values, "TORCHTAP_STOP_GRACE"),
            uid=_identity(values, "HOST_UID"),
            gid=_identity(values, "HOST_GID"),
            ssh_public_key=values["SSH_PUBLIC_KEY"],
            ssh_public_key_file=values["SSH_PUBLIC_KEY_FILE"],
            ssh_public_key_dir=values["SSH_PUBLIC_KEY_DIR"],
            ssh_port=_whole(values, "SSH_PORT_IN_CONTAINER", "a port, 1 to 65535", 1, 65_535),
            jupyter_token=_token(values, "JUPYTER_TOKEN"),
            jupyter_port=_whole(values, "JUPYTER_PORT_IN_CONTAINER", "a port, 1 to 65535", 1, 65_535),
            jupyter_open=values["JUPYTER_OPEN_TO_ANYONE"] == "1",
            jupyter_cull_idle_s=_whole(
                values, "JUPYTER_CULL_IDLE_S", "whole seconds, such as 3600", 0, 10**9
            ),
        )


def _not_a_choice(variable: Variable, value: str) -> str:
    near = difflib.get_close_matches(value.lower(), variable.choices, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{variable.name} is {value!r}: one of {', '.join(variable.choices)}{hint}"


def _seconds(values: Mapping[str, str], name: str) -> float:
    text = values[name]
    if (
        not re.fullmatch(r"[0-9]+(\.[0-9]+)?s?", text)
        or not 1 <= (seconds := float(text.rstrip("s"))) <= 86_400
    ):
        raise SettingsError(f"{name} is {text!r}: seconds, such as 10")
    return seconds


def _whole(values: Mapping[str, str], name: str, what: str, lowest: int, highest: int) -> int:
    text = values[name]
    if not re.fullmatch(r"[0-9]{1,10}", text) or not lowest <= (number := int(text)) <= highest:
        raise SettingsError(f"{name} is {text!r}: {what}")
    return number


def _identity(values: Mapping[str, str], name: str) -> int | None:
    if not values[name]:
        return None
    return _whole(values, name, "a numeric id, such as 1000 (id -u prints yours)", 0, 2**31 - 2)


def _token(values: Mapping[str, str], name: str) -> str:
    if not re.fullmatch(r"[!-~]*", values[name]):
        raise SettingsError(
            f"{name} holds spaces, line ends or letters beyond ASCII (not shown here): a link cannot carry it"
        )
    return values[name]
