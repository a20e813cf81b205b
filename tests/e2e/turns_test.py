#!/usr/bin/env python3
"""Jobs that take turns on a GPU: scripts/turns with real agents, software GPUs, and clients through its ports.

Usage: turns_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from ticker_hosts import HANGS_S, ROOT, Hosts, Ticker, begin_command, wait_for  # noqa: E402

DONE, USAGE, UNREACHABLE, INTERRUPTED = 0, 2, 4, 7
FEW = 5  # connections
TURNS = 6
FIRST_PORT, FIRST_PROXY = 9001, 8001


class Turns(unittest.TestCase):
    def setUp(self):
        self.hosts = Hosts(2)
        self.addCleanup(self.hosts.close)
        self.turns = self.hosts.folder / "gcr-turns"
        self.turns.symlink_to(ROOT / "scripts/turns")
        self.programs = pathlib.Path(self.hosts.env["PREFIX"]) / "bin"

    def start(self, number):
        """A job that serves, and uses a GPU: its PID, and its ticker."""
        ticker = Ticker(self.hosts.folder / f"ticker-{number}", None)
        script = f"{self.programs}/ticker >>{ticker.path} & exec {self.programs}/chatter serve {FIRST_PORT + number}"
        command = [self.hosts.env["GCR_CLI"], "run", "--output", self.hosts.folder / f"log-{number}", "--detach", "--", "sh", "-c",
                   script]  # fmt: skip
        ran = subprocess.run(self.hosts.on("a", *command), capture_output=True, text=True, check=True, timeout=HANGS_S)
        wait_for("the ticker starts", lambda: ticker.path.exists() and len(ticker.lines()) >= 2)
        return int(ran.stdout), ticker

    def take_turns(self, *words):
        """Its progress can be read line by line."""
        command = [self.turns, *self.hosts.env["GCR_TLS"].split(), "--cli", self.hosts.env["GCR_CLI"], "--pause", "0.5",
                   "--at-once", "1", "--patience", HANGS_S, self.hosts.address("a"), *words]  # fmt: skip
        return begin_command(self, self.hosts.on("a", *command))

    def wait_for_line(self, turns, pattern):
        while True:
            line = turns.stderr.readline()
            self.assertNotEqual(line, "", f"no line like {pattern}")
            if found := re.search(pattern, line):
                return found

    def connect(self, number, address="127.0.0.1"):
        command = ["CHATTER_PERIOD_MS=100", self.programs / "chatter", "connect", address, FIRST_PROXY + number, FEW]
        talking = begin_command(self, self.hosts.on("a", *command))
        self.assertEqual(talking.stdout.readline(), "connected\n")
        return talking

    def assert_kept(self, *talking):
        for each in talking:
            each.send_signal(signal.SIGTERM)
            said = each.communicate(timeout=HANGS_S)[0].splitlines()[-1]
            self.assertIn(f"connections={FEW} ", said)
            self.assertIn(" lost=0 ", f"{said} ")

    def end(self, pid):
        os.killpg(os.getpgid(pid), signal.SIGKILL)

    def test_servers_run_in_turns_and_keep_their_connections(self):
        jobs = [self.start(number) for number in range(3)]
        ports = [f"{pid},listen={FIRST_PROXY + number},to=127.0.0.1:{FIRST_PORT + number}" for number, (pid, _) in enumerate(jobs)]
        turns = self.take_turns(*ports, "--turn", "1", "--quiet-after", "0.2")
        for _ in range(2):
            self.wait_for_line(turns, r"job \d+ is suspended \(")
        talking = [self.connect(number) for number in range(3)]
        woken = [int(self.wait_for_line(turns, r"job (\d+) runs \(")[1]) for _ in range(3 * TURNS)]
        self.assertEqual(set(woken), {pid for pid, _ in jobs})
        for one, other in zip(woken, woken[3:]):
            self.assertEqual(one, other, woken)  # none comes twice before the others
        self.assert_kept(*talking)
        turns.send_signal(signal.SIGINT)
        self.assertEqual(turns.wait(HANGS_S), INTERRUPTED)
        for _, ticker in jobs:
            self.assertEqual(ticker.complaint(), "")

    def test_idle_server_leaves_the_gpu_to_the_one_that_is_asked(self):
        jobs = [self.start(number) for number in range(2)]
        ports = [f"{pid},listen={FIRST_PROXY + number},to=127.0.0.1:{FIRST_PORT + number}" for number, (pid, _) in enumerate(jobs)]
        turns = self.take_turns(*ports, "--turn", "600", "--quiet-after", "0.2")
        self.wait_for_line(turns, r"is suspended \(")
        for number in (1, 0, 1):
            talking = self.connect(number)
            jobs[number][1].wait_for_progress()
            self.assert_kept(talking)
        for pid, _ in jobs:
            self.end(pid)
        self.assertEqual(turns.wait(HANGS_S), DONE)

    def test_wrong_usage_and_silent_agents(self):
        self.assertEqual(self.take_turns("1", "1").wait(HANGS_S), USAGE)
        self.assertEqual(self.take_turns("x").wait(HANGS_S), USAGE)
        pid, ticker = self.start(0)
        for number in range(2):
            taken = self.take_turns(f"{pid},listen={FIRST_PORT},to=127.0.0.1:{FIRST_PORT}")
            self.assertEqual(taken.wait(HANGS_S), USAGE if number == 0 else UNREACHABLE)
            self.assertIn("address already in use" if number == 0 else "", taken.stderr.read().lower())
            self.hosts.host_script("stop", "a")
        ticker.wait_for_progress()


if __name__ == "__main__":
    unittest.main()
