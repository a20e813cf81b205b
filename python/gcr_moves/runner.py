"""What is under way, migrations, checkpoints and restores: within limits, each in a thread that
follows its gcr-migrate.

What became of a migration that gcr-migrate lost sight of is asked from both agents, and a job is
not migrated again before that is known. The agents see to it in any case: a job that is in a
migration is refused to any other.
"""

import dataclasses
import queue
import signal
import threading
import time

from gcr_moves import cli as program
from gcr_moves import text
from gcr_moves.cluster import at_rest
from gcr_moves.tasks import State, Way

CHECKPOINT_NAME = "drained"  # of the checkpoint that a drain takes, alone in its directory
OF_PREFLIGHT = {"--accept", "--allow-slow", "--device-map", "--downtime-limit", "--lanes", "--no-prefill", "--plaintext",
                "--slurm-job", "--tcp", "--transport"}  # fmt: skip


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

    def __init__(self, cluster, limits, say, migrate_options=(), checkpoint_options=()):
        self.cluster = cluster
        self.limits = limits
        self.say = say
        self.stopping = 0  # how often we were told to stop
        self._options = list(migrate_options)
        self.preflight_options = for_preflight(migrate_options)
        self._checkpoint_options = list(checkpoint_options)
        # (task, Ended, source_blocks), or (None, a line of a signal handler or None, None)
        self._ended = queue.SimpleQueue()
        self._moving = {}  # task.job.key and source -> task
        self._migrations = {}  # the same -> Migration, once it has begun
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
        self._ended.put((task, ended, source_blocks))

    def _carry_out(self, task, destination):
        blockers = self._preflight(task, destination)
        if blockers:
            at_source = all(finding["host"] == "source" for finding in blockers)
            return program.Ended(program.REFUSED, text.blockers(blockers)), at_source
        with self._lock:
            if self.stopping:
                return program.Ended(program.CANCELLED, "told to stop"), False
            migration = self._order(task, destination)
            self._migrations[self._key(task)] = migration
        if self.stopping > 1:
            migration.cancel()
        return migration.wait(), False

    def _preflight(self, task, destination):
        if task.way is Way.RESTORE:
            return []  # the restore begins with it
        if task.way is Way.CHECKPOINT:
            return self.cluster.cli.preflight_checkpoint(task.source, task.job.pid, task.checkpoint)
        options = [*self.preflight_options, *task.options]
        return self.cluster.cli.preflight(task.source, destination, task.job.pid, options)

    def cancel(self, task):
        """What becomes of it then is for the agents to say."""
        with self._lock:
            migration = self._migrations.get(self._key(task))
        if migration:
            migration.cancel()

    def _order(self, task, destination):
        cli, pid = self.cluster.cli, task.job.pid
        if task.way is Way.RESTORE:
            return cli.restore(destination, task.checkpoint, CHECKPOINT_NAME)
        same = ["--start-time", str(task.job.start_time)]  # another process may get that PID
        if task.way is Way.CHECKPOINT:
            options = [*self._checkpoint_options, *same]
            return cli.checkpoint(task.source, pid, task.checkpoint, CHECKPOINT_NAME, options)
        return cli.migrate(task.source, destination, pid, [*self._options, *task.options, *same])

    # ---- how it ended ----

    def wait(self, seconds):
        """Waits until a migration has ended, or so long; the tasks whose migrations ended."""
        done = []
        try:
            done.append(self._conclude(*self._ended.get(timeout=max(seconds, 0.0))))
            while True:
                done.append(self._conclude(*self._ended.get_nowait()))
        except queue.Empty:
            pass
        for key, migration in list(self._migrations.items()):
            if key in self._moving and migration.migration_id:
                self._moving[key].migration_id = migration.migration_id
        return [task for task in done if task is not None]

    def _conclude(self, task, ended, source_blocks):
        if task is None:
            if ended:
                self.say(ended)
            return None
        now = time.monotonic()
        del self._moving[self._key(task)]
        with self._lock:
            self._migrations.pop(self._key(task), None)
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
        """Asks the agents what became of the migration that an unsettled task is in. The agent that
        restores has both parts."""
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
        self._ended.put((None, line, None))
