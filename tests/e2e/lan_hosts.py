"""Hosts on one switch whose engines give containers addresses of that network, by macvlan; host c is their client."""

import functools
import pathlib

from docker_hosts import DockerHosts
from engine_hosts import podman
from podman_hosts import PodmanHosts

LEASES = pathlib.Path("/run/containers/networks")


class Lan:
    COUNT = 3
    NETWORK = podman.NETWORK

    def switch(self):
        """Its network namespace."""
        return f"gcr-{(self.folder / 'tag').read_text(encoding='ascii').strip()}-switch"

    def fixed_addresses(self):
        return podman.fixed_addresses(self.address("a"))


class LanHosts(Lan, PodmanHosts):
    def entry(self, host):
        enter = ["nsenter", f"--net={self.env[f'NS_{host.upper()}']}"]
        return ["env", f"LEASES={self.home(host)}/leases", str(self._own_leases), *enter] if self._own_leases else enter

    def configure(self, host):
        super().configure(host)
        podman.write_network(self.home(host), host, self.address(host))
        (self.home(host) / "leases").mkdir()

    @functools.cached_property
    def _own_leases(self):
        """A program that runs another one. podman keeps the leases of netavark's addresses at one place of a machine, which
        commands of one host at a time have for themselves."""
        if not podman.NETAVARK.exists():
            return None
        program = self.folder / "own-leases"
        program.write_text(f'#!/bin/sh\nmkdir -p {LEASES.parent}\nln -sfn "$LEASES" {LEASES}\nexec "$@"\n', encoding="ascii")
        program.chmod(0o755)
        return program


class LanDockerHosts(Lan, DockerHosts):
    def take_image(self):
        super().take_image()
        for host in "ab":
            first, net = podman.FIRST[host], self.address(host).rpartition(".")[0]
            self.engine(host, "network", "create", "--driver", "macvlan", "--opt", "parent=veth0", "--ipv6",
                        "--subnet", f"{net}.0/24", "--ip-range", f"{net}.{first}/27",
                        "--subnet", f"{podman.NETWORK_V6}/64", self.NETWORK)  # fmt: skip
