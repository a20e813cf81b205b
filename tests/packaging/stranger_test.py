"""Machines on which the scripts cannot do their work: each ends with one line that names the remedy.

Usage: stranger_test.py SOURCE_DIR
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
# apt with nothing installed: its arguments are logged in $CALLS.
PROGRAMS = {
    "dpkg-query": "",
    "apt-get": """
        echo "begin $*" >>$CALLS
        sleep 0.2
        echo "end $*" >>$CALLS
        case "$*" in *update*) [ -n "$NETWORK" ] ;; *) false ;; esac""",
    "apt-cache": """
        [ -n "$NETWORK" ] || exit 0
        shift
        for package in "$@"; do [ "$package" = "$ABSENT" ] || echo "$package | 1 | mirror"; done""",
    "cmake": 'echo "cmake $*" >>$CALLS',
    "ccache": "",
}


class Stranger(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gcr-stranger-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.calls = self.folder / "calls"
        self.calls.touch()
        (self.folder / "bin").mkdir()
        for name, text in PROGRAMS.items():
            program = self.folder / "bin" / name
            program.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
            program.chmod(0o755)
        self.tree = self.copy("tree")

    def copy(self, name):
        """A clone's scripts, and their Python."""
        tree = self.folder / name
        tree.mkdir()
        for folder in ("python", "scripts"):
            shutil.copytree(SOURCE / folder, tree / folder)
        return tree

    def start(self, *command, **environment):
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {"PATH": path, "CALLS": str(self.calls), "LC_ALL": "C.UTF-8", **environment}
        return subprocess.Popen([*map(str, command)], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)  # fmt: skip

    def lines(self, *command, **environment):
        """The error message of a failing command."""
        process = self.start(*command, **environment)
        said, _ = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0, said)
        return said.splitlines()

    def test_without_a_network_the_network_is_named(self):
        last = self.lines(self.tree / "scripts/build")[-1]
        self.assertRegex(last, "^install-deps: apt cannot reach .* mirrors: check the network .*, and run this again$")

    def test_only_the_missing_package_is_named(self):
        last = self.lines(self.tree / "scripts/build", NETWORK="yes", ABSENT="spin")[-1]
        self.assertRegex(last, "^install-deps: cannot fetch spin: the mirrors .* do not have it: add one")

    def test_apt_failure_ends_with_a_remedy(self):
        last = self.lines(self.tree / "scripts/build", NETWORK="yes")[-1]
        self.assertRegex(last, "^install-deps: apt-get cannot install packages.*: correct that, and run this again")

    def test_each_command_requests_each_package_once(self):
        for script in ("build", "bundle", "demo", "package", "test"):
            with self.subTest(script):
                self.calls.write_text("", encoding="ascii")
                last = self.lines(self.tree / "scripts" / script, NETWORK="yes")[-1]
                self.assertRegex(last, "^install-deps: apt-get cannot install packages")
                asked = [word for call in self.calls.read_text(encoding="ascii").splitlines()
                         if call.startswith("end ") and " install " in call for word in call.split()]  # fmt: skip
                self.assertIn("g++", asked)
                self.assertEqual(len(asked), len(set(asked)), asked)

    def test_other_users_are_told_to_use_root(self):
        for script in ("bundle", "build", "demo", "package", "test", "test-stranger"):
            with self.subTest(script):
                last = self.lines("unshare", "--user", self.tree / "scripts" / script)[-1]
                self.assertRegex(last, f"^({script}|install-deps): must run as root")

    def test_path_with_blanks_is_refused(self):
        tree = self.copy("a tree")
        for script in ("bench", "build", "bundle", "demo", "fuzz", "lint", "package", "test", "test-sanitized"):
            with self.subTest(script):
                words = ["asan"] * (script == "test-sanitized")
                lines = self.lines(tree / "scripts" / script, *words)
                self.assertEqual(len(lines), 1, lines)
                self.assertRegex(lines[0], "a tree» contains a blank .*: move the folder to a path without these$")

    def test_two_clones_take_turns_with_apt(self):
        clones = [self.start(tree / "scripts/build", NETWORK="yes") for tree in (self.tree, self.copy("another"))]
        for clone in clones:
            clone.communicate(timeout=60)
        calls = [line.split()[0] for line in self.calls.read_text(encoding="ascii").splitlines()]
        self.assertEqual(calls, ["begin", "end"] * 4)

    def test_foreign_build_folder_is_recreated(self):
        build = self.tree / "build/release"
        build.mkdir(parents=True)
        (build / "build.ninja").touch()
        (build / "CMakeCache.txt").write_text("CMAKE_CACHEFILE_DIR:INTERNAL=/elsewhere/build/release\n", encoding="ascii")
        (self.tree / "scripts/install-deps").write_text("", encoding="ascii")
        said, _ = self.start(self.tree / "scripts/build").communicate(timeout=60)
        self.assertEqual(said, "build: build/release was configured as /elsewhere/build/release: removing it for a new build\n")
        self.assertRegex(self.calls.read_text(encoding="ascii"), "^cmake --preset release .*\ncmake --build ")

    def test_removed_files_leave_an_old_build_folder(self):
        (self.tree / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(stranger NONE)\n"
            f"include({SOURCE}/cmake/optional.cmake)\nmessage(STATUS \"it is at ${{GCR_SLURM_INCLUDE_DIR}}\")\n",
            encoding="ascii")  # fmt: skip
        said = subprocess.run(
            ["cmake", "-S", self.tree, "-B", self.folder / "build", "-DGCR_SLURM_INCLUDE_DIR=/gone",
             "-DCMAKE_FIND_ROOT_PATH=/nowhere", "-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY"],
            capture_output=True, text=True, check=True).stdout  # fmt: skip
        self.assertIn("left out: spank_gcr", said)
        self.assertIn("it is at GCR_SLURM_INCLUDE_DIR-NOTFOUND", said)


if __name__ == "__main__":
    unittest.main()
