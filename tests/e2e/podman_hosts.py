"""Hosts that have a podman each."""

import json
import resource

from engine_hosts import IMAGE, EngineHosts

STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/disk/storage"
runroot = "{folder}/disk/run"
"""
# CONTAINERS_CONF is its file alone.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=1000:1000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
static_dir = "{folder}/disk/static"
tmp_dir = "{folder}/disk/tmp"
volume_path = "{folder}/disk/volumes"
runtime = "gcr"
[engine.runtimes]
gcr = ["{folder}/gcr"]
"""


class PodmanHosts(EngineHosts):
    ENGINE = "podman"
    REMOVE = ("rm", "--force", "--time", "0")

    def configure(self, host):
        home = self.home(host)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        (home / "containers.conf").write_text(CONFIGURATION.format(folder=home, files=files), encoding="utf-8")
        (home / "storage.conf").write_text(STORAGE.format(folder=home), encoding="utf-8")

    def environment(self, host):
        home = self.home(host)
        return {"CONTAINERS_CONF": home / "containers.conf", "CONTAINERS_STORAGE_CONF": home / "storage.conf"}

    def take_image(self):
        for host in "ab":
            self.engine(host, "import", "--quiet", self.image, IMAGE)

    def states(self, host):
        said = self.engine(host, "ps", "--all", "--format", "json").stdout
        return {each["Names"][0]: each["State"] for each in json.loads(said)}
