"""What is true of gcr-container under each engine. Import the module, not its classes, which unittest would run."""

import os
import pathlib
import subprocess
import unittest

import layer_changes
import visits
from containers import complaint
from ticker_hosts import HANGS_S, begin_command, wait_for

DONE, FAILED, USAGE, REFUSED = range(4)
KILLED = -9
MEMORY_BYTES = 1 << 30
MOVES = int(os.environ.get("GCR_MOVES", "10"))
NAME = "job"
# Programs that run a ticker as their child, and end it.
ENDS_WITH_7 = ("sh", "-c", "trap 'kill -TERM $!' TERM; $0 & wait $!; wait $!; exit 7")
END_TICKER = """
for file in /proc/[0-9]*/comm; do
  read -r name <$file || continue
  process=${file#/proc/}
  [ $name != ticker ] || kill -TERM ${process%/comm}
done
"""
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
    HOSTS = None

    def setUp(self):
        self.hosts = self.HOSTS()
        self.addCleanup(self.hosts.close)

    def start(self, *options, words=()):
        self.hosts.start_container("a", NAME, *options, words=words)
        wait_for("the ticker starts", lambda: len(self.hosts.lines("a", NAME)) >= 2)

    def wait_for_progress(self, host):
        before = len(self.hosts.lines(host, NAME))
        wait_for("it goes on", lambda: len(self.hosts.lines(host, NAME)) >= before + 3)

    def follow(self, host):
        """Its log, until it is removed."""
        return begin_command(self, self.hosts.engine_command(host, "logs", "--follow", NAME))

    def assert_only_at(self, host, other):
        self.assertEqual(self.hosts.states(other), {})
        self.assertEqual(self.hosts.states(host), {NAME: "running"})

    def root(self, host):
        return f"/proc/{self.hosts.init(host, NAME)}/root"

    def memory_limit(self, host):
        lines = pathlib.Path(f"/proc/{self.hosts.init(host, NAME)}/cgroup").read_text("ascii").split()
        group = next(path for _, names, path in (line.split(":") for line in lines) if names == "memory")
        return int(pathlib.Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes").read_text("ascii"))

    def stop(self, host):
        """The program's exit status, as its engine has it."""
        self.hosts.engine(host, "stop", "--time", "60", NAME)
        return int(self.hosts.engine(host, "inspect", NAME, "--format", "{{.State.ExitCode}}").stdout)

    def go_to_and_fro(self, moves=MOVES):
        """A container that its engine would restart, with a limit and with changes to files. Health checks and commands
        run in it and in those that receive it."""
        options = ("--memory", MEMORY_BYTES, "--restart", "always", "--tmpfs", "/mnt")
        self.start(*options, *self.hosts.CHECKED, words=[*ENDS_WITH_7, self.hosts.program])
        layer_changes.make(self.root("a"))
        files = layer_changes.listing(self.root("a"))
        lines = []
        with visits.Visits(self.hosts, NAME) as made:
            for number in range(moves):
                lines += self.move_and_check("ab"[number % 2], "ba"[number % 2])
        self.assertEqual({*made.health["a"], *made.health["b"]}, {True}, made.health)
        self.assertEqual({*made.said["a"], *made.said["b"]}, {"cat\n"})
        self.assertTrue(all((*made.health.values(), *made.said.values())))
        last = "ab"[moves % 2]
        self.maxDiff = None
        self.assertEqual(layer_changes.listing(self.root(last)), files)
        self.assertEqual(self.memory_limit(last), MEMORY_BYTES)
        return last, lines

    def move_and_check(self, source, target):
        """The lines of the log at the source."""
        follower = self.follow(source)
        ran, report = self.hosts.move(NAME, source, target)
        self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr)
        self.assertTrue(report["verified"], report)
        lines = follower.communicate(timeout=HANGS_S)[0].splitlines()
        self.wait_for_progress(target)
        self.assert_only_at(target, source)
        return lines

    def end_it(self, host, lines):
        """Its engine starts it again if its program ends, and not if the engine has stopped it. `lines`: of its log
        elsewhere."""
        self.hosts.engine(host, "exec", NAME, "sh", "-c", END_TICKER)

        def logs():
            """Before the restart, and since."""
            log = self.hosts.lines(host, NAME)
            first = next((number for number, line in enumerate(log) if line.startswith("1 ")), len(log))
            return lines + log[:first], log[first:]

        wait_for("its engine starts it again", lambda: len(logs()[1]) >= 3)
        restarts = self.hosts.engine(host, "inspect", NAME, "--format", "{{.RestartCount}}").stdout
        self.assertEqual(int(restarts), 1)
        self.assertEqual(self.stop(host), 7)
        self.assertEqual(self.hosts.states(host), {NAME: "exited"})
        for each in logs():
            self.assertEqual(complaint(each), "")

    def refuse(self, reason):
        before = self.hosts.states("b")
        ran, report = self.hosts.move(NAME, "a", "b")
        self.assertEqual(ran.returncode, REFUSED, ran.stdout + ran.stderr)
        self.assertIn(reason, report["message"])
        self.assertEqual(self.hosts.states("b"), before)


class Drains(Case):
    def test_drain_moves_a_container_and_a_plain_job(self):
        self.start("--memory", MEMORY_BYTES, "--tmpfs", "/mnt")
        plain = self.hosts.start_ticker("a")
        follower = self.follow("a")
        status, report, said = self.hosts.moves(
            "drain", self.hosts.address("a"), "--to", self.hosts.address("b"), "--shell", " ".join(self.hosts.shell))
        self.assertEqual(status, DONE, said)
        outcomes = {(each["container"], each["outcome"]) for each in report["processes"]}
        self.assertEqual(outcomes, {(f"{self.hosts.ENGINE}:{self.hosts.full_name(NAME)}", "moved"), ("", "moved")})
        self.assertTrue(all(each["verified"] for each in report["processes"]), report)
        lines = follower.communicate(timeout=HANGS_S)[0].splitlines()
        self.wait_for_progress("b")
        self.assert_only_at("b", "a")
        self.assertEqual(complaint(lines + self.hosts.lines("b", NAME)), "")
        plain.wait_for_progress()
        self.assertEqual((plain.complaint(), len(plain.copies())), ("", 1))
        self.assertEqual(self.hosts.processes("a"), set())


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
