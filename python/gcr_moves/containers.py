"""Moves a job from its container into one that the destination's engine makes for it.

Nothing is remembered here. The kernel names both inits (container/messages.h), and the engines keep the containers: so
a run that was killed at any point is finished by the next one.
"""

import dataclasses
import secrets
import time

from gcr_moves import cli as program
from gcr_moves import engines

KEY_BYTES = 16
RECEIVING, WITH_JOB, MOVED = "gcr-receiving", "gcr-init", "gcr-moved"
STAYED = (program.FAILED, program.REFUSED, program.CANCELLED)  # statuses of migrations that brought no job
START_SECONDS = 30  # for an init to say that it waits
LOOK_SECONDS = 0.1


def short(digest):
    return digest.removeprefix("sha256:")[:12]


class Refused(Exception):
    """The container cannot move; nothing was changed."""


@dataclasses.dataclass
class Outcome:
    """Of one move: `status` as gcr-migrate's."""

    status: int
    message: str = ""
    migration: program.Ended = dataclasses.field(default_factory=lambda: program.Ended(program.UNKNOWN))


class Move:
    """Of one container from an engine to another of the same kind."""

    def __init__(self, cli, source, destination, say, patience):
        self._cli, self._source, self._destination = cli, source, destination
        self._say, self._patience = say, patience
        self._migration = None
        self._stopping = 0

    def stop(self):
        """Cancels the migration; the second time the agents are left alone with it. From a signal handler."""
        self._stopping += 1
        if self._migration is None:
            return
        if self._stopping == 1:
            self._migration.cancel()
        else:
            self._migration.leave()

    def run(self, name, options=()):
        """The whole of it, or what an earlier run has left of it. Raises Refused, CliError or EngineError: it stays."""
        container = self._source.find(name)
        receiver = self._destination.find(container.name if container else name)
        if container is None:
            return self._moved_already(name, receiver)
        if receiver is not None:
            if receiver.labels.get(engines.SOURCE) != container.id:
                raise Refused(f"{self._destination.host.agent} has a container {name}, which does not wait for this one")
            self._say(f"{receiver.name} at {receiver.id[:12]} was made by an earlier run: settling that first")
            outcome = self._settle(container, receiver)
            if outcome.status != program.FAILED:
                return outcome
        job = self._job_of(container)
        key = secrets.token_hex(KEY_BYTES)
        receiver = self._receiver(container, key)
        ended = self._migrate(container, receiver, key, job, options)
        outcome = self._settle(container, receiver, ended.status in STAYED)
        outcome.migration = ended
        if outcome.status == program.FAILED and ended.status != program.DONE:
            outcome = Outcome(ended.status, ended.message, ended)
        return outcome

    # ---- the steps ----

    def _moved_already(self, name, receiver):
        if receiver is None or engines.SOURCE not in receiver.labels:
            raise Refused(f"{self._source.host.agent} has no container {name}")
        if self._destination.name_of_init(receiver) == RECEIVING:
            raise Refused(f"{name} waits at {self._destination.host.agent} for a job that is gone: remove it")
        return Outcome(program.DONE, f"{name} is at {self._destination.host.agent} already")

    def _job_of(self, container):
        """The PID of its job's root. Refused if it has none that could move."""
        if not container.running:
            raise Refused(f"{container.name} is {container.status}, not running")
        if container.obstacle:
            raise Refused(f"{container.name} {container.obstacle}")
        if self._source.name_of_init(container) != WITH_JOB:
            raise Refused(f"{container.name} was not started by gcr-runtime, or has no job")
        jobs = self._cli.host(self._source.host.agent)["jobs"]
        job = next((each for each in jobs if each["container_init"] == container.init), None)
        if job is None:
            raise Refused(f"no process in {container.name} uses a GPU under the preload library")
        if job["migration_id"]:
            raise Refused(f"the job of {container.name} is in a migration already: {job['migration_id']}")
        return job["pid"]

    def _receiver(self, container, key):
        """A container at the destination that waits for the job."""
        if not self._destination.has_image(container.image):
            raise Refused(f"{self._destination.host.agent} does not have the image {container.image_name} "
                          f"({short(container.image)}): {self._source.IMAGE_BY} brings it there")  # fmt: skip
        receiver = self._destination.start_receiver(container, key)
        try:
            if receiver is None:
                raise Refused(f"{container.name} ended at once at {self._destination.host.agent}")
            if receiver.image != container.image:
                raise Refused(f"{container.image_name} at {self._destination.host.agent} is another image: "
                              f"{short(receiver.image)}, not {short(container.image)}")  # fmt: skip
            self._wait_until_it_waits(receiver)
        except Exception:
            if receiver is not None:
                self._destination.remove(receiver)
            raise
        self._say(f"{container.name} at {self._destination.host.agent} waits for its job")
        return receiver

    def _wait_until_it_waits(self, receiver):
        end = time.monotonic() + START_SECONDS
        while self._destination.name_of_init(receiver) != RECEIVING:
            if time.monotonic() > end:
                raise Refused(f"{receiver.name} at {self._destination.host.agent} does not wait for a job: "
                              "was it made by gcr-runtime?")  # fmt: skip
            time.sleep(LOOK_SECONDS)

    def _migrate(self, container, receiver, key, pid, options):
        source, destination = self._source.host.agent, self._destination.host.agent
        if self._stopping:
            return program.Ended(program.CANCELLED, "it was interrupted")
        words = ["--container", f"{receiver.init}:{key}", *options]
        self._migration = self._cli.migrate(source, destination, pid, words)
        ended = self._migration.wait()
        self._say(f"{container.name}: " + (ended.message or "the migration has ended"))
        return ended

    # ---- what became of it ----

    def _settle(self, container, receiver, stayed=False):
        """Waits until one of the two has the job, and removes the other. `stayed`: no job has been brought."""
        end = time.monotonic() + self._patience
        trouble = ""
        while time.monotonic() < end and self._stopping < 2:
            try:
                here = self._source.find(container.id)
                if stayed and not (here and here.running):
                    self._destination.remove(receiver)
                    return Outcome(program.FAILED, f"{container.name} has ended at {self._source.host.agent}")
                if here is None or (here.running and self._source.name_of_init(here) == MOVED):
                    self._source.remove(container)
                    return Outcome(program.DONE)
                if self._is_migrating(container):
                    end = time.monotonic() + self._patience
                # Only now: a migration that has ended when the agent was asked has brought the job, or never will.
                elif here.running and self._source.name_of_init(here) == WITH_JOB and not self._has_job(receiver):
                    self._destination.remove(receiver)
                    return Outcome(program.FAILED, f"{container.name} runs on at {self._source.host.agent}")
            except (program.CliError, engines.EngineError) as error:
                trouble = f": {error}"
            time.sleep(LOOK_SECONDS)
        return Outcome(program.UNKNOWN, f"which container of {container.name} has the job is not known yet{trouble}")

    def _has_job(self, receiver):
        there = self._destination.find(receiver.id)
        return there is not None and there.running and self._destination.name_of_init(there) == WITH_JOB

    def _is_migrating(self, container):
        """By the journals, because the agent lists no job that is off its GPU for a switchover."""
        children = self._source.children_of_init(container)
        migrations = self._cli.host(self._source.host.agent)["migrations"]
        return any(children.intersection(each["members"]) for each in migrations)
