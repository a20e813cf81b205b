#!/usr/bin/env python3
"""Containers of podman, moved by gcr-container: real podman, runc, gcr-runtime, agents, CRIU, software GPUs.

Usage: podman_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from containers import complaint  # noqa: E402
from podman_hosts import IMAGE, PodmanHosts  # noqa: E402
from ticker_hosts import HANGS_S, begin_command, wait_for  # noqa: E402

DONE, FAILED, USAGE, REFUSED = range(4)
KILLED = -9
MOVES = 10
MEMORY_BYTES = 1 << 30
NAME = "job"
# A shell that kills gcr-container before or after its Nth command line. Arguments: N, when, a file for counting, the
# shell.
KILLER = """#!/bin/sh
number=$(($(cat "$3") + 1))
echo "$number" >"$3"
[ "$number $2" != "$1 before" ] || kill -KILL "$PPID"
"$4" "$5" "$6"
status=$?
[ "$number $2" != "$1 after" ] || kill -KILL "$PPID"
exit "$status"
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.hosts = PodmanHosts()
        self.addCleanup(self.hosts.close)

    def start(self, *options):
        self.hosts.start_container("a", NAME, *options)
        wait_for("the ticker starts", lambda: len(self.hosts.lines("a", NAME)) >= 2)

    def wait_for_progress(self, host):
        before = len(self.hosts.lines(host, NAME))
        wait_for("it goes on", lambda: len(self.hosts.lines(host, NAME)) >= before + 3)

    def follow(self, host):
        """Its log, until it is removed."""
        return begin_command(self, self.hosts.podman_command(host, "logs", "--follow", NAME))

    def assert_only_at(self, host, other):
        self.assertEqual(self.hosts.states(other), {})
        self.assertEqual(self.hosts.states(host), {NAME: "running"})

    def init(self, host):
        return int(self.hosts.podman(host, "inspect", NAME, "--format", "{{.State.Pid}}").stdout)

    def stop(self, host):
        """The program's exit status, as its engine has it."""
        self.hosts.podman(host, "stop", "--time", "60", NAME)
        return int(self.hosts.podman(host, "inspect", NAME, "--format", "{{.State.ExitCode}}").stdout)


class Moves(Case):
    def test_container_goes_to_and_fro_under_its_engines(self):
        self.start("--memory", MEMORY_BYTES, "--restart", "always", "--tmpfs", "/mnt")
        write = "mkdir /srv/new; echo content >/srv/new/file; echo more >/mnt/file"
        self.hosts.podman("a", "exec", NAME, "sh", "-c", write)
        lines = []
        for number in range(MOVES):
            source, target = "ab"[number % 2], "ba"[number % 2]
            follower = self.follow(source)
            ran, report = self.hosts.move(NAME, source, target)
            self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr)
            self.assertTrue(report["verified"], report)
            lines += follower.communicate(timeout=HANGS_S)[0].splitlines()
            self.wait_for_progress(target)
            self.assert_only_at(target, source)
        files = self.hosts.podman("a", "exec", NAME, "cat", "/srv/new/file", "/mnt/file")
        self.assertEqual(files.stdout, "content\nmore\n")
        groups = [line.split(":") for line in pathlib.Path(f"/proc/{self.init('a')}/cgroup").read_text("ascii").split()]
        group = next(path for _, names, path in groups if names == "memory")
        limit = pathlib.Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes").read_text("ascii")
        self.assertEqual(int(limit), MEMORY_BYTES)
        self.assertEqual(self.stop("a"), 0)
        self.assertEqual(complaint(lines + self.hosts.lines("a", NAME)), "")


class Drains(Case):
    def test_drain_moves_a_container_and_a_plain_job(self):
        self.start("--memory", str(MEMORY_BYTES), "--tmpfs", "/mnt")
        plain = self.hosts.start_ticker("a")
        follower = self.follow("a")
        status, report, said = self.hosts.moves(
            "drain", self.hosts.address("a"), "--to", self.hosts.address("b"), "--shell", " ".join(self.hosts.shell))
        self.assertEqual(status, DONE, said)
        outcomes = {(each["container"], each["outcome"]) for each in report["processes"]}
        self.assertEqual(outcomes, {(f"podman:{NAME}", "moved"), ("", "moved")})
        self.assertTrue(all(each["verified"] for each in report["processes"]), report)
        lines = follower.communicate(timeout=HANGS_S)[0].splitlines()
        self.wait_for_progress("b")
        self.assert_only_at("b", "a")
        self.assertEqual(complaint(lines + self.hosts.lines("b", NAME)), "")
        plain.wait_for_progress()
        self.assertEqual((plain.complaint(), len(plain.copies())), ("", 1))
        self.assertEqual(self.hosts.processes("a"), set())


class Refusals(Case):
    def refuse(self, reason):
        before = self.hosts.states("b")
        ran, report = self.hosts.move(NAME, "a", "b")
        self.assertEqual(ran.returncode, REFUSED, ran.stdout + ran.stderr)
        self.assertIn(reason, report["message"])
        self.assertEqual(self.hosts.states("b"), before)

    def test_containers_that_cannot_move(self):
        self.refuse("has no container job")
        for reason, *options in (
            ("has a terminal", "--tty"),
            ("was not started by gcr-runtime", "--annotation", "gcr-migrate.off=true"),
            ("is paused, not running",),
        ):
            self.start(*options)
            if "paused" in reason:
                self.hosts.podman("a", "pause", NAME)
            self.refuse(reason)
            self.hosts.podman("a", "rm", "--force", "--time", "0", NAME)

    def test_places_where_it_cannot_go(self):
        self.start()
        ran, answer = self.hosts.preflight(NAME, "a", "b")
        self.assertEqual((ran.returncode, answer.get("ready")), (DONE, True), ran.stdout + ran.stderr)
        self.hosts.start_container("b", NAME)
        self.refuse("has a container job, which does not wait for this one")
        self.hosts.podman("b", "rm", "--force", "--time", "0", NAME)
        # Another image takes the name, and the old one is still there.
        self.hosts.podman("b", "tag", IMAGE, "localhost/kept")
        self.hosts.podman("b", "import", "--quiet", "--change", "ENV=other=1", self.hosts.folder / "image.tar", IMAGE)
        self.refuse("is another image")
        self.hosts.podman("b", "rmi", "--all", "--force")
        self.refuse("does not have the image")
        ran, answer = self.hosts.preflight(NAME, "a", "b")
        self.assertEqual((ran.returncode, answer["ready"]), (REFUSED, False), ran.stderr)
        self.assertIn("does not have the image", answer["findings"][0]["found"])
        self.wait_for_progress("a")
        self.assertEqual(complaint(self.hosts.lines("a", NAME)), "")


class Deaths(Case):
    """gcr-container is killed, and the command is given again."""

    def setUp(self):
        super().setUp()
        self.count = self.hosts.folder / "count"
        self.killer = self.hosts.folder / "killer"
        self.killer.write_text(KILLER, encoding="ascii")
        self.killer.chmod(0o755)
        self.start()
        self.lines = []
        self.place = "ab"

    def finish(self, follower):
        """By the same command; the log must have no gap and nothing twice."""
        ran, _ = self.hosts.move(NAME, *self.place)
        self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr)
        self.has_moved(follower)

    def has_moved(self, follower):
        source, target = self.place
        self.lines += follower.communicate(timeout=HANGS_S)[0].splitlines()
        self.wait_for_progress(target)
        self.assert_only_at(target, source)
        self.place = target + source

    def killed(self, number, when):
        """Moves it with a killer; the exit status, and the number of command lines."""
        self.count.write_text("0", encoding="ascii")
        shell = [str(self.killer), str(number), when, str(self.count), *self.hosts.shell]
        ran, _ = self.hosts.move(NAME, *self.place, shell=shell)
        return ran.returncode, int(self.count.read_text(encoding="ascii"))

    def test_between_any_two_commands_to_an_engine(self):
        follower = self.follow("a")
        status, count = self.killed(0, "never")
        self.assertEqual(status, DONE)
        self.place = "ba"
        self.lines += follower.communicate(timeout=HANGS_S)[0].splitlines()
        self.assertGreater(count, 8)
        steps = [(number, when) for number in range(1, count + 1) for when in ("before", "after")]
        for number, when in steps if "GCR_ALL_POINTS" in os.environ else steps[1::4]:
            with self.subTest(number=number, when=when):
                follower = self.follow(self.place[0])
                status, _ = self.killed(number, when)
                self.assertEqual(status, KILLED)
                self.finish(follower)
        self.assertEqual(complaint(self.lines + self.hosts.lines(self.place[0], NAME)), "")

    def test_during_the_migration(self):
        follower = self.follow("a")
        pausing = self.hosts.move_command(NAME, "a", "b", "--migrate-option=--pause-before-switchover")
        moving = begin_command(self, pausing)
        paused = wait_for("it is paused",
                          lambda: [each for each in self.hosts.migrations("a") if each.get("phase") == "paused"])
        moving.kill()
        self.assertEqual(moving.wait(), KILLED)
        again = begin_command(self, self.hosts.move_command(NAME, "a", "b"))
        self.assertIn("was made by an earlier run", again.stderr.readline())
        continuing = [self.hosts.env["GCR_CLI"], "continue", *self.hosts.env["GCR_TLS"].split(), self.hosts.address("a"),
                      paused[0]["migration_id"]]  # fmt: skip
        subprocess.run(self.hosts.on("a", *continuing), check=True, capture_output=True, timeout=HANGS_S)
        said = again.communicate(timeout=HANGS_S)
        self.assertEqual(again.returncode, DONE, said)
        self.has_moved(follower)
        self.assertEqual(complaint(self.lines + self.hosts.lines("b", NAME)), "")


if __name__ == "__main__":
    unittest.main()
