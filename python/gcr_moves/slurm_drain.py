"""Drains where Slurm places."""

from gcr_moves.drain import Drain
from gcr_moves.slurm_course import SlurmCourse
from gcr_moves.tasks import State


class SlurmDrain(SlurmCourse, Drain):
    """Placeholders may start on every other node whose agent answers, as soon as Slurm has room."""

    def __init__(self, cluster, runner, say, source, slurm, only=0):
        """`only`: the one job to move; 0: all."""
        super().__init__(slurm, cluster, runner, say, source)
        self._only = only

    def _appeared(self, key, job):
        if self._is_elsewhere(job) or (self._only and job.slurm_job != self._only):
            return
        super()._appeared(key, job)

    def _is_elsewhere(self, job):
        """Whether Slurm has it on another node. Where two nodes are one machine, each agent shows the processes of
        both, those that have just moved among them."""
        owner = self._jobs.get(job.slurm_job)
        return owner is not None and owner.running and owner.node not in self._source_nodes()

    def _source_nodes(self):
        return {self.source.picture.slurm_node}

    def plan(self):
        """For a dry run: which tasks would get a placeholder, and why the others would not."""
        self._ask()
        Drain.update(self)
        for task in self.tasks:
            reason = self._obstacle(task)
            task.enter(State.LEFT if reason else State.MOVED, 0.0, reason)
