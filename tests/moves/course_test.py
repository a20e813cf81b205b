#!/usr/bin/env python3
"""Drains and rebalances of hosts that exist in memory."""

import pathlib
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from courses import Fixture  # noqa: E402
from fake_cluster import blocker  # noqa: E402
from gcr_moves import cli, plan, restores, text  # noqa: E402
from gcr_moves.cluster import parse  # noqa: E402
from gcr_moves.drain import Drain  # noqa: E402
from gcr_moves.rebalance import Rebalance  # noqa: E402
from gcr_moves.tasks import State  # noqa: E402


class Draining(Fixture):
    def test_every_job_moves_once_and_the_host_is_empty(self):
        pids = [self.fake.add_job("src", 5) for _ in range(8)]
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["moved"] * 8))
        self.assertEqual(self.fake.pids("src"), set())
        self.assertEqual(sorted(pid for _, _, pid in self.fake.started), pids)
        self.assertEqual(len(self.fake.pids("one")), 4)

    def test_limits_bound_concurrent_moves(self):
        for _ in range(8):
            self.fake.add_job("src", 1)
        self.drain(per_host=8, total=3)
        self.assertLessEqual(self.fake.most_under_way, 3)
        self.fake.most_under_way = 0
        for _ in range(8):
            self.fake.add_job("src", 1)
        self.drain(per_host=2, total=8)
        self.assertLessEqual(self.fake.most_under_way, 2)

    def test_limit_of_an_agent_is_kept(self):
        self.fake.hosts["src"]["max_migrations"] = 1
        for _ in range(4):
            self.fake.add_job("src", 1)
        self.drain(per_host=8)
        self.assertEqual(self.fake.most_under_way, 1)

    def test_failed_move_is_tried_elsewhere(self):
        pid = self.fake.add_job("src", 9)
        self.fake.add_job("src", 5)
        self.fake.outcomes[pid] = [(cli.FAILED, "the link broke")]
        drain = self.drain()
        self.assertEqual(self.states(drain), ["moved", "moved"])
        tried = [destination for _, destination, moved in self.fake.started if moved == pid]
        self.assertEqual(len(set(tried)), 2)

    def test_job_failing_everywhere_is_left_after_its_tries(self):
        pid = self.fake.add_job("src", 5)
        self.fake.outcomes[pid] = [(cli.FAILED, "no luck")] * 9
        drain = self.drain(tries=4)
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]))
        self.assertEqual(len(self.fake.started), 4)
        self.assertEqual(drain.tasks[0].reason, "no luck")

    def test_destination_refused_by_preflight_is_not_tried(self):
        pid = self.fake.add_job("src", 5)
        self.fake.blockers[(pid, "one")] = [blocker("destination")]
        drain = self.drain()
        self.assertEqual(self.states(drain), ["moved"])
        self.assertEqual([destination for _, destination, _ in self.fake.started], ["two"])

    def test_source_blocker_costs_one_try(self):
        pid = self.fake.add_job("src", 5)
        self.fake.blockers[pid] = [blocker("source", "terminal")]
        drain = self.drain(tries=2)
        self.assertEqual((self.states(drain), self.fake.started), (["left"], []))
        self.assertEqual(len(drain.tasks[0].tries), 2)
        self.assertIn("terminal", drain.tasks[0].reason)

    def test_unauthorised_move_is_not_retried(self):
        pid = self.fake.add_job("src", 5)
        self.fake.outcomes[pid] = [(cli.NOT_AUTHORISED, "not yours")] * 5
        drain = self.drain()
        self.assertEqual((self.states(drain), len(self.fake.started)), (["left"], 1))

    def test_silent_destination_is_skipped_until_it_answers(self):
        self.fake.silent.update(("one", "two"))
        self.fake.add_job("src", 5)
        drain = self.make(Drain, "src", tries=30)
        threading.Timer(0.2, self.fake.silent.discard, ("two",)).start()
        drain.run()
        self.assertEqual(self.states(drain), ["moved"])
        self.assertEqual(drain.tasks[0].destination, "two")
        self.assertIn("two answers again", self.said)

    def test_job_without_room_is_left_with_reasons(self):
        self.fake.add_job("src", 79.9)
        drain = self.drain(tries=2)
        self.assertEqual((self.states(drain), self.fake.started), (["left"], []))
        self.assertIn("no destination has room (one: 80.0 GiB of VRAM free", drain.tasks[0].reason)

    def test_multi_gpu_job_moves_as_a_whole(self):
        self.fake.add_host("src", gpus=4)
        self.fake.add_host("two", gpus=4)
        pid = self.fake.add_job("src", 10, gpus=(0, 1, 2, 3))
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["moved"]))
        self.assertEqual(self.fake.started, [("src", "two", pid)])
        told = text.task_json(drain.tasks[0])
        self.assertEqual((told["gpus"], told["processes"], told["gpu_processes"]), (4, 5, 4))
        self.assertIn("alice, 40.0 GiB on 4 GPUs, 5 processes", text.name(drain.tasks[0]))

    def test_job_with_more_gpus_than_any_host_is_left(self):
        self.fake.add_host("src", gpus=2)
        self.fake.add_job("src", 1, gpus=(0, 1))
        drain = self.drain(tries=1)
        self.assertEqual((self.states(drain), self.fake.started), (["left"], []))
        self.assertIn("one: no free H200", drain.tasks[0].reason)

    def test_new_jobs_move_and_ended_ones_are_ignored(self):
        ends = self.fake.add_job("src", 5)
        self.fake.blockers[ends] = [blocker("source")]
        drain = self.make(Drain, "src", tries=50)
        threading.Timer(0.1, self.fake.add_job, ("src", 3)).start()
        threading.Timer(0.2, self.fake.remove, ("src", ends)).start()
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["ended", "moved"]))

    def test_job_on_a_host_that_dies_is_lost(self):
        self.fake.add_job("src", 5)
        drain = self.make(Drain, "src")
        original = self.fake.move

        def move_and_die(source, destination, pid, options):
            moved = original(source, destination, pid, options)
            self.fake.silent.add(destination)
            return moved

        self.fake.move = move_and_die
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["lost"]))


class Checkpointing(Fixture):
    """A drain that was told to take checkpoints of jobs without a destination."""

    def drain(self, **limits):
        drain = self.make(Drain, "src", "/ckpt", **limits)
        drain.run()
        return drain

    def test_job_without_room_is_checkpointed(self):
        big, small = self.fake.add_job("src", 79.9), self.fake.add_job("src", 5)
        self.fake.hosts["src"]["gpus"][0]["free_bytes"] = 0
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["checkpointed", "moved"]))
        self.assertEqual(self.fake.pids("src"), set())
        self.assertEqual([pid for _, _, pid in self.fake.started], [small])
        told = text.task_json(next(task for task in drain.tasks if task.job.pid == big))
        self.assertEqual((told["outcome"], told["destination"]), ("checkpointed", ""))
        self.assertRegex(told["checkpoint"], f"^/ckpt/drain.src.{big}.[0-9a-f-]{{36}}$")
        self.assertEqual(len(told["tries"]), 3)  # all of them come first

    def test_number_of_tries_is_the_same_with_checkpoints(self):
        pid = self.fake.add_job("src", 5)
        self.fake.outcomes[pid] = [(cli.FAILED, "no luck")] * 4
        drain = self.drain(tries=4)
        self.assertEqual(self.states(drain), ["checkpointed"])
        self.assertEqual(len(self.fake.started), 4)

    def test_checkpoint_directories_are_never_shared(self):
        for _ in range(3):
            self.fake.add_job("src", 79.9)
        self.drain(tries=1)
        self.fake.add_job("src", 79.9)
        self.drain(tries=1)
        directories = [directory for _, _, directory in self.fake.checkpointed]
        self.assertEqual((len(directories), len(set(directories))), (4, 4))

    def test_job_moves_after_a_failed_checkpoint_if_there_is_room(self):
        pid = self.fake.add_job("src", 5)
        self.fake.blockers[(pid, "one")] = self.fake.blockers[(pid, "two")] = [blocker("destination")]
        self.fake.outcomes[pid] = [(cli.FAILED, "the disk is full")]
        drain = self.make(Drain, "src", "/ckpt", tries=2)
        begin = self.fake.checkpoint

        def begin_and_admit(*words):
            del self.fake.blockers[(pid, "two")]
            return begin(*words)

        self.fake.checkpoint = begin_and_admit
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["moved"]))
        self.assertEqual(drain.tasks[0].destination, "two")
        failed = [each for each in drain.tasks[0].tries if each.checkpoint]
        self.assertEqual([each.reason for each in failed], ["the disk is full"])

    def test_failing_checkpoints_are_retried_in_one_directory(self):
        pid = self.fake.add_job("src", 79.9)
        self.fake.outcomes[pid] = [(cli.FAILED, "the disk is full")] * 9
        drain = self.drain(tries=2)
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]))
        self.assertEqual(self.fake.pids("src"), {pid})
        self.assertEqual((len(self.fake.checkpointed), len(set(self.fake.checkpointed))), (2, 1))

    def test_job_refused_by_preflight_is_not_checkpointed(self):
        self.fake.add_job("src", 79.9)
        self.fake.checkpoint_blockers = [blocker("source", "checkpoint-room")]
        drain = self.drain(tries=1)
        self.assertEqual((self.states(drain), self.fake.checkpointed), (["left"], []))
        self.assertIn("checkpoint-room", drain.tasks[0].reason)

    def test_unauthorised_job_is_not_checkpointed(self):
        pid = self.fake.add_job("src", 5)
        self.fake.outcomes[pid] = [(cli.NOT_AUTHORISED, "not yours")]
        drain = self.drain()
        self.assertEqual((self.states(drain), self.fake.checkpointed), (["left"], []))

    def test_unknown_checkpoint_outcome_comes_from_the_journal(self):
        for state, wanted in (("confirmed", ["checkpointed"]), ("undone", ["checkpointed"])):
            pid = self.fake.add_job("src", 79.9)
            self.fake.outcomes[pid] = [(cli.UNKNOWN, "contact was lost")]
            self.fake.verdicts = Always({"role": "source", "state": state, "finished": True,
                                         "message": "it was undone", "operator_needed": False})  # fmt: skip
            self.fake.checkpointed.clear()
            drain = self.make(Drain, "src", "/ckpt", tries=1 if state == "confirmed" else 2)
            drain.run()
            self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, wanted), state)
            self.assertEqual(len(self.fake.checkpointed), 1 if state == "confirmed" else 2)
            for left in self.fake.pids("src"):
                self.fake.remove("src", left)

    def test_checkpoint_of_an_earlier_drain_is_waited_for(self):
        pid = self.fake.add_job("src", 5)
        job = self.fake.hosts["src"]["jobs"][0]
        job["migration_id"] = "11111111-1111-4111-8111-111111111111"
        self.fake.hosts["src"]["migrations"] = [
            {"migration_id": job["migration_id"], "peer": "/ckpt/drain.src.1.x", "phase": "precopy", "state": "working",
             "members": [pid]}
        ]
        self.fake.verdicts = Always({"role": "source", "state": "confirmed", "finished": True, "pid": 0,
                                     "operator_needed": False})  # fmt: skip
        threading.Timer(0.1, self.fake.remove, ("src", pid)).start()
        drain = self.drain()
        self.assertEqual((self.states(drain), self.fake.checkpointed), (["checkpointed"], []))
        self.assertEqual(drain.tasks[0].checkpoint, "/ckpt/drain.src.1.x")

    def test_ending_processes_of_a_moved_job_are_no_new_job(self):
        self.fake.add_job("src", 5)
        drain = self.make(Drain, "src")
        drain.update()
        drain.tasks[0].migration_id = "11111111-1111-4111-8111-111111111111"
        for migration_id in (drain.tasks[0].migration_id, ""):
            pid = self.fake.add_job("src", 0, migration_id=migration_id)
            self.fake.hosts["src"]["migrations"].append(
                {"migration_id": migration_id, "peer": "one", "phase": "commit", "state": "working", "members": [pid]})
            drain.cluster.look(["src"], patient=True)
            drain.update()
            self.assertEqual(len(drain.tasks), 1 if migration_id else 2, self.said)

    def test_stop_begins_no_checkpoint_and_second_stop_cancels(self):
        self.fake.hold = True
        self.fake.add_job("src", 79.9)
        drain = self.make(Drain, "src", "/ckpt", tries=1)
        thread = threading.Thread(target=drain.run)
        thread.start()
        end = time.monotonic() + 60
        while not self.fake.under_way and time.monotonic() < end:
            time.sleep(0.005)
        for _ in range(2):
            drain.runner._told_to_stop()  # pylint: disable=protected-access  # as a signal does
        thread.join(30)
        self.assertEqual((drain.status(), self.states(drain)), (cli.CANCELLED, ["waiting"]))
        self.assertEqual((len(self.fake.checkpointed), len(self.fake.pids("src"))), (1, 1))


class Restoring(Fixture):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def store(self, *sizes):
        """Drains jobs of these sizes that fit nowhere; then there is room."""
        for size in sizes:
            self.fake.add_job("src", size)
        for name in ("one", "two"):
            self.fake.hosts[name]["gpus"][0]["allowed"] = False
        drain = self.make(Drain, "src", str(self.folder), tries=1)
        drain.run()
        self.assertEqual(self.states(drain), ["checkpointed"] * len(sizes))
        for name in ("one", "two"):
            self.fake.hosts[name]["gpus"][0]["allowed"] = True
        for directory in self.fake.stored:
            pathlib.Path(directory).mkdir()
        (self.folder / "other").mkdir()
        return sorted(self.fake.stored)

    def restores(self, **limits):
        course = self.make(restores.Restores, restores.find(self.fake, self.folder), **limits)
        course.run()
        return course

    def test_each_checkpoint_is_restored_once(self):
        directories = self.store(50, 40, 30)
        self.fake.silent.add("src")
        course = self.restores()
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["restored"] * 3))
        self.assertEqual(sorted(directory for directory, _ in self.fake.restored), directories)
        self.assertEqual((len(self.fake.pids("one")), len(self.fake.pids("two"))), (1, 2))
        self.assertEqual(self.fake.stored, {})

    def test_only_gpus_of_the_same_model_count(self):
        self.store(10)
        for name in ("src", "one"):
            self.fake.hosts[name]["gpus"][0]["name"] = "B200"
        course = self.restores()
        self.assertEqual([task.destination for task in course.tasks], ["two"])

    def test_failed_restore_is_tried_on_another_host(self):
        (directory,) = self.store(10)
        self.fake.outcomes[directory] = [(cli.FAILED, "a file differs")]
        course = self.restores()
        self.assertEqual(self.states(course), ["restored"])
        self.assertEqual(len({destination for _, destination in self.fake.restored}), 2)

    def test_checkpoint_without_room_stays_and_is_named(self):
        directories = self.store(10)
        for host in self.fake.hosts.values():
            host["gpus"][0]["allowed"] = False
        course = self.restores(tries=2)
        self.assertEqual((course.status(), self.states(course)), (cli.FAILED, ["left"]))
        self.assertEqual(sorted(self.fake.stored), directories)
        self.assertIn(directories[0], text.name(course.tasks[0]))

    def test_checkpoint_held_by_another_restore_is_left(self):
        (directory,) = self.store(10)
        self.fake.stored[directory][0]["restore_id"] = "11111111-1111-4111-8111-111111111111"
        self.fake.verdicts = Always({"role": "source", "state": "confirmed", "finished": True, "pid": 5,
                                     "operator_needed": False})  # fmt: skip
        course = self.restores()
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["restored"]))
        self.assertEqual(self.fake.restored, [])

    def test_restore_on_an_unreachable_host_is_unsettled(self):
        (directory,) = self.store(10)
        self.fake.stored[directory][0]["restore_id"] = "11111111-1111-4111-8111-111111111111"
        course = self.restores(patience_seconds=0.1)
        self.assertEqual((course.status(), self.states(course)), (cli.UNKNOWN, ["unsettled"]))
        self.assertEqual(self.fake.restored, [])

    def test_checkpoint_restored_by_another_is_no_failure(self):
        (directory,) = self.store(10)
        self.fake.outcomes[directory] = [(cli.REFUSED, "there is no checkpoint any more")]
        begin = self.fake.restore

        def too_late(destination, name, checkpoint):
            restore = begin(destination, name, checkpoint)
            del self.fake.stored[name]
            pathlib.Path(name).rmdir()
            return restore

        self.fake.restore = too_late
        course = self.restores()
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["ended"]))

    def test_undone_restore_that_holds_it_needs_an_operator(self):
        (directory,) = self.store(10)
        self.fake.stored[directory][0]["restore_id"] = "11111111-1111-4111-8111-111111111111"
        self.fake.verdicts = Always({"role": "source", "state": "undone", "finished": True,
                                     "message": "", "operator_needed": False})  # fmt: skip
        course = self.restores()
        self.assertEqual((course.status(), self.states(course)), (cli.FAILED, ["left"]))
        self.assertIn("still has it", course.tasks[0].reason)

    def test_unusable_checkpoint_is_named_and_others_restored(self):
        first, _ = self.store(10, 20)
        self.fake.stored[first][0]["problem"] = "the certificate has expired"
        course = self.restores()
        self.assertEqual((course.status(), self.states(course)), (cli.FAILED, ["left", "restored"]))

    def test_dry_run_restores_nothing(self):
        self.store(50, 40)
        course = self.make(restores.Restores, restores.find(self.fake, self.folder))
        course.plan()
        course.end_dry_run()
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["restored"] * 2))
        self.assertEqual((self.fake.restored, len(self.fake.stored)), ([], 2))


class LosingSight(Fixture):
    """A migration whose outcome gcr-migrate does not know."""

    def setUp(self):
        super().setUp()
        self.pid = self.fake.add_job("src", 5)
        self.fake.outcomes[self.pid] = [(cli.UNKNOWN, "contact was lost")]

    def verdict(self, state, finished, agent="src", role="source", pid=0):
        for migration in list(self.fake.unsettled):
            self.fake.verdicts[migration] = {
                agent: [{"role": role, "state": state, "finished": finished, "message": "", "pid": pid,
                         "phase": "", "moves_suspended": False, "operator_needed": False, "migration_id": migration}]
            }  # fmt: skip
        return bool(self.fake.unsettled)

    def begin(self, **limits):
        drain = self.make(Drain, "src", **limits)
        thread = threading.Thread(target=drain.run)
        thread.start()
        self.addCleanup(thread.join)
        end = time.monotonic() + 60
        while not self.fake.unsettled and time.monotonic() < end:
            time.sleep(0.005)
        return drain, thread

    def test_unknown_outcome_is_not_retried_before_it_settles(self):
        self.fake.verdicts = Always({"role": "source", "state": "awaiting", "finished": False,
                                     "operator_needed": False})  # fmt: skip
        drain, thread = self.begin(patience_seconds=0.3)
        thread.join(5)
        self.assertEqual((drain.status(), self.states(drain)), (cli.UNKNOWN, ["unsettled"]))
        self.assertEqual(len(self.fake.started), 1)

    def test_committed_but_unconfirmed_is_not_settled(self):
        self.fake.outcomes[self.pid] = [(cli.UNCONFIRMED, "the destination has not confirmed it")]
        self.fake.verdicts = Always({"role": "source", "state": "committed", "finished": False,
                                     "operator_needed": False})  # fmt: skip
        drain, thread = self.begin(patience_seconds=0.3)
        thread.join(5)
        self.assertEqual((drain.status(), self.states(drain)), (cli.UNKNOWN, ["unsettled"]))
        self.assertEqual(len(self.fake.started), 1)

    def test_migration_undone_at_the_source_is_retried(self):
        self.fake.verdicts = Always({"role": "source", "state": "undone", "finished": True,
                                     "message": "the destination was lost", "operator_needed": False})  # fmt: skip
        drain, thread = self.begin()
        thread.join(5)
        self.assertEqual((self.states(drain), len(self.fake.started)), (["moved"], 2))

    def test_migration_confirmed_at_the_source_has_moved(self):
        self.fake.verdicts = Always({"role": "source", "state": "confirmed", "finished": True, "pid": 0,
                                     "operator_needed": False})  # fmt: skip
        self.fake.add_job("src", 1)
        drain, thread = self.begin()
        thread.join(5)
        self.assertEqual(self.states(drain), ["moved", "moved"])
        self.assertEqual(len(self.fake.started), 2)

    def test_destination_settles_it_while_the_source_is_silent(self):
        self.fake.verdicts = Always({"role": "destination", "state": "running", "finished": True,
                                     "pid": 77, "operator_needed": False})  # fmt: skip
        original = self.fake.outcome_of

        def lose_the_source(source, destination, pid):
            self.fake.silent.add("src")
            return original(source, destination, pid)

        self.fake.outcome_of = lose_the_source
        drain, thread = self.begin(patience_seconds=0.3)
        thread.join(5)
        self.assertEqual((self.states(drain), drain.tasks[0].pid), (["moved"], 77))
        self.assertEqual(drain.status(), cli.UNREACHABLE)

    def test_migration_unknown_to_the_source_never_began(self):
        drain, thread = self.begin()
        thread.join(5)
        self.assertEqual((self.states(drain), len(self.fake.started)), (["moved"], 2))

    def test_migration_of_another_operator_is_waited_for(self):
        job = self.fake.hosts["src"]["jobs"][0]
        job["migration_id"] = "11111111-1111-4111-8111-111111111111"
        self.fake.hosts["src"]["migrations"] = [
            {"migration_id": job["migration_id"], "peer": "one:7411", "phase": "precopy", "state": "working",
             "members": [self.pid]}
        ]
        self.fake.verdicts = Always({"role": "source", "state": "confirmed", "finished": True, "pid": 5,
                                     "operator_needed": False})  # fmt: skip
        threading.Timer(0.1, self.fake.remove, ("src", self.pid)).start()
        drain = self.drain()
        self.assertEqual((self.states(drain), self.fake.started), (["moved"], []))
        self.assertEqual(drain.tasks[0].destination, "one")


class Suspended(Fixture):
    def setUp(self):
        super().setUp()
        self.pid = self.fake.add_job("src", 5)

    def migration(self, state, phase):
        """One that holds the job."""
        migration = {"migration_id": f"of {state}", "peer": "one:7411", "phase": phase, "state": state,
                     "members": [self.pid], "operator_needed": False}  # fmt: skip
        self.fake.hosts["src"]["migrations"].append(migration)
        return migration["migration_id"]

    def test_suspended_job_moves_without_free_vram(self):
        self.fake.suspend("src", self.pid)
        for name in ("one", "two"):
            self.fake.hosts[name]["gpus"][0]["free_bytes"] = 0
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["moved"]), self.said)
        (task,) = drain.tasks
        self.assertTrue(self.fake.is_suspended(task.destination, task.pid))
        self.assertTrue(text.task_json(task)["suspended"])
        self.assertIn(f"as {task.pid}, suspended there", text.outcome(task))
        self.assertIn("alice, suspended", text.name(task))

    def test_suspended_job_that_fails_to_move_is_reported(self):
        self.fake.suspend("src", self.pid)
        self.fake.outcomes[self.pid] = [(cli.FAILED, "no luck")] * 9
        drain = self.drain(tries=2)
        self.assertEqual(self.states(drain), ["left"], self.said)
        self.assertTrue(text.task_json(drain.tasks[0])["suspended"])

    def test_suspended_job_in_another_migration_is_waited_for(self):
        self.fake.suspend("src", self.pid)
        mover = self.migration("working", "send")

        def status(agent, _migration_id):
            if agent == "src" and self.pid in self.fake.pids("src"):
                self.fake.remove("src", self.pid)
            return {"source": {"role": "source", "state": "confirmed", "finished": True, "phase": "",
                               "operator_needed": False, "moves_suspended": True}}  # fmt: skip

        self.fake.status = status
        drain = self.drain()
        self.assertEqual((self.states(drain), self.fake.started), (["moved"], []), self.said)
        self.assertEqual((drain.tasks[0].migration_id, drain.tasks[0].suspended), (mover, True))

    def end_with(self, state, then):
        """The agent knows that the job's migration is in this state by now; so does the next poll."""
        job = self.fake.hosts["src"]["jobs"][0]
        job["migration_id"] = self.migration("working", "suspend")

        def status(_agent, migration_id):
            if job["migration_id"] == migration_id:
                job["migration_id"] = ""
                self.fake.hosts["src"]["migrations"].clear()
                then()
            return {"source": {"role": "source", "state": state, "finished": state == "resumed", "phase": "",
                               "operator_needed": False}}  # fmt: skip

        self.fake.status = status
        drain = self.drain()
        self.assertEqual(self.states(drain), ["moved"], self.said)
        return drain.tasks[0]

    def test_job_being_suspended_moves_afterwards(self):
        self.assertTrue(self.end_with("suspended", lambda: self.fake.suspend("src", self.pid)).suspended)

    def test_job_being_resumed_moves_once_it_runs(self):
        self.assertFalse(self.end_with("resumed", lambda: None).suspended)

    def test_rebalance_leaves_a_suspended_job_alone(self):
        other = self.fake.add_job("src", 10)
        self.fake.suspend("src", self.pid)
        pictures = {name: parse(host) for name, host in self.fake.hosts.items()}
        self.assertEqual({move.job.pid for move in plan.balance(pictures, 1e-6)[0]} - {other}, set())

    def test_rebalance_leaves_a_job_suspended_after_the_plan(self):
        self.fake.add_job("src", 10)
        pictures = {name: parse(host) for name, host in self.fake.hosts.items()}
        moves, _ = plan.balance(pictures, 0.01)
        course = self.make(Rebalance, moves)
        for move in moves:
            self.fake.suspend("src", move.job.pid)
        course.run()
        self.assertEqual((self.states(course), self.fake.started), (["left"] * len(moves), []), self.said)


class Always(dict):
    """Every migration has this part, on every agent."""

    def __init__(self, part):
        super().__init__()
        self._part = part and {"phase": "", "moves_suspended": False, **part}

    def __contains__(self, _):
        return True

    def __getitem__(self, _):
        return self

    def get(self, _, default=None):
        return [self._part] if self._part else default


class Stopping(Fixture):
    def setUp(self):
        super().setUp()
        self.fake.hold = True
        for _ in range(3):
            self.fake.add_job("src", 1)

    def stop_once_begun(self, drain, times):
        end = time.monotonic() + 60
        while len(self.fake.under_way) < 2 and time.monotonic() < end:
            time.sleep(0.005)
        for _ in range(times):
            drain.runner._told_to_stop()  # pylint: disable=protected-access  # as a signal does

    def run_and_stop(self, times):
        drain = self.make(Drain, "src", per_host=2)
        thread = threading.Thread(target=drain.run)
        thread.start()
        self.stop_once_begun(drain, times)
        for migration in list(self.fake.under_way):
            migration.released.set()
        thread.join(5)
        self.assertFalse(thread.is_alive())
        return drain

    def test_first_stop_finishes_running_moves_and_begins_none(self):
        drain = self.run_and_stop(1)
        self.assertEqual((drain.status(), self.states(drain)), (cli.CANCELLED, ["moved", "moved", "waiting"]))
        self.assertEqual(len(self.fake.started), 2)

    def test_second_stop_cancels_running_moves(self):
        drain = self.run_and_stop(2)
        self.assertEqual((drain.status(), self.states(drain)), (cli.CANCELLED, ["waiting"] * 3))
        self.assertEqual(len(self.fake.pids("src")), 3)


class Rebalancing(Fixture):
    def test_plan_is_followed(self):
        for size in (30, 20, 10):
            self.fake.add_job("src", size)
        pictures = {name: parse(host) for name, host in self.fake.hosts.items()}
        moves, _ = plan.balance(pictures, 0.01)
        course = self.make(Rebalance, moves)
        course.run()
        self.assertEqual(course.status(), cli.DONE)
        self.assertEqual(
            sorted((move.job.pid, move.destination) for move in moves),
            sorted((pid, destination) for _, destination, pid in self.fake.started),
        )

    def test_ended_job_is_no_failure(self):
        for size in (30, 20):
            self.fake.add_job("src", size)
        pictures = {name: parse(host) for name, host in self.fake.hosts.items()}
        moves, _ = plan.balance(pictures, 0.01)
        self.assertEqual(len(moves), 1)
        self.fake.remove("src", moves[0].job.pid)
        course = self.make(Rebalance, moves)
        course.run()
        self.assertEqual((course.status(), self.fake.started), (cli.DONE, []))
        self.assertEqual(course.tasks[0].state, State.ENDED)


if __name__ == "__main__":
    unittest.main()
