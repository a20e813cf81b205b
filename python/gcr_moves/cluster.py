"""What the agents tell about their hosts, and which of them answer."""

import concurrent.futures
import dataclasses
import time

from gcr_moves import cli as program

SCHEMA = 1  # of `gcr-migrate host --json`

# An agent answers sooner as a rule. One that does not delays no other: its answer is taken when it
# comes, and until then nothing goes there.
ANSWER_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU, with what was free when its host was asked."""

    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    allowed: bool = True  # for jobs that arrive
    device_file: str = ""  # empty if it has none of its own


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, by its root. PID and start time tell it from every other one."""

    pid: int
    start_time: int
    command: str = ""
    user: str = ""
    vram: tuple = ()  # pairs of a GPU's UUID and the bytes that all its processes have there
    migration_id: str = ""  # of the one that it is in; a suspension that no worker carries out is none
    suspended: bool = False
    processes: int = 1
    gpu_processes: int = 1
    slurm_job: int = 0  # the Slurm job that its root belongs to; 0: none
    slurm_step: str = ""
    slurm_parent: str = ""  # the program of the root's parent
    container_init: int = 0  # the first process of the container that it is in; 0: in none

    @property
    def key(self):
        return (self.pid, self.start_time)

    @property
    def vram_bytes(self):
        return sum(size for _, size in self.vram)


@dataclasses.dataclass(frozen=True)
class Picture:
    """One answer of one agent."""

    gpus: tuple
    jobs: tuple
    migrations: tuple = ()  # unfinished ones, as `gcr-migrate status --json` has them
    load: float = 0.0  # runnable threads per core
    max_migrations: int = 16
    slurm_node: str = ""  # what Slurm calls it

    @property
    def under_way(self):
        """The migrations that are being worked on: those that wait for an operator take no room."""
        return {
            each["migration_id"]
            for each in self.migrations
            if each.get("phase") and not each.get("operator_needed")
        }


def _migration_of(job, migrations):
    """The id of the migration that a job of the answer is in, and whether it is suspended. For the agent a
    suspended job is in the migration that has suspended it, also while another one moves it."""
    known = {each["migration_id"]: each for each in migrations}
    its = known.get(job["migration_id"])
    if its is None or not at_rest(its):
        return job["migration_id"], False
    moving = [name for name, each in known.items() if each is not its and job["pid"] in each["members"]]
    return (moving[0] if moving else ""), True


def at_rest(migration):
    """Whether it has left a job suspended, and is not resuming it."""
    return migration["state"] == "suspended" and not migration["phase"]


def parse(answer):
    """ValueError if this is no answer that we understand."""
    if answer.get("schema") != SCHEMA:
        raise ValueError(f"schema {answer.get('schema')} of `gcr-migrate host` is not known here")
    gpus = tuple(
        Gpu(each["uuid"], each["name"], each["total_bytes"], each["free_bytes"], each["allowed"],
            each["device_file"])  # fmt: skip
        for each in answer["gpus"]
    )
    states = [_migration_of(each, answer["migrations"]) for each in answer["jobs"]]
    jobs = tuple(
        Job(
            pid=each["pid"],
            start_time=each["start_time"],
            command=each["command"],
            user=each["user"] or str(each["uid"]),
            vram=tuple((use["uuid"], use["vram_bytes"]) for use in each["gpus"]),
            migration_id=migration_id,
            suspended=suspended,
            processes=each["processes"],
            gpu_processes=each["gpu_processes"],
            slurm_job=each["slurm_job"],
            slurm_step=each["slurm_step"],
            slurm_parent=each["slurm_parent"],
            container_init=each["container_init"],
        )
        for each, (migration_id, suspended) in zip(answer["jobs"], states, strict=True)
    )
    return Picture(
        gpus=gpus,
        jobs=jobs,
        migrations=tuple(answer["migrations"]),
        load=answer["load"],
        max_migrations=answer["max_migrations"],
        slurm_node=answer["slurm_node"],
    )


class Host:
    """An agent by its name, what it said last, and whether it answers."""

    def __init__(self, name):
        self.name = name
        self.picture = None  # None until it has answered
        self.asked_at = 0.0  # time.monotonic() when that picture was asked for
        self.late = False  # the answer to the last question has not come yet
        self.down_since = None
        self.deaths = 0  # how often it stopped answering
        self.trouble = ""  # why it does not answer
        self.trouble_status = program.DONE
        self._next_look = 0.0
        self._pause = 0.0

    @property
    def up(self):
        return self.picture is not None and self.down_since is None and not self.late

    def due(self, now):
        """One that does not answer is asked less and less often."""
        return now >= self._next_look

    def answered(self, picture, asked_at):
        """True if it had not answered before."""
        was_down = self.down_since is not None
        self.picture, self.asked_at = picture, asked_at
        self.down_since, self.trouble, self._pause = None, "", 0.0
        self.trouble_status = program.DONE
        return was_down

    def silent(self, error, now, pause):
        """True if it had answered before, or was never asked."""
        self._pause = min(self._pause * 2 or pause, 60.0)
        self._next_look = now + self._pause
        self.trouble, self.trouble_status = str(error), error.status
        if self.down_since is not None:
            return False
        self.down_since = now
        self.deaths += 1
        return True


class Cluster:
    """The hosts that take part."""

    def __init__(self, cli, names, ask_again_seconds=5.0, clock=time.monotonic):
        self.cli = cli
        self.hosts = {name: Host(name) for name in names}
        self._pause = ask_again_seconds
        self._clock = clock
        self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=32)
        self._asked = {}  # by name: the question that is under way, and when it was asked

    def look(self, names=None, patient=False):
        """Asks these hosts, or all, at the same time; gives those that changed between answering
        and not. Answers that are late are taken at a later look, unless we are patient: then these
        are asked, due or not, and their answers awaited."""
        now = self._clock()
        names = self.hosts if names is None else names
        for name in names:
            host = self.hosts[name]
            if name not in self._asked and (patient or host.due(now)):
                self._asked[name] = (self._pool.submit(self._ask, host), now)
        awaited = [
            question
            for name, (question, _) in self._asked.items()
            if (name in names if patient else self._is_prompt(name))
        ]
        concurrent.futures.wait(awaited, None if patient else ANSWER_SECONDS)
        answered = [name for name, (question, _) in self._asked.items() if question.done()]
        changed = [self.hosts[name] for name in answered if self._take(name)]
        for name in self._asked:
            self.hosts[name].late = True
        return changed

    def _is_prompt(self, name):
        host = self.hosts[name]
        return host.down_since is None and not host.late

    def _take(self, name):
        host = self.hosts[name]
        question, asked_at = self._asked.pop(name)
        host.late = False
        answer = question.result()
        if isinstance(answer, program.CliError):
            return host.silent(answer, self._clock(), self._pause)
        return host.answered(answer, asked_at)

    def _ask(self, host):
        try:
            return parse(self.cli.host(host.name))
        except program.CliError as error:
            return error
        except (ValueError, KeyError, TypeError) as error:
            return program.CliError(program.USAGE, f"cannot read the answer: {error!r}")
