"""What a drain and a rebalancing have in common: the loop around the runner."""

import time

from gcr_moves import cli as program
from gcr_moves import plan, text
from gcr_moves.tasks import State

ARRIVED = (State.MOVED, State.RESTORED)


class Course:
    """Looks at the hosts, finds out what is unsettled, begins what may begin, until all is done.

    A kind of course says which tasks there are (update) and where they may go (destinations).
    """

    def __init__(self, cluster, runner, say):
        self.cluster = cluster
        self.runner = runner
        self.limits = runner.limits
        self.say = say
        self.tasks = []
        self._next_look = 0.0
        self._waiting_since = time.monotonic()  # the last time that anything got on

    # ---- of a kind of course ----

    def update(self):
        """After every look: tasks may appear."""

    def destinations(self, task):
        """The names of the hosts that the task may go to."""
        raise NotImplementedError

    def finished(self):
        """Whether there is nothing more to come, once no task is open."""
        return True

    def source_of(self, task):
        """The picture with the GPUs that the task's job uses; None if there is none yet."""
        return self.cluster.hosts[task.source].picture

    def may_begin(self, task):
        """Whether its source answers."""
        return self.cluster.hosts[task.source].up

    def last_resort(self, _task):
        """Every try has failed: True if there is something else to do; then it was begun, or the
        task waits for it."""
        return False

    # ---- the loop ----

    def run(self):
        while True:
            ended = self.runner.wait(self._until_next_look())
            if ended:
                self._got_on()
            self._look({name for task in ended for name in (task.source, task.destination)})
            self._settle()
            if not self.runner.stopping:
                self._begin()
            if self._over():
                break
        self._check_moved()

    def _until_next_look(self):
        return min(self._next_look - time.monotonic(), self.limits.interval_seconds)

    def _got_on(self):
        self._waiting_since = time.monotonic()

    def _look(self, names):
        """At these; at all if it is time to."""
        now = time.monotonic()
        if now >= self._next_look:
            names = set(self.cluster.hosts)
            self._next_look = now + self.limits.interval_seconds
        if not names:
            return
        for host in self.cluster.look(names & set(self.cluster.hosts)):
            self.say(f"{host.name} answers again" if host.up else f"{host.name}: {host.trouble}")
        self.update()

    def _settle(self):
        for task in self.tasks:
            if task.state is State.UNSETTLED and (task.destination or task.source in self.cluster.hosts):
                self.runner.settle(task)
                if task.state is not State.UNSETTLED:
                    self._got_on()

    # ---- what may begin ----

    def rooms(self, names):
        """Those hosts that answer, less what moves there now or came after they were asked."""
        rooms = {}
        for name in names:
            host = self.cluster.hosts[name]
            if not host.up:
                continue
            rooms[name] = plan.Room(host.picture)
            for task in self.tasks:
                coming = task.state in (State.MOVING, State.UNSETTLED)
                came = task.state in ARRIVED and task.since > host.asked_at
                if task.destination == name and (coming or came):
                    self._take(rooms[name], task)
        return rooms

    def _take(self, room, task):
        source = self.source_of(task)
        places = room.find(task.job, source) if source else ""
        if not isinstance(places, str):
            room.take(task.job, places)

    def _begin(self):
        waiting = [task for task in self.tasks if task.state is State.WAITING]
        for task in sorted(waiting, key=lambda task: plan.size_order(task.job)):
            if self.may_begin(task) and time.monotonic() >= task.not_before:
                self._begin_one(task, self.source_of(task))

    def _begin_one(self, task, source):
        fitting, reasons = plan.candidates(task.job, source, self.rooms(self.destinations(task)))
        untried = [name for name in fitting if task.may_try(name)]
        free = [name for name in untried if self.runner.has_slot(task.source, name)]
        if free:
            self.runner.start(task, free[0])
        elif not untried and (task.tried or not self._room_may_come()):
            self._try_later(task, reasons)

    def _room_may_come(self):
        return self.runner.busy or any(task.state is State.UNSETTLED for task in self.tasks)

    def _try_later(self, task, reasons):
        """Every destination was tried, or none has room."""
        now = time.monotonic()
        if not task.tried:
            task.destination = ""
            words = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
            task.failed(f"no destination has room ({words or 'none answers'})", now)
        if len(task.tries) >= self.limits.tries:
            if self.last_resort(task):
                return
            self.say(f"{text.name(task)} is left at {task.source}: {task.reason}")
            task.enter(State.LEFT, now, task.reason)
            return
        self.pause(task, now)

    def pause(self, task, now):
        task.pause(self.limits.pause_seconds, now)
        self._next_look = min(self._next_look, task.not_before)

    # ---- the end ----

    def _over(self):
        if self.runner.stopping > 2:
            return True
        if self.runner.busy:
            return False
        unsettled = any(task.state is State.UNSETTLED for task in self.tasks)
        open_tasks = any(task.state.open for task in self.tasks)
        if self.runner.stopping:
            return not unsettled or self._patience_is_over()
        if not open_tasks and self.finished():
            return True
        return self._nothing_can_begin() and self._patience_is_over()

    def _nothing_can_begin(self):
        """Every task that is open waits for a host that is silent."""
        return all(
            task.state is State.UNSETTLED or not self.may_begin(task)
            for task in self.tasks
            if task.state.open
        )

    def _patience_is_over(self):
        return time.monotonic() - self._waiting_since > self.limits.patience_seconds

    def _check_moved(self):
        """A job that moved to a host which then died is lost with it: that is to be said."""
        moved = [
            task
            for task in self.tasks
            if task.state in ARRIVED and task.destination in self.cluster.hosts
        ]
        sources = {task.source for task in self.tasks} & set(self.cluster.hosts)
        self.cluster.look(sources | {task.destination for task in moved}, patient=True)
        now = time.monotonic()
        for task in moved:
            host = self.cluster.hosts[task.destination]
            if not host.up:
                task.enter(State.LOST, now, f"which does not answer now ({host.trouble})")
            elif host.deaths > task.deaths and task.pid not in {p.pid for p in host.picture.jobs}:
                task.enter(State.LOST, now, "which stopped answering after that and does not have it now")

    def status(self):
        """The exit status of the script; docs/drains.md has the table."""
        states = {task.state for task in self.tasks}
        if State.UNSETTLED in states or State.MOVING in states:
            return program.UNKNOWN
        if self.runner.stopping and State.WAITING in states:
            return program.CANCELLED
        if states & {State.LEFT, State.LOST, State.WAITING}:
            return program.FAILED
        return program.DONE
