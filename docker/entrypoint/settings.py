"""The variables that start-up reads: one table, from which docs and tests are made too.

>>> Settings.read({"TORCHTAP_SELFTEST": "strict"}).selftest
'strict'
"""

from __future__ import annotations

import difflib
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
        meaning="cpu: this container has no GPU by design, and the self-test does not miss one.",
    ),
    Variable(
        name="TORCHTAP_STOP_GRACE",
        default="10",
        meaning="Seconds that `docker stop` waits (its --time; stop_grace_period in Compose). Processes get that long.",
    ),
    Variable(
        name="HOST_UID", default="", meaning="User id of dev. Default: the owner of /workspace, else 1000."
    ),
    Variable(
        name="HOST_GID", default="", meaning="Group id of dev. Default: the group of /workspace, else 1000."
    ),
    Variable(name="SSH_PUBLIC_KEY", default="", meaning="Public keys that may log in, one a line."),
    Variable(name="SSH_PUBLIC_KEY_FILE", default="", meaning="A file in the container with such keys."),
    Variable(name="SSH_PORT_IN_CONTAINER", default="22", meaning="Port of sshd inside the container."),
    Variable(
        name="JUPYTER_TOKEN", default="", meaning="JupyterLab's token. Default: made once, kept.", secret=True
    ),
)
SECRETS = frozenset(variable.name for variable in VARIABLES if variable.secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The variables, checked."""

    selftest: str
    device: str
    stop_grace_s: float
    uid: int | None
    gid: int | None
    ssh_public_key: str
    ssh_public_key_file: str
    ssh_port: int
    jupyter_token: str

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
            stop_grace_s=_number(
                values, "TORCHTAP_STOP_GRACE", "seconds, such as 10", lowest=1, highest=86_400
            ),
            uid=_identity(values, "HOST_UID"),
            gid=_identity(values, "HOST_GID"),
            ssh_public_key=values["SSH_PUBLIC_KEY"],
            ssh_public_key_file=values["SSH_PUBLIC_KEY_FILE"],
            ssh_port=int(
                _number(values, "SSH_PORT_IN_CONTAINER", "a port, 1 to 65535", lowest=1, highest=65_535)
            ),
            jupyter_token=values["JUPYTER_TOKEN"],
        )


def _not_a_choice(variable: Variable, value: str) -> str:
    near = difflib.get_close_matches(value.lower(), variable.choices, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{variable.name} is {value!r}: one of {', '.join(variable.choices)}{hint}"


def _number(values: Mapping[str, str], name: str, what: str, *, lowest: float, highest: float) -> float:
    text = values[name].removesuffix("s") if name == "TORCHTAP_STOP_GRACE" else values[name]
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not lowest <= number <= highest:  # NaN included
        raise SettingsError(f"{name} is {values[name]!r}: {what}")
    return number


def _identity(values: Mapping[str, str], name: str) -> int | None:
    if not values[name]:
        return None
    return int(
        _number(values, name, "a numeric id, such as 1000 (id -u prints yours)", lowest=0, highest=2**31 - 2)
    )
