"""A job that shall move, and what became of it."""

import dataclasses
import enum

from gcr_moves import cluster


class State(enum.Enum):
    """Of a Task; the values are those of the reports."""

    WAITING = "waiting"  # at its source, in no migration
    MOVING = "moving"  # one of ours is under way
    UNSETTLED = "unsettled"  # in a migration whose outcome has to be found out
    MOVED = "moved"
    CHECKPOINTED = "checkpointed"  # ended at its source; the checkpoint has it
    RESTORED = "restored"  # from such a checkpoint
    LOST = "lost"  # moved or restored to a host that does not answer any more, or came back without it
    LEFT = "left"  # stays at its source
    ENDED = "ended"  # gone from its source, by no migration that we know of

    @property
    def open(self):
        return self in (State.WAITING, State.MOVING, State.UNSETTLED)


class Way(enum.Enum):
    """What is done to a task."""

    MIGRATE = "migrate"
    CHECKPOINT = "checkpoint"  # because no host takes it
    RESTORE = "restore"


@dataclasses.dataclass
class Try:
    """One attempt that failed."""

    destination: str  # empty: none had room, or it was a checkpoint
    reason: str
    migration_id: str = ""
    checkpoint: str = ""  # the directory of the checkpoint that was tried


@dataclasses.dataclass
class Task:
    """Belongs to the main thread."""

    source: str  # a host; of a restore the directory of the checkpoint
    job: cluster.Job
    state: State = State.WAITING
    way: Way = Way.MIGRATE
    checkpoint: str = ""  # the directory of the one that is taken or restored
    pauses: int = 0  # so far; again none before the first checkpoint
    tries: list = dataclasses.field(default_factory=list)
    tried: set = dataclasses.field(default_factory=set)  # destinations, since the last pause
    not_before: float = 0.0
    destination: str = ""  # of the migration that it is in, or of the last one
    migration_id: str = ""
    since: float = 0.0  # when its state began
    reason: str = ""
    compared: float = 0.0  # of a restore: when its directory was last looked at
    absent: int = 0  # pictures in a row that did not show it
    pid: int = 0  # at the destination, once it has moved
    downtime_ms: float = 0.0
    total_ms: float = 0.0
    verified: bool = False  # all contents were proven; false if that is not known
    suspended: bool = False  # at the destination
    deaths: int = 0  # of the destination, when it had moved there
    container: str = ""  # the name of the one that it is in at its source, once that is known
    placeholder: int = 0  # the Slurm job that it waits for, or is moved into, until all is done
    placeholder_since: float = 0.0  # when that was submitted or found
    successor: int = 0  # that job, then
    options: list = dataclasses.field(default_factory=list)  # of its migration, besides those of all

    def enter(self, state, now, reason=""):
        self.state, self.since, self.reason = state, now, reason

    def failed(self, reason, now, source_blocks=False):
        """Back to waiting, with a reason; `source_blocks`: no other destination will help."""
        taken = self.checkpoint if self.way is Way.CHECKPOINT else ""
        self.tries.append(Try(self.destination, reason, self.migration_id, taken))
        self.tried.add("*" if source_blocks else self.destination)
        self.migration_id = ""
        if self.way is Way.CHECKPOINT:
            self.way, self.checkpoint = Way.MIGRATE, ""
        self.enter(State.WAITING, now, reason)

    def pause(self, seconds, now):
        """Twice as long every time; then all destinations may be tried again."""
        self.tried.clear()
        self.not_before = now + seconds * 2 ** min(self.pauses, 6)
        self.pauses += 1

    def may_try(self, destination):
        return "*" not in self.tried and destination not in self.tried
