"""Moves a job from its container into one that the destination's engine makes for it.

Nothing is remembered here. The kernel names both inits (container/messages.h), and the engines keep the containers: so
a run that was killed at any point is finished by the next one.
"""

import dataclasses
import itertools
import secrets
import time

from gcr_moves import cli as program
from gcr_moves import engines

KEY_BYTES = 16
RECEIVING, WITH_JOB, MOVED = "gcr-receiving", "gcr-init", "gcr-moved"
CREATED = "created"  # status of a container that was never started
STAYED = (program.FAILED, program.REFUSED, program.CANCELLED)  # statuses of migrations that brought no job
START_SECONDS = 30  # for an init to say that it waits
LOOK_SECONDS = 0.1
NETWORK_FILE_SYSTEMS = ("beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "smb2")  # as stat(1) calls them


def short(digest):
    return digest.removeprefix("sha256:")[:12]


def has_moved(ended):
    """Whether a migration has brought its job; None if that is not known."""
    if ended.status == program.DONE:
        return True
    return False if ended.gone or ended.status in STAYED else None


class Refused(Exception):
    """The container cannot move; nothing was changed."""


@dataclasses.dataclass
class Outcome:
    """Of one move: `status` as gcr-migrate's."""

    status: int
    message: str = ""
    migration: program.Ended = dataclasses.field(default_factory=lambda: program.Ended(program.UNKNOWN))


def in_the_way(host, found):
    """What an engine has against a move, like a finding of `gcr-migrate preflight`. `host`: "source" or
    "destination"."""
    return {"id": "engine", "severity": "blocker", "host": host, "found": found, "why": "", "remedy": ""}


def keeps_addresses(options):
    """Whether the options of a migration say so."""
    return tcp_of(options) == "keep"


def tcp_of(options):
    """What the options of a migration say of connections; empty if nothing."""
    words = [part for option in options for part in option.split("=")]
    return next((value for option, value in itertools.pairwise(words) if option == "--tcp"), "")


def ports_left_behind(container, with_address):
    """`with_address`: it keeps its connections."""
    for port in container.ports if with_address else ():
        yield f"connections through the published port {port} are not kept, as they end at the host"


def unmoved_files(container):
    named = (*(f"volume {name}" for name in container.volumes), *container.folders)
    return [f"the files of {', '.join(named)} are not moved; preflight compares them"] if named else []


def files_left_behind(what, here, there):
    """`here` and `there`: what Engine.files_in() says; None if it cannot be asked."""
    if not here or not there or not here[1] or not there[1]:
        return f"the files of {what} are not moved, and were not compared"
    if here[1] != there[1]:
        return f"the files of {what} are not moved, and those at the destination have other names, sizes, owners or modes"
    if here[0] == there[0] and here[0] in NETWORK_FILE_SYSTEMS:
        return f"{what} is on {here[0]} at both hosts, with the same files"
    return f"the files of {what} are not moved; those at the destination have the same names, sizes, owners and modes"


class Move:
    """Of one container from an engine to another of the same kind."""

    def __init__(self, cli, source, destination, say, patience):
        self._cli, self._source, self._destination = cli, source, destination
        self._engines = source, destination
        self._say, self._patience = say, patience
        self._migration = None
        self._stopping = 0

    @property
    def migration_id(self):
        return self._migration.migration_id if self._migration else ""

    # From another thread or a signal handler.

    def cancel(self):
        self._stopping = max(self._stopping, 1)
        if self._migration is not None:
            self._migration.cancel()

    def leave(self):
        """The agents are left alone with the migration, and the containers as they are."""
        self._stopping = 2
        if self._migration is not None:
            self._migration.leave()

    # ---- what one may want of it ----

    def preflight(self, name, options=()):
        """What is in the way, as findings; changes nothing. `options`: of `gcr-migrate preflight`. CliError or
        EngineError: not everything is known."""
        options = self._with_addresses(options)
        container, receiver = self._find(name)
        if container is None:
            return [in_the_way("source", f"{self._source.host.agent} has no container {name}")]
        obstacles, job = self._look_at(container)
        findings = [in_the_way("source", each) for each in obstacles]
        keeps = keeps_addresses(options)
        findings += [in_the_way("destination", each) for each in self._obstacles_there(container, receiver, keeps)]
        findings += [{**in_the_way("source", each), "severity": "warning"}
                     for each in (*self._compared(container), *ports_left_behind(container, keeps))]  # fmt: skip
        if job is not None:
            source, destination = self._source.host.agent, self._destination.host.agent
            findings += self._cli.findings(source, destination, job["pid"], ["--container", "new", *options])
        return findings

    def settle(self, name):
        """Finishes what an earlier run has begun, and begins nothing. None if its container is gone."""
        container, receiver = self._find(name)
        if container is None:
            return None
        ours = receiver is not None and receiver.labels.get(engines.SOURCE) == container.id
        return self._settle(container, receiver if ours else None)

    def run(self, name, options=()):
        """The whole of it, or what an earlier run has left of it. Raises Refused, CliError or EngineError: it stays."""
        options = self._with_addresses(options)
        container, receiver = self._find(name)
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
        receiver = self._receiver(container, key, keeps_addresses(options))
        ended = self._migrate(container, receiver, key, job, options)
        outcome = self._settle(container, receiver, has_moved(ended))
        outcome.migration = ended
        if outcome.status == program.FAILED and ended.status not in (program.DONE, program.UNKNOWN):
            outcome = Outcome(ended.status, ended.message, ended)
        return outcome

    # ---- the steps ----

    def _with_addresses(self, options):
        if not self._source.KEEPS_ADDRESSES or keeps_addresses(options):
            return options
        if tcp_of(options):
            raise Refused("a job with a network of its own moves with its addresses: --tcp keep")
        return [*options, "--tcp", "keep"]

    def _find(self, name):
        """The container with this name or id, and the one at the destination with its name; None if it is not there."""
        container = self._source.find(name)
        return container, self._destination.find(container.name if container else name)

    def _moved_already(self, name, receiver):
        if receiver is None or engines.SOURCE not in receiver.labels:
            raise Refused(f"{self._source.host.agent} has no container {name}")
        if receiver.status == CREATED or self._destination.name_of_init(receiver) == RECEIVING:
            raise Refused(f"{name} waits at {self._destination.host.agent} for a job that is gone: remove it")
        self._source.remove_rest(receiver)
        return Outcome(program.DONE, f"{name} is at {self._destination.host.agent} already")

    def _job_of(self, container):
        """The PID of its job's root. Refused if it has none that could move."""
        obstacles, job = self._look_at(container)
        if obstacles:
            raise Refused(obstacles[0])
        return job["pid"]

    def _look_at(self, container):
        """Why it cannot leave its host, and its job, if it has one that could be moved."""
        if not container.running:
            return [f"{container.name} is {container.status}, not running"], None
        obstacles = [f"{container.name} {each}" for each in container.obstacles]
        if self._source.name_of_init(container) != WITH_JOB:
            return [*obstacles, f"{container.name} was not started by gcr-runtime, or has no job"], None
        jobs = self._cli.host(self._source.host.agent)["jobs"]
        job = next((each for each in jobs if each["container_init"] == container.init), None)
        if job is None:
            obstacles.append(f"no process in {container.name} uses a GPU under the preload library")
        elif job["migration_id"]:
            obstacles.append(f"the job of {container.name} is in a migration already: {job['migration_id']}")
            job = None
        return obstacles, job

    def _obstacles_there(self, container, receiver, with_address):
        """Why the destination cannot make a container for it. `receiver`: what has its name there, or None."""
        agent = self._destination.host.agent
        if receiver is not None and receiver.labels.get(engines.SOURCE) != container.id:
            yield f"{agent} has a container {receiver.name}, which does not wait for this one"
        yield from (f"{agent} {each}" for each in self._destination.obstacles_to(container))
        if not self._destination.has_image(container.image):
            yield (f"{agent} does not have the image {container.image_name} ({short(container.image)}): "
                   f"{self._source.IMAGE_BY} brings it there")  # fmt: skip
            return
        named = self._destination.image_named(container.image_name)
        if named not in ("", container.image):
            yield self._is_another_image(container, named)
        for name in container.volumes:
            if not self._destination.has_volume(name):
                yield f"{agent} has no volume {name}: make it there, with the same content"
        for network, addresses in container.networks.items() if with_address else ():
            if not self._destination.can_give(network, addresses):
                yield f"{agent} has no network {network} in which a container may have {' and '.join(addresses)}"
        for path in self._destination.absent(container.folders):
            yield f"{agent} has no {path}, which {container.name} has mounted"

    def _is_another_image(self, container, image):
        return (f"{container.image_name} at {self._destination.host.agent} is another image: "
                f"{short(image)}, not {short(container.image)}")  # fmt: skip

    def _compared(self, container):
        """What is known of files that do not move with it."""
        for name in container.volumes:
            if self._destination.has_volume(name):
                here, there = (self._files_of_volume(engine, name) for engine in self._engines)
                yield files_left_behind(f"volume {name}", here, there)
        absent = self._destination.absent(container.folders)
        for path in container.folders:
            if path not in absent:
                here, there = (self._files(engine, path) for engine in self._engines)
                yield files_left_behind(path, here, there)

    def _files_of_volume(self, engine, name):
        folder = engine.volume_folder(name)
        return self._files(engine, folder) if folder else None

    def _files(self, engine, path):
        try:
            return engine.files_in(path)
        except engines.EngineError as error:
            self._say(str(error))
            return None

    def _receiver(self, container, key, with_address):
        """A container at the destination that waits for the job."""
        for obstacle in self._obstacles_there(container, None, with_address):
            raise Refused(obstacle)
        for each in (*unmoved_files(container), *ports_left_behind(container, with_address)):
            self._say(each)
        receiver = self._destination.start_receiver(container, key, with_address)
        try:
            if receiver is None:
                raise Refused(f"{container.name} ended at once at {self._destination.host.agent}")
            if receiver.image != container.image:
                raise Refused(self._is_another_image(container, receiver.image))
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
        if self._stopping:
            self._migration.cancel()
        ended = self._migration.wait()
        self._say(f"{container.name}: " + (ended.message or "the migration has ended"))
        return ended

    # ---- what became of it ----

    def _settle(self, container, receiver, moved=None):
        """Waits until one of the two has the job, and removes the other. `receiver`: None if there is none. `moved`:
        whether its job has been brought, if that is known."""
        end = time.monotonic() + self._patience
        trouble = ""
        while (looked := time.monotonic()) < end and self._stopping < 2:
            try:
                outcome = self._look(container, receiver, moved)
                if outcome is None and self._is_migrating(container):
                    end = time.monotonic() + self._patience
                elif outcome is None:
                    outcome = self._look_after(container, receiver)
                if outcome is not None:
                    return outcome
            except (program.CliError, engines.EngineError) as error:
                trouble = f": {error}"
            # Looking, which starts programs, takes half of the time at most.
            time.sleep(max(LOOK_SECONDS, time.monotonic() - looked))
        return Outcome(program.UNKNOWN, f"which container of {container.name} has the job is not known yet{trouble}")

    def _look(self, container, receiver, moved):
        """The outcome, if it can be told without the agents."""
        here = self._name_here(container)
        if here == MOVED or (here == "" and (moved or self._has_job(self._there(receiver)))):
            self._note_addresses(receiver)
            self._source.remove(container)
            return Outcome(program.DONE)
        if here == "" and moved is False:
            return self._has_ended(container, self._there(receiver))
        return None

    def _look_after(self, container, receiver):
        """The outcome, as no migration has the job any more: it has brought the job, or never will."""
        here, there = self._name_here(container), self._there(receiver)
        if self._has_job(there) or here not in (WITH_JOB, ""):
            return None
        if here == "":
            # One that has ended may have had the job, and has its exit status then.
            return self._has_ended(container, there if there and there.running else None)
        self._remove_there(there)
        return Outcome(program.FAILED, f"{container.name} runs on at {self._source.host.agent}")

    def _has_ended(self, container, receiver):
        self._remove_there(receiver)
        return Outcome(program.FAILED, f"{container.name} has ended at {self._source.host.agent}")

    def _name_here(self, container):
        """Of its init; empty if it has ended, also if podman calls it running because its conmon was killed."""
        here = self._source.find(container.id)
        return self._source.name_of_init(here) if here is not None and here.running else ""

    def _there(self, receiver):
        return self._destination.find(receiver.id) if receiver is not None else None

    def _note_addresses(self, receiver):
        there = self._there(receiver)
        if there is not None and there.running:
            self._destination.note_addresses(there)

    def _remove_there(self, receiver):
        if receiver is not None:
            self._destination.remove(receiver)

    def _has_job(self, receiver):
        return receiver is not None and receiver.running and self._destination.name_of_init(receiver) == WITH_JOB

    def _is_migrating(self, container):
        """By the journals, because the agent lists no job that is off its GPU for a switchover."""
        children = self._source.children_of_init(container)
        migrations = self._cli.host(self._source.host.agent)["migrations"]
        if children:
            return any(children.intersection(each["members"]) for each in migrations)
        # Its job has ended, and its copy elsewhere may be in any of those whose members have.
        return any(not each["members"] for each in migrations)
