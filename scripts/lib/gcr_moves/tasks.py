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
    LOST = "lost"  # moved to a host that does not answer any more, or came back without it
    LEFT = "left"  # stays at its source
    ENDED = "ended"  # gone from its source, by no migration that we know of

    @property
    def open(self):
        return self in (State.WAITING, State.MOVING, State.UNSETTLED)


@dataclasses.dataclass
class Try:
    """One attempt that did not move it."""

    destination: str  # empty: none had room
    reason: str
    migration_id: str = ""


@dataclasses.dataclass
class Task:
    """Belongs to the main thread."""

    source: str
    job: cluster.Job
    state: State = State.WAITING
    tries: list = dataclasses.field(default_factory=list)
    tried: set = dataclasses.field(default_factory=set)  # destinations, since the last pause
    not_before: float = 0.0
    destination: str = ""  # of the migration that it is in, or of the last one
    migration_id: str = ""
    since: float = 0.0  # when its state began
    reason: str = ""
    absent: int = 0  # pictures in a row that did not show it
    pid: int = 0  # at the destination, once it has moved
    downtime_ms: float = 0.0
    total_ms: float = 0.0
    deaths: int = 0  # of the destination, when it had moved there

    def enter(self, state, now, reason=""):
        self.state, self.since, self.reason = state, now, reason

    def failed(self, reason, now, source_blocks=False):
        """Back to waiting, with a reason; `source_blocks`: no other destination will help."""
        self.tries.append(Try(self.destination, reason, self.migration_id))
        self.tried.add("*" if source_blocks else self.destination)
        self.migration_id = ""
        self.enter(State.WAITING, now, reason)

    def pause(self, seconds, now):
        """Twice as long every time; then all destinations may be tried again."""
        self.tried.clear()
        self.not_before = now + seconds * 2 ** min(len(self.tries) - 1, 6)

    def may_try(self, destination):
        return "*" not in self.tried and destination not in self.tried
