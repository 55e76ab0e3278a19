"""Every variable is checked at the door, with one line for the user."""

from __future__ import annotations

import pytest

from entrypoint.settings import SECRETS, VARIABLES, Settings, SettingsError

DEFAULTS = Settings(
    selftest="warn",
    device="auto",
    safe=False,
    stop_grace_s=10.0,
    uid=None,
    gid=None,
    ssh_public_key="",
    ssh_public_key_file="",
    ssh_public_key_dir="",
    ssh_port=22,
    jupyter_token="",
    jupyter_port=8888,
    jupyter_open=False,
    jupyter_cull_idle_s=0,
)


def test_nothing_set_means_the_defaults() -> None:
    assert Settings.read({}) == DEFAULTS


@pytest.mark.parametrize("value", ["", "  ", "\n"], ids=repr)
def test_empty_counts_as_unset_as_compose_files_pass_it(value: str) -> None:
    assert Settings.read({variable.name: value for variable in VARIABLES}) == DEFAULTS


def test_defaults_in_the_table_are_accepted_when_written_out() -> None:
    assert Settings.read({variable.name: variable.default for variable in VARIABLES}) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "value", "field", "meant"),
    [
        ("TORCHTAP_SELFTEST", "strict", "selftest", "strict"),
        ("TORCHTAP_SELFTEST", " off\n", "selftest", "off"),
        ("TORCHTAP_DEVICE", "cpu", "device", "cpu"),
        ("TORCHTAP_SAFE", "1", "safe", True),
        ("TORCHTAP_STOP_GRACE", "30", "stop_grace_s", 30.0),
        ("TORCHTAP_STOP_GRACE", "30s", "stop_grace_s", 30.0),
        ("TORCHTAP_STOP_GRACE", "1.5", "stop_grace_s", 1.5),
        ("TORCHTAP_STOP_GRACE", "86400", "stop_grace_s", 86400.0),
        ("HOST_UID", "0", "uid", 0),
        ("HOST_UID", "2147483646", "uid", 2147483646),
        ("HOST_GID", "1000", "gid", 1000),
        ("SSH_PORT_IN_CONTAINER", "2222", "ssh_port", 2222),
        ("SSH_PUBLIC_KEY", "a\nb\n", "ssh_public_key", "a\nb"),
        ("SSH_PUBLIC_KEY_FILE", "/run/keys", "ssh_public_key_file", "/run/keys"),
        ("JUPYTER_TOKEN", "with-$and&#", "jupyter_token", "with-$and&#"),
        ("JUPYTER_PORT_IN_CONTAINER", "9999", "jupyter_port", 9999),
        ("JUPYTER_OPEN_TO_ANYONE", "1", "jupyter_open", True),
        ("JUPYTER_CULL_IDLE_S", "3600", "jupyter_cull_idle_s", 3600),
    ],
)
def test_a_good_value_is_taken(name: str, value: str, field: str, meant: object) -> None:
    assert getattr(Settings.read({name: value}), field) == meant


ID = "a numeric id, such as 1000 (id -u prints yours)"
SECONDS = "seconds, such as 10"
PORT = "a port, 1 to 65535"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TORCHTAP_SELFTEST", "stric", "one of warn, strict, off (did you mean strict?)"),
        ("TORCHTAP_SELFTEST", "WARN", "one of warn, strict, off (did you mean warn?)"),
        ("TORCHTAP_SELFTEST", "1", "one of warn, strict, off"),
        ("TORCHTAP_DEVICE", "cuda", "one of auto, gpu, cpu"),
        ("TORCHTAP_STOP_GRACE", "soon", SECONDS),
        ("TORCHTAP_STOP_GRACE", "0", SECONDS),
        ("TORCHTAP_STOP_GRACE", "-5", SECONDS),
        ("TORCHTAP_STOP_GRACE", "1m", SECONDS),
        ("TORCHTAP_STOP_GRACE", "1e1", SECONDS),
        ("TORCHTAP_STOP_GRACE", "nan", SECONDS),
        ("TORCHTAP_STOP_GRACE", "inf", SECONDS),
        ("TORCHTAP_STOP_GRACE", "86401", SECONDS),
        ("HOST_UID", "me", ID),
        ("HOST_UID", "-1", ID),
        ("HOST_UID", "1000.7", ID),
        ("HOST_UID", "1e3", ID),
        ("HOST_UID", "1_000", ID),
        ("HOST_UID", "\u0661\u0660", ID),
        ("HOST_UID", "2147483647", ID),
        ("HOST_UID", "9" * 5000, ID),
        ("HOST_GID", "$(id -g)", ID),
        ("SSH_PORT_IN_CONTAINER", "0", PORT),
        ("SSH_PORT_IN_CONTAINER", "65536", PORT),
        ("SSH_PORT_IN_CONTAINER", "22.5", PORT),
        ("SSH_PORT_IN_CONTAINER", "ssh", PORT),
    ],
    ids=lambda value: value if len(value) < 40 else f"{value[:10]}...",
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.read({name: value})
    assert str(raised.value) == f"{name} is {value!r}: {says}"


@pytest.mark.parametrize("value", ["two words", "two\nlines", "geheimß", "\udcff"], ids=ascii)
def test_a_token_that_no_link_can_carry_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.read({"JUPYTER_TOKEN": value})
    assert "JUPYTER_TOKEN holds spaces, line ends or letters beyond ASCII (not shown here)" in str(
        raised.value
    )
    assert value not in str(raised.value)


def test_table_names_each_variable_once_and_says_what_it_means() -> None:
    names = [variable.name for variable in VARIABLES]
    assert len(set(names)) == len(names)
    assert all(variable.meaning.endswith(".") for variable in VARIABLES)
    assert all(variable.default in variable.choices for variable in VARIABLES if variable.choices)


def test_the_token_is_a_secret() -> None:
    assert {"JUPYTER_TOKEN"} == SECRETS
