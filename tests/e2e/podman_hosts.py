"""Hosts that have a podman each."""

import json

from engine_hosts import IMAGE, EngineHosts, podman

PROCESSES = 1000  # of a container


class PodmanHosts(EngineHosts):
    ENGINE = "podman"
    REMOVE = ("rm", "--force", "--time", "0")

    def configure(self, host):
        podman.write_configuration(self.home(host), PROCESSES)

    def environment(self, host):
        return podman.configuration_of(self.home(host))

    def take_image(self):
        for host in "ab":
            self.engine(host, "import", "--quiet", self.image, IMAGE)

    def states(self, host):
        said = self.engine(host, "ps", "--all", "--format", "json").stdout
        return {each["Names"][0]: each["State"] for each in json.loads(said)}
