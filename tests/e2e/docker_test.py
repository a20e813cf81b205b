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
from docker_hosts import DockerHosts  # noqa: E402


class Moves(engine_cases.Case):
    HOSTS = DockerHosts

    def test_container_goes_to_and_fro_under_its_engines(self):
        self.end_it(*self.go_to_and_fro())


class Drains(engine_cases.Drains):
    HOSTS = DockerHosts


class Deaths(engine_cases.Deaths):
    HOSTS = DockerHosts


if __name__ == "__main__":
    unittest.main()
