"""Connections are kept, with the address of the job's container (--tcp keep)."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

import engine_faults
from engine_cases import DONE, NAME, Case
from lan_hosts import IPERF3, LanHosts
from ticker_hosts import HANGS_S, begin_command

CLIENTS = int(os.environ.get("GCR_CLIENTS", "1000"))
CLIENTS_OF_A_CELL = 20
MOVES = int(os.environ.get("GCR_MOVES", "2"))
PORT = 5000
REPORTS = 5  # of a stream, in seconds, after each move
PERIOD_MS = 500  # of each connection, in both directions
SERVER = "$0 & exec $1 serve 5000"
WATCH = pathlib.Path(__file__).with_name("address_watch.py")


class Outside:
    """A program on host c, which says what it has seen in its last line when it ends."""

    def __init__(self, hosts, *command):
        self._process = subprocess.Popen(  # pylint: disable=consider-using-with
            hosts.on("c", *command), stdout=subprocess.PIPE, text=True)  # fmt: skip

    def next_line(self):
        return self._process.stdout.readline()

    def end(self):
        """Its figures, and all that it has said."""
        self._process.send_signal(signal.SIGTERM)
        said = self._process.communicate(timeout=HANGS_S)[0]
        figures = dict(re.findall(r"(\w+)=(\d+)", said.splitlines()[-1]))
        return {name: int(value) for name, value in figures.items()}, said

    def stop(self):
        self._process.kill()
        self._process.communicate()


def clients(case, hosts, address, count):
    """chatter's, which are connected."""
    chatter = hosts.prefix / "bin" / "chatter"
    begun = Outside(hosts, f"CHATTER_PERIOD_MS={PERIOD_MS}", chatter, "connect", address, PORT, count)
    case.addCleanup(begun.stop)
    case.assertEqual(begun.next_line(), "connected\n")
    return begun


def watcher(case, hosts, address):
    begun = Outside(hosts, sys.executable, WATCH, "veth0", address)
    case.addCleanup(begun.stop)
    return begun


class LanCase(Case):
    HOSTS = LanHosts

    def setUp(self):
        super().setUp()
        self.address = self.hosts.fixed_address()

    def move(self, source, target):
        ran, report = self.hosts.move(NAME, source, target, "--tcp", "keep")
        self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr)
        self.assertTrue(report["verified"], report)
        self.wait_for_progress(target)
        self.assert_only_at(target, source)
        self.assertEqual(self.known_address(target), self.address)
        return report

    def known_address(self, host):
        """As the engine tells it."""
        each = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return self.hosts.engine(host, "inspect", NAME, "--format", each).stdout.strip()


class Moves(LanCase):
    def start_server(self):
        chatter = self.hosts.prefix / "bin" / "chatter"
        self.start("--ip", self.address, words=["sh", "-c", SERVER, self.hosts.program, chatter])

    def test_clients_of_a_server_notice_a_pause(self):
        self.start_server()
        watch = watcher(self, self.hosts, self.address)
        talking = clients(self, self.hosts, self.address, CLIENTS)
        downtimes = [self.move("ab"[number % 2], "ba"[number % 2])["downtime_ms"] for number in range(MOVES)]
        figures, said = talking.end()
        seen, watched = watch.end()
        print(f"downtimes in ms: {downtimes}\n{said}{watched}", file=sys.stderr, flush=True)
        self.assertEqual((figures["connections"], figures["lost"], seen["twice"]), (CLIENTS, 0, 0), said + watched)


class Programs(LanCase):
    """That know nothing of a migration."""

    def start(self, *options, words=()):
        super().start("--ip", self.address, "--volume", f"{IPERF3}:{IPERF3}:ro", *options, words=words)

    def test_streams_at_full_rate_go_on(self):
        """In both directions, which fill the queues of both ends."""
        self.start(words=["sh", "-c", "$0 & exec $1 --server", self.hosts.program, IPERF3])
        streaming = begin_command(self, self.hosts.on("c", IPERF3, "--client", self.address, "--bidir", "--time", 0,
                                                     "--forceflush"))  # fmt: skip
        for number in range(3):
            self.move("ab"[number % 2], "ba"[number % 2])
            lines = [streaming.stdout.readline() for _ in range(3 * REPORTS)]
        self.assertIsNone(streaming.poll(), "it has ended too early")
        for way in ("TX-C", "RX-C"):
            rates = [float(rate) for each in lines if way in each for rate in re.findall(r"([\d.]+) \w*bits/sec", each)]
            self.assertTrue(any(rates), lines)


class Cell(engine_faults.Cell):
    """With clients outside, which notice nothing but a pause unless the program has ended, and a watcher."""

    def options(self):
        return ("--ip", self.address)

    def script(self):
        chatter = self.hosts.prefix / "bin" / "chatter"
        return f"{chatter} serve {PORT} & exec {self.hosts.program} >>{self.output}"

    def start(self):
        self.address = self.hosts.fixed_address()
        super().start()
        self.watch = watcher(self.case, self.hosts, self.address)
        self.talking = clients(self.case, self.hosts, self.address, CLIENTS_OF_A_CELL)

    def command(self):
        return [*super().command(), "--tcp", "keep"]

    def check(self):
        figures, said = self.talking.end()
        seen, watched = self.watch.end()
        lives = bool(self.copies())
        self.case.assertEqual((figures["lost"] if lives else 0, seen["twice"]), (0, 0), said + watched)


class Faults(engine_faults.Faults):
    HOSTS = LanHosts
    CELL = Cell
    MORE_KINDS = ("Network",)
    POINTS = {"source agent": ["source.dumped"], "gcr-container": ["source.container.left"]}


if __name__ == "__main__":
    unittest.main()
