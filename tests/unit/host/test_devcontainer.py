"""What happens on the host before a dev container is made, with a fake docker."""

from __future__ import annotations

import pytest

from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import Checkout
from tests.unit.host.test_keys import key
from tests.unit.host.test_up import SMI


@pytest.mark.parametrize(("mode", "files"), [("", "compose.yaml"), ("cpu", "compose.yaml:compose.cpu.yaml")])
def test_env_gets_what_make_up_would_have_decided_and_nothing_is_started(
    checkout: Checkout, mode: str, files: str
) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    checkout.fake("nvidia-smi").answer(SMI)
    (checkout.home / ".ssh").mkdir()
    (checkout.home / ".ssh/id_ed25519.pub").write_text(key())
    (checkout.root / ".env").write_text("JUPYTER_PORT=9000\n")
    done = checkout.run("devcontainer", env={"MODE": mode} if mode else {})
    assert done.returncode == 0, done.stderr
    written = (checkout.root / ".env").read_text()
    assert f"\nCOMPOSE_FILE={files}\n" in written
    assert "\nVARIANT=cu130\n" in written
    assert key() in written
    assert written.startswith("JUPYTER_PORT=9000\n")
    assert (checkout.root / "workspace").is_dir()
    assert not docker.called("^(compose (up|build|down)|run)")


def test_without_an_engine_there_is_no_dev_container(checkout: Checkout) -> None:
    done = checkout.run("devcontainer")
    assert done.returncode == 2
    assert done.stderr.startswith("devcontainer: ")
    assert not (checkout.root / "workspace").exists()
