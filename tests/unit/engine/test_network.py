"""A range of addresses that nothing else uses."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from tests.engine import network
from tests.engine.network import CANDIDATES, Network, NetworkError


def choose(monkeypatch: pytest.MonkeyPatch, used: list[str]) -> Network:
    monkeypatch.setattr(network, "_used", lambda root: used)
    return Network.choose(Path("anywhere"), "12345678")


@pytest.mark.parametrize("taken", [CANDIDATES[0], "10.213.7.1", "10.213.128.0/24", "10.192.0.0/11"], ids=str)
def test_a_range_that_is_used_in_part_or_lies_in_another_is_left_out(
    monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    chosen = choose(monkeypatch, [taken, "192.168.0.0/16"])
    assert not ipaddress.ip_network(chosen.range).overlaps(ipaddress.ip_network(taken))


def test_the_first_free_range_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, ["192.0.2.0/24"]).range == CANDIDATES[0]
    assert choose(monkeypatch, list(CANDIDATES[:3])).range == CANDIDATES[3]


def test_no_free_range_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError, match="none of 10"):
        choose(monkeypatch, ["10.0.0.0/8"])


def test_containers_and_networks_do_not_share_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    options = choose(monkeypatch, []).daemon_options()
    containers = ipaddress.ip_network(str(options["fixed-cidr"]))
    pools = options["default-address-pools"]
    assert isinstance(pools, list)
    assert not any(containers.overlaps(ipaddress.ip_network(pool["base"])) for pool in pools)
    assert options["iptables"] is False, "the machine's firewall and other engines' chains are not ours"


def test_the_bridge_has_a_name_that_the_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(choose(monkeypatch, []).bridge) <= 15
