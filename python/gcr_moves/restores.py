"""Brings back jobs that drains have taken checkpoints of.

A restore has its checkpoint for itself (`gcr-migrate restore --once`): the agent renames it before a
process is restored, and removes it once the job runs, or renames it back. So each is restored at most
once, however many commands try it and wherever they are interrupted; nothing here has to remember.
"""

import dataclasses
import os
import pwd
import time

from gcr_moves import cli as program
from gcr_moves import plan, text
from gcr_moves.cluster import Gpu, Job, Picture
from gcr_moves.course import Course
from gcr_moves.drain import DIRECTORY_PREFIX
from gcr_moves.runner import CHECKPOINT_NAME
from gcr_moves.tasks import State, Task, Way


@dataclasses.dataclass(frozen=True)
class Stored:
    """A checkpoint of a drain's, as its directory has it now."""

    directory: str
    job: Job
    gpus: tuple = ()  # of the host where it was taken, as far as the job used them
    problem: str = ""  # why it cannot be restored
    restore_id: str = ""  # the restore that has it


def user_of(directory):
    try:
        uid = os.stat(directory).st_uid
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    except OSError:
        return ""


def stored(cli, directory):
    """None if the directory has none, or none any more."""
    try:
        listed = cli.checkpoints(directory)
    except program.CliError as error:
        return Stored(directory, Job(0, 0), problem=str(error)) if os.path.exists(directory) else None
    for each in listed:
        if each["restore_id"] or each["name"] == CHECKPOINT_NAME:
            return parse(directory, each)
    return None


def parse(directory, each):
    gpus = tuple(Gpu(gpu["uuid"], gpu["name"], gpu["total_bytes"], 0) for gpu in each["gpus"])
    job = Job(
        pid=0,
        start_time=each["taken_unix_ms"],
        command=each["command"],
        user=user_of(directory),
        vram=tuple((gpu["uuid"], gpu["vram_bytes"]) for gpu in each["gpus"]),
        processes=each["processes"],
        gpu_processes=0,
    )
    problem = each["problem"]
    if not problem and not each["stopped"]:
        problem = "the job went on when it was taken"
    return Stored(directory, job, gpus, problem, each["restore_id"])


def find(cli, folder):
    """Those of all drains below `folder`. OSError if it cannot be read."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(DIRECTORY_PREFIX))
    found = (stored(cli, os.path.join(folder, name)) for name in names)
    return [each for each in found if each is not None]


class Restores(Course):
    """Tasks are the checkpoints that were found."""

    def __init__(self, cluster, runner, say, found):
        super().__init__(cluster, runner, say)
        self._gpus = {each.directory: each.gpus for each in found}
        for each in found:
            task = Task(source=each.directory, job=each.job, way=Way.RESTORE, checkpoint=each.directory)
            self.tasks.append(task)
            self._compare(task, each)

    def _compare(self, task, now):
        """With what its directory has now."""
        if now is None:
            words = "its checkpoint is gone: another restore has brought it back"
            task.enter(State.ENDED, time.monotonic(), words)
        elif now.restore_id and self.runner.is_settled(now.restore_id):
            words = f"restore {now.restore_id} was undone and still has it"
            task.enter(State.LEFT, time.monotonic(), words)
        elif now.restore_id:
            task.migration_id, task.destination = now.restore_id, ""
            task.enter(State.UNSETTLED, time.monotonic(), "another restore has it")
        elif now.problem:
            task.enter(State.LEFT, time.monotonic(), now.problem)

    def plan(self):
        """Where each would go now; gives up on those for which there is no room."""
        rooms = self.rooms(self.cluster.hosts)
        for task in self._waiting():
            source = self.source_of(task)
            fitting, reasons = plan.candidates(task.job, source, rooms)
            if fitting:
                task.destination = fitting[0]
                rooms[fitting[0]].take(task.job, rooms[fitting[0]].find(task.job, source))
            else:
                words = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
                task.reason = words or "no host answers"

    def end_dry_run(self):
        """What is planned counts as done."""
        for task in self._waiting():
            task.enter(State.RESTORED if task.destination else State.LEFT, 0.0, task.reason)

    def show(self, out):
        for task in self.tasks:
            goal = f"to {task.destination}" if task.destination else f"stays: {task.reason}"
            print(f"  {text.name(task)}: {goal}", file=out)

    def _waiting(self):
        waiting = [task for task in self.tasks if task.state is State.WAITING]
        return sorted(waiting, key=lambda task: plan.size_order(task.job))

    # ---- as a Course ----

    def run(self):
        for task in self._waiting():
            task.destination = task.reason = ""
        super().run()

    def source_of(self, task):
        return Picture(gpus=self._gpus[task.source], jobs=())

    def may_begin(self, task):
        return True

    def destinations(self, task):
        return list(self.cluster.hosts)

    def _begin(self):
        """After a failure the directory says first whether the checkpoint is there for us."""
        for task in self.tasks:
            if task.state is State.WAITING and task.tries and task.since > task.compared:
                task.compared = time.monotonic()
                self._compare(task, stored(self.cluster.cli, task.source))
        super()._begin()

    def _settle(self):
        for task in self.tasks:
            if task.state is State.UNSETTLED and not task.destination:
                self._find_restore(task)
        super()._settle()

    def _find_restore(self, task):
        """Which host has the restore that another command began."""
        for name in self.cluster.hosts:
            try:
                if "source" in self.cluster.cli.status(name, task.migration_id):
                    task.destination = name
                    return
            except program.CliError:
                continue
        task.reason = f"no host that answers knows restore {task.migration_id}, which has its checkpoint"
