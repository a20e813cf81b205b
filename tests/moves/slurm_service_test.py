#!/usr/bin/env python3
"""scripts/slurm serve: when it begins drains, its log, its metrics, its end."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from fake_service import FakeDrain, FakeListener, FakePrometheus, FakeSlurm, FakeTime  # noqa: E402
from gcr_moves import slurm_service, slurm_trigger  # noqa: E402
from gcr_moves.slurm_metrics import Metrics, Served  # noqa: E402

INTERVAL, POLL, AGAIN = 5, 60, 300
MOMENT = 1 / 64


def process(outcome, job=7, reason="", successor=0, downtime_ms=0.0, tries=()):
    """In the format of a drain's report."""
    return {"outcome": outcome, "slurm_job": job, "pid": 40 + job, "reason": reason, "slurm_successor": successor,
            "destination": "address-of-n2" if successor else "", "downtime_ms": downtime_ms, "verified": True,
            "tries": list(tries)}  # fmt: skip


class Fixture(unittest.TestCase):
    def setUp(self):
        self.time = FakeTime()
        self.slurm = FakeSlurm(self.time)
        self.slurm.states = {"n1": "mixed", "n2": "idle", "n3": "mixed"}
        self.drains = []
        self.trouble = None  # raised instead of starting a drain
        self.refused = 0  # how often
        self.err, self.out = io.StringIO(), io.StringIO()
        self.enter(contextlib.redirect_stderr(self.err))
        self.enter(contextlib.redirect_stdout(self.out))

    def enter(self, context):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        return stack.enter_context(context)

    def listen(self, path, on_wake):
        self.listener = FakeListener(path, on_wake)
        return self.listener

    def begin_drain(self, *arguments):
        if self.trouble:
            self.refused += 1
            raise self.trouble
        self.drains.append(FakeDrain(*arguments))
        return self.drains[-1]

    def make(self, metrics=None, **options):
        options = {"interval": INTERVAL, "poll": POLL, "again": AGAIN, "json": False, "quiet": False,
                   "wake_socket": "/run/wake", **options}  # fmt: skip
        with mock.patch("queue.SimpleQueue", lambda: self.time):
            self.service = slurm_service.Service(
                argparse.Namespace(**options), ["--tries", "3"], self.slurm, metrics or Metrics(),
                self.listen, self.begin_drain, self.time.clock)  # fmt: skip
        return self.service

    def pass_time(self, seconds=MOMENT):
        """The service handles all events until then."""
        over = []
        self.time.after(seconds, lambda: self.time.put(lambda: over.append(True)))
        while not over:
            self.assertTrue(self.service.step())

    def begin(self, *draining, **options):
        """With these nodes being drained."""
        self.drain_nodes(*draining)
        self.make(**options)
        self.pass_time()

    def drain_nodes(self, *nodes):
        self.slurm.states |= dict.fromkeys(nodes, "draining")

    def under_way(self):
        return [drain.node for drain in self.drains]

    def new_log_lines(self):
        """Since the last time."""
        lines = self.err.getvalue().splitlines()
        self.err.seek(0)
        self.err.truncate()
        return lines


class Draining(Fixture):
    def test_node_draining_at_the_start_is_drained_with_the_options(self):
        self.begin("n1", "n3")
        self.assertEqual(self.under_way(), ["n1", "n3"])
        self.assertEqual(self.drains[0].words, ["--tries", "3"])
        self.assertIn("n1: draining", self.new_log_lines())

    def test_node_that_begins_to_drain_is_drained_at_the_next_poll(self):
        self.begin()
        self.assertEqual(self.drains, [])
        self.drain_nodes("n1")
        self.pass_time(POLL - 1)
        self.assertEqual(self.drains, [])
        self.pass_time(1)
        self.assertEqual(self.under_way(), ["n1"])

    def test_nodes_without_jobs_or_that_are_down_are_not_drained(self):
        self.slurm.states |= {"n1": "drained", "n2": "down*", "n3": "drained*"}
        self.begin()
        self.assertEqual(self.drains, [])

    def test_wake_is_handled_at_once(self):
        self.begin()
        self.pass_time(POLL / 2)
        self.drain_nodes("n1")
        self.listener.wake()
        self.pass_time()
        self.assertEqual(self.under_way(), ["n1"])

    def test_wakes_begin_no_second_drain_of_a_node(self):
        self.begin("n1")
        self.listener.wake()
        self.listener.wake()
        self.pass_time(AGAIN * 2)
        self.assertEqual(self.under_way(), ["n1"])

    def test_second_node_is_found_within_the_interval(self):
        self.begin("n1")
        self.drain_nodes("n3")
        self.pass_time(INTERVAL)
        self.assertEqual(self.under_way(), ["n1", "n3"])


class Again(Fixture):
    def leave_a_job(self):
        drain = self.drains[-1]
        drain.say("job 7 is left at n1: no --migratable")
        drain.finish(1, process("left", reason="no --migratable"))

    def test_node_with_jobs_left_is_drained_again_after_the_pause(self):
        self.begin("n1")
        self.leave_a_job()
        self.pass_time(AGAIN - 1)
        self.assertEqual(self.under_way(), ["n1"])
        self.pass_time(1)
        self.assertEqual(self.under_way(), ["n1", "n1"])

    def test_wake_does_not_shorten_the_pause(self):
        self.begin("n1")
        self.leave_a_job()
        self.pass_time(AGAIN / 2)
        self.listener.wake()
        self.pass_time()
        self.assertEqual(self.under_way(), ["n1"])

    def test_pause_shorter_than_the_poll_is_kept(self):
        self.begin("n1", again=POLL / 2)
        self.leave_a_job()
        self.pass_time(POLL / 2)
        self.assertEqual(self.under_way(), ["n1", "n1"])

    def test_unchanged_state_is_not_logged(self):
        self.begin("n1")
        self.leave_a_job()
        self.pass_time()
        said = self.new_log_lines()
        self.assertEqual(said[-4:], ["n1: draining", "n1: job 7 is left at n1: no --migratable",
                                     "n1: left job=7 pid=47: no --migratable",
                                     "n1: drain ended with exit status 1"])  # fmt: skip
        for _ in range(3):
            self.pass_time(AGAIN)
            self.leave_a_job()
        self.pass_time()
        self.assertEqual((self.under_way(), self.new_log_lines()), (["n1"] * 4, []))

    def test_changes_are_logged(self):
        self.begin("n1")
        self.leave_a_job()
        self.pass_time(AGAIN)
        self.new_log_lines()
        self.drains[-1].finish(0, process("moved", successor=9, downtime_ms=120.4))
        self.pass_time()
        self.assertEqual(self.new_log_lines(), [
            "n1: moved job=7 pid=47 to job=9 node=n2 downtime_ms=120 verified=yes",
            "n1: drain ended with exit status 0"])  # fmt: skip

    def test_reason_missing_in_the_last_drain_is_logged_again(self):
        self.begin("n1")
        self.leave_a_job()
        self.pass_time(AGAIN)
        self.drains[-1].finish(4, report=False)
        self.pass_time(AGAIN)
        self.new_log_lines()
        self.leave_a_job()
        self.pass_time()
        self.assertIn("n1: left job=7 pid=47: no --migratable", self.new_log_lines())

    def test_resumed_node_is_forgotten(self):
        self.begin("n1")
        self.leave_a_job()
        self.pass_time()
        self.slurm.states["n1"] = "mixed"
        self.listener.wake()
        self.pass_time()
        self.new_log_lines()
        self.drain_nodes("n1")
        self.listener.wake()
        self.pass_time()
        self.assertEqual(self.under_way(), ["n1", "n1"])
        self.leave_a_job()
        self.pass_time()
        self.assertIn("n1: left job=7 pid=47: no --migratable", self.new_log_lines())

    def test_node_resumed_during_its_drain_is_forgotten(self):
        self.begin("n1")
        self.slurm.states["n1"] = "mixed"
        self.pass_time(INTERVAL)
        self.leave_a_job()
        self.pass_time()
        self.drain_nodes("n1")
        self.listener.wake()
        self.pass_time()
        self.assertEqual(self.under_way(), ["n1", "n1"])


class Trouble(Fixture):
    def test_drain_without_a_report_is_retried(self):
        self.begin("n1")
        self.drains[0].finish(-signal.SIGKILL, report=False)
        self.pass_time(AGAIN)
        self.assertIn("n1: drain ended with exit status -9", self.new_log_lines())
        self.assertEqual(self.under_way(), ["n1", "n1"])

    def test_unstartable_drain_is_retried_after_the_pause(self):
        self.trouble = OSError(11, "Resource temporarily unavailable")
        self.begin("n1")
        self.assertIn("n1: cannot start the drain: Resource temporarily unavailable", self.new_log_lines())
        self.pass_time(AGAIN - 1)
        self.assertEqual(self.refused, 1)
        self.trouble = None
        self.pass_time(1)
        self.assertEqual(self.under_way(), ["n1"])

    def test_silent_slurmctld_is_polled_and_logged_once(self):
        self.begin()
        self.slurm.silent = True
        self.pass_time(POLL)
        self.new_log_lines()
        self.pass_time(INTERVAL * 3)
        self.assertEqual(self.new_log_lines(), [])
        self.slurm.silent = False
        self.drain_nodes("n1")
        self.pass_time(INTERVAL)
        self.assertEqual(self.under_way(), ["n1"])
        self.assertEqual(self.new_log_lines(), ["Slurm's trigger wakes this service", "Slurm answers", "n1: draining"])

    def test_drain_ending_while_slurmctld_is_silent_is_kept(self):
        self.begin("n1")
        self.slurm.silent = True
        self.drains[0].finish(1, process("left"))
        self.pass_time(AGAIN - 1)
        self.slurm.silent = False
        self.pass_time(1 + INTERVAL)
        self.assertEqual(self.under_way(), ["n1", "n1"])

    def test_lost_trigger_is_registered_again(self):
        self.begin()
        self.slurm.registered.clear()
        self.pass_time(POLL)
        self.assertEqual(len(self.slurm.registered), 1)
        self.pass_time(POLL)
        self.assertEqual(len(self.slurm.registered), 1)

    def test_without_a_trigger_it_polls_every_interval(self):
        self.slurm.takes_triggers = False
        self.begin()
        self.slurm.looks.clear()
        self.pass_time(INTERVAL * 4)
        self.assertEqual(len(self.slurm.looks), 4)
        self.assertIn("no trigger, asking Slurm every 5 s: strigger: Access/permission denied", self.new_log_lines())


class End(Fixture):
    def stop(self, number=signal.SIGTERM):
        self.time.put(lambda: self.service.stop(number))

    def assert_over(self):
        """After all events so far."""
        before = self.time.now
        while self.service.step():
            self.assertEqual(self.time.now, before)
        self.assertFalse(self.listener.open)

    def test_idle_service_ends_at_once_and_removes_its_trigger(self):
        self.begin()
        self.assertEqual(len(self.slurm.registered), 1)
        self.stop()
        self.assert_over()
        self.assertEqual(self.slurm.registered, {})

    def test_running_drains_are_stopped_first(self):
        self.begin("n1", "n3")
        self.stop()
        self.pass_time(POLL)
        self.assertEqual([drain.signals for drain in self.drains], [[signal.SIGTERM]] * 2)
        self.drains[0].finish(7)
        self.pass_time(AGAIN)
        self.drains[1].finish(0, process("moved", successor=9, downtime_ms=1.0))
        self.assert_over()
        self.assertIn("n3: moved job=7 pid=47 to job=9 node=n2 downtime_ms=1 verified=yes", self.new_log_lines())

    def test_stopping_service_begins_nothing(self):
        self.begin("n1")
        self.stop()
        self.drain_nodes("n3")
        self.listener.wake()
        self.pass_time(AGAIN)
        self.assertEqual(self.under_way(), ["n1"])

    def test_second_stop_is_passed_to_the_drains(self):
        self.begin("n1")
        self.stop()
        self.stop(signal.SIGINT)
        self.pass_time()
        self.assertEqual(self.drains[0].signals, [signal.SIGTERM, signal.SIGINT])
        self.assertEqual(self.new_log_lines().count("stopping: the migrations under way end first"), 1)

    def test_ends_while_slurmctld_is_silent(self):
        self.begin()
        self.slurm.silent = True
        self.stop()
        self.assert_over()
        self.assertIn("the trigger stays registered: slurmctld does not answer", self.new_log_lines())

    def test_signal_stops_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        for number in (signal.SIGINT, signal.SIGTERM):
            self.make()
            self.time.after(MOMENT, lambda number=number: signal.raise_signal(number))
            self.assertEqual(self.service.run(), 0)
            self.assertFalse(self.listener.open)


class Counting(Fixture):
    def begin(self, *draining, **options):
        self.prometheus = FakePrometheus()
        with mock.patch.dict(sys.modules, prometheus_client=self.prometheus):
            metrics = Served("127.0.0.1", 9411)
        super().begin(*draining, metrics=metrics, **options)

    def value(self, name):
        return self.prometheus.values[f"gcr_slurm_{name}"]

    def test_drains_are_counted_by_state_and_exit_status(self):
        self.begin("n1", "n3")
        self.assertEqual(self.value("drains_in_progress"), 2)
        self.drains[0].finish(1)
        self.drains[1].finish(0)
        self.pass_time()
        self.assertEqual(self.value("drains_in_progress"), 0)
        self.assertEqual((self.value('drains_total{status="0"}'), self.value('drains_total{status="1"}')), (1, 1))

    def test_unstartable_drain_is_not_counted(self):
        self.trouble = OSError(11, "Resource temporarily unavailable")
        self.begin("n1")
        self.assertEqual(self.value("drains_in_progress"), 0)

    def test_jobs_are_counted_by_outcome_per_drain(self):
        self.begin("n1")
        for _ in range(2):
            self.drains[-1].finish(1, process("left"),
                                   process("moved", 8, successor=9, downtime_ms=250.0, tries=[{}] * 3))  # fmt: skip
            self.pass_time(AGAIN)
        self.assertEqual((self.value('jobs_total{outcome="left"}'), self.value('jobs_total{outcome="moved"}')), (2, 2))
        self.assertEqual(self.value("failed_tries_total"), 6)
        self.assertEqual(self.value("downtime_seconds"), [0.25, 0.25])

    def test_placeholders_are_those_of_the_last_poll(self):
        self.slurm.placeholders = 3
        self.begin()
        self.assertEqual(self.value("placeholders_waiting"), 3)
        self.slurm.placeholders = 0
        self.pass_time(POLL)
        self.assertEqual(self.value("placeholders_waiting"), 0)

    def test_errors_are_failed_slurm_commands(self):
        self.begin()
        self.assertEqual(self.value("errors_total"), 0)
        self.slurm.silent = True
        self.pass_time(POLL)
        self.assertEqual(self.value("errors_total"), 2)  # strigger and sinfo

    def test_socket_error_is_no_slurm_error(self):
        self.drain_nodes("n1")
        with mock.patch.object(FakeListener, "admit", side_effect=PermissionError(1, "Operation not permitted")):
            self.begin()
        self.assertEqual((self.value("errors_total"), self.value("trigger_registered")), (0, 0))
        self.assertEqual(self.under_way(), ["n1"])

    def test_last_poll_is_the_last_answered_one(self):
        with mock.patch("time.time", lambda: self.time.now):
            self.begin()
            answered = self.value("last_look_timestamp_seconds")
            self.assertAlmostEqual(answered, 1000.0)
            self.slurm.silent = True
            self.pass_time(POLL * 2)
            self.assertEqual(self.value("last_look_timestamp_seconds"), answered)
            self.slurm.silent = False
            self.pass_time(INTERVAL)
            self.assertGreater(self.value("last_look_timestamp_seconds"), answered + POLL)

    def test_trigger_state_is_reported(self):
        self.begin()
        self.assertEqual(self.value("trigger_registered"), 1)
        self.slurm.registered.clear()
        self.slurm.takes_triggers = False
        self.pass_time(POLL)
        self.assertEqual(self.value("trigger_registered"), 0)


class Reports(Fixture):
    def test_json_prints_a_line_per_report(self):
        self.begin("n1", "n3", json=True)
        self.drains[0].finish(1, process("left"))
        self.drains[1].finish(4, report=False)
        self.pass_time()
        (line,) = self.out.getvalue().splitlines()
        self.assertEqual(json.loads(line)["processes"][0]["outcome"], "left")

    def test_without_json_standard_output_is_empty(self):
        self.begin("n1")
        self.drains[0].finish(1, process("left"))
        self.pass_time()
        self.assertEqual(self.out.getvalue(), "")

    def test_quiet_prints_nothing(self):
        self.begin("n1", quiet=True)
        self.drains[0].finish(1, process("left"))
        self.pass_time()
        self.assertEqual(self.new_log_lines(), [])


class Programs(Fixture):
    """A drain that is a process, and the socket."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter(tempfile.TemporaryDirectory()))

    def run_drain(self, script, number=0):
        """Its output, and its exit status; the signal is sent after its first line."""
        path = self.folder / "drain"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
        path.chmod(0o755)
        said, spoke, ended = [], threading.Event(), threading.Event()
        with mock.patch.object(slurm_service, "DRAIN", path):
            drain = slurm_service.NodeDrain("n1", ["--tries", "3"], lambda line: (said.append(line), spoke.set()),
                                            ended.set)  # fmt: skip
        if number:
            self.assertTrue(spoke.wait(60))
            drain.send_signal(number)
        self.assertTrue(ended.wait(60))
        return said, drain.end()

    def test_drain_gets_its_options_and_its_lines_lose_the_time(self):
        said, ended = self.run_drain("""echo "12:34:56 $*" >&2; echo '{"processes": []}'; exit 1""")
        self.assertEqual(said, ["n1 --slurm --json --tries 3"])
        self.assertEqual(ended, (1, {"processes": []}))

    def test_killed_drain_has_no_report(self):
        self.assertEqual(self.run_drain("echo '{'; kill -KILL $$"), ([], (-signal.SIGKILL, None)))

    def test_drain_can_be_stopped(self):
        said, ended = self.run_drain("trap 'exit 7' TERM; echo up >&2; while :; do sleep 0.01; done", signal.SIGTERM)
        self.assertEqual((said, ended), (["up"], (7, None)))

    def listen_at(self, path):
        woken = threading.Event()
        listener = slurm_trigger.Listener(path, woken.set)
        self.addCleanup(listener.close)
        return listener, woken

    def test_trigger_command_wakes_the_service(self):
        _, woken = self.listen_at(self.folder / "run" / "wake")
        slurm_trigger.wake(str(self.folder / "run" / "wake"))
        self.assertTrue(woken.wait(60))

    def test_trigger_command_ends_without_a_service(self):
        slurm_trigger.wake(str(self.folder / "wake"))

    def test_socket_of_a_dead_service_is_replaced(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
            left.bind(str(self.folder / "wake"))
        _, woken = self.listen_at(self.folder / "wake")
        slurm_trigger.wake(str(self.folder / "wake"))
        self.assertTrue(woken.wait(60))

    def test_second_service_is_refused(self):
        self.listen_at(self.folder / "wake")
        with self.assertRaisesRegex(OSError, "another service listens there"):
            slurm_trigger.Listener(self.folder / "wake", lambda: None)

    def test_other_file_is_not_removed(self):
        (self.folder / "wake").write_text("precious", encoding="ascii")
        with self.assertRaises(OSError):
            slurm_trigger.Listener(self.folder / "wake", lambda: None)
        self.assertEqual((self.folder / "wake").read_text(encoding="ascii"), "precious")

    def test_only_its_user_and_group_may_wake_it(self):
        listener, _ = self.listen_at(self.folder / "wake")
        listener.admit(os.getuid())
        self.assertEqual(os.stat(self.folder / "wake").st_mode & 0o777, 0o660)


if __name__ == "__main__":
    unittest.main()
