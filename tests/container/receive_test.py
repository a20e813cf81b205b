#!/usr/bin/env python3
"""Containers that wait for a job, or whose job has moved away. The test is the agent: it gives its orders.

Usage: receive_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import os
import pathlib
import signal
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from containers import NUMBERS, ORDER, Case, children_of, inner_pid, send_order, wait_until  # noqa: E402  # pylint: disable=wrong-import-position

KEY = "0123456789abcdef0123456789ABCDEF"
IDENTITY = "0123456789abcdef" * 4
MOVED = -1
# A next runtime that writes a PID file as runc does, and a PID of ours in it.
RUNTIME_WITH_WRONG_PID = """#!/bin/sh
echo "$@" >>{folder}/calls
while [ $# != 0 ]; do
  if [ "$1" = --pid-file ]; then echo {pid} >"$2"; fi
  shift
done
"""


class Receiving(Case):
    def receiver(self, *words):
        container = self.container(*words or ("wait",))
        container.annotate("gcr-migrate.receive", KEY)
        return container

    def waiting(self):
        container = self.receiver().start()
        container.wait_for_name("gcr-receiving")
        return container

    def restored(self, container):
        """A process below gcr-init as CRIU leaves one: its PIDs inside and outside, and how to end it."""
        fifo = container.root / f"tmp/{next(NUMBERS)}"
        os.mkfifo(fifo)
        root = int(container.execute("job", "root", f"/tmp/{fifo.name}"))
        outside = next(child for child in children_of(container.pid) if inner_pid(child) == root)
        return root, outside, lambda status: fifo.write_text(status, encoding="ascii")

    def wait_until_taken(self, container, number=ORDER):
        """Until a signal is not pending any more."""

        def is_taken():
            with open(f"/proc/{container.pid}/status", encoding="ascii") as status:
                pending = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd:", "ShdPnd:"))]
            return not any(bits >> (number - 1) & 1 for bits in pending)

        wait_until(is_taken, f"signal {number} is pending")

    def test_waiting_container_starts_nothing(self):
        container = self.waiting()
        self.assertEqual(children_of(container.pid), [])
        command = pathlib.Path(f"/proc/{container.pid}/cmdline").read_bytes().split(b"\0")
        self.assertEqual(command, [b"/dev/.gcr/init", b"receive", KEY.encode(), b"job", b"wait", b""])

    def test_stop_of_a_waiting_container_gives_143(self):
        self.assertEqual(self.waiting().end(), 143)

    def test_signals_that_end_no_process_leave_it_waiting(self):
        container = self.waiting()
        for number in (signal.SIGWINCH, signal.SIGCONT, signal.SIGURG, signal.SIGCHLD):
            container.signal(number)
            self.wait_until_taken(container, number)
        self.assertEqual(container.end(), 143)

    def test_root_gets_signals_and_gives_the_status(self):
        container = self.waiting()
        root, _, end = self.restored(container)
        send_order(container.pid, root)
        container.wait_for_name("gcr-init")
        end("7")
        self.assertEqual(container.status(), 7)

    def test_signal_reaches_the_restored_root(self):
        container = self.waiting()
        root, _, _ = self.restored(container)
        send_order(container.pid, root)
        container.wait_for_name("gcr-init")
        container.signal(signal.SIGUSR1)
        self.assertEqual(container.status(), 128 + signal.SIGUSR1)

    def test_other_children_do_not_end_the_container(self):
        container = self.waiting()
        root, _, _ = self.restored(container)
        _, other, end_other = self.restored(container)
        send_order(container.pid, root)
        container.wait_for_name("gcr-init")
        end_other("3")
        wait_until(lambda: other not in children_of(container.pid), "it is not reaped")
        self.assertEqual(container.end(), 143)

    def test_root_that_was_reaped_before_the_order_gives_its_status(self):
        container = self.waiting()
        root, outside, end = self.restored(container)
        end("9")
        wait_until(lambda: outside not in children_of(container.pid), "it is not reaped")
        send_order(container.pid, root)
        self.assertEqual(container.status(), 9)

    def test_order_about_an_unknown_process_is_not_taken(self):
        container = self.waiting()
        send_order(container.pid, 12345)
        self.wait_until_taken(container)
        container.wait_for_name("gcr-receiving")
        self.assertEqual(container.end(), 143)

    def test_order_from_inside_the_container_is_not_taken(self):
        container = self.waiting()
        container.execute("job", "order", str(MOVED))
        self.wait_until_taken(container)
        container.wait_for_name("gcr-receiving")
        self.assertEqual(container.end(), 143)

    def test_container_whose_job_has_moved_ends_with_0_when_it_is_stopped(self):
        container = self.container("wait").start()
        self.assertEqual(container.lines.next(), "ready")
        send_order(container.pid, MOVED)
        container.wait_for_name("gcr-moved")
        (supervisor,) = children_of(container.pid)
        (program,) = children_of(supervisor)
        for pid in (supervisor, program):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: children_of(container.pid) == [], "they are not reaped")
        self.assertEqual(container.end(), 0)

    def test_pids_of_exec_sessions_are_high_and_differ_from_those_in_other_containers(self):
        limit = int(pathlib.Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
        pids = {self.restored(self.waiting())[0] for _ in range(3)}
        self.assertGreater(min(pids), limit // 2)
        self.assertGreater(len(pids), 1)

    def test_container_whose_job_has_left_is_not_started_again(self):
        container = self.container("variable", "HOME")
        container.spec["linux"]["cgroupsPath"] = f"/gcr-test/{IDENTITY}"
        self.received.mkdir(parents=True, mode=0o700)
        (self.received / IDENTITY).touch()
        done = container.run()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("its job has left: remove the container", done.stderr)
        (self.received / IDENTITY).unlink()
        self.assertEqual(container.run().returncode, 0)

    def test_key_in_the_environment_is_removed(self):
        container = self.container("variable", "GCR_RECEIVE")
        container.process["env"].append(f"GCR_RECEIVE={KEY}")
        container.start().wait_for_name("gcr-receiving")
        self.assertFalse([each for each in container.edited()["process"]["env"] if each.startswith("GCR_RECEIVE")])

    def note(self):
        """What the agent does when the job is about to run."""
        self.received.mkdir(parents=True, mode=0o700)
        (self.received / KEY).touch()

    def test_container_waits_again_until_its_job_has_come(self):
        container = self.receiver("signals")
        self.assertEqual(container.start().end(), 143)
        container.start().wait_for_name("gcr-receiving")
        self.assertEqual(container.end(), 143)

    def test_container_starts_its_program_once_its_job_has_come(self):
        container = self.receiver("signals")
        self.assertEqual(container.start().end(), 143)
        self.note()
        self.assertEqual(container.start().lines.next(), "ready")
        self.assertEqual(container.end(), 7)
        self.assertIn(f"container {container.id}: it has received a job before", self.logged())

    def assert_receives(self, container, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(self.restored(container)[0], 1000)

    def test_pid_file_of_the_engine_is_not_needed(self):
        container = self.receiver()
        done = container.create()
        self.assertEqual(container.call("start").returncode, 0)
        self.assert_receives(container, done)

    def test_detached_run_receives(self):
        container = self.receiver()
        self.assert_receives(container, container.create("--detach", verb="run"))

    def test_run_in_the_foreground_is_refused(self):
        container = self.receiver()
        container.save()
        done = container.call("run")
        self.assertEqual(done.returncode, 1)
        self.assertIn("it cannot receive a job in the foreground: use `create`, or `run --detach`", done.stderr)

    def test_notes_that_another_user_may_write_are_refused(self):
        self.note()
        self.received.chmod(0o777)
        done = self.receiver().create()
        self.assertEqual(done.returncode, 1)
        self.assertIn("another user may write to it", done.stderr)

    def assert_refused(self, container, reason):
        container.save()
        before = container.config.read_bytes()
        done = container.call("create")
        self.assertEqual(done.returncode, 1)
        self.assertIn(reason, done.stderr)
        self.assertEqual(container.config.read_bytes(), before)
        self.assertIn("does not exist", container.call("state").stderr)

    def test_wrong_keys_are_refused(self):
        for key in ("1", KEY[:-1], KEY + "0", KEY[:-1] + "g", "../" + KEY[3:]):
            container = self.container("wait")
            container.annotate("gcr-migrate.receive", key)
            self.assert_refused(container, "gcr-migrate.receive must be the key of a migration, 32 hexadecimal digits")

    def test_two_keys_are_refused(self):
        container = self.receiver()
        container.process["env"].append(f"GCR_RECEIVE={KEY[::-1]}")
        self.assert_refused(container, "gcr-migrate.receive and GCR_RECEIVE have different keys")

    def test_container_that_cannot_receive_is_refused(self):
        container = self.receiver()
        container.spec["linux"]["namespaces"].remove({"type": "pid"})
        self.assert_refused(container, "it cannot receive a job: it has no PID namespace of its own")

    def test_container_without_room_for_pids_is_deleted(self):
        fake = self.folder / "fake"
        fake.write_text(RUNTIME_WITH_WRONG_PID.format(folder=self.folder, pid=os.getpid()), encoding="ascii")
        fake.chmod(0o755)
        self.configure(runtime=fake)
        container = self.receiver()
        done = container.create()
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is not the first process of a PID namespace", done.stderr)
        calls = (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        self.assertEqual(calls[-1], f"--root {self.folder}/runc delete --force {container.id}")


if __name__ == "__main__":
    unittest.main()
