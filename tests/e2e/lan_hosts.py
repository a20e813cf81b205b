"""Hosts on one switch whose engines give containers addresses of that network, by macvlan; host c is their client."""

from docker_hosts import DockerHosts
from engine_hosts import podman
from podman_hosts import PodmanHosts


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
        return ["nsenter", f"--net={self.env[f'NS_{host.upper()}']}"]

    def configure(self, host):
        super().configure(host)
        podman.write_network(self.home(host), host, self.address(host))


class LanDockerHosts(Lan, DockerHosts):
    def take_image(self):
        super().take_image()
        for host in "ab":
            first, net = podman.FIRST[host], self.address(host).rpartition(".")[0]
            self.engine(host, "network", "create", "--driver", "macvlan", "--opt", "parent=veth0", "--ipv6",
                        "--subnet", f"{net}.0/24", "--ip-range", f"{net}.{first}/27",
                        "--subnet", f"{podman.NETWORK_V6}/64", self.NETWORK)  # fmt: skip
