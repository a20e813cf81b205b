"""Programs that know nothing of a migration keep their connections (--tcp keep)."""

import json
import re
import shutil
import signal
import subprocess
import unittest

import kept_test
from engine_cases import NAME
from ticker_hosts import HANGS_S, ROOT, begin_command, wait_for

APPS = ROOT / "tests/apps"
CONNECTIONS = 32
IPERF3 = shutil.which("iperf3")
MOVES = 3
PYTHON = "/usr/bin/python3"  # Debian's, which has Debian's PyTorch
REDIS = shutil.which("redis-check-rdb")  # the server under its other name
REPORTS = 5  # of a stream, after each move
SYN_SENT, ESTABLISHED = 2, 1  # the kernel's numbers
STEPS = 50  # of a training, before and after each move
STEPS_AT_MOST = 100_000
# Debian 12's torchrun fails with its own default, 0.
STANDARD_STREAMS = ("--redirects", 2, "--tee", 2)
TORCHRUN = "/usr/bin/torchrun"


class Case(kept_test.LanCase):
    """In the container, next to a ticker: a program of this machine."""

    def start(self, *options, words=()):
        """These words after a ticker's start."""
        volumes = [word for path in ("/usr", "/etc/alternatives", str(APPS)) for word in ("--volume", f"{path}:{path}:ro")]
        super().start("--ip", self.address, "--ip6", self.address_v6, *volumes, *options,
                      words=["sh", "-c", '$0 & exec "$@"', self.hosts.program, *words])  # fmt: skip

    def begin(self, *words):
        """On host c."""
        return begin_command(self, self.hosts.on("c", *words))

    def move_to_and_fro(self):
        for number in range(MOVES):
            self.move("ab"[number % 2], "ba"[number % 2])
            yield

    def assert_runs(self, *programs):
        for each in programs:
            self.assertIsNone(each.poll(), each.args)


class Sockets(Case):
    def seen(self, host):
        """What the job has said there last."""
        lines = [line for line in self.hosts.lines(host, NAME) if line.startswith("{")]
        return json.loads(lines[-1]) if lines else None

    def test_of_all_kinds(self):
        program = APPS / "sockets_of_all_kinds.py"
        peer = self.begin(PYTHON, program, "peer")
        self.assertEqual(peer.stdout.readline(), "ready\n")
        self.start(words=[PYTHON, program, "job", self.hosts.address("c")])
        before = wait_for("it talks", lambda: self.seen("a"))
        self.assertEqual((before["asking"], before["congestion"]), (SYN_SENT, "reno"))
        for _ in self.move_to_and_fro():
            pass
        after = wait_for("datagrams arrive again", lambda: (now := self.seen("b"))["udp"] > before["udp"] + STEPS and now)
        self.assertGreater(after["tcp"], before["tcp"] + STEPS)
        changing = ("udp", "tcp")
        self.assertEqual(*({name: value for name, value in each.items() if name not in changing} for each in (before, after)))
        peer.send_signal(signal.SIGUSR1)
        wait_for("the connection is made", lambda: self.seen("b")["asking"] == ESTABLISHED)


class Servers(Case):
    """Their clients are outside."""

    def wait_until_open(self, port):
        wait_for(f"port {port} is open", lambda: subprocess.run(
            self.hosts.on("c", "nc", "-z", self.address, port), check=False).returncode == 0)  # fmt: skip

    def test_streams_at_full_rate(self):
        """In both directions, which fill the queues of both ends."""
        self.start(words=[IPERF3, "--server"])
        streaming = self.begin(IPERF3, "--client", self.address, "--bidir", "--time", 0, "--forceflush")
        for _ in self.move_to_and_fro():
            lines = [streaming.stdout.readline() for _ in range(3 * REPORTS)]
        self.assert_runs(streaming)
        for way in ("TX-C", "RX-C"):
            rates = [float(rate) for each in lines if way in each for rate in re.findall(r"([\d.]+) \w*bits/sec", each)]
            self.assertTrue(any(rates), lines)

    def test_database(self):
        self.start(words=["/usr/bin/bash", "-c", "exec -a redis-server $0 --protected-mode no --save ''", REDIS])
        self.wait_until_open(6379)
        requests = self.begin("sh", "-c", 'exec "$@" >/dev/null', "sh", "redis-benchmark", "-h", self.address, "-c", CONNECTIONS,
                              "-t", "set,get,incr", "-l")  # fmt: skip
        counting = self.begin("redis-cli", "-h", self.address, "-r", -1, "-i", "0.01", "incr", "by_hand")
        said = []
        for _ in self.move_to_and_fro():
            said += [int(counting.stdout.readline()) for _ in range(REPORTS)]
        self.assert_runs(requests, counting)
        self.assertEqual(said, list(range(1, len(said) + 1)))

    def test_web_server(self):
        self.start(words=[PYTHON, APPS / "serve_events.py", 8080])
        self.wait_until_open(8080)
        page = f"http://{self.address}:8080/"
        loading = self.begin("wrk", "--threads", 2, "--connections", CONNECTIONS, "--duration", "1h", "--timeout", "5m", page)
        events = self.begin("curl", "--silent", "--show-error", "--no-buffer", f"{page}events")
        seen = []
        for _ in self.move_to_and_fro():
            seen += [events.stdout.readline() for _ in range(2 * REPORTS)]
        self.assert_runs(loading, events)
        self.assertEqual(seen, [line for number in range(1, len(seen) // 2 + 1) for line in (f"data: {number}\n", "\n")])
        loading.send_signal(signal.SIGINT)
        said = loading.communicate(timeout=HANGS_S)[0]
        self.assertRegex(said, r"\b[1-9]\d* requests in")
        self.assertNotRegex(said, "Socket errors|Non-2xx")


class Training(Case):
    """One rank runs on host c, the other one in the container, which moves while the first one waits."""

    def torchrun(self, last, *words):
        return [TORCHRUN, *STANDARD_STREAMS, "--master_addr", self.hosts.address("c"), "--master_port", 29500, *words,
                APPS / "train_two_ranks.py", last, self.enough]  # fmt: skip

    def rank(self, number, interface):
        """By itself on a host."""
        return ["env", f"GLOO_SOCKET_IFNAME={interface}", *self.torchrun(STEPS_AT_MOST, "--nnodes", 2, "--node_rank", number)]

    def losses(self, command):
        """Of rank 0, one after the other. Fails unless the command succeeds."""
        process = self.begin(*command)
        for step, line in enumerate(process.stdout, start=1):
            number, loss, _ = line.split()
            self.assertEqual(int(number), step, line)
            yield loss
        self.assertEqual(process.wait(HANGS_S), 0, process.stderr.read())

    def test_rank_of_two_hosts(self):
        self.enough = self.hosts.folder / "enough"
        self.start(words=map(str, self.rank(1, "eth0")))
        training = self.losses(self.rank(0, "veth0"))
        losses = [next(training) for _ in range(STEPS)]
        for _ in self.move_to_and_fro():
            losses += [next(training) for _ in range(STEPS)]
        self.enough.touch()
        losses += training
        self.assertEqual(self.hosts.engine("b", "wait", NAME).stdout.strip(), "0")
        self.enough.unlink()
        self.assertEqual(list(self.losses(self.torchrun(len(losses), "--nproc_per_node", 2))), losses)


if __name__ == "__main__":
    unittest.main()
