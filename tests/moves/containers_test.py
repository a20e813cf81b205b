#!/usr/bin/env python3
"""Jobs that move with their containers, between hosts and engines that exist in memory."""

import argparse
import dataclasses
import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import threading
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

# pylint: disable=wrong-import-position
import courses  # noqa: E402
from fake_cluster import blocker  # noqa: E402
from fake_engines import FakeEngines  # noqa: E402
from gcr_moves import cli, container_jobs, engines, plan, text  # noqa: E402
from gcr_moves.cluster import parse  # noqa: E402
from gcr_moves.containers import Move, Refused  # noqa: E402
from gcr_moves.drain import Drain  # noqa: E402
from gcr_moves.rebalance import Rebalance  # noqa: E402

SHELL = ["shell", "%h"]


class Fixture(courses.Fixture):
    TRIES = 2

    def setUp(self):
        super().setUp()
        self.engines = FakeEngines(self.fake)
        known = unittest.mock.patch.dict(container_jobs.ENGINES, {"fake": self.engines}, clear=True)
        known.start()
        self.addCleanup(known.stop)

    def containers(self, limits):
        return container_jobs.Containers(self.fake, SHELL, self.said.append, limits.patience_seconds)

    def move(self, destination="one"):
        here, there = (self.engines(engines.Host(agent, SHELL)) for agent in ("src", destination))
        return Move(self.fake, here, there, self.said.append, 60)


class Moves(Fixture):
    """What gcr-container does with two engines."""

    def setUp(self):
        super().setUp()
        self.pid = self.engines.add_container("src", "train", 9)
        self.container = self.engines.containers["src"][0]

    def assert_at(self, *, source, destination):
        self.assertEqual(len(self.engines.names("src")), source)
        self.assertEqual(len(self.engines.names("one")), destination)

    def make_receiver(self):
        """Of an earlier run."""
        return self.engines.make("one", "train", {engines.SOURCE: self.container.id, engines.RECEIVE: "key"})

    def arrive(self, receiver):
        self.fake.move("src", "one", self.pid, ["--container", f"{receiver.init}:key"])

    def test_container_that_was_left_is_removed(self):
        self.assertEqual(self.move().run("train").status, cli.DONE)
        self.assert_at(source=0, destination=1)

    def test_container_stays_if_the_migration_fails(self):
        self.fake.outcomes[self.pid] = [(cli.FAILED, "no")]
        self.assertEqual(self.move().run("train").message, "no")
        self.assert_at(source=1, destination=0)

    def ended_sources(self):
        """With --rm and without."""
        return (), (dataclasses.replace(self.container, status="exited", init=0),)

    def test_no_receiver_stays_if_the_program_ends_before_it_moves(self):
        for left, status, said in (
            (left, *each) for left in self.ended_sources()
            for each in ((cli.FAILED, "no"), (cli.ENDED, "train has ended at src"))
        ):  # fmt: skip
            self.engines.containers["src"][:] = [self.container]

            def end(*_, left=left, status=status):
                self.engines.containers["src"][:] = left
                return status, "no"

            self.fake.outcome_of = end
            outcome = self.move().run("train")
            self.assertEqual((outcome.status, outcome.message), (cli.FAILED, said))
            self.assert_at(source=len(left), destination=0)

    def test_receiver_of_an_earlier_run_does_not_outlive_a_container_that_was_stopped(self):
        self.make_receiver()
        self.engines.containers["src"][:] = self.ended_sources()[1]
        self.fake.hosts["src"]["jobs"].clear()
        with self.assertRaisesRegex(Refused, "train is exited, not running"):
            self.move().run("train")
        self.assert_at(source=1, destination=0)

    def test_receiver_has_the_job_if_the_container_that_it_left_was_stopped(self):
        self.arrive(self.make_receiver())
        self.engines.containers["src"][:] = self.ended_sources()[1]
        self.assertEqual(self.move().run("train").status, cli.DONE)
        self.assert_at(source=0, destination=1)

    def test_receiver_that_has_ended_keeps_the_exit_status_that_the_job_may_have_had(self):
        receiver = self.make_receiver()
        self.engines.containers["one"][:] = [dataclasses.replace(receiver, status="exited", init=0)]
        self.engines.containers["src"][:] = self.ended_sources()[1]
        self.assertEqual(self.move().settle("train").status, cli.FAILED)
        self.assert_at(source=1, destination=1)

    def test_receiver_of_an_earlier_run_is_found_by_the_id_of_its_source_too(self):
        for finish in (lambda move: move.run(self.container.id), lambda move: move.settle(self.container.id)):
            self.setUp()
            self.arrive(self.make_receiver())
            self.assertEqual(finish(self.move()).status, cli.DONE)
            self.assert_at(source=0, destination=1)
            self.assertEqual(self.engines.started, [])

    def test_receiver_stays_as_long_as_a_migration_of_an_earlier_run_has_the_job(self):
        receiver = self.make_receiver()
        answers = [{"jobs": [], "migrations": [{"members": [self.pid, self.pid + 1]}]}] * 2

        def answer(_):  # the job arrives while the last one is given
            if len(answers) == 1:
                self.arrive(receiver)
            return answers.pop()

        self.fake.host = answer
        self.assertEqual(self.move().run("train").status, cli.DONE)
        self.assert_at(source=0, destination=1)
        self.assertEqual(self.engines.started, [])

    def test_container_without_its_image_or_with_an_obstacle_is_refused(self):
        self.engines.images["one"].clear()
        with self.assertRaisesRegex(Refused, rf"app \({'1' * 12}\): a courier brings it there"):
            self.move().run("train")
        self.engines.containers["src"][:] = [dataclasses.replace(self.container, obstacles=("has a terminal",))]
        with self.assertRaisesRegex(Refused, "train has a terminal"):
            self.move().run("train")
        self.assert_at(source=1, destination=0)
        self.assertEqual(self.fake.started, [])


    def test_files_of_volumes_and_folders_are_said_to_stay(self):
        self.engines.containers["src"][:] = [dataclasses.replace(self.container, volumes=("models",), folders=("/data",))]
        self.engines.volumes["one"] |= {"models", "/data"}
        self.assertEqual(self.move().run("train").status, cli.DONE)
        self.assertIn("the files of volume models, /data are not moved; preflight compares them", self.said)

    def test_preflight_compares_files_that_stay(self):
        self.engines.containers["src"][:] = [dataclasses.replace(self.container, volumes=("models",), folders=("/data",))]
        self.engines.volumes["one"] |= {"models", "/data"}
        same, other, network, too_many = ("ext2/ext3", "a"), ("ext2/ext3", "b"), ("nfs", "a"), ("ext2/ext3", "")
        for here, there, said in ((same, same, "have the same names, sizes, owners and modes"),
                                  (same, other, "have other names, sizes, owners or modes"),
                                  (network, network, "is on nfs at both hosts, with the same files"),
                                  (network, same, "have the same names"), (too_many, too_many, "were not compared"),
                                  (same, too_many, "were not compared")):  # fmt: skip
            for path in ("/volumes/models", "/data"):
                self.engines.files |= {("src", path): here, ("one", path): there}
            findings = self.move().preflight("train")
            self.assertEqual([(each["severity"], each["host"]) for each in findings], [("warning", "source")] * 2)
            for each in findings:
                self.assertIn(said, each["found"])

    def test_connections_through_published_ports_are_said_to_end(self):
        self.engines.containers["src"][:] = [dataclasses.replace(self.container, ports=("127.0.0.1:8080",))]
        said = "connections through the published port 127.0.0.1:8080 are not kept, as they end at the host"
        for options, is_said in (((), False), (("--tcp", "keep"), True)):
            findings = self.move().preflight("train", options)
            self.assertEqual([each["severity"] for each in findings if each["found"] == said], is_said * ["warning"])

    def test_host_without_a_volume_or_a_mounted_folder_is_refused(self):
        for fields, reason in (
            ({"volumes": ("models",)}, "one has no volume models"),
            ({"folders": ("/data",)}, "one has no /data"),
        ):
            self.engines.containers["src"][:] = [dataclasses.replace(self.container, **fields)]
            with self.assertRaisesRegex(Refused, reason):
                self.move().run("train")
            self.assert_at(source=1, destination=0)
        self.assertEqual((self.engines.started, self.fake.started), ([], []))


class Files(unittest.TestCase):
    """Listed by a shell of this host."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("one", "other"):
            (self.folder / name / "below").mkdir(parents=True)
            (self.folder / name / "below" / "with a\nline").write_text("12", encoding="ascii")
            (self.folder / name / "link").symlink_to("/elsewhere")
        self.engine = engines.Engine(engines.Host("src", ["sh", "-c"]))

    def digest(self, name):
        kind, digest = self.engine.files_in(str(self.folder / name))
        self.assertNotEqual(kind, "")
        self.assertRegex(digest, "^[0-9a-f]{64}$")
        return digest

    def test_digest_changes_with_each_file(self):
        before = self.digest("one")
        self.assertEqual(self.digest("other"), before)
        changed = self.folder / "other" / "below" / "with a\nline"
        changed.write_text("123", encoding="ascii")
        self.assertNotEqual(self.digest("other"), before)
        changed.write_text("21", encoding="ascii")
        self.assertEqual(self.digest("other"), before)
        changed.chmod(0o600)
        self.assertNotEqual(self.digest("other"), before)
        self.assertNotEqual(self.digest("one/below/with a\nline"), self.digest("other/below/with a\nline"))

    def test_what_is_absent_or_takes_too_long_has_none(self):
        with self.assertRaises(engines.EngineError):
            self.engine.files_in(str(self.folder / "absent"))
        endless = engines.TELL_FILES.replace(f"timeout {engines.LIST_SECONDS} find", "timeout 0.1 yes")
        self.assertNotEqual(endless, engines.TELL_FILES)
        with unittest.mock.patch.object(engines, "TELL_FILES", endless):
            self.assertEqual(self.engine.files_in(str(self.folder / "one"))[1], "")


class Draining(Fixture):
    def test_container_moves_with_its_job_and_others_without(self):
        self.engines.add_container("src", "train", 9)
        self.fake.add_job("src", 5)
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["moved", "moved"]))
        goal = drain.tasks[0].destination
        self.assertEqual((self.engines.names("src"), self.engines.names(goal)), ([], ["train"]))
        told = text.task_json(drain.tasks[0])
        self.assertEqual((told["container"], told["destination_pid"]), ("fake:train", drain.tasks[0].pid))
        self.assertEqual(text.task_json(drain.tasks[1])["container"], "")
        self.assertIn("alice, fake:train, 9.0 GiB", text.name(drain.tasks[0]))

    def test_no_shell_is_needed_without_containers(self):
        self.fake.add_job("src", 5)
        self.assertEqual(self.drain().status(), cli.DONE)
        self.assertEqual(self.engines.asked, set())

    def test_limits_hold_for_containers(self):
        for number in range(6):
            self.engines.add_container("src", f"train{number}", 1)
        self.assertEqual(self.drain(total=2).status(), cli.DONE)
        self.assertLessEqual(self.fake.most_under_way, 2)
        self.assertEqual(self.engines.names("src"), [])

    def test_container_that_no_engine_has_stays_with_the_reason(self):
        self.engines.add_container("src", "train", 9)
        self.engines.containers["src"].clear()
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]))
        self.assertIn("no engine of src has its container", drain.tasks[0].reason)
        self.assertEqual(len(drain.tasks[0].tries), 2)  # no other destination would help

    def test_refused_container_stays_with_the_reason(self):
        self.engines.add_container("src", "train", 9, obstacles=("has a terminal",))
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]))
        self.assertIn("train has a terminal [engine]", drain.tasks[0].reason)
        self.assertEqual((self.engines.names("src"), self.engines.started), (["train"], []))

    def test_host_without_the_image_is_not_tried(self):
        self.engines.add_container("src", "train", 9)
        self.engines.images["one"].clear()
        drain = self.drain()
        self.assertEqual(self.states(drain), ["moved"])
        self.assertEqual(self.engines.started, [("two", "train")])

    def test_shell_that_does_not_answer_leaves_it_where_it_is(self):
        self.engines.add_container("src", "train", 9)
        self.engines.silent.add("src")
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]))
        self.assertIn("the shell does not answer", drain.tasks[0].reason)

    def test_failed_migration_leaves_no_receiving_container(self):
        pid = self.engines.add_container("src", "train", 9)
        self.fake.outcomes[pid] = [(cli.FAILED, "the link broke")] * 9
        drain = self.drain()
        self.assertEqual((drain.status(), self.states(drain)), (cli.FAILED, ["left"]))
        self.assertEqual(drain.tasks[0].reason, "the link broke")
        self.assertEqual([self.engines.names(host) for host in ("src", "one", "two")], [["train"], [], []])

    def test_dry_run_asks_the_engines_and_changes_nothing(self):
        self.engines.add_container("src", "train", 9)
        self.engines.add_container("src", "shell", 5, obstacles=("has a terminal",))
        loader = importlib.machinery.SourceFileLoader("drain", str(ROOT / "scripts" / "drain"))
        script = importlib.util.module_from_spec(importlib.util.spec_from_loader("drain", loader))
        loader.exec_module(script)
        drain = self.make(Drain, "src")
        options = argparse.Namespace(slurm=False, host="src", to=["one", "two"], else_checkpoint="")
        self.assertEqual(script.dry_run(drain, options), cli.FAILED)
        told = {(task.container, task.state.value) for task in drain.tasks}
        self.assertEqual(told, {("fake:train", "moved"), ("fake:shell", "left")})
        self.assertEqual((self.engines.started, self.fake.started), ([], []))

    def test_second_signal_cancels_and_the_container_stays(self):
        self.engines.add_container("src", "train", 9)
        self.fake.hold = True
        drain = self.make(Drain, "src")
        original = self.fake.migrate

        def migrate(*arguments):
            threading.Timer(0.01, tell).start()
            return original(*arguments)

        def tell():
            drain.runner._told_to_stop()  # pylint: disable=protected-access
            drain.runner._told_to_stop()  # pylint: disable=protected-access

        self.fake.migrate = migrate
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.CANCELLED, ["waiting"]))
        self.assertEqual([self.engines.names(host) for host in ("src", "one", "two")], [["train"], [], []])

    def test_move_of_a_killed_drain_is_finished(self):
        pid = self.engines.add_container("src", "train", 9)
        container = self.engines.containers["src"][0]
        receiver = self.engines.make("two", "train", {engines.SOURCE: container.id, engines.RECEIVE: "key"})
        job = self.fake.hosts["src"]["jobs"][0]
        job["migration_id"] = "earlier"
        self.fake.hosts["src"]["migrations"].append({
            "migration_id": "earlier", "peer": "two:7411", "phase": "copy", "state": "copying", "members": [pid],
            "operator_needed": False,
        })  # fmt: skip
        drain = self.make(Drain, "src", patience_seconds=30)

        def commit():
            job["migration_id"] = ""
            self.fake.move("src", "two", pid, ["--container", f"{receiver.init}:key"])

        threading.Timer(0.3, commit).start()
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["moved"]))
        self.assertEqual(drain.tasks[0].destination, "two")
        self.assertEqual((self.engines.names("src"), self.engines.names("two")), ([], ["train"]))
        self.assertEqual(self.engines.started, [])

    def test_outcome_is_asked_of_the_engines_once_they_answer(self):
        self.engines.add_container("src", "train", 9)
        original = self.fake.move

        def move(*arguments):
            self.engines.silent.add("src")
            return original(*arguments)

        self.fake.move = move
        drain = self.make(Drain, "src", patience_seconds=1)

        def say(line):
            if "not settled" in line:
                self.engines.silent.clear()

        drain.runner.say = say
        drain.run()
        self.assertEqual((drain.status(), self.states(drain)), (cli.DONE, ["moved"]))
        self.assertEqual(self.engines.names("src"), [])


    def test_no_checkpoint_is_taken_of_a_container(self):
        self.engines.add_container("src", "train", 9, obstacles=("has a terminal",))
        drain = self.make(Drain, "src", "/checkpoints")
        drain.run()
        self.assertEqual(self.states(drain), ["left"])
        self.assertEqual((self.fake.checkpointed, self.engines.names("src")), ([], ["train"]))


class Rebalancing(Fixture):
    def test_container_goes_where_the_plan_says(self):
        self.engines.add_container("src", "train", 40)
        self.engines.add_container("src", "serve", 30)
        pictures = {name: parse(self.fake.host(name)) for name in ("src", "one")}
        moves, _ = plan.balance(pictures, 0.01)
        course = self.make(Rebalance, moves)
        course.run()
        self.assertEqual((course.status(), self.states(course)), (cli.DONE, ["moved"]))
        self.assertEqual(self.engines.started, [("one", "serve")])
        self.assertEqual(self.engines.names("src"), ["train"])


class Finding(Fixture):
    def test_engine_that_fails_matters_only_if_no_other_has_the_container(self):
        self.engines.add_container("src", "train", 9)
        container = self.engines.containers["src"][0]
        host, broken = engines.Host("src", SHELL), FakeEngines(self.fake)
        broken.silent.add("src")
        known = {"broken": broken, "fake": self.engines}
        with unittest.mock.patch.dict(container_jobs.ENGINES, known, clear=True):
            self.assertEqual(container_jobs.find_by_init(host, container.init), ("fake", container))
            with self.assertRaisesRegex(engines.EngineError, "does not answer"):
                container_jobs.find_by_init(host, 1)
        self.assertIsNone(container_jobs.find_by_init(host, 1))


class Preflight(Fixture):
    def found(self, name="train"):
        findings = self.move().preflight(name)
        self.assertEqual(self.engines.started, [])
        return [(each["host"], each["found"]) for each in findings]

    def test_nothing_is_in_the_way_of_a_good_container(self):
        self.engines.add_container("src", "train", 9)
        self.assertEqual(self.found(), [])

    def test_all_obstacles_are_reported_together(self):
        pid = self.engines.add_container("src", "train", 9, obstacles=("has a terminal", "is in a pod"))
        self.engines.make("one", "train", {})
        self.engines.images["one"].clear()
        self.fake.blockers[(pid, "one")] = [blocker("destination")]
        self.assertEqual(self.found(), [
            ("source", "train has a terminal"),
            ("source", "train is in a pod"),
            ("destination", "one has a container train, which does not wait for this one"),
            ("destination", f"one does not have the image app ({'1' * 12}): a courier brings it there"),
            ("destination", "something"),
        ])  # fmt: skip

    def test_image_of_the_same_name_is_compared_by_content(self):
        self.engines.add_container("src", "train", 9)
        self.engines.images["one"] = {"kept": "1" * 64, "app": "2" * 64}
        self.assertEqual(self.found(), [("destination", f"app at one is another image: {'2' * 12}, not {'1' * 12}")])

    def test_volumes_are_a_warning_where_they_are_and_a_blocker_where_they_are_not(self):
        self.engines.add_container("src", "train", 9, volumes=("models", "data"), folders=("/data",))
        self.engines.volumes["one"] = {"models"}
        self.engines.files = {(host, "/volumes/models"): ("ext2/ext3", "") for host in ("src", "one")}
        self.assertEqual(self.found(), [
            ("destination", "one has no volume data: make it there, with the same content"),
            ("destination", "one has no /data, which train has mounted"),
            ("source", "the files of volume models are not moved, and were not compared"),
        ])  # fmt: skip
        severities = {each["severity"] for each in self.move().preflight("train") if each["host"] == "source"}
        self.assertEqual(severities, {"warning"})

    def test_absent_stopped_and_moving_ones_are_told_apart(self):
        self.assertEqual(self.found(), [("source", "src has no container train")])
        self.engines.make("src", "train", {}, status="exited", init=0)
        self.assertEqual(self.found(), [("source", "train is exited, not running")])
        self.engines.add_container("src", "busy", 9)
        self.fake.hosts["src"]["jobs"][0]["migration_id"] = "other"
        self.assertEqual(self.found("busy"), [("source", "the job of busy is in a migration already: other")])


if __name__ == "__main__":
    unittest.main()
