"""What is under way, migrations, checkpoints and restores: within limits, each in a thread that
follows its gcr-migrate.

What became of a migration that gcr-migrate lost sight of is asked from both agents, and a job is
not migrated again before that is known. The agents see to it in any case: a job that is in a
migration is refused to any other.
"""

import dataclasses
import functools
import queue
import signal
import threading
import time

from gcr_moves import cli as program
from gcr_moves import text
from gcr_moves.cluster import at_rest
from gcr_moves.containers import in_the_way
from gcr_moves.tasks import State, Way

CHECKPOINT_NAME = "drained"  # of the checkpoint that a drain takes, alone in its directory
OF_PREFLIGHT = {"--accept", "--allow-slow", "--device-map", "--downtime-limit", "--lanes", "--max-layer", "--no-prefill",
                "--plaintext", "--slurm-job", "--tcp", "--transport"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much at a time, how often, how long."""

    per_host: int = 2  # migrations at a time that a host takes part in
    total: int = 8  # in the cluster
    tries: int = 5  # of one job
    pause_seconds: float = 5.0  # before the next round of tries; twice as long each time
    patience_seconds: float = 120.0  # for a source that is silent, and for what is unsettled
    interval_seconds: float = 5.0  # between two looks at the hosts


def for_preflight(words):
    """Of a migration's options those that preflight has too."""
    kept, known = [], False
    for word in words:
        if word.startswith("--"):
            known = word.split("=")[0] in OF_PREFLIGHT
        if known:
            kept.append(word)
    return kept


class Runner:
    """The main thread owns it and all tasks."""

    def __init__(self, cluster, limits, say, migrate_options=(), checkpoint_options=(), containers=None):
        """`containers`: a container_jobs.Containers; None: jobs in containers are not moved."""
        self.cluster = cluster
        self.limits = limits
        self.say = say
        self.stopping = 0  # how often we were told to stop
        self._options = list(migrate_options)
        self.preflight_options = for_preflight(migrate_options)
        self._checkpoint_options = list(checkpoint_options)
        self._containers = containers
        # What is left to do in the main thread: functions that return the task whose state has changed, or None
        self._ended = queue.SimpleQueue()
        self._moving = {}  # task.job.key and source -> task
        self._migrations = {}  # the same -> Migration, once it has begun
        self._settling = set()  # keys as above: whose containers are being asked
        self._settled = set()  # ids of migrations that have ended, also where a picture still has them
        self._lock = threading.Lock()  # for _migrations

    # ---- what is under way ----

    @property
    def busy(self):
        return bool(self._moving)

    def on_their_way(self, destination):
        return [task for task in self._moving.values() if task.destination == destination]

    def has_slot(self, source, destination=""):
        """Without a destination: for a checkpoint at the source."""
        if len(self._moving) >= self.limits.total:
            return False
        return self._host_has_slot(source, "source") and self._host_has_slot(destination, "destination")

    def _host_has_slot(self, name, role):
        if name not in self.cluster.hosts:
            return True
        ours = [t for t in self._moving.values() if name in (t.source, t.destination)]
        known = {task.migration_id for task in ours}
        picture = self.cluster.hosts[name].picture
        others = (picture.under_way if picture else set()) - known - self._settled
        if len(ours) + len(others) >= self.limits.per_host:
            return False
        in_role = sum(getattr(task, role) == name for task in ours)
        return picture is None or in_role + len(others) < picture.max_migrations

    def start(self, task, destination):
        """A migration, or a restore."""
        number = len(task.tries) + 1
        verb = "restoring" if task.way is Way.RESTORE else "moving"
        said = f"{verb} {text.name(task)} to {destination}" + (f", try {number}" if number > 1 else "")
        self._start(task, destination, said)

    def start_checkpoint(self, task, directory):
        task.way, task.checkpoint = Way.CHECKPOINT, directory
        self._start(task, "", f"no host takes {text.name(task)}: taking a checkpoint in {directory}")

    def _start(self, task, destination, said):
        task.destination, task.migration_id = destination, ""
        task.enter(State.MOVING, time.monotonic())
        self._moving[self._key(task)] = task
        self.say(said)
        threading.Thread(target=self._work, args=(task, destination), daemon=True).start()

    @staticmethod
    def _key(task):
        return (task.source, task.job.key)

    def _work(self, task, destination):
        """In a thread of its own; touches nothing of the task."""
        try:
            ended, source_blocks = self._carry_out(task, destination)
        except program.CliError as error:
            ended, source_blocks = program.Ended(error.status, str(error)), False
        self._ended.put(functools.partial(self._conclude, task, ended, source_blocks))

    def _carry_out(self, task, destination):
        blockers, moving = self._look(task, destination)
        if blockers:
            at_source = all(finding["host"] == "source" for finding in blockers)
            return program.Ended(program.REFUSED, text.blockers(blockers)), at_source
        with self._lock:
            if self.stopping:
                return program.Ended(program.CANCELLED, "told to stop"), False
            migration = self._order(task, destination, moving)
            self._migrations[self._key(task)] = migration
        if self.stopping > 1:
            migration.cancel()
        return migration.wait(), False

    def preflight(self, task, destination):
        """The blockers. CliError if they are not known."""
        return self._look(task, destination)[0]

    def _look(self, task, destination):
        """The blockers, and the container with which the job would move."""
        if task.way is Way.RESTORE:
            return [], None  # the restore begins with it
        if task.way is Way.CHECKPOINT:
            return self.cluster.cli.preflight_checkpoint(task.source, task.job.pid, task.checkpoint), None
        options = [*self.preflight_options, *task.options]
        if not task.job.container_init or self._containers is None:
            return self.cluster.cli.preflight(task.source, destination, task.job.pid, options), None
        moving = self._containers.find(task.job, task.source, destination)
        if moving is None:
            return [in_the_way("source", f"no engine of {task.source} has its container, whose first process is "
                               f"{task.job.container_init}")], None  # fmt: skip
        return moving.preflight(options), moving

    def container_of(self, task):
        """The name of the container that it is in; empty if it is in none, or that is not known."""
        return self._containers.name_of(task.job, task.source) if self._containers else ""

    def cancel(self, task):
        """What becomes of it then is for the agents to say."""
        with self._lock:
            migration = self._migrations.get(self._key(task))
        if migration:
            migration.cancel()

    def _order(self, task, destination, moving):
        cli, pid = self.cluster.cli, task.job.pid
        if task.way is Way.RESTORE:
            return cli.restore(destination, task.checkpoint, CHECKPOINT_NAME)
        same = ["--start-time", str(task.job.start_time)]  # another process may get that PID
        if task.way is Way.CHECKPOINT:
            options = [*self._checkpoint_options, *same]
            return cli.checkpoint(task.source, pid, task.checkpoint, CHECKPOINT_NAME, options)
        options = [*self._options, *task.options, *same]
        return moving.order(options) if moving else cli.migrate(task.source, destination, pid, options)

    # ---- how it ended ----

    def wait(self, seconds):
        """Waits until a migration has ended, or so long; the tasks whose migrations ended."""
        done = []
        try:
            done.append(self._ended.get(timeout=max(seconds, 0.0))())
            while True:
                done.append(self._ended.get_nowait()())
        except queue.Empty:
            pass
        for key, migration in list(self._migrations.items()):
            if key in self._moving and migration.migration_id:
                self._moving[key].migration_id = migration.migration_id
        return [task for task in done if task is not None]

    def _conclude(self, task, ended, source_blocks):
        del self._moving[self._key(task)]
        with self._lock:
            self._migrations.pop(self._key(task), None)
        return self._judge(task, ended, source_blocks)

    def _judge(self, task, ended, source_blocks=False):
        now = time.monotonic()
        task.container = self.container_of(task)
        task.migration_id = ended.migration_id or task.migration_id
        if ended.status == program.DONE:
            task.downtime_ms, task.total_ms = ended.downtime_ms, ended.total_ms
            task.verified, task.suspended = ended.verified, ended.suspended
            self._moved(task, ended.pid, now)
        elif ended.status in (program.UNKNOWN, program.UNCONFIRMED):
            task.enter(State.UNSETTLED, now, ended.message)
            self.say(f"{text.name(task)}: not settled, asking what became of it: {ended.message}")
        else:
            self._stays(task, ended.message, now, source_blocks)
            if ended.status in (program.USAGE, program.NOT_AUTHORISED):
                task.enter(State.LEFT, now, ended.message)
        return task

    def is_settled(self, migration_id):
        return migration_id in self._settled

    def _moved(self, task, pid, now):
        self._settled.add(task.migration_id)
        if task.way is Way.CHECKPOINT:
            task.enter(State.CHECKPOINTED, now)
            self.say(f"{text.name(task)} is {text.outcome(task)}")
            return
        task.pid = pid
        if task.destination in self.cluster.hosts:
            task.deaths = self.cluster.hosts[task.destination].deaths
        task.enter(State.RESTORED if task.way is Way.RESTORE else State.MOVED, now)
        self.say(f"{task.state.value} {text.name(task)} to {text.place(task)}")

    def _stays(self, task, reason, now, source_blocks=False):
        self._settled.add(task.migration_id)
        aim = f"not to {task.destination}"
        if task.way is Way.CHECKPOINT:
            aim = f"no checkpoint in {task.checkpoint}"
        self.say(f"{text.name(task)} stays at {task.source} for now: {aim}: {reason}")
        task.failed(reason, now, source_blocks)

    # ---- what has to be found out ----

    def settle(self, task):
        """Finds out what became of the migration that an unsettled task is in. The task changes now, or at a later
        wait()."""
        if self._key(task) in self._settling:
            return
        if not task.job.container_init or self._containers is None or not task.destination:
            self._settle_by_agents(task)
            return
        self._settling.add(self._key(task))
        threading.Thread(target=self._ask_engines, args=(task,), daemon=True).start()

    def _ask_engines(self, task):
        """In a thread of its own: one of two containers has the job, and the other is removed."""
        try:
            moving = self._containers.find(task.job, task.source, task.destination, self.limits.interval_seconds)
            ended = moving and moving.settle()
            if ended and ended.status == program.DONE:
                ended.pid = self._pid_at_destination(task)
        except program.CliError as error:
            ended = program.Ended(program.UNKNOWN, str(error))
        self._ended.put(functools.partial(self._conclude_settling, task, ended))

    def _conclude_settling(self, task, ended):
        """Without its container the agents tell; returns the task if it is settled."""
        self._settling.discard(self._key(task))
        if ended is None:
            self._settle_by_agents(task)
        elif ended.status == program.UNKNOWN:
            task.reason = ended.message
        else:
            self._judge(task, ended)
        return None if task.state is State.UNSETTLED else task

    def _settle_by_agents(self, task):
        """Asks both agents. The one that restores has both parts."""
        agent = task.destination if task.way is Way.RESTORE else task.source
        try:
            source = self._ask(task, agent, "source")
        except program.CliError as error:
            task.reason = f"{agent}: {error}"
            self._settle_by_destination(task)
            return
        if source is None:
            self._settle_by_picture(task)
        elif at_rest(source) or source["state"] == "resumed":
            task.migration_id = task.destination = ""
            task.enter(State.WAITING, time.monotonic())
        elif not source["finished"]:
            task.reason = f"{agent} says that it is {source['state']}"
            if source["operator_needed"]:
                task.reason += ": an operator is needed (gcr-migrate resolve)"
        elif source["state"] == "confirmed":
            task.suspended = source["moves_suspended"]
            self._moved(task, self._pid_at_destination(task), time.monotonic())
        elif source["state"] == "undone":
            self._stays(task, source.get("message") or "it was undone", time.monotonic())
        else:
            task.enter(State.ENDED, time.monotonic(), f"its migration is {source['state']}")

    def _ask(self, task, agent, role):
        """The agent's part in the task's migration; None if it knows nothing of it."""
        if not task.migration_id:
            return None
        try:
            return self.cluster.cli.status(agent, task.migration_id).get(role)
        except program.CliError as error:
            if error.status == program.REFUSED:
                return None
            raise

    def _settle_by_destination(self, task):
        """A destination that runs it has heard of the commit. Anything else proves nothing."""
        try:
            there = self._ask(task, task.destination, "destination") if task.destination else None
        except program.CliError:
            return
        if there is not None and there["state"] == "running":
            task.suspended = there["moves_suspended"]
            self._moved(task, there["pid"], time.monotonic())

    def _pid_at_destination(self, task):
        try:
            there = self._ask(task, task.destination, "destination")
        except program.CliError:
            return 0
        return there["pid"] if there else 0

    def _settle_by_picture(self, task):
        """The source knows no such migration: it never began, or another one has the job."""
        if task.way is Way.RESTORE:
            self._stays(task, task.reason, time.monotonic())
            return
        host = self.cluster.hosts[task.source]
        if not host.up or host.asked_at <= task.since:
            return
        now = time.monotonic()
        shown = {job.key: job for job in host.picture.jobs}.get(task.job.key)
        if shown is None:
            task.enter(State.ENDED, now, f"it is gone from {task.source}")
        elif shown.migration_id:
            task.migration_id = shown.migration_id
        else:
            self._stays(task, task.reason, now)

    # ---- signals ----

    def handle_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._told_to_stop)

    def _told_to_stop(self, *_):
        """Once: nothing new begins. Twice: what is under way is cancelled. Three times: we leave.
        A signal's handler: it may have interrupted a line that is being printed, and prints none."""
        self.stopping += 1
        line = None
        if self.stopping == 1:
            line = "stopping: the migrations under way end first; once more to cancel them"
        elif self.stopping == 2:
            line = "cancelling the migrations under way; once more to leave them to the agents"
            for migration in list(self._migrations.values()):
                migration.cancel()
        else:
            for migration in list(self._migrations.values()):
                migration.leave()
        self._ended.put(lambda: self.say(line) if line else None)
