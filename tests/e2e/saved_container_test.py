#!/usr/bin/env python3
"""Jobs in containers, taken off their GPUs or into checkpoints: real runc, gcr-runtime, agents, CRIU, software GPUs.

Usage: saved_container_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import pathlib
import signal
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from containers import FILES, LIST_FILES, REFUSED, Case, complaint, name_of, with_tmpfs  # noqa: E402
from ticker_hosts import wait_for  # noqa: E402

FREEZERS = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/freezer")


def groups_of(pid):
    """Its control groups, as the kernel tells them."""
    return pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")


def is_frozen(pid):
    for line in groups_of(pid).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "freezer"):
            continue
        for mount in FREEZERS:
            for name, frozen in (("cgroup.events", "frozen 1"), ("freezer.state", "FROZEN")):
                path = pathlib.Path(mount + group) / name
                if path.exists() and frozen in path.read_text(encoding="ascii"):
                    return True
    return False


class Saved(Case):
    def setUp(self):
        super().setUp()
        self.store = self.disk / "store"

    def suspend(self, container):
        self.succeed(container.host, "suspend", str(container.job))
        self.assertTrue(is_frozen(container.job))

    def checkpoint(self, source, *options):
        self.succeed(source.host, "checkpoint", str(source.job), str(self.store), *options)

    def restore(self, target, *options):
        return self.order(target.host, "restore", str(self.store), "--container", f"{target.pid}:{target.key}", *options)

    def restored(self, target, *options):
        ran = self.restore(target, *options)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("verified=yes", ran.stdout)

    def check_running(self, container, *before):
        """The job runs in this container, after it ran in those before."""
        self.wait_for_progress(container)
        self.assertEqual(complaint([line for each in (*before, container) for line in each.lines]), "")
        self.assertEqual(groups_of(container.job), groups_of(container.pid))

    def wait_until_settled(self):
        wait_for("nothing is unfinished", lambda: not any(
            not each["finished"] for host in "ab" for each in self.hosts.migrations(host)))  # fmt: skip


class Suspended(Saved):
    def test_job_is_suspended_and_resumed_in_its_container(self):
        source = self.ticker("a")
        self.suspend(source)
        seen = len(source.lines)
        self.assertEqual(source.execute("true").returncode, 0)
        self.assertEqual(name_of(source.pid), "gcr-init")
        self.assertEqual(len(source.lines), seen)
        self.succeed("a", "resume", str(source.job))
        self.check_running(source)
        self.stop(source, 0)

    def test_container_whose_job_is_suspended_can_be_stopped(self):
        source = self.ticker("a")
        self.suspend(source)
        source.signal(signal.SIGTERM)  # the job gets it once it is resumed
        self.assertTrue(is_frozen(source.job))
        source.signal(signal.SIGKILL)
        self.assertEqual(source.status(), 128 + signal.SIGKILL)
        self.wait_until_settled()

    def test_suspended_job_moves_into_another_container(self):
        source, target = self.ticker("a"), self.receiver("b")
        self.suspend(source)
        ran, _ = self.hosts.migrate(source, target)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual((name_of(source.pid), name_of(target.pid)), ("gcr-moved", "gcr-init"))
        self.assertTrue(is_frozen(target.job))
        self.assertEqual(target.execute("true").returncode, 0)
        self.assertEqual(len(target.lines), 0)
        self.succeed("b", "resume", str(target.job))
        self.check_running(target, source)
        self.stop(source, 0)
        self.stop(target, 0)


class Checkpoints(Saved):
    def refuse_to_restore(self, reason, ran):
        self.assertEqual(ran.returncode, REFUSED, ran.stderr)
        self.assertIn(reason, ran.stderr)

    def test_job_comes_back_in_another_container_with_its_files(self):
        source, target = self.ticker("a", edit=with_tmpfs), self.receiver("b", edit=with_tmpfs)
        changed = source.execute("sh", "-ec", FILES)
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.checkpoint(source)
        self.check_running(source)
        self.checkpoint(source, "--stop")
        self.assertEqual(name_of(source.pid), "gcr-moved")
        listed = source.execute("sh", "-c", LIST_FILES).stdout
        self.assertIn("content 640 /srv/gcr/file", listed)
        self.stop(source, 0)
        self.restored(target)
        self.check_running(target, source)
        self.assertEqual(target.execute("sh", "-c", LIST_FILES).stdout, listed)
        self.stop(target, 0)

    def test_suspended_job_runs_when_its_checkpoint_is_restored(self):
        source, target = self.ticker("a"), self.receiver("b")
        self.suspend(source)
        self.checkpoint(source)
        self.assertTrue(is_frozen(source.job))
        source.signal(signal.SIGKILL)
        source.status()
        self.restored(target)
        self.check_running(target, source)

    def test_container_receives_one_checkpoint(self):
        source, target, second = self.ticker("a"), self.receiver("b"), self.receiver("b")
        self.checkpoint(source, "--stop")
        self.restored(target)
        self.refuse_to_restore("a job has come into the container", self.restore(target))
        self.check_running(target, source)
        self.restored(second)
        self.check_running(second, source)
        self.check_running(target, source)

    def test_checkpoints_return_to_where_they_are_from(self):
        inside, outside, target = self.ticker("a"), self.hosts.start_ticker("a"), self.receiver("b")
        self.checkpoint(inside, "--stop", "--name", "inside")
        self.refuse_to_restore("no container was named to receive it",
                               self.order("b", "restore", str(self.store), "inside"))  # fmt: skip
        self.succeed("a", "checkpoint", str(outside.copies()[0]), str(self.store), "--stop", "--name", "outside")
        self.refuse_to_restore("it is from none that gcr-runtime has started", self.restore(target, "outside"))
        self.restored(target, "inside")
        self.check_running(target, inside)

    def test_looser_checkpoints_are_refused(self):
        def more(spec):
            for kind in ("bounding", "effective", "permitted"):
                spec["process"]["capabilities"][kind].append("CAP_SYS_ADMIN")

        source, target = self.ticker("a", edit=more), self.receiver("b")
        self.checkpoint(source, "--stop")
        self.refuse_to_restore("it may have CAP_SYS_ADMIN", self.restore(target))
        self.assertEqual(name_of(target.pid), "gcr-receiving")


class Faults(Saved):
    options = ("--fault-points", "true", "--peer-silence-ms", "4000")

    def test_restored_job_runs_once_when_an_agent_is_killed(self):
        source = self.ticker("a")
        self.checkpoint(source, "--stop")
        for point, decided in (("destination.restored", False), ("destination.container.told", True)):
            with self.subTest(point=point):
                target = self.receiver("b")
                armed = self.arm("b", f"{point} kill")
                self.restore(target)
                self.assertFalse(armed.exists(), "the point was not reached")
                self.wait_until_settled()
                if decided:
                    self.check_running(target, source)
                else:
                    self.assertEqual(target.status(), 128 + signal.SIGKILL)
                    self.assertEqual(target.lines, [])

    def test_suspended_job_arrives_once_when_an_agent_is_killed(self):
        for point in ("destination.container.told", "destination.suspended"):
            with self.subTest(point=point):
                source, target = self.ticker("a"), self.receiver("b")
                self.suspend(source)
                armed = self.arm("b", f"{point} kill")
                self.hosts.migrate(source, target)
                self.assertFalse(armed.exists(), "the point was not reached")
                wait_for("it has left", lambda source=source: name_of(source.pid) == "gcr-moved")
                wait_for("it has arrived", lambda target=target: self.order("b", "resume", str(target.job)).returncode == 0)
                self.check_running(target, source)
                self.stop(source, 0)
                self.stop(target, 0)


if __name__ == "__main__":
    unittest.main()
