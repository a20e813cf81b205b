#!/usr/bin/env python3
"""scripts/drain --slurm, scripts/rebalance --slurm and scripts/slurm migrate, between Slurm nodes.

Usage: slurm_drain_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import json
import os
import pathlib
import re
import signal
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
from slurm_nodes import OTHER_USER, PATIENCE_S, STATUS, Scenario, tickers_of  # noqa: E402
from ticker_hosts import wait_for  # noqa: E402


def as_of_2205(job):
    """The output of squeue --json for a job, in the format of Slurm 22.05."""

    def plain(name, value):
        if isinstance(value, dict) and "infinite" in value:
            return value["number"] if value["set"] and not value["infinite"] else None
        if isinstance(value, list) and name in ("job_state", "shared"):
            return "+".join(value) or None
        return value

    return {name: plain(name, value) for name, value in job.items()}


class Moves(Scenario):
    def test_drained_node_is_empty_and_successor_gets_exit_status(self):
        job, ticker = self.nodes.start_ticker_job("a", "--comment=mine", "--time=10", "--exclusive")
        follower = self.nodes.submit(f"--dependency=afterok:{job}")
        self.nodes.drain_node("a")
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        successor = self.assert_moved(job, ticker, report, said)
        wait_for("node a is empty", lambda: not self.nodes.jobs_on("a"), PATIENCE_S)
        self.assertEqual(self.nodes.comment(successor), f"gcr-migrate: goes on with job {job}; mine")
        self.assertEqual(self.nodes.detail(job, "ExitCode"), "0:0")
        self.assertLessEqual(self.nodes.detail(successor, "TimeLimit"), "00:10:00")
        self.assertEqual(self.nodes.detail(successor, "OverSubscribe"), "NO")
        self.assertIn(f"afterok:{successor}", self.nodes.detail(follower, "Dependency"))
        os.kill(tickers_of(ticker)[0], signal.SIGTERM)
        self.nodes.wait_for_state(successor, "FAILED")
        self.assertEqual(self.nodes.detail(successor, "ExitCode"), f"{STATUS}:0")
        wait_for("what follows never runs", lambda: "failed" in self.nodes.detail(follower, "Dependency"), PATIENCE_S)

    def test_moved_job_moves_again_and_can_be_cancelled(self):
        job, ticker = self.nodes.start_ticker_job("a")
        for there in "ba":
            status, report, said = self.nodes.moves("slurm", "migrate", job, "--to", self.nodes.node(there))
            self.assertEqual(status, 0, said)
            job = self.assert_moved(job, ticker, report, said)
            self.assertEqual(self.host_of(job), there)
        self.nodes.slurm("scancel", job)
        wait_for("its processes end", lambda: not ticker.copies(), PATIENCE_S)
        self.nodes.wait_for_state(job, "CANCELLED")

    def test_unmovable_job_stays_with_its_reason(self):
        shell = self.nodes.start_fixed_job("a")
        status, report, said = self.drain()
        self.assertEqual(status, 1, said)
        self.assertEqual([each["outcome"] for each in report["processes"]], ["left"], said)
        self.assertIn("--migratable", report["processes"][0]["reason"])
        status, report, said = self.nodes.moves("slurm", "migrate", 4711)
        self.assertEqual((status, report), (1, None), said)
        self.assertEqual(self.nodes.owners("a"), [shell])
        self.assertEqual(self.nodes.jobs_on("b"), set())


class WithoutJson(Scenario):
    """A release of Slurm whose squeue prints no JSON."""

    def refuse_json(self):
        """The Slurm commands with such a squeue first in PATH; the variable for env."""
        folder = self.nodes.folder / "old"
        folder.mkdir()
        squeue = folder / "squeue"
        squeue.write_text("#!/bin/sh\necho \"squeue: unrecognized option '--json'\" >&2\nexit 1\n", encoding="ascii")
        squeue.chmod(0o755)
        return f"PATH={folder}:{os.environ['PATH']}"

    def test_job_moves_without_json_output(self):
        job, ticker = self.nodes.start_ticker_job("a", "--comment=\u00e4 \"mine\"", "--time=10", "--exclusive")
        self.nodes.submit(f"--dependency=afterok:{job}", "--time=UNLIMITED", "--licenses=", "--mem=0")
        old = json.loads(self.nodes.slurm(f"{self.nodes.env['PREFIX']}/bin/gcr-slurm-jobs"))["jobs"]
        new = json.loads(self.nodes.slurm("squeue", "--all", "--json"))["jobs"]
        self.assertEqual(len(old), 2)
        for each, other in zip(old, new, strict=True):
            each, other = as_of_2205(each), as_of_2205(other)
            self.assertEqual({name: value for name, value in each.items() if other[name] != value}, {}, other)
        self.nodes.environment = [self.refuse_json()]
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        self.assert_moved(job, ticker, report, said)


class TimeLimit(Scenario):
    def test_time_limit_applies_to_the_successor(self):
        job, ticker = self.nodes.start_ticker_job("a", "--time=10")
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        successor = self.assert_moved(job, ticker, report, said)
        self.nodes.slurm("scontrol", "update", f"JobId={successor}", "TimeLimit=1")
        self.nodes.wait_for_state(successor, "TIMEOUT")
        wait_for("its processes end", lambda: not ticker.copies(), PATIENCE_S)


class Marks(Scenario):
    """Users write comments that only the drains may write. They have no effect, and no job gets more time than Slurm
    gave it."""

    options = ("--gpus", "2")

    def setUp(self):
        super().setUp()
        self.job, self.ticker = self.nodes.start_ticker_job("a", "--time=60")

    def assert_time(self, job, limit):
        self.assertEqual(self.nodes.detail(job, "TimeLimit"), limit)

    def test_fake_successor_gets_no_processes(self):
        forged, ticker = self.nodes.start_ticker_job(
            "b", f"--comment=gcr-migrate: goes on with job {self.job}", "--time=5")  # fmt: skip
        follower = self.nodes.submit(f"--dependency=afterok:{self.job}", user=OTHER_USER)
        status, report, said = self.nodes.moves("rebalance", "--slurm", "--yes", timeout=PATIENCE_S)
        self.assertEqual((status, report["moves"]), (0, []), said)
        self.assert_time(forged, "00:05:00")
        self.assertIn(f"afterok:{self.job}", self.nodes.detail(follower, "Dependency"))
        self.assert_owned(self.job, self.ticker, "a", said)
        self.assert_owned(forged, ticker, "b", said)

    def test_fake_placeholder_is_ignored(self):
        forged = self.nodes.submit(f"--comment=gcr-migrate: placeholder for job {self.job}", "--gres=gpu:1",
                                   f"--nodelist={self.nodes.node('b')}", "--time=5")  # fmt: skip
        self.nodes.wait_for_state(forged, "RUNNING")
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        self.assertNotEqual(self.assert_moved(self.job, self.ticker, report, said), forged, said)
        self.assert_time(forged, "00:05:00")

    def test_marks_are_not_writable_by_users(self):
        own = self.nodes.submit(user=OTHER_USER)
        words = ["scontrol", "update", f"JobId={own}", f"AdminComment=gcr-migrate: goes on with job {self.job}"]
        self.assertRaises(AssertionError, self.nodes.slurm, "runuser", "-u", OTHER_USER, "--", *words)
        self.nodes.slurm(*words)  # as root

    def test_successor_gets_no_more_time_than_its_placeholder(self):
        filler = self.fill("b", gpus=2)
        drain = self.begin_drain()
        self.wait_for_line(drain, f"job {self.job}: placeholder")
        beyond_max_time = 2 * 24 * 60
        self.nodes.slurm("scontrol", "update", f"JobId={self.job}", f"TimeLimit={beyond_max_time}")
        self.nodes.slurm("scancel", filler)
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        self.assertLessEqual(self.nodes.detail(self.assert_moved(self.job, self.ticker, report, said), "TimeLimit"),
                             "01:00:00")  # fmt: skip


class Room(Scenario):
    count = 4
    options = ("--gpus", "8", "--cpus", "2", "--cpus-a", "8")

    def test_job_waits_for_room_and_then_moves(self):
        jobs = dict(self.nodes.start_ticker_job("a") for _ in range(8))
        self.nodes.drain_node("a")
        drain = self.begin_drain()
        moved = [self.wait_for_successor(drain) for _ in range(6)]
        wait_for("two are left", lambda: len(self.nodes.jobs_on("a") & jobs.keys()) == 2, PATIENCE_S)
        for job in self.nodes.jobs_on("a"):
            self.assert_owned(job, jobs[job], "a")
        self.nodes.slurm("scancel", *moved[:2])
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        ended = {each["slurm_job"] for each in report["processes"] if each["slurm_successor"] in moved[:2]}
        self.assertEqual(len(ended), 2, said)
        for job in jobs.keys() - ended:
            self.assert_moved(job, jobs[job], report, said)
        wait_for("node a is empty", lambda: not self.nodes.jobs_on("a"), PATIENCE_S)


class Rebalance(Scenario):
    count = 3
    options = ("--gpus", "6", "--cpus", "8")
    words = ("--slurm", "--yes", "--least-gain", "0.001")

    def setUp(self):
        super().setUp()
        self.tickers = {}  # by job

    def start_jobs(self, count):
        self.tickers.update(self.nodes.start_ticker_job("a") for _ in range(count))

    def rebalance(self, *words):
        return self.nodes.moves("rebalance", *self.words, *words, timeout=PATIENCE_S * 2)

    def begin_rebalance(self, *words):
        return self.begin("rebalance", *self.words, "--json", *words)

    def placeholder_of(self, rebalance):
        return int(re.search(r"placeholder (\d+) for", self.wait_for_line(rebalance, ": placeholder"))[1])

    def names(self, hosts):
        return [self.nodes.node(host) for host in hosts]

    def gpus_in_use(self, host):
        jobs = self.nodes.ask("host", self.nodes.address(host))["jobs"]
        return {use["uuid"] for job in jobs for use in job["gpus"]}

    def in_queue(self):
        return {int(each) for each in self.nodes.slurm("squeue", "-h", "-o", "%i").split()}

    def assert_all_stay(self, said):
        for job, ticker in self.tickers.items():
            self.assert_owned(job, ticker, "a", said)

    def test_jobs_are_rebalanced_over_three_nodes_with_one_owner_each(self):
        fixed = self.nodes.start_fixed_job("a")
        self.start_jobs(5)
        status, report, said = self.rebalance("--dry-run")
        self.assertEqual((status, len(report["moves"]), report["processes"]), (0, 4, []), said)
        self.assertEqual([each["slurm_job"] for each in report["left_out"]], [fixed], said)
        self.assertIn("--migratable", report["left_out"][0]["reason"])
        self.assertEqual(self.in_queue(), {fixed, *self.tickers})
        status, report, said = self.rebalance("--start-within", "100000")
        self.assertEqual(status, 0, said)
        moved = {process["slurm_job"]: process for process in report["processes"]}
        self.assertEqual(len(moved), 4, said)
        for job in moved:
            successor = self.assert_moved(job, self.tickers.pop(job), report, said)
            self.assertEqual(self.nodes.address(self.host_of(successor)), moved[job]["destination"], said)
        self.assert_all_stay(said)
        self.assertEqual([len(self.nodes.owners(host)) for host in "abc"], [2, 2, 2], said)
        for host in "bc":
            wait_for("each job has a GPU of its own", lambda host=host: len(self.gpus_in_use(host)) == 2, PATIENCE_S)
        status, again, said = self.rebalance()
        self.assertEqual((status, again["moves"]), (0, []), said)

    def test_job_with_a_full_destination_stays_and_queue_is_clean(self):
        self.start_jobs(2)
        filler = self.fill("b", gpus=6)
        status, report, said = self.rebalance(*self.names("ab"), "--start-within", "1")
        self.assertEqual(status, 1, said)
        self.assertEqual([process["outcome"] for process in report["processes"]], ["left"], said)
        self.assertIn("Slurm has not started placeholder", report["processes"][0]["reason"])
        wait_for("the placeholder is gone", lambda: self.in_queue() == {filler, *self.tickers}, PATIENCE_S)
        self.assert_all_stay(said)

    def test_stopped_rebalance_leaves_the_queue_clean(self):
        self.start_jobs(2)
        filler = self.fill("b", gpus=6)
        rebalance = self.begin_rebalance(*self.names("ab"), "--start-within", "100000")
        placeholder = self.placeholder_of(rebalance)
        self.assertEqual(self.nodes.detail(placeholder, "JobState"), "PENDING")
        self.assertEqual(self.hosts_that_may_take(placeholder), ["b"])
        rebalance.send_signal(signal.SIGINT)
        status, _, said = self.end_of(rebalance)
        self.assertEqual(status, 7, said)
        wait_for("the placeholder is gone", lambda: self.in_queue() == {filler, *self.tickers}, PATIENCE_S)
        self.assert_all_stay(said)

    def hosts_that_may_take(self, job):
        excluded = self.nodes.slurm("scontrol", "show", "hostnames", self.nodes.detail(job, "ExcNodeList")).split()
        return [host for host in "abc" if self.nodes.node(host) not in excluded]

    def test_next_rebalance_reports_a_killed_ones_move_to_slurm(self):
        self.start_jobs(2)
        rebalance = self.begin_rebalance(*self.names("ab"))
        placeholder = self.placeholder_of(rebalance)
        self.kill_after_the_move(rebalance)
        status, report, said = self.rebalance(*self.names("ab"))
        self.assertEqual((status, report["moves"], report["processes"]), (0, [], []), said)
        moved = self.nodes.owners("b")
        self.assertEqual(moved, [placeholder], said)
        left = int(re.search(r"goes on with job (\d+)", self.nodes.comment(placeholder))[1])
        self.nodes.wait_for_state(left, "COMPLETED")
        self.assert_owned(placeholder, self.tickers.pop(left), "b", said)
        self.assert_all_stay(said)


class Faults(Scenario):
    """After each of them one job owns the processes."""

    def setUp(self):
        super().setUp()
        self.job, self.ticker = self.nodes.start_ticker_job("a")

    def placeholder_of(self, drain):
        return int(re.search(r"placeholder (\d+) for", self.wait_for_line(drain, f"job {self.job}: placeholder"))[1])

    def assert_ends_moved(self, drain):
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        return self.assert_moved(self.job, self.ticker, report, said)

    def test_cancelled_placeholder_is_replaced_before_the_move(self):
        filler = self.fill("b")
        drain = self.begin_drain()
        first = self.placeholder_of(drain)
        self.assertEqual(self.nodes.detail(first, "JobState"), "PENDING")
        self.nodes.slurm("scancel", first)
        self.assertNotEqual(self.placeholder_of(drain), first)
        self.assert_owned(self.job, self.ticker, "a")
        self.nodes.slurm("scancel", filler)
        self.assert_ends_moved(drain)

    def test_stopped_drain_leaves_the_queue_clean(self):
        self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        drain.send_signal(signal.SIGINT)
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 7, said)
        self.assertEqual(report["processes"][0]["outcome"], "left", said)
        self.nodes.wait_for_state(placeholder, "CANCELLED")
        self.assert_owned(self.job, self.ticker, "a", said)
        self.assertEqual(self.nodes.detail(self.job, "Requeue"), "1")

    def test_next_drain_reuses_the_placeholder_of_a_killed_one(self):
        filler = self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        drain.kill()
        drain.wait()
        second = self.begin_drain()
        self.wait_for_line(second, "is on")
        self.nodes.slurm("scancel", filler)
        self.assertEqual(self.assert_ends_moved(second), placeholder)

    def test_two_concurrent_drains_move_it_once(self):
        drains = [self.begin_drain(), self.begin_drain()]
        ends = [self.end_of(drain) for drain in drains]
        said = "".join(said for _, _, said in ends)
        successor = self.successor_of(self.job)
        self.assert_owned(successor, self.ticker, "b", said)
        self.assertEqual(self.nodes.jobs_on("b"), {successor}, said)

    def test_job_ending_while_it_waits_leaves_no_placeholder(self):
        self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.nodes.slurm("scancel", self.job)
        status, report, said = self.end_of(drain)
        self.assertEqual((status, report["processes"][0]["outcome"]), (0, "ended"), said)
        self.nodes.wait_for_state(placeholder, "CANCELLED")
        self.assertEqual(self.ticker.copies(), [])

    def test_returning_slurmctld_learns_of_the_move(self):
        drain = self.begin_drain()
        self.wait_for_line(drain, "moving")
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(drain, "Slurm does not answer", "moved")
        self.ticker.wait_for_progress()
        self.nodes.script("start", "slurmctld")
        self.assert_ends_moved(drain)

    def test_next_drain_reports_a_killed_ones_move_to_slurm(self):
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.kill_after_the_move(drain)
        self.assertEqual(self.nodes.detail(self.job, "JobState"), "RUNNING")
        status, report, said = self.drain()
        self.assertEqual((status, report["processes"]), (0, []), said)
        self.nodes.wait_for_state(self.job, "COMPLETED")
        self.assertIn(f"goes on as job {placeholder}", self.nodes.comment(self.job))
        self.assert_owned(placeholder, self.ticker, "b", said)

    def test_restarted_slurmd_finds_the_moved_processes(self):
        drain = self.begin_drain()
        self.wait_for_line(drain, "moving")
        self.nodes.script("stop", "slurmd-b")
        successor = self.assert_ends_moved(drain)
        self.nodes.script("start", "slurmd-b")
        wait_for("slurmd answers", lambda: self.answers(
            "scontrol", "ping") and self.nodes.detail(successor, "JobState") == "RUNNING", PATIENCE_S)  # fmt: skip
        self.nodes.slurm("scancel", successor)
        wait_for("its processes end", lambda: not self.ticker.copies(), PATIENCE_S)
        self.nodes.wait_for_state(successor, "CANCELLED")

    def test_death_of_the_destination_agent_leaves_one_owner(self):
        self.end_and_start_agent("b")

    def test_death_of_the_source_agent_leaves_one_owner(self):
        self.end_and_start_agent("a")

    def end_and_start_agent(self, host):
        drain = self.begin_drain()
        self.wait_for_line(drain, "moving")
        self.nodes.host_script("stop", host)
        self.nodes.host_script("start", host)
        self.assert_ends_moved(drain)

    def test_placeholder_waits_through_a_slurmctld_restart(self):
        filler = self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(drain, "Slurm does not answer")
        self.nodes.script("start", "slurmctld")
        wait_for("slurmctld answers", lambda: self.answers("squeue"), PATIENCE_S)
        self.nodes.slurm("scancel", filler)
        self.assertEqual(self.assert_ends_moved(drain), placeholder)

    def test_placeholder_cancelled_in_the_move_owns_all_or_nothing(self):
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.wait_for_line(drain, "moving")
        self.nodes.slurm("scancel", placeholder)
        status, report, said = self.end_of(drain)
        process = report["processes"][0]
        if process["slurm_successor"] == placeholder:  # it was committed before that
            wait_for("its processes end", lambda: not self.ticker.copies(), PATIENCE_S)
            self.nodes.wait_for_state(self.job, "COMPLETED")
            return
        self.assertEqual(status, 0, said)
        self.assert_moved(self.job, self.ticker, report, said)


class NodesThatDie(Scenario):
    count = 3
    options = ("--fault-points", "true", "--slurmd-timeout", "30", "--peer-silence-ms", "1500")

    def setUp(self):
        super().setUp()
        self.job, self.ticker = self.nodes.start_ticker_job("a")
        self.filler = self.fill("c")

    def test_node_death_before_commit_leaves_the_job_movable(self):
        faults = self.nodes.folder / "b" / "faults"
        faults.write_text("destination.verified stop\n", encoding="ascii")
        drain = self.begin_drain()
        wait_for("it is restored on node b", (faults.parent / "faults.hit").exists, PATIENCE_S)
        self.nodes.host_script("kill", "b")
        self.nodes.slurm("scancel", self.filler)
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        successor = self.assert_moved(self.job, self.ticker, report, said)
        self.assertEqual(self.host_of(successor), "c", said)

    def test_node_death_after_commit_loses_the_job(self):
        drain = self.begin_drain()
        successor = self.wait_for_successor(drain)
        self.nodes.host_script("kill", "b")
        self.end_of(drain)
        self.nodes.wait_for_state(self.job, "COMPLETED")
        self.nodes.wait_for_state(successor, "NODE_FAIL")
        self.assertEqual(self.ticker.copies(), [])


if __name__ == "__main__":
    unittest.main()
