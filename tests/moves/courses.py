"""What tests of drains and of rebalancing have in common: three hosts, and courses that do not wait for long."""

import unittest

from fake_cluster import FakeCluster
from gcr_moves.cluster import Cluster
from gcr_moves.drain import Drain
from gcr_moves.runner import Limits, Runner


class Fixture(unittest.TestCase):
    TRIES = 3

    def setUp(self):
        self.fake = FakeCluster()
        for name in ("src", "one", "two"):
            self.fake.add_host(name)
        self.said = []

    def containers(self, limits):
        """What moves jobs in containers; None: nothing does."""
        return None

    def make(self, kind, *arguments, **limits):
        quick = {"pause_seconds": 0.02, "interval_seconds": 0.02, "patience_seconds": 0.5, "tries": self.TRIES}
        limits = Limits(**{**quick, **limits})
        cluster = Cluster(self.fake, self.fake.hosts, ask_again_seconds=0.02)
        cluster.look()
        runner = Runner(cluster, limits, self.said.append, containers=self.containers(limits))
        return kind(cluster, runner, self.said.append, *arguments)

    def drain(self, **limits):
        drain = self.make(Drain, "src", **limits)
        drain.run()
        return drain

    def states(self, course):
        return sorted(task.state.value for task in course.tasks)
