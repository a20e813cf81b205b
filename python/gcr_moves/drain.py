"""Empties a host: every job under the preload library goes elsewhere."""

import re
import time
import uuid

from gcr_moves import cli as program
from gcr_moves import text
from gcr_moves.course import Course
from gcr_moves.tasks import State, Task, Way

# A job is gone from its host if two pictures in a row do not show it.
ABSENCES = 2

# How the directories of checkpoints that drains take begin.
DIRECTORY_PREFIX = "drain."


def directory_for(folder, host, job):
    """A new one below `folder`, for this job alone: nothing else ever gets that name."""
    host = re.sub("[^A-Za-z0-9.-]", "-", host)
    return f"{folder.rstrip('/')}/{DIRECTORY_PREFIX}{host}.{job.pid}.{uuid.uuid4()}"


class Drain(Course):
    """Tasks are the jobs of `source`, those that appear meanwhile too."""

    def __init__(self, cluster, runner, say, source, checkpoints=""):
        """`checkpoints`: the folder for jobs that no host takes; empty: they stay."""
        super().__init__(cluster, runner, say)
        self.source = cluster.hosts[source]
        self._checkpoints = checkpoints
        self._directories = {}  # by job: where its checkpoint goes
        self._by_key = {}
        self._looked_at = 0.0  # when the last picture that update() saw was asked for
        self._empty_looks = 0

    def destinations(self, task):
        return [name for name in self.cluster.hosts if name != self.source.name]

    def last_resort(self, task):
        """A checkpoint. After one that failed everything is tried again: there may be room now. None of a job in a
        container, which would stay, and start the program again with its host."""
        if not self._checkpoints or task.job.container_init:
            return False
        taken = [each for each in task.tries if each.checkpoint]
        if len(taken) >= self.limits.tries:
            return False
        if taken and task.tries[-1].checkpoint:
            self.pause(task, time.monotonic())
        elif self.runner.has_slot(task.source):
            task.pauses = task.pauses if taken else 0
            fresh = directory_for(self._checkpoints, task.source, task.job)
            self.runner.start_checkpoint(task, self._directories.setdefault(task.job.key, fresh))
        return True

    def update(self):
        if not self.source.up or self.source.asked_at == self._looked_at:
            return
        self._looked_at = self.source.asked_at
        shown = {job.key: job for job in self.source.picture.jobs}
        for key, job in shown.items():
            if key not in self._by_key and not self._is_left_of_another(job):
                self._appeared(key, job)
        for key, task in self._by_key.items():
            self._compare(task, shown.get(key))
        self._empty_looks = 0 if any(t.state.open for t in self.tasks) else self._empty_looks + 1

    def _is_left_of_another(self, job):
        """Processes of a job that has moved, of which the host has ended the root first."""
        return bool(job.migration_id) and any(task.migration_id == job.migration_id for task in self.tasks)

    def _appeared(self, key, job):
        task = Task(source=self.source.name, job=job)
        self._by_key[key] = task
        self.tasks.append(task)
        self.say(f"{text.name(task)} is on {self.source.name}")

    def _compare(self, task, job):
        """With what the host shows now; only a task that no migration of ours has is changed."""
        if task.state is not State.WAITING or self._looked_at <= task.since:
            return
        now = time.monotonic()
        if job is None:
            task.absent += 1
            if task.absent >= ABSENCES:
                task.enter(State.ENDED, now, f"it is gone from {self.source.name}")
        else:
            task.absent = 0
            if job.vram or job.suspended:  # else the door of one of its processes was in use
                task.job = job
            if job.migration_id:
                self._follow_another(task, job.migration_id, now)

    def _follow_another(self, task, migration_id, now):
        """Another command's migration, or that of an earlier drain which was interrupted."""
        task.migration_id = migration_id
        peers = {each["migration_id"]: each["peer"] for each in self.source.picture.migrations}
        peer = peers.get(migration_id, "")
        task.destination = self._name_of(peer)
        if peer.startswith("/"):
            task.way, task.checkpoint, task.destination = Way.CHECKPOINT, peer, ""
        task.enter(State.UNSETTLED, now, "it is in a migration that was not begun here")
        self.say(f"{text.name(task)} is in migration {migration_id} already: waiting for that")

    def _name_of(self, peer):
        """Our name for an agent at "host:port", if it is one of ours."""
        for name in self.cluster.hosts:
            if peer in (name, f"{name}:7411") or peer.removesuffix(":7411") == name:
                return name
        return peer

    def finished(self):
        """A job that appeared just now would show in the next picture."""
        return self._empty_looks >= ABSENCES

    def _nothing_can_begin(self):
        return not self.source.up or (
            super()._nothing_can_begin() and any(t.state.open for t in self.tasks)
        )

    def status(self):
        if not self.source.up and not self.runner.stopping:
            return self.source.trouble_status or program.UNREACHABLE
        return super().status()
