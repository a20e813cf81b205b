#!/usr/bin/env python3
"""Containers of docker, moved by gcr-container: real docker, containerd, runc, gcr-runtime, agents, CRIU, software GPUs.

Usage: docker_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import engine_cases  # noqa: E402
import engine_faults  # noqa: E402
from docker_hosts import DockerHosts, LiveDockerHosts  # noqa: E402


class Moves(engine_cases.Case):
    HOSTS = DockerHosts

    def test_container_goes_to_and_fro_under_its_engines(self):
        self.end_it(*self.go_to_and_fro())


class Drains(engine_cases.Drains):
    HOSTS = DockerHosts


class Deaths(engine_cases.Deaths):
    HOSTS = DockerHosts


class Faults(engine_faults.Faults):
    HOSTS = LiveDockerHosts
    POINTS = {"source engine": ["source.container.left"], "destination engine": ["destination.restored"]}

    def test_one_copy_is_left_when_the_engine_at_the_source_is_killed(self):
        self.engine_is_killed("source engine", "a", self.lives)

    def test_one_copy_is_left_when_the_engine_at_the_destination_is_killed(self):
        self.engine_is_killed("destination engine", "b", self.lives)


class StoppingFaults(engine_faults.Matrix):
    """Without live-restore an engine that starts stops the containers that it finds."""

    HOSTS = DockerHosts

    def test_one_copy_or_none_is_left_when_the_engine_at_the_source_is_killed(self):
        self.engine_is_killed("stopping source engine", "a", self.lives_or_has_ended)

    def test_one_copy_or_none_is_left_when_the_engine_at_the_destination_is_killed(self):
        self.engine_is_killed("stopping destination engine", "b", self.lives_or_was_stopped_there)


if __name__ == "__main__":
    unittest.main()
