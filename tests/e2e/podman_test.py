#!/usr/bin/env python3
"""Containers of podman, moved by gcr-container: real podman, runc, gcr-runtime, agents, CRIU, software GPUs.

Usage: podman_test.py [unittest options], as root; GCR_BUILD names the build folder, and GCR_NEXT_RUNTIME the runtime in
the place of runc, such as /usr/bin/crun
"""

import os
import pathlib
import signal
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import engine_cases  # noqa: E402
import engine_faults  # noqa: E402
from containers import complaint  # noqa: E402
from engine_cases import DONE, NAME, REFUSED  # noqa: E402
from engine_hosts import IMAGE, RUNTIME  # noqa: E402
from podman_hosts import PodmanHosts, use_version_1_alone  # noqa: E402


class Moves(engine_cases.Case):
    HOSTS = PodmanHosts

    def test_container_goes_to_and_fro_under_its_engines(self):
        self.end_it(*self.go_to_and_fro())


class Drains(engine_cases.Drains):
    HOSTS = PodmanHosts


class Refusals(engine_cases.Case):
    HOSTS = PodmanHosts

    def test_containers_that_cannot_move(self):
        self.refuse("has no container job")
        for reason, *options in (
            ("has a terminal", "--tty"),
            ("was not started by gcr-runtime", "--annotation", "gcr-migrate.off=true"),
            ("whose content would not move: /srv", "--volume", "/srv"),
            ("has no volume models", "--volume", "models:/models"),
            ("is paused, not running",),
        ):
            self.start(*options)
            if "paused" in reason:
                self.hosts.engine("a", "pause", NAME)
            self.refuse(reason)
            self.hosts.engine("a", *self.hosts.REMOVE, NAME)

    def test_places_where_it_cannot_go(self):
        self.start()
        ran, answer = self.hosts.preflight(NAME, "a", "b")
        self.assertEqual((ran.returncode, answer.get("ready")), (DONE, True), ran.stdout + ran.stderr)
        self.hosts.start_container("b", NAME)
        self.refuse("has a container job, which does not wait for this one")
        self.hosts.engine("b", *self.hosts.REMOVE, NAME)
        # Another image takes the name, and the old one is still there.
        self.hosts.engine("b", "tag", IMAGE, "localhost/kept")
        self.hosts.engine("b", "import", "--quiet", "--change", "ENV=other=1", self.hosts.image, IMAGE)
        self.refuse("is another image")
        self.hosts.engine("b", "rmi", "--all", "--force")
        self.refuse("does not have the image")
        ran, answer = self.hosts.preflight(NAME, "a", "b")
        self.assertEqual((ran.returncode, answer["ready"]), (REFUSED, False), ran.stderr)
        self.assertIn("does not have the image", answer["findings"][0]["found"])
        self.wait_for_progress("a")
        self.assertEqual(complaint(self.hosts.lines("a", NAME)), "")


class Deaths(engine_cases.Deaths):
    HOSTS = PodmanHosts


class Faults(engine_faults.Faults):
    """podman has no daemon, but a conmon for each container, which has its streams and its exit status."""

    HOSTS = PodmanHosts
    POINTS = {
        "destination conmon": ["destination.restored"],
        "gcr-container": ["source.container.left"],
        "receiver removed": ["destination.container.told"],
        "container removed": ["source.dumped"],
    }

    def kill_conmon(self, host):
        os.kill(int(self.hosts.engine(host, "inspect", NAME, "--format", "{{.State.ConmonPid}}").stdout), signal.SIGKILL)

    def test_one_copy_is_left_when_the_conmon_at_the_source_is_killed(self):
        self.at_points("source conmon", lambda cell: self.kill_conmon("a"))

    def test_one_copy_is_left_when_the_conmon_at_the_destination_is_killed(self):
        self.at_points("destination conmon", lambda cell: self.kill_conmon("b"))


if __name__ == "__main__":
    if RUNTIME.endswith("crun"):
        use_version_1_alone()
    unittest.main()
