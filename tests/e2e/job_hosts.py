"""Hosts on one switch whose jobs have networks of their own, by macvlan or at a bridge; host c is their client."""

import json
import os
import subprocess

from engine_hosts import EngineHosts, podman
from ticker_hosts import HANGS_S, ROOT

DEVICE = "veth0"  # of a host, to the switch
BRIDGE = "bridge0"


class JobHosts(EngineHosts):
    ENGINE = "job"
    REMOVE = ("remove",)
    COUNT = 3
    KIND = f"macvlan:{DEVICE}"

    def configure(self, host):
        """gcr-container is in the path of shells."""
        programs = self.folder / "bin"
        if not programs.exists():
            programs.mkdir()
            (programs / "gcr-container").symlink_to(ROOT / "scripts/container")

    def take_image(self):
        """They have the files of their hosts."""

    def entry(self, host):
        return ["nsenter", f"--net={self.env[f'NS_{host.upper()}']}"]

    def environment(self, host):
        return {"GCR_JOBS": self.home(host) / "jobs", "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "GCR_CLI": self.env["GCR_CLI"]}  # fmt: skip

    def engine_command(self, host, *words):
        return [*self.entry(host), "env", *self._variables(host), "gcr-container", *map(str, words)]

    def fixed_addresses(self):
        return podman.fixed_addresses(self.address("a"))

    def network(self):
        v4, v6 = self.fixed_addresses()
        return f"{self.KIND},address={v4}/24,address={v6}/64,gateway={self.address('c')}"

    def run_command(self, host, name, *words, network=None):
        """`gcr-migrate run`, to the end of the job."""
        options = ["--network", network or self.network(), "--name", name, "--output", self.output(name)]
        return [*self.entry(host), "env", *self._variables(host), *self.env[f"GPU_ENV_{host.upper()}"].split(),
                self.env["GCR_CLI"], "run", *options, *map(str, words)]  # fmt: skip

    def start_container(self, host, name, *options, words=()):
        command = self.run_command(host, name, "--detach", *options, "--", *words or [self.program])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=HANGS_S)

    def use_bridges(self):
        """The devices of hosts a and b become ports of bridges, which get their addresses."""
        self.KIND = f"bridge:{BRIDGE}"  # pylint: disable=invalid-name
        for host in "ab":
            for words in (f"link add {BRIDGE} type bridge", f"link set {DEVICE} master {BRIDGE}",
                          f"address del {self.address(host)}/24 dev {DEVICE}",
                          f"address add {self.address(host)}/24 dev {BRIDGE}", f"link set {BRIDGE} up"):  # fmt: skip
                subprocess.run(self.on(host, "ip", *words.split()), check=True)

    def output(self, name):
        return self.folder / f"{name}.log"

    def jobs(self, host):
        return json.loads(self.engine(host, "jobs").stdout)

    def states(self, host):
        return {each["name"]: each["status"] for each in self.jobs(host)}

    def init(self, host, name):
        return next(each["init"] for each in self.jobs(host) if each["name"] == name)

    def lines(self, host, name):
        output = self.output(name)
        return output.read_text(encoding="utf-8", errors="replace").splitlines() if output.exists() else []
