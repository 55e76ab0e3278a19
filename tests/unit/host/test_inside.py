"""reset-env and ssh-fingerprints, with a fake docker."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import Checkout, Fake
from tests.unit.host.test_commands import RUNS
from tests.unit.host.test_up import flat

CONFIG = {
    "name": "mine",
    "services": {
        "dev": {
            "image": "torchtap:cu128",
            "environment": {"HOST_UID": "1234", "HOST_GID": "", "SSH_PUBLIC_KEY": "ssh-ed25519 AAAA"},
            "volumes": [
                {"type": "bind", "source": "/home/me/code", "target": "/workspace"},
                {"type": "volume", "source": "home", "target": "/home/dev"},
                {"type": "volume", "source": "state", "target": "/var/lib/torchtap"},
            ],
        }
    },
    "volumes": {"home": {"name": "mine_home"}, "state": {"name": "mine_state"}},
}
CONFIGURED = {"when": "^compose config --format json", "out": json.dumps(CONFIG)}
BUILT = {"when": "^image inspect", "out": "sha256:1\n"}
RESET = {"when": "torchtap-env reset", "out": "reset: 3 packages removed\n"}
VOLUME = {"when": "^volume inspect mine_home", "out": "[]\n"}


def on_terminal(checkout: Checkout, answer: str, script: str) -> tuple[int, str]:
    """Run scripts/NAME with a terminal as its input, and type `answer`."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        done = subprocess.run(
            [sys.executable, str(checkout.root / "scripts" / script)],
            env=checkout.env, cwd=checkout.root, stdin=theirs, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def running(checkout: Checkout) -> Fake:
    return checkout.fake("docker").answer(*fake.engine(RUNS, CONFIGURED, RESET))


@pytest.fixture
def idle(checkout: Checkout) -> Fake:
    return checkout.fake("docker").answer(*fake.engine(CONFIGURED, RESET, BUILT, VOLUME))


def test_reset_env_runs_in_the_container_as_its_user_and_says_to_restart(
    checkout: Checkout, running: Fake
) -> None:
    done = checkout.run("reset-env", "--yes")
    assert done.returncode == 0, done.stderr
    assert running.called("^compose exec -T --user 1000:1001 dev torchtap-env reset --yes$")
    assert "removes what pip and uv installed into mine_home; your files and the base stay" in flat(
        done.stdout
    )
    assert done.stdout.endswith("          docker restart torchtap-dev-1\n")


def test_reset_env_without_a_container_uses_one_of_its_own_on_the_same_volumes(
    checkout: Checkout, idle: Fake
) -> None:
    """The names are Compose's: with another project's name they are others. The overlay is not started with."""
    done = checkout.run("reset-env", "--yes")
    assert done.returncode == 0, done.stderr
    (call,) = [call for call in idle.calls if call[0] == "run"]
    assert " ".join(call) == (
        "run --rm --network none --env HOST_UID=1234 --env TORCHTAP_SAFE=1 --env TORCHTAP_SELFTEST=off "
        "--env TORCHTAP_DEVICE=cpu --volume mine_home:/home/dev --volume mine_state:/var/lib/torchtap "
        "torchtap:cu128 torchtap-env reset --yes"
    )
    assert "make up begins with a new, empty overlay" in done.stdout


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((CONFIGURED,), "there is no image torchtap:cu128 to do it with"),
        (
            (CONFIGURED, BUILT, {"when": "^volume inspect", "rc": 1, "err": "no such volume\n"}),
            "there is no volume mine_home: nothing was installed yet",
        ),
    ],
    ids=["no image", "no volume"],
)
def test_reset_env_with_nothing_to_do_it_on(
    checkout: Checkout, rows: tuple[fake.Row, ...], words: str
) -> None:
    """Said before it is asked for a yes, which would be in vain."""
    docker = checkout.fake("docker").answer(*fake.engine(*rows))
    for words_given in ((), ("--yes",)):
        done = checkout.run("reset-env", *words_given)
        assert done.returncode != 0
        assert done.stderr.startswith(f"reset-env: {words}")
        assert done.stdout == ""
    assert not docker.called("^run ")


def test_names_are_asked_for_with_the_files_of_the_last_up(checkout: Checkout, idle: Fake) -> None:
    """An override file may name the volumes otherwise."""
    assert checkout.run("reset-env", "--yes").returncode == 0
    assert "COMPOSE_FILE" not in idle.environment_of("^compose config --format json"), ".env says which"


def test_reset_env_that_fails_says_so(checkout: Checkout) -> None:
    failing = {"when": "torchtap-env", "rc": 1, "err": "torchtap-env: no\n"}
    checkout.fake("docker").answer(*fake.engine(RUNS, CONFIGURED, failing))
    done = checkout.run("reset-env", "--yes")
    assert done.returncode == 1
    assert "the overlay was not removed" in done.stderr
    assert "restart" not in done.stdout


@pytest.mark.parametrize("script", ["reset-env", "ssh-fingerprints"])
def test_an_image_that_is_older_than_the_program_is_said(checkout: Checkout, script: str) -> None:
    missing = {"when": "torchtap-(env|fingerprints)", "rc": 127, "err": "OCI runtime exec failed\n"}
    checkout.fake("docker").answer(*fake.engine(RUNS, CONFIGURED, missing))
    done = checkout.run(script, *(["--yes"] if script == "reset-env" else []))
    assert done.returncode == 1
    assert done.stderr.endswith("it is older than this checkout\n  Build it anew:  make update\n")


def test_without_a_terminal_and_without_yes_nothing_is_touched(checkout: Checkout, running: Fake) -> None:
    done = checkout.run("reset-env")
    assert done.returncode == 2
    assert done.stderr == (
        "reset-env: this needs a yes, and there is no terminal to ask at\n  make reset-env ARGS=--yes\n"
    )
    assert not running.called("torchtap-env")


@pytest.mark.parametrize(
    ("answer", "rc", "touched"), [("yes\n", 0, True), ("no\n", 1, False), ("\x04", 1, False)]
)
def test_a_terminal_is_asked(checkout: Checkout, running: Fake, answer: str, rc: int, touched: bool) -> None:
    code, said = on_terminal(checkout, answer, "reset-env")
    assert code == rc, said
    assert "Type yes to go on:" in said
    assert running.called("torchtap-env") is touched
    assert ("nothing was touched" in said) is not touched


def test_reset_env_in_local_mode_says_what_there_is_instead(checkout: Checkout) -> None:
    done = checkout.run("reset-env", "--yes", env={"MODE": "local"})
    assert done.returncode == 2
    assert done.stderr.startswith("reset-env: local mode has no overlay")


def test_fingerprints_are_the_containers_and_alone_on_stdout(checkout: Checkout) -> None:
    said = "256 SHA256:abc root (ED25519)\n"
    checkout.fake("docker").answer(
        *fake.engine(RUNS, {"when": "exec -T dev torchtap-fingerprints$", "out": said})
    )
    done = checkout.run("ssh-fingerprints")
    assert (done.returncode, done.stdout) == (0, said)


def test_fingerprints_where_there_are_none_pass_the_reason_on(checkout: Checkout) -> None:
    words = "torchtap-fingerprints: no host key yet\n"
    checkout.fake("docker").answer(
        *fake.engine(RUNS, {"when": "torchtap-fingerprints$", "rc": 1, "err": words})
    )
    done = checkout.run("ssh-fingerprints")
    assert (done.returncode, done.stderr) == (1, "ssh-fingerprints: no host key yet\n")


def test_fingerprints_of_nothing(checkout: Checkout, idle: Fake) -> None:
    done = checkout.run("ssh-fingerprints")
    assert (done.returncode, done.stderr) == (
        2,
        "ssh-fingerprints: nothing runs here\n  Start it:  make up\n",
    )
