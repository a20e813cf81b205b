#!/usr/bin/env python3
"""What gcr-container does with two engines, which exist in memory."""

import dataclasses
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from gcr_moves import cli as program  # noqa: E402
from gcr_moves import containers, engines  # noqa: E402

HERE = engines.Container(id="1" * 64, name="train", image="sha256:" + "a" * 64, image_name="train:1", status="running",
                         init=10, obstacle="", labels={}, recipe=None)  # fmt: skip


class FakeEngine(engines.Engine):
    """`names`: of inits, by PID."""

    IMAGE_BY = "a courier"

    def __init__(self, agent, *present, images=(HERE.image,)):
        super().__init__(engines.Host(agent, ["false"]))
        self.containers = list(present)
        self.names = {each.init: containers.WITH_JOB for each in present}
        self.images = images

    def find(self, name):
        return next((each for each in self.containers if name in (each.id, each.name)), None)

    def has_image(self, image):
        return image in self.images

    def start_receiver(self, container, key):
        made = dataclasses.replace(container, id="2" * 64, init=20, labels={engines.SOURCE: container.id})
        self.containers.append(made)
        self.names[made.init] = containers.RECEIVING
        return made

    def remove(self, container):
        self.containers = [each for each in self.containers if each.id != container.id]

    def name_of_init(self, container):
        return self.names[container.init]

    def children_of_init(self, container):
        return {11}


class FakeCli:
    """`course`: changes the engines as a migration does, and returns how it ended."""

    def __init__(self, course):
        self.wait = course

    def host(self, _):
        return {"jobs": [{"container_init": HERE.init, "pid": 11, "migration_id": ""}], "migrations": []}

    def migrate(self, *_):
        return self


class Moves(unittest.TestCase):
    def setUp(self):
        self.source, self.destination = FakeEngine("a", HERE), FakeEngine("b")

    def move(self, course, name="train"):
        return containers.Move(FakeCli(course), self.source, self.destination, lambda _: None, 60).run(name)

    def assert_at(self, *, source, destination):
        self.assertEqual(len(self.source.containers), source)
        self.assertEqual(len(self.destination.containers), destination)

    def arrive(self):
        self.source.names[10], self.destination.names[20] = containers.MOVED, containers.WITH_JOB
        return program.Ended(program.DONE)

    def test_container_that_was_left_is_removed(self):
        self.assertEqual(self.move(self.arrive).status, program.DONE)
        self.assert_at(source=0, destination=1)

    def test_container_stays_if_the_migration_fails(self):
        self.assertEqual(self.move(lambda: program.Ended(program.FAILED, "no")).message, "no")
        self.assert_at(source=1, destination=0)

    def test_no_receiver_stays_if_the_program_ends_before_it_moves(self):
        def end(*left):
            self.source.containers = list(left)
            return program.Ended(program.FAILED, "it has ended")

        for left in ((), (dataclasses.replace(HERE, status="exited", init=0),)):  # with --rm and without
            self.setUp()
            outcome = self.move(lambda left=left: end(*left))
            self.assertEqual((outcome.status, outcome.message), (program.FAILED, "it has ended"))
            self.assert_at(source=len(left), destination=0)

    def test_receiver_of_an_earlier_run_is_found_by_the_id_of_its_source_too(self):
        self.destination.start_receiver(HERE, "")
        self.arrive()
        self.assertEqual(self.move(self.fail, HERE.id).status, program.DONE)
        self.assert_at(source=0, destination=1)

    def test_receiver_stays_as_long_as_a_migration_of_an_earlier_run_has_the_job(self):
        self.destination.start_receiver(HERE, "")
        answers = [{"jobs": [], "migrations": [{"members": [11, 12]}]}] * 2

        def answer(_):  # the job arrives while the last one is given
            if len(answers) == 1:
                self.arrive()
            return answers.pop()

        cli = FakeCli(self.fail)
        cli.host = answer
        moving = containers.Move(cli, self.source, self.destination, lambda _: None, 60)
        self.assertEqual(moving.run("train").status, program.DONE)
        self.assert_at(source=0, destination=1)

    def test_container_without_its_image_or_with_an_obstacle_is_refused(self):
        self.destination.images = ()
        with self.assertRaisesRegex(containers.Refused, r"train:1 \(aaaaaaaaaaaa\): a courier brings it there"):
            self.move(self.fail)
        self.source.containers = [dataclasses.replace(HERE, obstacle="has a terminal")]
        with self.assertRaisesRegex(containers.Refused, "train has a terminal"):
            self.move(self.fail)
        self.assert_at(source=1, destination=0)


if __name__ == "__main__":
    unittest.main()
