"""Hosts on one switch whose podmans give containers addresses of that network, by macvlan; host c is their client."""

import json

from podman_hosts import PodmanHosts

NAME = "lan"
FIXED = 50  # the first of the addresses that are asked for
CONFIGURATION = """
[network]
network_backend = "cni"
network_config_dir = "{home}/cni"
default_network = "none"
"""


class LanHosts(PodmanHosts):
    """Each engine gives addresses of a range of its own, unless one is asked for."""

    COUNT = 3
    NETWORK = NAME

    def entry(self, host):
        return ["nsenter", f"--net={self.env[f'NS_{host.upper()}']}"]

    def subnet(self):
        return self.address("a").rpartition(".")[0]

    def configure(self, host):
        super().configure(host)
        home, net = self.home(host), self.subnet()
        with open(home / "containers.conf", "a", encoding="utf-8") as configuration:
            configuration.write(CONFIGURATION.format(home=home))
        first = {"a": 100, "b": 150}[host]
        addresses = [{"subnet": f"{net}.0/24", "rangeStart": f"{net}.{start}", "rangeEnd": f"{net}.{start + 40}"}
                     for start in (first, FIXED)]  # fmt: skip
        (home / "cni").mkdir()
        (home / "cni" / f"{NAME}.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": NAME, "plugins": [{
                "type": "macvlan", "master": "veth0", "mode": "bridge", "capabilities": {"ips": True, "mac": True},
                "ipam": {"type": "host-local", "dataDir": str(home / "addresses"), "ranges": [addresses],
                         "routes": [{"dst": "0.0.0.0/0", "gw": f"{net}.3"}]},
            }]}), encoding="utf-8")  # fmt: skip
