"""Connections are kept, with the address of the job's container (--tcp keep)."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

import engine_faults
from engine_cases import DONE, FAILED, KILLED, MOVES, NAME, REFUSED, Case
from engine_hosts import podman
from lan_hosts import LanDockerHosts, LanHosts
from ticker_hosts import HANGS_S, wait_for

CLIENTS = int(os.environ.get("GCR_CLIENTS", "1000"))
FEW = 20
ADDRESS_OF_C = f"{podman.NETWORK_V6}3"
PORT = 5000
PERIOD_MS = 500  # of each connection, in both directions
SERVER = f"$0 & exec $1 serve {PORT}"
# A shell whose engine fails to give addresses once; then gcr-container is killed before it is asked again. Arguments: a
# file for counting, the shell.
LOSSY = """#!/bin/sh
case $4 in
"podman network connect"*)
  echo >>"$1"
  case $(wc -l <"$1") in
  1) exit 1 ;;
  2) kill -KILL "$PPID" && exit 1 ;;
  esac ;;
esac
exec "$2" "$3" "$4"
"""
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


def clients(case, hosts, address, count, *variables):
    """chatter's, which are connected."""
    chatter = hosts.prefix / "bin" / "chatter"
    begun = Outside(hosts, f"CHATTER_PERIOD_MS={PERIOD_MS}", *variables, chatter, "connect", address, PORT, count)
    case.addCleanup(begun.stop)
    case.assertEqual(begun.next_line(), "connected\n")
    return begun


def comm_of(path):
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""  # it has ended


def watcher(case, hosts, address):
    begun = Outside(hosts, sys.executable, WATCH, "veth0", address)
    case.addCleanup(begun.stop)
    return begun


class LanCase(Case):
    HOSTS = LanHosts

    def setUp(self):
        super().setUp()
        self.address, self.address_v6 = self.hosts.fixed_addresses()

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


def accept(finding):
    return [f"--migrate-option=--accept={finding}"]


class ServerCase(LanCase):
    def start_server(self, *options):
        chatter = self.hosts.prefix / "bin" / "chatter"
        self.start("--ip", self.address, "--ip6", self.address_v6, *options,
                   words=["sh", "-c", SERVER, self.hosts.program, chatter])  # fmt: skip

    def assert_kept(self, *talking):
        for each in talking:
            figures, said = each.end()
            self.assertEqual(figures["lost"], 0, said)


class Moves(ServerCase):
    def test_clients_of_a_server_notice_a_pause(self):
        self.start_server()
        watch = watcher(self, self.hosts, self.address)
        talking = clients(self, self.hosts, self.address, CLIENTS)
        subprocess.run(self.hosts.on("c", "ip", "addr", "add", f"{ADDRESS_OF_C}/64", "dev", "veth0", "nodad"), check=True)
        others = [clients(self, self.hosts, self.address_v6, FEW), clients(self, self.hosts, self.address, FEW, "CHATTER_HALF=1")]
        downtimes = [self.move("ab"[number % 2], "ba"[number % 2])["downtime_ms"] for number in range(MOVES)]
        figures, said = talking.end()
        seen, watched = watch.end()
        print(f"downtimes in ms: {downtimes}\n{said}{watched}", file=sys.stderr, flush=True)
        self.assertEqual((figures["connections"], figures["lost"], seen["twice"]), (CLIENTS, 0, 0), said + watched)
        self.assert_kept(*others)


class DockerMoves(Moves):
    HOSTS = LanDockerHosts


class Refusals(ServerCase):
    """The job runs on with its connections."""

    def setUp(self):
        super().setUp()
        self.start_server()
        self.talking = clients(self, self.hosts, self.address, FEW)

    def refuse(self, reason, status=REFUSED, accepted=""):
        options = accept(accepted) if accepted else []
        ran, report = self.hosts.move(NAME, "a", "b", "--tcp", "keep", *options)
        self.assertEqual(ran.returncode, status, ran.stdout + ran.stderr)
        self.assertIn(reason, report["message"])
        self.wait_for_progress("a")
        self.assert_only_at("a", "b")

    def test_what_cannot_be_kept_is_refused(self):
        # The switch has an address too.
        switch = ["ip", "-n", self.hosts.switch(), "addr"]
        for address in (f"{self.address}/24", f"{self.address_v6}/64"):
            subprocess.run([*switch, "add", address, "dev", "link0", *(["nodad"] if ":" in address else [])], check=True)
            self.refuse(f"another host answers for {address.partition('/')[0]}")
            self.refuse("is not a finding that can be accepted", accepted="address-taken")
            subprocess.run([*switch, "del", address, "dev", "link0"], check=True)
        # A connection waits at the server, which is stopped.
        names = {pid: path for path in pathlib.Path("/proc").glob("[0-9]*/comm") if (pid := int(path.parts[2]))}
        server = next(pid for pid, path in names.items() if comm_of(path) == "chatter" and self.is_in_container(pid))
        os.kill(server, signal.SIGSTOP)
        waiting = subprocess.Popen(  # pylint: disable=consider-using-with
            self.hosts.on("c", "nc", self.address, PORT), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(waiting.wait)
        self.addCleanup(waiting.kill)
        self.addCleanup(waiting.stdin.close)
        table = pathlib.Path(f"/proc/{server}/net/tcp6")
        wait_for("it waits", lambda: re.search(rf":{PORT:04X} 0+:0000 0A 0+:0*1 ", table.read_text("ascii")))
        self.refuse("wait at", FAILED)
        os.kill(server, signal.SIGCONT)
        self.assert_kept(self.talking)

    def test_address_that_is_not_heard_is_accepted_on_request(self):
        silent = f"nsenter --net=/proc/{self.hosts.init('a', NAME)}/ns/net sysctl -qw net.ipv4.conf.all.arp_ignore=8"
        subprocess.run(silent.split(), check=True)
        self.refuse("no host answers for")
        ran, _ = self.hosts.move(NAME, "a", "b", "--tcp", "keep", *accept("address-unheard"))
        self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr)
        self.wait_for_progress("b")
        self.assert_kept(self.talking)

    def is_in_container(self, pid):
        return os.path.samefile(f"/proc/{pid}/ns/net", f"/proc/{self.hosts.init('a', NAME)}/ns/net")


class Engines(ServerCase):
    def test_engine_is_told_of_the_address_in_the_end(self):
        """The job is without its interface meanwhile."""
        lossy, count = (self.hosts.folder / name for name in ("lossy", "count"))
        lossy.write_text(LOSSY, encoding="ascii")
        lossy.chmod(0o755)
        self.start_server()
        talking = clients(self, self.hosts, self.address, FEW)
        ran, _ = self.hosts.move(NAME, "a", "b", "--tcp", "keep", shell=[str(lossy), str(count), *self.hosts.shell])
        self.assertEqual((ran.returncode, count.read_text(encoding="ascii")), (KILLED, "\n\n"), ran.stderr)
        ran, _ = self.hosts.move(NAME, "a", "b", "--tcp", "keep")
        self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr)
        self.assert_only_at("b", "a")
        self.assertEqual(self.known_address("b"), self.address)
        self.wait_for_progress("b")
        self.move("b", "a")
        self.assert_kept(talking)


class OtherNetworks(LanCase):
    def test_address_that_the_other_engine_may_not_give_is_refused(self):
        self.start("--ip", self.address)  # and one of IPv6 from the range of host a
        ran, report = self.hosts.move(NAME, "a", "b", "--tcp", "keep")
        self.assertEqual(ran.returncode, REFUSED, ran.stdout + ran.stderr)
        self.assertIn("no network lan in which a container may have", report["message"])

    def test_containers_without_an_address_of_their_own_are_refused(self):
        for network, reason in (("none", "no network interface that is up"), ("host", "uses the network of the host")):
            self.hosts.NETWORK = network
            self.start()
            _, report = self.hosts.preflight(NAME, "a", "b", "--tcp", "keep")
            found = {each["id"]: each["found"] for each in report["findings"]}
            self.assertIn(reason, found.get("address-stays", ""), found)
            ran, report = self.hosts.move(NAME, "a", "b", "--tcp", "keep")
            self.assertEqual(ran.returncode, REFUSED, ran.stdout + ran.stderr)
            self.assertIn(reason, report["message"])
            self.hosts.engine("a", *self.hosts.REMOVE, NAME)


class Cell(engine_faults.Cell):
    """With clients outside, which notice nothing but a pause unless the program has ended, and a watcher."""

    def options(self):
        return ("--ip", self.address, "--ip6", self.address_v6)

    def script(self):
        chatter = self.hosts.prefix / "bin" / "chatter"
        return f"{chatter} serve {PORT} & exec {self.hosts.program} >>{self.output}"

    def start(self):
        self.address, self.address_v6 = self.hosts.fixed_addresses()
        super().start()
        self.watch = watcher(self.case, self.hosts, self.address)
        self.talking = clients(self.case, self.hosts, self.address, FEW)

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
