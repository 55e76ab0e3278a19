"""A network of the engine's own, so that it disturbs no other Docker engine on the machine.

dockerd's usual bridge (docker0) and firewall chains (DOCKER, DOCKER-ISOLATION-*) belong to the whole
network namespace: a second dockerd would hand out the first one's addresses and flush its rules. So this
engine gets a bridge and a range of its own, leaves the firewall alone (`"iptables": false`; docker-proxy
publishes ports), and needs three rules, which `down` takes away again.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.engine.privateroot import system_environment

# Ranges to choose from: high in 10/8, where clouds, VPNs and Docker's default pools (172.16/12) seldom are.
CANDIDATES = tuple(f"10.{second}.0.0/16" for second in range(213, 250))


class NetworkError(RuntimeError):
    """The engine's bridge or its firewall rules could not be made."""


@dataclass(frozen=True)
class Network:
    """One engine's bridge and addresses. `root` is the private root whose `ip` and `iptables` are used."""

    root: Path
    bridge: str
    range: str

    @classmethod
    def choose(cls, root: Path, engine_id: str) -> Network:
        """A range that no route, address or name server of this machine lies in.

        Raises `NetworkError` when all candidates are taken.
        """
        for candidate in CANDIDATES:
            if not _overlaps(candidate, _used(root)):
                return cls(root, f"ttap-{engine_id}", candidate)
        raise NetworkError(f"none of {CANDIDATES[0]} … {CANDIDATES[-1]} is free on this machine")

    def daemon_options(self) -> dict[str, object]:
        """What daemon.json must say for this network."""
        bridge, networks = self._halves()
        return {
            "bridge": self.bridge,
            "fixed-cidr": str(bridge),
            "iptables": False,
            "ip6tables": False,
            "default-address-pools": [{"base": str(networks), "size": 24}],
        }

    def up(self) -> None:
        """Make bridge and rules. Raises `NetworkError` with what `ip` or `iptables` said."""
        bridge, _ = self._halves()
        self._tool("ip", "link", "add", self.bridge, "type", "bridge")
        gateway = f"{bridge.network_address + 1}/{bridge.prefixlen}"
        self._tool("ip", "address", "add", gateway, "dev", self.bridge)
        self._tool("ip", "link", "set", self.bridge, "up")
        for table, chain, *rule in self._rules():
            self._tool("iptables", "--wait", "-t", table, "-I", chain, *rule)

    def down(self) -> None:
        """Take away what `up` and the engine left: rules, bridge, and bridges of networks in our range."""
        for table, chain, *rule in self._rules():
            while self._tool("iptables", "--wait", "-t", table, "-D", chain, *rule, check=False) == 0:
                pass
        ours = ipaddress.ip_network(self.range)
        for link, address in _addresses(self.root):
            if ipaddress.ip_address(address) in ours:
                self._tool("ip", "link", "delete", link, check=False)

    def _halves(self) -> tuple[ipaddress.IPv4Network, ipaddress.IPv4Network]:
        lower, upper = ipaddress.IPv4Network(self.range).subnets(prefixlen_diff=1)
        return lower, upper

    def _rules(self) -> Iterator[tuple[str, ...]]:
        yield "nat", "POSTROUTING", "-s", self.range, "!", "-d", self.range, "-j", "MASQUERADE"
        yield "filter", "FORWARD", "-s", self.range, "-j", "ACCEPT"
        yield "filter", "FORWARD", "-d", self.range, "-j", "ACCEPT"

    def _tool(self, *command: str, check: bool = True) -> int:
        done = _in_root(self.root, *command)
        if check and done.returncode != 0:
            said = done.stderr.strip() or f"exit status {done.returncode}"
            raise NetworkError(f"{' '.join(command)}: {said}")
        return done.returncode


def _in_root(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    # Same network namespace, but the private root's tools: a bare machine may have neither iptables nor ip.
    env = system_environment()
    return subprocess.run(
        ["chroot", str(root), *command], env=env, capture_output=True, text=True, check=False
    )


def _addresses(root: Path) -> Iterator[tuple[str, str]]:
    listed = _in_root(root, "ip", "-json", "-4", "address")
    for link in json.loads(listed.stdout or "[]"):
        for address in link.get("addr_info", ()):
            yield link["ifname"], address["local"]


def _used(root: Path) -> list[str]:
    routes = json.loads(_in_root(root, "ip", "-json", "-4", "route", "show", "table", "all").stdout or "[]")
    used = [route["dst"] for route in routes if route["dst"] != "default"]
    used += [address for _, address in _addresses(root)]
    resolver = Path("/etc/resolv.conf")
    for line in resolver.read_text().splitlines() if resolver.exists() else ():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver" and ":" not in words[1]:
            used.append(words[1])
    return used


def _overlaps(candidate: str, used: Iterable[str]) -> bool:
    network = ipaddress.ip_network(candidate)
    return any(network.overlaps(ipaddress.ip_network(other, strict=False)) for other in used)
