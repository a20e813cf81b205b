"""Jobs that take turns on GPUs without room for all of them: those that have no turn are suspended.

A job that serves has a port here, from which connections are passed on to it. It gets a turn when something arrives for it,
and may lose it once it has answered and is quiet, or when its time is over and another one waits. Its connections stay
meanwhile: what arrives is kept until its next turn. A job without a port always wants a turn.
"""

import asyncio
import contextlib
import dataclasses
import functools
import ipaddress
import json
import time

from gcr_moves import cli as program

PIECE_BYTES = 1 << 16
LOOK_SECONDS = 10.0  # between two looks at what has ended, or was changed by others
RUNNING, SUSPENDED, ENDED = "running", "suspended", "ended"


@dataclasses.dataclass(frozen=True)
class Rules:
    at_once: int = 1  # jobs that run at a time
    turn_seconds: float = 30.0  # of a job, at least, while it is not quiet
    quiet_seconds: float = 1.0  # without a byte, after its answer: then its turn may end
    patience_seconds: float = 120.0  # that a connection waits for its job
    pause_seconds: float = 5.0  # before an order that failed is given again


@dataclasses.dataclass(frozen=True)
class Place:
    """An address of TCP."""

    host: str
    port: int

    @classmethod
    def parse(cls, words, default_host=""):
        """HOST:PORT or [ADDRESS]:PORT, or PORT alone. ValueError if it is none."""
        host, _, port = words.rpartition(":")
        if not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{words} is no port")
        host = host.strip("[]") or default_host
        if ":" in host:
            ipaddress.IPv6Address(host)
        return cls(host, int(port))


@dataclasses.dataclass
class Job:
    """The event loop owns it. Times are of time.monotonic()."""

    pid: int
    listen: Place = None  # None: it has no port
    target: Place = None
    state: str = RUNNING
    began: float = 0  # its turn
    ended: float = 0  # its last turn: who has waited longest comes first
    used: float = 0  # when a byte was passed on last
    waiting: int = 0  # connections with something for it
    unanswered: int = 0  # connections whose last bytes went to it
    not_before: float = 0  # an order that failed is given again
    awake: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @classmethod
    def parse(cls, words):
        """PID or PID,listen=[ADDRESS:]PORT,to=HOST:PORT. ValueError, with the reason, if it is none."""
        pid, *rest = words.split(",")
        options = dict(each.partition("=")[::2] for each in rest)
        if not pid.isdigit() or int(pid) < 1:
            raise ValueError(f"{pid} is no PID")
        if set(options) not in (set(), {"listen", "to"}):
            raise ValueError("a job is PID or PID,listen=[ADDRESS:]PORT,to=HOST:PORT")
        if not options:
            return cls(int(pid))
        target = Place.parse(options["to"])
        if not target.host:
            raise ValueError(f"to={options['to']} names no host")
        return cls(int(pid), Place.parse(options["listen"]), target)

    @property
    def waits(self):
        """For a turn."""
        return self.state == SUSPENDED and (self.listen is None or self.waiting > 0 or self.unanswered > 0)

    def is_quiet(self, now, rules):
        busy = self.listen is None or self.waiting > 0 or self.unanswered > 0
        return not busy and now - self.used >= rules.quiet_seconds


class Orders:
    """What is asked of the agent, by gcr-migrate."""

    def __init__(self, command, options, host):
        self._command, self._options, self._host = command, list(options), host

    async def run(self, verb, *words):
        """Status, JSON and what was said about a failure."""
        process = await asyncio.create_subprocess_exec(
            self._command, verb, *self._options, self._host, *words, "--json", stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True)  # fmt: skip
        said, complained = await process.communicate()
        try:
            answer = json.loads(said)
        except ValueError:
            answer = {}
        return process.returncode, answer, program.last_line(complained.decode(errors="replace"))

    async def states(self):
        """Of the jobs that the agent knows, by PID. CliError if it does not answer."""
        found = {}
        for verb, read in (("host", running_in), ("list", suspended_in)):
            status, answer, message = await self.run(verb)
            if status != program.DONE:
                raise program.CliError(status, message or f"gcr-migrate {verb} failed")
            found |= read(answer)
        return found


def running_in(answer):
    return {each["pid"]: RUNNING for each in answer["jobs"]}


def suspended_in(answer):
    return {each["pid"]: SUSPENDED for each in answer["migrations"] if each["state"] == SUSPENDED}


class Turns:
    """Of the jobs of one host."""

    def __init__(self, orders, jobs, rules, say):
        self.jobs, self._orders, self._rules, self._say = jobs, orders, rules, say
        self._changed = asyncio.Event()
        self.talks = set()  # tasks

    async def begin(self):
        """Looks what runs. Raises CliError or OSError: nothing was changed, and no port is open."""
        states = await self._orders.states()
        for job in self.jobs:
            job.state = states.get(job.pid, ENDED)
            if job.state == RUNNING:
                job.began = time.monotonic()
                job.awake.set()
            self._say(f"job {job.pid} " + {RUNNING: "runs", SUSPENDED: "is suspended", ENDED: "does not exist"}[job.state])
        return [await asyncio.start_server(functools.partial(self._accept, job), job.listen.host or None, job.listen.port)
                for job in self.jobs if job.listen is not None and job.state != ENDED]  # fmt: skip

    async def run(self):
        """Until all have ended."""
        looked = time.monotonic()
        while any(job.state != ENDED for job in self.jobs):
            self._changed.clear()
            if time.monotonic() - looked >= LOOK_SECONDS:
                await self._look()
                looked = time.monotonic()
            pause = await self._step(time.monotonic())
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause)

    async def _step(self, now):
        """One order, if one is due; the seconds until another one may be."""
        rules = self._rules
        running = [job for job in self.jobs if job.state == RUNNING]
        waiting = sorted((job for job in self.jobs if job.waits and now >= job.not_before), key=lambda job: job.ended)
        over = len(running) - rules.at_once
        if over < 0 and waiting:
            await self._order(waiting[0], "resume")
            return 0
        if over > 0 or (over == 0 and waiting):
            # Those that are quiet first, then the one whose turn is the longest.
            ending = [job for job in running if now >= job.not_before
                      and (over > 0 or job.is_quiet(now, rules) or now - job.began >= rules.turn_seconds)]  # fmt: skip
            if ending:
                await self._order(min(ending, key=lambda job: (not job.is_quiet(now, rules), job.began)), "suspend")
                return 0
        return min(rules.quiet_seconds, rules.pause_seconds)

    async def _order(self, job, verb):
        began = time.monotonic()
        if verb == "suspend":
            job.awake.clear()
        status, _, message = await self._orders.run(verb, str(job.pid))
        now = time.monotonic()
        if status == program.DONE:
            job.state = SUSPENDED if verb == "suspend" else RUNNING
            if verb == "suspend":
                job.ended = now
            else:
                job.began = job.used = now
            self._say(f"job {job.pid} {'is suspended' if verb == 'suspend' else 'runs'} ({now - began:.1f} s)")
        else:
            job.not_before = now + self._rules.pause_seconds
            self._say(f"cannot {verb} job {job.pid}: {message or f'status {status}'}")
            await self._look()
        if job.state != SUSPENDED:
            job.awake.set()

    async def _look(self):
        try:
            states = await self._orders.states()
        except program.CliError as error:
            self._say(str(error))
            return
        for job in self.jobs:
            before, job.state = job.state, states.get(job.pid, ENDED)
            if job.state == SUSPENDED:
                job.awake.clear()
            elif before != job.state:
                self._say(f"job {job.pid} {'has ended' if job.state == ENDED else 'runs'}")
                job.began = time.monotonic()
                job.awake.set()

    # ---- connections ----

    def _accept(self, job, reader, writer):
        talk = asyncio.ensure_future(self._serve(job, reader, writer))
        self.talks.add(talk)
        talk.add_done_callback(self.talks.discard)

    async def _serve(self, job, reader, writer):
        closing = [writer]
        try:
            await self._need(job)
            target = await asyncio.open_connection(job.target.host, job.target.port)
            closing.append(target[1])
            await self._talk(job, (reader, writer), target)
        except (OSError, asyncio.TimeoutError) as error:
            self._say(f"a connection to job {job.pid} is closed: {str(error) or 'the job got no turn'}")
        finally:
            for each in closing:
                each.close()

    async def _need(self, job):
        """Waits until it runs. TimeoutError if it does not in time; OSError if it has ended."""
        if not job.awake.is_set():
            job.waiting += 1
            self._changed.set()
            try:
                await asyncio.wait_for(job.awake.wait(), self._rules.patience_seconds)
            finally:
                job.waiting -= 1
                job.used = time.monotonic()
        if job.state == ENDED:
            raise ConnectionError("the job has ended")

    async def _talk(self, job, client, target):
        """Until both have closed, or either is lost."""
        asked = False  # the last bytes went to the job

        def note(is_question):
            nonlocal asked
            job.used = time.monotonic()
            job.unanswered += is_question - asked
            asked = is_question

        async def pass_on(reader, writer, is_question):
            while piece := await reader.read(PIECE_BYTES):
                if is_question:
                    await self._need(job)
                note(is_question)
                writer.write(piece)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

        ways = [asyncio.ensure_future(each) for each in (pass_on(client[0], target[1], True), pass_on(target[0], client[1], False))]
        try:
            await asyncio.gather(*ways)
        finally:
            for each in ways:
                each.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            note(False)
            self._changed.set()
