#!/usr/bin/env python3
"""Containers of containerd's CRI, moved by gcr-container: real containerd, runc, gcr-runtime, agents, CRIU, software GPUs.

Usage: cri_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import engine_cases  # noqa: E402
from containers import complaint  # noqa: E402
from cri_hosts import CriHosts  # noqa: E402
from engine_cases import NAME  # noqa: E402


class Moves(engine_cases.Case):
    HOSTS = CriHosts

    def test_container_goes_to_and_fro_under_its_engines(self):
        last, lines = self.go_to_and_fro()
        self.assertEqual(self.stop(last), 7)
        self.assertEqual(complaint(lines + self.hosts.lines(last, NAME)), "")


class Drains(engine_cases.Drains):
    HOSTS = CriHosts


class Deaths(engine_cases.Deaths):
    HOSTS = CriHosts


if __name__ == "__main__":
    unittest.main()
