#!/usr/bin/env python3
"""Jobs in containers: real runc, gcr-runtime, agents, CRIU, software GPUs.

Usage: container_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from containers import (  # noqa: E402
    FILES, LIST_FILES, REFUSED, Case, Container, children_of, complaint, fault_points, name_of, new_key,
    with_tmpfs)  # fmt: skip
from ticker_hosts import ROOT, begin_command, wait_for  # noqa: E402

CANCELLED = 7
MOVES = 10
MEMORY_BYTES = 1 << 30
RESTING_BYTES = 96 << 20
KERNEL = tuple(int(each) for each in os.uname().release.split(".")[:2])


def chosen_points():
    """The points between the steps of a migration: name, host, whether the job runs at the destination afterwards."""
    points = [(name, *facts) for name, facts in fault_points().items()]
    if "GCR_ALL_POINTS" in os.environ:
        return points
    # Where a container makes a difference: from its restore to the end.
    first = next(number for number, point in enumerate(points) if point[0] == "destination.imaged")
    return [point for point in points[first:] if point[1] == "b" or point[2]]


class Moves(Case):
    def test_job_goes_to_and_fro(self):
        containers = [self.ticker("a")]
        for number in range(MOVES):
            containers.append(self.receiver("ba"[number % 2]))
            self.move(*containers[-2:])
            self.wait_for_progress(containers[-1])
            self.assertEqual(name_of(containers[-2].pid), "gcr-moved")
            self.stop(containers[-2], 0)
        self.assertEqual(complaint([line for each in containers for line in each.lines]), "")
        self.stop(containers[-1], 0)

    def test_job_has_the_groups_and_namespaces_of_its_container(self):
        def limited(spec):
            spec["linux"]["resources"]["memory"] = {"limit": MEMORY_BYTES}

        source, target = self.ticker("a", edit=limited), self.receiver("b", edit=limited)
        self.move(source, target)
        self.wait_for_progress(target)
        for what in ("cgroup", "oom_score_adj"):
            paths = [pathlib.Path(f"/proc/{pid}/{what}").read_text(encoding="ascii") for pid in (target.job, target.pid)]
            self.assertEqual(*paths)
        for kind in ("cgroup", "ipc", "mnt", "net", "pid", "uts"):
            self.assertEqual(*(os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (target.job, target.pid)))

    def test_files_of_the_container_come_along(self):
        source, target = self.ticker("a", edit=with_tmpfs), self.receiver("b", edit=with_tmpfs)
        changed = source.execute("sh", "-ec", FILES)
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.move(source, target)
        self.wait_for_progress(target)
        listed = [each.execute("sh", "-c", LIST_FILES) for each in (source, target)]
        self.assertEqual(*(each.stdout for each in listed))
        self.assertIn("content 640 /srv/gcr/file", listed[0].stdout, listed[0].stderr)
        self.assertNotIn("issue.net", listed[1].stdout)

    def test_open_files_of_the_layer_come_along(self):
        script = f"mkdir /srv/job; cd /srv/job; echo written >file; exec 3>>file 4<file; exec {self.program}"
        source, target = self.ticker("a", "sh", "-ec", script), self.receiver("b")
        self.move(source, target)
        self.wait_for_progress(target)
        (ticker,) = children_of(target.job)
        for number, what in (("fd/3", "/srv/job/file"), ("fd/4", "/srv/job/file"), ("cwd", "/srv/job")):
            self.assertEqual(os.readlink(f"/proc/{ticker}/{number}"), what)
        self.assertEqual(target.execute("cat", "/srv/job/file").stdout, "written\n")

    def test_memory_that_agents_send_comes_along(self):
        words = [f"{self.hosts.env['PREFIX']}/bin/pinned", "--mib", "16", "--report", "5", "--period-ms", "20"]
        source, target = self.ticker("a", *words), self.receiver("b")
        self.move(source, target)
        self.wait_for_progress(target)
        lines = source.lines + target.lines
        undisturbed = self.hosts.on("b", *words[:-2], "--steps", 5 * len(lines))
        wanted = subprocess.run(undisturbed, capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertEqual(lines, wanted[: len(lines)])

    @unittest.skipIf(KERNEL < (6, 7), "the kernel has no PAGEMAP_SCAN")
    def test_only_written_memory_is_read_at_the_switchover(self):
        """The container has a filter, as those of engines have."""

        def filtered(spec):
            rules = [{"names": ["userfaultfd", "kexec_load"], "action": "SCMP_ACT_ERRNO"}]
            spec["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}

        job = ["python3", ROOT / "tests/e2e/sweeping.py", 8, RESTING_BYTES >> 20]
        source = self.ticker("a", *job, edit=filtered)
        for target in (self.receiver(host, edit=filtered) for host in "ba"):
            report = self.move(source, target)
            self.assertLess(int(report["image_bytes"]), RESTING_BYTES // 2)
            self.wait_for_progress(target)
            source = target
        # A filter of its own may end the job for a call that it does not expect.
        source, target = self.ticker("a", *job, "filtered", edit=filtered), self.receiver("b", edit=filtered)
        self.assertGreater(int(self.move(source, target)["image_bytes"]), RESTING_BYTES)
        self.wait_for_progress(target)

    def test_too_many_bytes_in_the_layer_end_the_migration(self):
        source, target = self.ticker("a"), self.receiver("b")
        self.assertEqual(source.execute("dd", "if=/dev/urandom", "of=/srv/bytes", "bs=1M", "count=2").returncode, 0)
        ran, _ = self.hosts.migrate(source, target, "--max-layer", "1M")
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertIn("1 MiB", ran.stderr)
        self.wait_for_progress(source)

    def test_commands_run_in_either_container(self):
        source, target = self.ticker("a"), self.receiver("b")
        inner = source.execute("cat", "/proc/2/comm", "/proc/self/stat")
        self.assertEqual(target.execute("true").returncode, 0)
        self.move(source, target)
        self.wait_for_progress(target)
        listed = target.execute("sh", "-c", "cat /proc/[0-9]*/comm").stdout
        self.assertIn("ticker\n", listed, inner.stderr)
        self.assertEqual(source.execute("true").returncode, 0)

    def test_container_whose_job_has_left_is_not_started_again(self):
        identity = secrets.token_hex(32)

        def named(spec):
            spec["linux"]["cgroupsPath"] = f"/gcr-e2e/{identity}"

        source, target = self.ticker("a", edit=named), self.receiver("b")
        self.move(source, target)
        self.stop(source, 0)
        source.call("delete", source.id)
        source.write_spec()
        made = source.call("create", "--bundle", source.bundle, source.id, check=False, capture_output=True, text=True)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("its job has left", made.stderr)
        self.wait_for_progress(target)

    def test_restarted_container_starts_its_program_once_its_job_has_ended(self):
        source, target = self.ticker("a"), self.receiver("b")
        self.move(source, target)
        self.wait_for_progress(target)
        self.stop(target, 0)
        target.call("delete", target.id)
        target.lines.clear()
        target.start()
        wait_for("the program starts", lambda: len(target.lines) >= 2)
        self.assertEqual(complaint(target.lines), "")

    def test_host_lists_the_job_with_its_container(self):
        source = self.ticker("a")
        (job,) = self.hosts.ask("host", self.hosts.address("a"))["jobs"]
        self.assertEqual((job["pid"], job["container_init"], job["processes"]), (source.job, source.pid, 2))


class Refusals(Case):
    def test_unsuitable_containers_are_refused(self):
        source, target = self.ticker("a"), self.receiver("b")
        bare = Container(self, "b", "sleep", "1000000")
        bare.key = new_key()
        self.refuse("it does not wait with this key", source, bare)
        wrong = target.key
        target.key = new_key()
        self.refuse("it does not wait with this key", source, target)
        target.key = wrong
        alone = [*self.hosts.env["GCR_TLS"].split(), self.hosts.address("a"), self.hosts.address("b"), str(source.job)]
        ran = subprocess.run(self.hosts.on("a", self.hosts.env["GCR_CLI"], *alone),
                             capture_output=True, text=True, check=False)  # fmt: skip
        self.assertEqual(ran.returncode, REFUSED, ran.stderr)
        self.assertIn("no container was named to receive it", ran.stderr)
        ran = subprocess.run(self.hosts.on("a", self.hosts.env["GCR_CLI"], "preflight", *alone, "--json"),
                             capture_output=True, text=True, check=False)  # fmt: skip
        self.assertIn("container", {each["id"] for each in json.loads(ran.stdout)["findings"]})
        ran = subprocess.run(
            self.hosts.on("a", self.hosts.env["GCR_CLI"], "preflight", *alone, "--container", "new", "--json"),
            capture_output=True, text=True, check=False)  # fmt: skip
        self.assertEqual((ran.returncode, json.loads(ran.stdout)["ready"]), (0, True), ran.stdout)
        outside = self.hosts.start_ticker("a")
        ran, _ = self.hosts.migrate(source, target, pid=outside.copies()[0])
        self.assertEqual(ran.returncode, REFUSED, ran.stderr)
        self.assertIn("it is in none that gcr-runtime has started", ran.stderr)
        self.move(source, target)
        self.wait_for_progress(target)

    def test_container_with_a_job_survives_the_end_of_another_migration_into_it(self):
        source, other, target = self.ticker("a"), self.ticker("a"), self.receiver("b")
        paused = begin_command(self, self.hosts.migration(other, target, "--pause-before-switchover"))
        wait_for("it waits", lambda: any(each.get("phase") == "paused" for each in self.hosts.migrations("a")))
        (waiting,) = (each["migration_id"] for each in self.hosts.migrations("a") if not each["finished"])
        self.move(source, target)
        self.wait_for_progress(target)
        self.succeed("a", "cancel", waiting)
        self.assertEqual(paused.wait(), CANCELLED)
        wait_for("nothing is unfinished", lambda: all(each["finished"] for each in self.hosts.migrations("b")))
        self.wait_for_progress(target)
        self.wait_for_progress(other)

    def test_looser_jobs_are_refused(self):
        def more(spec):
            for kind in ("bounding", "effective", "permitted"):
                spec["process"]["capabilities"][kind].append("CAP_SYS_ADMIN")

        def privileged(spec):
            spec["process"]["noNewPrivileges"] = False

        def filtered(spec):
            spec["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW"}

        self.refuse("it may have CAP_SYS_ADMIN", self.ticker("a", edit=more), self.receiver("b"))
        self.refuse("it may gain privileges", self.ticker("a", edit=privileged), self.receiver("b"))
        self.refuse("seccomp filters", self.ticker("a"), self.receiver("b", edit=filtered))


class Faults(Case):
    options = ("--fault-points", "true", "--peer-silence-ms", "4000")

    def running(self, source, target):
        """The container in which the job goes on, when the agents have settled it."""
        wait_for("nothing is unfinished", lambda: not any(
            not each["finished"] for host in "ab" for each in self.hosts.migrations(host)))  # fmt: skip
        seen = [len(source.lines), len(target.lines)]
        wait_for("one goes on", lambda: [len(source.lines), len(target.lines)] != seen)
        return source if len(source.lines) != seen[0] else target

    def check(self, source, target, point, moved):
        here = self.running(source, target)
        self.assertEqual(here.host, "b" if moved else "a", point)
        self.wait_for_progress(here)
        self.assertEqual(complaint(source.lines + target.lines), "", point)
        if moved:
            self.stop(source, 0)
        elif target.has_ended():
            self.assertEqual(target.status(), 128 + signal.SIGKILL)
        else:  # the destination's agent did not know of the migration yet
            self.assertEqual(name_of(target.pid), "gcr-receiving")
            self.stop(target, 128 + signal.SIGTERM)

    def test_one_copy_goes_on_when_an_agent_is_killed(self):
        for point, host, decided in chosen_points():
            with self.subTest(point=point):
                source, target = self.ticker("a"), self.receiver("b")
                armed = self.arm(host, f"{point} kill")
                self.hosts.migrate(source, target)
                self.assertFalse(armed.exists(), "the point was not reached")
                self.check(source, target, point, decided)
                self.stop(target if decided else source, 0)

    def test_job_stays_when_the_receiving_container_ends(self):
        for point, host, decided in chosen_points():
            if decided or host == "a":
                continue
            with self.subTest(point=point):
                source, target = self.ticker("a"), self.receiver("b")
                armed = self.arm(host, f"{point} run kill -9 {target.pid}")
                self.hosts.migrate(source, target)
                self.assertFalse(armed.exists(), "the point was not reached")
                self.check(source, target, point, False)
                self.stop(source, 0)


if __name__ == "__main__":
    unittest.main()
