"""Hosts on one switch whose podmans give containers addresses of that network, by macvlan; host c is their client."""

from engine_hosts import podman
from podman_hosts import PodmanHosts


class LanHosts(PodmanHosts):
    COUNT = 3
    NETWORK = podman.NETWORK

    def entry(self, host):
        return ["nsenter", f"--net={self.env[f'NS_{host.upper()}']}"]

    def switch(self):
        """Its network namespace."""
        return f"gcr-{(self.folder / 'tag').read_text(encoding='ascii').strip()}-switch"

    def fixed_addresses(self):
        return podman.fixed_addresses(self.address("a"))

    def configure(self, host):
        super().configure(host)
        podman.write_network(self.home(host), host, self.address(host))
