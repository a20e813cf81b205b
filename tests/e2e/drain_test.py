#!/usr/bin/env python3
"""scripts/drain and scripts/rebalance end to end: hosts in namespaces, agents, CRIU, software GPUs.

Usage: drain_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from ticker_hosts import HANGS_S, Hosts, begin_command, wait_for  # noqa: E402  # pylint: disable=wrong-import-position

TICKERS = 8  # where a host dies in the middle


class Scenario(unittest.TestCase):
    """Four hosts; tickers on host a, to be drained to the others."""

    options = ()

    def setUp(self):
        self.hosts = Hosts(4, "--fault-points", "true", *self.options)
        self.addCleanup(self.hosts.close)
        self.others = [self.hosts.address(host) for host in "bcd"]

    def start_tickers(self, count=TICKERS):
        return [self.hosts.start_ticker("a") for _ in range(count)]

    def drain(self, *words):
        return self.hosts.moves("drain", self.hosts.address("a"), "--to", *self.others, *words)

    def begin(self, script, *words):
        return begin_command(self, self.hosts.moves_command(script, "--json", *words))

    def begin_drain(self, *words):
        return self.begin("drain", self.hosts.address("a"), "--to", *self.others, *words)

    def wait_for_line(self, begun, text):
        for line in begun.stderr:
            if text in line:
                return line
        self.fail(f"it ended without saying \"{text}\"")

    def end_of(self, begun):
        out, err = begun.communicate(timeout=HANGS_S)
        self.assertTrue(out, err)
        return begun.returncode, json.loads(out), err

    def assert_runs_once(self, tickers, hosts, said):
        """Each of them is on one of these hosts, as one process, with nothing lost or repeated."""
        by_host = {host: self.hosts.processes(host) for host in hosts}
        for ticker in tickers:
            ticker.wait_for_progress()
            self.assertEqual(ticker.complaint(), "", said)
            copies = ticker.copies()
            self.assertEqual(len(copies), 1, f"{ticker.path} has the copies {copies}: {said}")
            places = [host for host, pids in by_host.items() if copies[0] in pids]
            self.assertEqual(len(places), 1, f"{copies[0]} is at {places} of {by_host}: {said}")

    def assert_outcomes(self, report, said, **wanted):
        found = {}
        for process in report["processes"]:
            found[process["outcome"]] = found.get(process["outcome"], 0) + 1
        self.assertEqual(found, wanted, said)

    def most_at_a_time(self, host):
        """Of the migrations that the host's agent knows."""
        edges = []
        for migration in self.hosts.migrations(host):
            edges.append((int(migration["began_unix_ms"]), 1))
            edges.append((int(migration["changed_unix_ms"]), -1))
        most = now = 0
        for _, change in sorted(edges):
            now += change
            most = max(most, now)
        return most


class HostsThatDie(Scenario):
    options = ("--peer-silence-ms", "1500")

    def kill_host_c_with_a_copy_that_never_ran(self, begin):
        """Starts, and stops host c's worker where a process is restored and not committed yet."""
        faults = self.hosts.folder / "c" / "faults"
        faults.write_text("destination.verified stop\n", encoding="ascii")
        begun = begin()
        wait_for("a migration reaches host c", (faults.parent / "faults.hit").exists)
        self.hosts.script("kill", "c")
        return begun

    def test_processes_run_once_if_a_destination_dies(self):
        tickers = self.start_tickers()
        drain = self.kill_host_c_with_a_copy_that_never_ran(self.begin_drain)
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=TICKERS)
        self.assertIn(f"{self.hosts.address('c')}: ", said)
        destinations = {process["destination"] for process in report["processes"]}
        self.assertEqual(destinations, {self.hosts.address("b"), self.hosts.address("d")}, said)
        self.assertTrue(any(process["tries"] for process in report["processes"]), said)
        self.assert_runs_once(tickers, "bd", said)
        self.assertEqual(self.hosts.processes("a"), set())

    def test_rebalanced_processes_run_once_if_a_destination_dies(self):
        tickers = self.start_tickers()
        names = [self.hosts.address(host) for host in "abcd"]
        words = ("--yes", "--least-gain", "0.01", "--tries", "2", "--patience", "1")
        rebalance = self.kill_host_c_with_a_copy_that_never_ran(
            lambda: self.begin("rebalance", *names, *words))  # fmt: skip
        status, report, said = self.end_of(rebalance)
        self.assertEqual(status, 1, said)
        goals = {move["pid"]: move["destination"] for move in report["moves"]}
        self.assertEqual(len(goals), 6, said)  # two for each host
        left = {process["pid"] for process in report["processes"] if process["outcome"] == "left"}
        self.assertEqual(left, {pid for pid, goal in goals.items() if goal == names[2]}, said)
        self.assert_outcomes(report, said, moved=4, left=2)
        self.assert_runs_once(tickers, "abd", said)
        self.assertEqual([len(self.hosts.processes(host)) for host in "abd"], [4, 2, 2], said)

    def test_processes_lost_with_their_new_host_are_named(self):
        tickers = self.start_tickers(5)
        drain = self.begin_drain()
        self.wait_for_line(drain, f"to {self.hosts.address('c')} as ")
        self.hosts.script("kill", "c")
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 1, said)
        lost = [process for process in report["processes"] if process["outcome"] == "lost"]
        self.assertTrue(lost, said)
        self.assert_outcomes(report, said, moved=5 - len(lost), lost=len(lost))
        self.assertEqual({process["destination"] for process in lost}, {self.hosts.address("c")})
        started = {process["pid"] for process in lost}
        dead = [ticker for ticker in tickers if ticker.process.pid in started]
        self.assertEqual([ticker.copies() for ticker in dead], [[]] * len(lost))
        self.assert_runs_once([ticker for ticker in tickers if ticker not in dead], "bd", said)

    def test_processes_run_once_if_the_source_agent_restarts(self):
        tickers = self.start_tickers(5)
        drain = self.begin_drain()
        self.wait_for_line(drain, "moved ")
        daemon = int((self.hosts.folder / "a" / "agent.pid").read_text(encoding="ascii"))
        workers = subprocess.run(
            ["pgrep", "-P", str(daemon)], capture_output=True, text=True, check=False).stdout.split()  # fmt: skip
        for pid in [daemon, *map(int, workers)]:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        self.hosts.script("start", "a")
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=5)
        self.assert_runs_once(tickers, "bcd", said)


class Course(Scenario):
    def test_restarted_drain_continues_an_interrupted_one(self):
        tickers = self.start_tickers(4)
        drain = self.begin_drain("--per-host", "1")
        self.wait_for_line(drain, "moved ")
        drain.send_signal(signal.SIGINT)
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 7, said)
        left = [process for process in report["processes"] if process["outcome"] == "left"]
        self.assertTrue(left, said)
        self.assert_outcomes(report, said, left=len(left), moved=4 - len(left))
        self.assertEqual(self.hosts.processes("a"), {process["pid"] for process in left})
        self.assert_runs_once(tickers, "abcd", said)
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=len(left))
        self.assert_runs_once(tickers, "bcd", said)

    def test_second_interrupt_cancels_running_migrations(self):
        faults = self.hosts.folder / "a" / "faults"
        go_on = self.hosts.folder / "go-on"
        faults.write_text(
            f"source.prepared run until [ -e {go_on} ]; do sleep 0.02; done\n", encoding="ascii"
        )
        tickers = self.start_tickers(1)
        drain = self.begin_drain()
        wait_for("the migration is prepared", (faults.parent / "faults.hit").exists)
        drain.send_signal(signal.SIGTERM)
        self.wait_for_line(drain, "stopping")
        drain.send_signal(signal.SIGTERM)
        self.wait_for_line(drain, "cancelling")
        go_on.touch()
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 7, said)
        self.assert_outcomes(report, said, left=1)
        self.assert_runs_once(tickers, "a", said)

    def test_limits_dry_run_and_new_processes(self):
        tickers = self.start_tickers(4)
        status, report, said = self.drain("--dry-run")
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=4)
        self.assertEqual([self.hosts.migrations(host) for host in "abcd"], [[], [], [], []])
        drain = self.begin_drain("--per-host", "2", "--total", "2")
        self.wait_for_line(drain, "moved ")
        tickers.append(self.hosts.start_ticker("a"))
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=5)
        self.assertEqual(self.most_at_a_time("a"), 2)
        self.assert_runs_once(tickers, "bcd", said)

    def test_refused_process_is_named_and_others_move(self):
        tickers = self.start_tickers(1)
        tied = self.hosts.start_ticker("a", stdin=subprocess.PIPE)
        self.addCleanup(tied.process.stdin.close)
        status, report, said = self.drain("--tries", "2")
        self.assertEqual(status, 1, said)
        self.assert_outcomes(report, said, moved=1, left=1)
        left = [process for process in report["processes"] if process["outcome"] == "left"][0]
        self.assertEqual(left["pid"], tied.process.pid)
        self.assertIn("outside-pipe", left["reason"])
        self.assertEqual(len(left["tries"]), 2)
        self.assertEqual([each["migration_id"] for each in left["tries"]], ["", ""])
        self.assert_runs_once([*tickers, tied], "abcd", said)
        self.assertEqual(self.hosts.processes("a"), {tied.process.pid})

    def test_job_of_several_processes_moves_as_a_whole(self):
        pid, tickers = self.hosts.start_job_of_tickers("a", 3)
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=1)
        moved = report["processes"][0]
        self.assertEqual((moved["pid"], moved["processes"], moved["gpu_processes"]), (pid, 5, 3), said)
        self.assert_runs_once(tickers, "bcd", said)
        self.assertEqual(len({host for host in "bcd" if self.hosts.processes(host)}), 1, said)

    def test_unreachable_agent_has_its_exit_status(self):
        self.hosts.script("stop", "a")
        status, report, said = self.drain()
        self.assertEqual((status, report), (4, None), said)


class Suspended(Scenario):
    def suspend(self, ticker):
        self.hosts.ask("suspend", self.hosts.address("a"), ticker.process.pid)
        self.steps = len(ticker.lines())

    def assert_resumes_where_suspended(self, ticker, host, pid, said):
        """It has been stopped since it was suspended."""
        wait_for("it is suspended, and in no migration", lambda: self.unfinished(host) == [("suspended", pid)])
        self.assertEqual(len(ticker.lines()), self.steps, said)
        self.hosts.ask("resume", self.hosts.address(host), pid)
        self.assert_runs_once([ticker], host, said)

    def unfinished(self, host):
        migrations = self.hosts.ask("list", self.hosts.address(host))["migrations"]
        return [(each["state"], each["pid"]) for each in migrations]

    def test_suspended_job_moves_suspended_and_resumes_there(self):
        suspended, running = self.start_tickers(2)
        self.suspend(suspended)
        status, report, said = self.drain("--dry-run")
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=2)
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=2)
        self.assertEqual(self.hosts.processes("a"), set())
        moved = {process["pid"]: process for process in report["processes"]}
        self.assertFalse(moved[running.process.pid]["suspended"], said)
        job = moved[suspended.process.pid]
        self.assertTrue(job["suspended"], said)
        self.assertIn(", suspended there", said)
        host = next(host for host in "bcd" if self.hosts.address(host) == job["destination"])
        self.assert_runs_once([running], "bcd", said)
        self.assert_resumes_where_suspended(suspended, host, job["destination_pid"], said)

    def test_rebalance_leaves_a_suspended_job_alone(self):
        suspended, *running = self.start_tickers(3)
        self.suspend(suspended)
        names = [self.hosts.address(host) for host in "ab"]
        status, report, said = self.hosts.moves("rebalance", *names, "--yes", "--least-gain", "0.01")
        self.assertEqual(status, 0, said)
        self.assertEqual(len(report["moves"]), 1, said)
        self.assertNotEqual(report["moves"][0]["pid"], suspended.process.pid, said)
        self.assert_runs_once(running, "ab", said)
        self.assert_resumes_where_suspended(suspended, "a", suspended.process.pid, said)


class NowhereToGo(Scenario):
    """Hosts b to d do not answer: a job that a drain of a cannot move becomes a checkpoint."""

    def setUp(self):
        super().setUp()
        self.checkpoints = self.hosts.folder / "checkpoints"
        self.checkpoints.mkdir()
        for host in "bcd":
            self.hosts.script("stop", host)

    def restore_all(self, *words):
        return self.hosts.moves("rebalance", *self.others, "--restore", self.checkpoints, "--yes", *words)

    def test_emptied_host_gets_every_process_back_once(self):
        tickers = self.start_tickers(2)
        self.hosts.ask("suspend", self.hosts.address("a"), tickers[1].process.pid)  # it runs where it is restored
        pid, together = self.hosts.start_job_of_tickers("a", 2)
        words = ("--else-checkpoint", self.checkpoints, "--tries", "2")
        status, report, said = self.drain(*words, "--dry-run")
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, checkpointed=3)
        self.assertEqual(list(self.checkpoints.iterdir()), [])

        status, report, said = self.drain(*words)
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, checkpointed=3)
        self.assertIn(pid, {process["pid"] for process in report["processes"]})
        self.assertEqual(self.hosts.processes("a"), set())
        made = {process["checkpoint"] for process in report["processes"]}
        self.assertEqual(made, {str(each) for each in self.checkpoints.iterdir()}, said)
        self.assertEqual([ticker.copies() for ticker in tickers + together], [[], [], [], []])
        for ticker in tickers + together:
            self.assertEqual(ticker.complaint(), "", said)

        for host in "bcd":
            self.hosts.script("start", host)
        self.hosts.script("stop", "a")
        status, report, said = self.restore_all("--dry-run")
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, restored=3)
        # Two operators concurrently.
        command = [*self.others, "--restore", self.checkpoints, "--yes"]
        begun = [self.begin("rebalance", *command) for _ in range(2)]
        ended = [self.end_of(each) for each in begun]
        self.assertEqual([status for status, _, _ in ended], [0, 0], ended)
        self.hosts.script("start", "a")
        self.assert_runs_once(tickers + together, "bcd", ended)
        self.assertEqual(list(self.checkpoints.iterdir()), [], ended)
        status, report, said = self.restore_all()
        self.assertEqual((status, report["processes"]), (0, []), said)

    def test_job_that_cannot_be_stored_runs_on(self):
        tickers = self.start_tickers(1)
        words = ("--else-checkpoint", self.checkpoints / "missing", "--tries", "1")
        status, report, said = self.drain(*words)
        self.assertEqual(status, 1, said)
        self.assert_outcomes(report, said, left=1)
        self.assertIn("missing", report["processes"][0]["reason"])
        self.assert_runs_once(tickers, "a", said)


class Vram(Scenario):
    options = ("--vram", "1G", "--gpus", "2")

    def start_counter(self, port, vram):
        log, _ = self.hosts.start("a", "counter", "--vram", vram, "--port", port)
        wait_for("the counter listens", lambda: "listening" in log.read_text(encoding="ascii"))

    def test_processes_of_one_gpu_spread_over_several(self):
        # With its context each needs more than half of a GPU.
        self.others = [self.hosts.address("b")]
        for port in (9000, 9001):
            self.start_counter(port, "200M")
        status, report, said = self.drain("--per-host", "1")
        self.assertEqual(status, 0, said)
        self.assert_outcomes(report, said, moved=2)
        gpus = self.hosts.ask("host", self.hosts.address("b"))["gpus"]
        self.assertEqual([gpu["free_bytes"] < 900 << 20 for gpu in gpus], [True, True], gpus)

    def test_rebalance_follows_the_printed_plan(self):
        for port in range(9000, 9004):
            self.start_counter(port, "64M")
        names = [self.hosts.address(host) for host in "abcd"]
        status, plan, said = self.hosts.moves("rebalance", *names, "--dry-run")
        self.assertEqual(status, 0, said)
        self.assertEqual({move["destination"] for move in plan["moves"]}, set(names[1:]), said)
        self.assertEqual(len(plan["moves"]), 3, said)
        gains = [move["gain"] for move in plan["moves"]]
        self.assertEqual(gains, sorted(gains, reverse=True))
        self.assertEqual(len(self.hosts.processes("a")), 4)
        status, report, said = self.hosts.moves("rebalance", *names, "--yes")
        self.assertEqual(status, 0, said)
        self.assertEqual(len(report["moves"]), 3, said)
        self.assert_outcomes(report, said, moved=3)
        self.assertEqual([len(self.hosts.processes(host)) for host in "abcd"], [1, 1, 1, 1], said)
        self.assertLess(max(report["after"].values()) - min(report["after"].values()), 0.02)
        status, again, said = self.hosts.moves("rebalance", *names, "--yes")
        self.assertEqual((status, again["moves"]), (0, []), said)


if __name__ == "__main__":
    unittest.main()
