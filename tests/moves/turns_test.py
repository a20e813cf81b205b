#!/usr/bin/env python3
"""Jobs that take turns, with an agent that exists in memory, and real connections."""

import asyncio
import functools
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from gcr_moves import cli  # noqa: E402
from gcr_moves.turns import ENDED, RUNNING, SUSPENDED, Job, Place, Rules, Turns  # noqa: E402

HANGS_S = 60
QUICK = Rules(turn_seconds=0.2, quiet_seconds=0.02, patience_seconds=HANGS_S, pause_seconds=0.02)


class FakeOrders:
    """An agent. A job that it has suspended does not answer."""

    def __init__(self, states):
        self.by_pid = dict(states)
        self.given = []
        self.jobs = []
        self.unanswered = []  # of each job that was to be suspended
        self.failing = set()  # (verb, PID)
        self.most = 0  # that ran at a time
        self.let_run = {pid: asyncio.Event() for pid in states}
        for pid, state in states.items():
            if state == RUNNING:
                self.let_run[pid].set()

    async def run(self, verb, pid):
        pid = int(pid)
        self.given.append((verb, pid))
        self.unanswered += [job.unanswered for job in self.jobs if (verb, job.pid) == ("suspend", pid)]
        await self.meanwhile(verb)
        if (verb, pid) in self.failing or self.by_pid.get(pid) == ENDED:
            return cli.FAILED, {}, "there is no room"
        self.by_pid[pid] = SUSPENDED if verb == "suspend" else RUNNING
        (self.let_run[pid].clear if verb == "suspend" else self.let_run[pid].set)()
        self.most = max(self.most, sum(state == RUNNING for state in self.by_pid.values()))
        return cli.DONE, {}, ""

    async def meanwhile(self, verb):
        await asyncio.sleep(0)

    async def states(self):
        return {pid: state for pid, state in self.by_pid.items() if state != ENDED}


class TurnsTest(unittest.IsolatedAsyncioTestCase):
    async def begin(self, states, rules=QUICK, ports=True):
        """Jobs that answer each line with it, after a moment if it says so."""
        self.orders, self.said = FakeOrders(states), []
        self.talks = []
        jobs = []
        for pid in states:
            job = Job(pid)
            if ports:
                server = await asyncio.start_server(functools.partial(self.accept, pid), "127.0.0.1", 0)
                self.addCleanup(server.close)
                job.target = Place(*server.sockets[0].getsockname())
                job.listen = Place("127.0.0.1", await self.free_port())
            jobs.append(job)
        self.jobs = {job.pid: job for job in jobs}
        self.orders.jobs = jobs
        self.turns = Turns(self.orders, jobs, rules, self.said.append)
        for server in await self.turns.begin():
            self.addCleanup(server.close)
        self.work = asyncio.ensure_future(self.turns.run())
        self.addCleanup(self.work.cancel)

    @staticmethod
    async def free_port():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return port

    def accept(self, pid, reader, writer):
        self.talks.append(asyncio.ensure_future(self.answer(pid, reader, writer)))

    async def answer(self, pid, reader, writer):
        while line := await reader.readline():
            await self.orders.let_run[pid].wait()
            if line.startswith(b"slow"):
                await asyncio.sleep(3 * QUICK.turn_seconds)
                await self.orders.let_run[pid].wait()
            writer.write(line)
        writer.close()

    async def connect(self, pid):
        streams = await asyncio.open_connection("127.0.0.1", self.jobs[pid].listen.port)
        self.addCleanup(streams[1].close)
        return streams

    async def ask(self, streams, line):
        streams[1].write(line)
        self.assertEqual(await asyncio.wait_for(streams[0].readline(), HANGS_S), line)

    async def until(self, condition):
        async def poll():
            while not condition():
                await asyncio.sleep(0.01)

        await asyncio.wait_for(poll(), HANGS_S)

    async def test_job_runs_when_it_is_asked(self):
        await self.begin({1: RUNNING, 2: SUSPENDED, 3: SUSPENDED})
        talks = {pid: await self.connect(pid) for pid in (1, 2, 3)}
        for number in range(4):
            for pid in (3, 1, 2):
                await self.ask(talks[pid], b"%d\n" % number)
                self.assertEqual(self.orders.by_pid[pid], RUNNING)
        self.assertEqual(self.orders.most, 1)

    async def test_line_that_arrives_during_a_suspend_wakes_the_job_again(self):
        await self.begin({1: RUNNING, 2: SUSPENDED})
        first, second = await self.connect(1), await self.connect(2)
        await self.ask(first, b"x\n")

        async def talk(verb):
            if verb == "suspend" and self.jobs[1].waiting == 0:
                first[1].write(b"y\n")
                await self.until(lambda: self.jobs[1].waiting == 1)

        self.orders.meanwhile = talk
        second[1].write(b"x\n")
        for streams, line in ((second, b"x\n"), (first, b"y\n")):
            self.assertEqual(await asyncio.wait_for(streams[0].readline(), HANGS_S), line)

    async def test_nothing_is_ordered_while_nothing_is_asked(self):
        await self.begin({1: RUNNING, 2: SUSPENDED})
        await self.ask(await self.connect(1), b"x\n")
        await asyncio.sleep(3 * QUICK.turn_seconds)
        self.assertEqual(self.orders.given, [])

    async def test_job_that_has_not_answered_keeps_its_turn_for_its_time(self):
        await self.begin({1: RUNNING, 2: SUSPENDED}, Rules(turn_seconds=HANGS_S, quiet_seconds=0.02))
        first = await self.connect(1)
        first[1].write(b"slow\n")
        await self.until(lambda: self.jobs[1].unanswered == 1)
        second = await self.connect(2)
        second[1].write(b"x\n")
        self.assertEqual(await asyncio.wait_for(first[0].readline(), HANGS_S), b"slow\n")
        self.assertEqual(await asyncio.wait_for(second[0].readline(), HANGS_S), b"x\n")
        self.assertEqual((self.orders.given, self.orders.unanswered), ([("suspend", 1), ("resume", 2)], [0]))

    async def test_job_whose_time_is_over_goes_on_after_the_others(self):
        await self.begin({1: RUNNING, 2: SUSPENDED})
        first = await self.connect(1)
        first[1].write(b"slow\n")
        await self.until(lambda: self.jobs[1].unanswered == 1)
        await self.ask(await self.connect(2), b"x\n")
        self.assertEqual((self.orders.given[:2], self.orders.unanswered[:1]), ([("suspend", 1), ("resume", 2)], [1]))
        self.assertEqual(await asyncio.wait_for(first[0].readline(), HANGS_S), b"slow\n")

    async def test_jobs_without_ports_take_turns_by_time(self):
        await self.begin({1: RUNNING, 2: RUNNING, 3: SUSPENDED}, ports=False)
        await self.until(lambda: len(self.orders.given) >= 7)
        resumed = [pid for verb, pid in self.orders.given if verb == "resume"]
        self.assertEqual((self.orders.given[0], resumed[:3]), (("suspend", 1), [3, 1, 2]))

    async def test_as_many_run_at_once_as_may(self):
        await self.begin({1: SUSPENDED, 2: SUSPENDED, 3: SUSPENDED}, Rules(at_once=2, turn_seconds=0.1, pause_seconds=0.02), False)
        await self.until(lambda: len(self.orders.given) >= 6)
        self.assertEqual(self.orders.most, 2)

    async def test_connection_to_a_job_that_does_not_wake_is_closed(self):
        await self.begin({1: SUSPENDED}, Rules(patience_seconds=0.2, pause_seconds=0.02))
        self.orders.failing.add(("resume", 1))
        reader, writer = await self.connect(1)
        writer.write(b"x\n")
        self.assertEqual(await asyncio.wait_for(reader.read(), HANGS_S), b"")
        self.assertIn("cannot resume job 1: there is no room", self.said)
        self.assertIn("a connection to job 1 is closed: the job got no turn", self.said)
        self.orders.failing.clear()
        await self.ask(await self.connect(1), b"again\n")

    async def test_job_that_cannot_be_suspended_runs_on(self):
        await self.begin({1: RUNNING, 2: SUSPENDED})
        self.orders.failing.add(("suspend", 1))
        second = await self.connect(2)
        second[1].write(b"x\n")
        await self.until(lambda: self.orders.given.count(("suspend", 1)) >= 2)
        await self.ask(await self.connect(1), b"x\n")
        self.orders.failing.clear()
        self.assertEqual(await asyncio.wait_for(second[0].readline(), HANGS_S), b"x\n")

    async def test_ends_when_all_jobs_have_ended(self):
        await self.begin({1: RUNNING, 2: SUSPENDED})
        self.orders.by_pid.update({1: ENDED, 2: ENDED})
        reader, writer = await self.connect(2)
        writer.write(b"x\n")
        self.assertEqual(await asyncio.wait_for(reader.read(), HANGS_S), b"")
        await asyncio.wait_for(asyncio.shield(self.work), HANGS_S)
        self.assertIn("job 1 has ended", self.said)

    async def test_end_of_input_is_passed_on(self):
        await self.begin({1: RUNNING})
        reader, writer = await self.connect(1)
        writer.write(b"last\n")
        writer.write_eof()
        self.assertEqual(await asyncio.wait_for(reader.read(), HANGS_S), b"last\n")
        await self.until(lambda: not self.turns.talks)
        self.assertEqual(self.jobs[1].unanswered, 0)


class Words(unittest.TestCase):
    def test_job_is_a_pid_with_or_without_a_port(self):
        self.assertEqual((Job.parse("7").pid, Job.parse("7").listen), (7, None))
        job = Job.parse("7,listen=8001,to=node1:9001")
        self.assertEqual((job.pid, job.listen, job.target), (7, Place("", 8001), Place("node1", 9001)))
        job = Job.parse("7,listen=[::1]:8001,to=[fd00::1]:9001")
        self.assertEqual((job.listen, job.target), (Place("::1", 8001), Place("fd00::1", 9001)))

    def test_others_are_refused(self):
        for words in ("", "0", "-1", "x", "7,listen=8001", "7,to=node1:9001", "7,listen=8001,to=9001", "7,listen=x,to=a:1",
                      "7,listen=0,to=a:1", "7,listen=70000,to=a:1", "7,listen=1,to=a:1,more=2", "7,listen=a:b:1,to=a:1"):  # fmt: skip
            with self.subTest(words), self.assertRaises(ValueError):
                Job.parse(words)


if __name__ == "__main__":
    unittest.main()
