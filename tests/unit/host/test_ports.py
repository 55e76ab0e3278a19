"""Ports: a real socket in the way is found, named, and answered with the variable to set."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from host import ports
from host.show import Problem
from tests.unit.host.checkout import Checkout


@pytest.fixture
def taken(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("PATH", checkout.env["PATH"])  # no docker to ask, unless a test makes one
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_names_process_and_variable(taken: int) -> None:
    with pytest.raises(Problem) as caught:
        ports.check("JUPYTER_PORT", "127.0.0.1", taken)
    assert f"port {taken} (JUPYTER_PORT) is taken on 127.0.0.1 by " in caught.value.what
    assert f"(pid {os.getpid()})" in caught.value.what
    (advice,) = caught.value.do
    free = int(advice.rpartition("=")[2])
    assert advice == f"Choose another:  make up JUPYTER_PORT={free}"
    ports.check("JUPYTER_PORT", "127.0.0.1", free)


def test_a_container_in_the_way_is_named_as_such(taken: int, checkout: Checkout) -> None:
    checkout.fake("docker").answer({"when": f"publish={taken}", "out": "someone_elses\n"})
    with pytest.raises(Problem, match="by container someone_elses"):
        ports.check("SSH_PORT", "127.0.0.1", taken)


def test_everywhere_is_taken_too_when_loopback_is(taken: int) -> None:
    with pytest.raises(Problem, match=r"is taken on 0\.0\.0\.0"):
        ports.check("JUPYTER_PORT", "0.0.0.0", taken)


def test_a_free_port_passes_and_stays_free(taken: int) -> None:
    free = ports.next_free("127.0.0.1", taken)
    assert free is not None
    ports.check("JUPYTER_PORT", "127.0.0.1", free)
    with socket.create_server(("127.0.0.1", free)):
        pass


def test_an_address_of_another_host_is_no_taken_port() -> None:
    with pytest.raises(Problem, match=r"BIND_ADDRESS=.192\.0\.2\.1.: this host cannot listen there"):
        ports.check("JUPYTER_PORT", "192.0.2.1", 48888)


def test_a_port_for_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(ports, "unprivileged_from", lambda: 1024)
    with pytest.raises(Problem, match="ports below 1024 need root"):
        ports.check("SSH_PORT", "127.0.0.1", 22)
