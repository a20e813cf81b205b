"""Evens out the use of VRAM: carries out a plan."""

import time

from gcr_moves.course import Course
from gcr_moves.tasks import State, Task


class Rebalance(Course):
    """Tasks are the moves of the plan; each goes where the plan says, or stays."""

    def __init__(self, cluster, runner, say, moves):
        super().__init__(cluster, runner, say)
        self._goal = {}
        for move in moves:
            task = Task(source=move.source, job=move.job)
            self._goal[(move.source, move.job.key)] = move.destination
            self.tasks.append(task)

    def goal(self, task):
        return self._goal[(task.source, task.job.key)]

    def destinations(self, task):
        return [self.goal(task)]

    def update(self):
        """A job that has ended, or that another command moves or suspends, is none of ours any more."""
        now = time.monotonic()
        for task in self.tasks:
            host = self.cluster.hosts[task.source]
            if task.state is not State.WAITING or not host.up or host.asked_at <= task.since:
                continue
            shown = {job.key: job for job in host.picture.jobs}
            job = shown.get(task.job.key)
            if job is None:
                task.enter(State.ENDED, now, f"it is gone from {task.source}")
            elif job.migration_id:
                task.enter(State.LEFT, now, f"it is in migration {job.migration_id} already")
            elif job.suspended:
                task.enter(State.LEFT, now, "it was suspended meanwhile")
