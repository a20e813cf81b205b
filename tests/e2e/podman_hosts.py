"""Hosts that have a podman each."""

import ctypes
import json
import pathlib

from containers import LIBC
from engine_hosts import IMAGE, EngineHosts, podman

PROCESSES = 1000  # of a container
QUIET = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
MIXED = pathlib.Path("/sys/fs/cgroup/unified")  # where version 2 is, if both are mounted
CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 0x40000, 2


def use_version_1_alone():
    """crun refuses to run where both versions of control groups are mounted. In a mount namespace of this process."""
    if not MIXED.is_dir():
        return
    for number in (LIBC.unshare(CLONE_NEWNS), LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None),
                   LIBC.umount2(bytes(MIXED), MNT_DETACH)):  # fmt: skip
        if number != 0:
            raise OSError(ctypes.get_errno(), "cannot hide version 2 of the control groups")


class PodmanHosts(EngineHosts):
    ENGINE = "podman"
    REMOVE = ("rm", "--force", "--time", "0")
    CHECKED = ("--health-cmd", "cat /dev/null", "--health-interval", "disable")  # systemd would run the checks

    def configure(self, host):
        podman.write_configuration(self.home(host), PROCESSES)

    def environment(self, host):
        return {**podman.configuration_of(self.home(host)), "TMPDIR": self.home(host) / "disk", **QUIET}

    def take_image(self):
        for host in "ab":
            self.engine(host, "import", "--quiet", self.image, IMAGE)

    def states(self, host):
        said = self.engine(host, "ps", "--all", "--format", "json").stdout
        return {each["Names"][0]: each["State"] for each in json.loads(said)}

    def is_healthy(self, host, name):
        return {0: True, 1: False}.get(self.engine(host, "healthcheck", "run", name, check=False).returncode)
