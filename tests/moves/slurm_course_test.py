#!/usr/bin/env python3
"""Drains and rebalances of Slurm nodes, with hosts and a Slurm that exist in memory."""

import pathlib
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from fake_cluster import FakeCluster  # noqa: E402
from fake_slurm import FakeSlurm  # noqa: E402
from gcr_moves import cli, plan  # noqa: E402
from gcr_moves.cluster import Cluster, parse  # noqa: E402
from gcr_moves.runner import Limits, Runner  # noqa: E402
from gcr_moves.slurm_drain import SlurmDrain  # noqa: E402
from gcr_moves.slurm_rebalance import SlurmRebalance, restrict  # noqa: E402
from gcr_moves.tasks import State  # noqa: E402

PATIENCE_S = 60


def wait_for(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.005)


class Fixture(unittest.TestCase):
    def setUp(self):
        self.fake = FakeCluster()
        for name in ("n1", "n2", "n3"):
            self.fake.add_host(name, gpus=4)
        self.slurm = FakeSlurm(self.fake)
        self.said = []

    def runner(self, **limits):
        limits = Limits(pause_seconds=0.02, interval_seconds=0.02, patience_seconds=PATIENCE_S, tries=3, **limits)
        cluster = Cluster(self.fake, self.fake.hosts, ask_again_seconds=0.02)
        cluster.look()
        return Runner(cluster, limits, self.said.append)

    def plan(self):
        """Its moves, and the jobs that it skips."""
        restricted, left_out = restrict({name: parse(host) for name, host in self.fake.hosts.items()}, self.slurm)
        return plan.balance(restricted, 0.001)[0], left_out

    def rebalance(self, start_seconds=PATIENCE_S, **limits):
        runner = self.runner(**limits)
        return SlurmRebalance(runner.cluster, runner, self.said.append, self.plan()[0], self.slurm, start_seconds)

    def drain(self, source):
        runner = self.runner()
        return SlurmDrain(runner.cluster, runner, self.said.append, source, self.slurm)

    def owners(self, host):
        return sorted(job["slurm_job"] for job in self.fake.hosts[host]["jobs"])

    def assert_each_runs_once(self, count):
        """This many jobs have processes, each has one set of them, and nothing else is in the queue."""
        owners = [owner for host in self.fake.hosts for owner in self.owners(host)]
        self.assertEqual(len(owners), count, self.said)
        self.assertEqual(set(owners), self.slurm.unfinished(), self.said)

    def states(self, course):
        return sorted(task.state.value for task in course.tasks)


class Planning(Fixture):
    def test_unmovable_slurm_jobs_are_named_with_reasons(self):
        movable = self.slurm.add_movable("n1", 10)
        fixed = self.slurm.add_job("n1")
        self.fake.add_job("n1", 10, slurm_job=fixed, slurm_step="batch", slurm_parent="slurmstepd")
        self.fake.add_job("n1", 10)
        moves, left_out = self.plan()
        self.assertEqual([move.job.slurm_job for move in moves], [movable])
        self.assertEqual([(each.source, each.job.slurm_job, each.reason) for each in left_out], [
            ("n1", fixed, f"job {fixed} was not submitted with --migratable"),
            ("n1", 0, "it is in no Slurm job"),
        ])  # fmt: skip

    def test_suspended_job_is_skipped(self):
        self.fake.suspend("n1", self.slurm.pid(self.slurm.add_movable("n1", 10)))
        moves, left_out = self.plan()
        self.assertEqual((moves, len(left_out)), ([], 1))
        self.assertIn("it is suspended", left_out[0].reason)
        drain = self.drain("n1")
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]), self.said)
        self.assertIn("it is suspended", drain.tasks[0].reason)

    def test_unavailable_nodes_get_nothing(self):
        for _ in range(4):
            self.slurm.add_movable("n1", 10)
        self.slurm.closed = {"n2"}
        self.assertEqual({move.destination for move in self.plan()[0]}, {"n3"})
        self.fake.hosts["n3"]["slurm_node"] = ""
        self.assertEqual(self.plan()[0], [])


class Draining(Fixture):
    def test_processes_of_another_node_are_ignored(self):
        """As if two nodes are one machine."""
        moved = self.slurm.add_movable("n1", 10)
        elsewhere = self.slurm.add_movable("n2", 10)
        self.fake.add_job("n1", 10, slurm_job=elsewhere, slurm_step="batch", slurm_parent="gcr-slurm-wait")
        drain = self.drain("n1")
        drain.run()
        self.assertEqual([task.job.slurm_job for task in drain.tasks], [moved], self.said)
        self.assertEqual(self.states(drain), ["moved"], self.said)


    def test_placeholder_without_its_gpus_is_abandoned(self):
        self.slurm.add_movable("n1", 10)
        drain = self.drain("n1")
        self.slurm.before_answer = self.slurm.take_gpus_of_placeholders
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]), self.said)
        self.assertIn("has 0 GPUs, job 1 has 1", drain.tasks[0].reason)
        self.assert_each_runs_once(1)


class Rebalancing(Fixture):
    def test_jobs_move_into_placeholders_of_the_plan(self):
        for node in ("n1", "n1", "n1", "n1", "n2", "n2"):
            self.slurm.add_movable(node, 10)
        course = self.rebalance()
        goals = {task.job.slurm_job: course.goal(task) for task in course.tasks}
        self.assertEqual(len(goals), 2)
        course.run()
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["moved"] * 2), self.said)
        self.assertEqual({job: places for job, _, places in self.slurm.submitted},
                         {job: [goal] for job, goal in goals.items()})  # fmt: skip
        self.assert_each_runs_once(6)
        self.assertEqual([len(self.fake.pids(host)) for host in self.fake.hosts], [2, 2, 2])
        uses = [use["uuid"] for host in self.fake.hosts.values() for job in host["jobs"] for use in job["gpus"]]
        self.assertEqual(len(uses), len(set(uses)))

    def test_late_placeholder_is_cancelled_and_its_job_stays(self):
        self.fake.add_host("n3", gpus=0)
        self.fake.hosts["n3"]["slurm_node"] = "n3"
        for _ in range(2):
            self.slurm.add_movable("n1", 10)
        full = self.slurm.add_job("n2", 4)
        course = self.rebalance(start_seconds=0.1)
        course.run()
        self.assertEqual((course.status(), self.states(course)), (cli.FAILED, ["left"]), self.said)
        placeholder = self.slurm.submitted[0][1]
        self.assertEqual(course.tasks[0].reason, f"Slurm has not started placeholder {placeholder} on node n2 "
                                                 "within 0.1 s (Resources)")  # fmt: skip
        self.slurm.cancel(full)
        self.assertEqual((self.fake.started, len(self.slurm.submitted)), ([], 1))
        self.assert_each_runs_once(2)

    def test_old_placeholder_on_another_node_is_cancelled(self):
        jobs = [self.slurm.add_movable("n1", 10) for _ in range(2)]
        course = self.rebalance()
        (task,) = course.tasks
        goal = course.goal(task)
        (other,) = {"n2", "n3"} - {goal}
        self.slurm.submit_placeholder(self.slurm.jobs()[task.job.slurm_job], ["n1", goal])
        course.run()
        self.assertEqual(self.states(course), ["left"], self.said)
        self.assertIn(f"runs on node {other}, not on {goal}", task.reason)
        self.assertEqual(self.owners("n1"), jobs)
        self.assert_each_runs_once(2)

    def test_stopped_rebalance_leaves_the_queue_clean(self):
        for _ in range(2):
            self.slurm.add_movable("n1", 10)
        full = [self.slurm.add_job(node, 4) for node in ("n2", "n3")]
        course = self.rebalance()
        thread = threading.Thread(target=course.run)
        thread.start()
        wait_for(lambda: self.slurm.submitted)
        course.runner._told_to_stop()  # pylint: disable=protected-access  # as a signal does
        thread.join(PATIENCE_S)
        self.assertEqual((course.status(), self.states(course)), (cli.CANCELLED, ["waiting"]), self.said)
        for job in full:
            self.slurm.cancel(job)
        self.assert_each_runs_once(2)

    def test_job_ending_early_leaves_no_placeholder(self):
        for _ in range(3):
            self.slurm.add_movable("n1", 10)
        self.fake.hold = True
        course = self.rebalance(per_host=1)
        thread = threading.Thread(target=course.run)
        thread.start()
        wait_for(lambda: self.fake.under_way and len(self.slurm.submitted) == 2)
        (waiting,) = [task.job.slurm_job for task in course.tasks if task.state is State.WAITING]
        (placeholder,) = [each for job, each, _ in self.slurm.submitted if job == waiting]
        self.assertEqual(self.slurm.state(placeholder), "RUNNING")
        self.slurm.cancel(waiting)
        wait_for(lambda: self.slurm.state(placeholder) == "CANCELLED")
        self.fake.under_way[0].released.set()
        thread.join(PATIENCE_S)
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["ended", "moved"]), self.said)
        self.assert_each_runs_once(2)

    def test_failure_replaces_the_placeholder(self):
        for _ in range(2):
            self.slurm.add_movable("n1", 10)
        course = self.rebalance()
        self.fake.outcomes[course.tasks[0].job.pid] = [(cli.FAILED, "the link broke")]
        course.run()
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["moved"]), self.said)
        first, second = [placeholder for _, placeholder, _ in self.slurm.submitted]
        self.assertEqual((self.slurm.state(first), self.slurm.state(second)), ("CANCELLED", "RUNNING"))
        self.assert_each_runs_once(2)

    def test_only_finished_earlier_moves_are_reported_to_slurm(self):
        arrived, coming = self.slurm.add_movable("n1", 10), self.slurm.add_movable("n2", 10)
        jobs = self.slurm.jobs()
        place = self.slurm.submit_placeholder(jobs[arrived], ["n1", "n3"])
        self.fake.move("n1", "n2", self.slurm.pid(arrived), ["--slurm-job", str(place)])
        place = self.slurm.submit_placeholder(jobs[coming], ["n1", "n2"])
        migration = "11111111-1111-4111-8111-111111111111"
        self.fake.add_job("n3", 10, slurm_job=place, migration_id=migration)  # a copy that does not run yet
        runner = self.runner()
        course = SlurmRebalance(runner.cluster, runner, self.said.append, [], self.slurm, PATIENCE_S)
        course.run()
        self.assertEqual((course.status(), course.tasks), (cli.DONE, []))
        self.assertEqual((self.slurm.state(arrived), self.slurm.state(coming)), ("COMPLETED", "RUNNING"))


class TwoAtATime(Fixture):
    """Between two polls another drain moves the job into the placeholder that both wait for."""

    def setUp(self):
        super().setUp()
        self.fillers = [self.slurm.add_job(node, 4) for node in ("n2", "n3")]
        self.slurm.before_answer = self.move

    def move(self):
        if not self.slurm.submitted:
            return
        self.slurm.before_answer = lambda: None
        for filler in self.fillers:
            self.slurm.cancel(filler)
        ((job, placeholder, _),) = self.slurm.submitted
        node, options = self.slurm.node(placeholder), ["--slurm-job", str(placeholder)]
        self.fake.move("n1", node, self.slurm.pid(job), options)
        jobs = self.slurm.jobs()
        self.slurm.hand_over(jobs[job], jobs[placeholder], jobs)
        self.slurm.release(job)

    def run_concurrently(self, course, count):
        course.run()
        self.assert_each_runs_once(count)
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["ended"]), self.said)
        self.assertIn("another drain has moved it", course.tasks[0].reason)

    def test_drain_leaves_it_to_its_new_job(self):
        self.slurm.add_movable("n1", 10)
        self.run_concurrently(self.drain("n1"), 1)

    def test_rebalance_leaves_it_to_its_new_job(self):
        for _ in range(2):
            self.slurm.add_movable("n1", 10)
        self.run_concurrently(self.rebalance(), 2)


if __name__ == "__main__":
    unittest.main()
