"""Rebalancing where Slurm places: only what Slurm can let move is planned, and only Slurm starts jobs."""

import dataclasses
import time

from gcr_moves.cluster import Job
from gcr_moves.rebalance import Rebalance
from gcr_moves.slurm_course import SlurmCourse, obstacle


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A job that no plan moves."""

    source: str
    job: Job
    reason: str


def restrict(pictures, slurm):
    """What a plan may be made of: the pictures, with only those jobs that Slurm can let move, and without a GPU for
    others on nodes where Slurm starts no job; and the jobs that are left out. SlurmError if it does not answer."""
    nodes, slurm_jobs = slurm.nodes(), slurm.jobs()
    restricted, left_out = {}, []
    for name, picture in pictures.items():
        reasons = {job: obstacle(job, picture, slurm_jobs) for job in picture.jobs}
        left_out += [LeftOut(name, job, reason) for job, reason in reasons.items() if reason]
        node = nodes.get(picture.slurm_node)
        is_open = node is not None and not node.closed
        restricted[name] = dataclasses.replace(
            picture,
            jobs=tuple(job for job, reason in reasons.items() if not reason),
            gpus=tuple(dataclasses.replace(gpu, allowed=gpu.allowed and is_open) for gpu in picture.gpus),
        )
    return restricted, left_out


class SlurmRebalance(SlurmCourse, Rebalance):
    """A placeholder may start only on the plan's node, and only for a while: evening out is no reason to wait
    for a full cluster."""

    def __init__(self, cluster, runner, say, moves, slurm, start_seconds):
        """`start_seconds`: how long Slurm may take to start a placeholder."""
        super().__init__(slurm, cluster, runner, say, moves)
        self._start_seconds = start_seconds

    def _source_nodes(self):
        return {host.picture.slurm_node for host in self.cluster.hosts.values() if host.picture}

    def _begin_in(self, task, place):
        node = self.cluster.hosts[self.goal(task)].picture.slurm_node
        waited = time.monotonic() - task.placeholder_since
        if place is None or place.ended or (place.running and place.node == node):
            super()._begin_in(task, place)
        elif place.running:
            self._stay(task, f"placeholder {place.id}, which it had already, runs on node {place.node}, not on {node}")
        elif waited > self._start_seconds:
            self._stay(task, f"Slurm has not started placeholder {place.id} on node {node} within "
                             f"{self._start_seconds:g} s ({place.text('state_reason')})")  # fmt: skip
