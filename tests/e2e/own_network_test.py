"""Jobs with a network of their own, outside of containers: `gcr-migrate run --network`."""

import os
import pathlib
import signal
import subprocess
import unittest

import engine_cases
import kept_test
from containers import complaint
from engine_cases import DONE, NAME, REFUSED, Case
from job_hosts import DEVICE, JobHosts
from kept_test import FEW, SERVER, clients, watcher
from ticker_hosts import HANGS_S, begin_command, wait_for

NOT_STARTED = 125


class OwnCase(Case):
    HOSTS = JobHosts

    def setUp(self):
        super().setUp()
        self.address, self.address_v6 = self.hosts.fixed_addresses()

    def start_server(self):
        chatter = self.hosts.prefix / "bin" / "chatter"
        self.start(words=["sh", "-c", SERVER, self.hosts.program, chatter])

    def move(self, source, target, *words):
        ran, report = self.hosts.move(NAME, source, target, *words)
        self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr)
        self.assertTrue(report["verified"], report)
        self.wait_for_progress(target)
        self.assert_only_at(target, source)

    def interfaces(self, host):
        ran = subprocess.run(self.hosts.on(host, "ip", "-brief", "link"), capture_output=True, text=True, check=True)
        return {line.split()[0].partition("@")[0] for line in ran.stdout.splitlines()}


class Moves(OwnCase):
    def test_clients_of_a_server_notice_a_pause(self):
        self.start_server()
        watch = watcher(self, self.hosts, self.address)
        ip = ("addr", "add", f"{kept_test.ADDRESS_OF_C}/64", "dev", DEVICE, "nodad")
        subprocess.run(self.hosts.on("c", "ip", *ip), check=True)
        talking = [clients(self, self.hosts, address, FEW) for address in (self.address, self.address_v6)]
        self.move("a", "b")
        self.move("b", "a", "--tcp", "keep")
        for each in talking:
            figures, said = each.end()
            self.assertEqual(figures["lost"], 0, said)
        seen, watched = watch.end()
        self.assertEqual(seen["twice"], 0, watched)
        self.assertEqual(complaint(self.hosts.lines("a", NAME)), "")
        self.hosts.engine("a", "remove", NAME)
        self.assertEqual((self.hosts.states("a"), self.hosts.states("b")), ({}, {}))

    def test_on_bridges_with_a_port_outside(self):
        self.hosts.use_bridges()
        before = {host: self.interfaces(host) for host in "ab"}
        self.start_server()
        talking = clients(self, self.hosts, self.address, FEW)
        for pair in ("ab", "ba"):
            self.move(*pair)
            self.assertEqual(self.interfaces(pair[0]), before[pair[0]])
        figures, said = talking.end()
        self.assertEqual(figures["lost"], 0, said)

    def test_drain_moves_it(self):
        self.start_server()
        talking = clients(self, self.hosts, self.address, FEW)
        status, report, said = self.hosts.moves(
            "drain", self.hosts.address("a"), "--to", self.hosts.address("b"), "--shell", " ".join(self.hosts.shell))
        self.assertEqual(status, DONE, said)
        self.assertEqual([(each["container"], each["outcome"]) for each in report["processes"]], [(f"job:{NAME}", "moved")])
        self.wait_for_progress("b")
        self.assert_only_at("b", "a")
        figures, lost = talking.end()
        self.assertEqual(figures["lost"], 0, lost)


class Refusals(OwnCase):
    def refuse_to_move(self, reason, *words):
        ran, report = self.hosts.move(NAME, "a", "b", *words)
        self.assertEqual(ran.returncode, REFUSED, ran.stdout + ran.stderr)
        self.assertIn(reason, report["message"])
        self.assertEqual(self.hosts.states("b"), {})
        self.wait_for_progress("a")

    def test_job_runs_on_where_it_is(self):
        self.start_server()
        talking = clients(self, self.hosts, self.address, FEW)
        self.refuse_to_move("moves with its addresses", "--tcp", "close")
        subprocess.run(self.hosts.on("b", "ip", "link", "set", DEVICE, "down"), check=True)
        subprocess.run(self.hosts.on("b", "ip", "link", "set", DEVICE, "name", "other0"), check=True)
        subprocess.run(self.hosts.on("b", "ip", "link", "set", "other0", "up"), check=True)
        self.refuse_to_move(f"has no network macvlan:{DEVICE}")
        figures, said = talking.end()
        self.assertEqual(figures["lost"], 0, said)

    def test_start_fails_and_leaves_nothing(self):
        def fail(reason, status, network):
            ran = subprocess.run(self.hosts.run_command("a", NAME, "--", "true", network=network),
                                 capture_output=True, text=True, check=False, timeout=HANGS_S)  # fmt: skip
            self.assertEqual(ran.returncode, status, ran.stderr)
            self.assertIn(reason, ran.stderr)
            self.assertEqual(self.hosts.states("a"), {})

        for network, reason in (("none:x", "must begin with"), ("macvlan:", "must begin with"),
                                (f"macvlan:{DEVICE}", "needs an address"),
                                (f"macvlan:{DEVICE},address=192.0.2.1", "length of its prefix"),
                                (f"macvlan:{DEVICE},address=elsewhere/24", "elsewhere"),
                                (f"macvlan:{DEVICE},address=192.0.2.1/24,gateway=198.51.100.1", "subnet of no address"),
                                (f"macvlan:{DEVICE},address=192.0.2.1/24,mtu=9000", "not mtu=9000")):  # fmt: skip
            fail(reason, engine_cases.USAGE, network)
        before = self.interfaces("a")
        fail("nowhere0", NOT_STARTED, "macvlan:nowhere0,address=192.0.2.1/24")
        fail("veth0", NOT_STARTED, f"bridge:{DEVICE},address=192.0.2.1/24")
        self.assertEqual(self.interfaces("a"), before)


class Lives(OwnCase):
    """As a program that is started, waited for, and ended."""

    def run_to_end(self, *words):
        return subprocess.run(self.hosts.run_command("a", NAME, "--", *words), capture_output=True, text=True, check=False,
                              timeout=HANGS_S)  # fmt: skip

    def test_exit_status_output_and_name(self):
        ran = self.run_to_end("sh", "-c", "ip -brief -4 addr show dev eth0; echo $$; exit 7")
        self.assertEqual((ran.returncode, ran.stdout), (7, f"job:{NAME}\n"), ran.stderr)
        self.assertEqual(self.hosts.states("a"), {})
        self.assertIn(f"{self.address}/24", " ".join(self.hosts.lines("a", NAME)))
        self.start(words=["sh", "-c", f"{self.hosts.program}; exit 9"])
        again = self.run_to_end("true")
        self.assertEqual(again.returncode, NOT_STARTED)
        self.assertIn(f"there is a job {NAME} already", again.stderr)
        os.kill(self.hosts.init("a", NAME), signal.SIGTERM)
        ended = wait_for("it ends", lambda: [each for each in self.hosts.jobs("a") if each["status"] == "exited"])
        self.assertEqual(ended[0]["exit_status"], 128 + signal.SIGTERM)
        self.hosts.engine("a", "remove", NAME)
        self.assertEqual(self.hosts.states("a"), {})

    def test_signals_are_passed_on_until_it_has_moved(self):
        script = f"trap 'echo told' USR1; {self.hosts.program} & while :; do wait; done"
        running = begin_command(self, self.hosts.run_command("a", NAME, "--", "sh", "-c", script))
        self.assertEqual(running.stdout.readline(), f"job:{NAME}\n")
        wait_for("the ticker starts", lambda: len(self.hosts.lines("a", NAME)) >= 2)
        running.send_signal(signal.SIGUSR1)
        wait_for("it is told", lambda: "told" in self.hosts.lines("a", NAME))
        self.move("a", "b")
        self.assertEqual(running.wait(HANGS_S), 0)
        self.assertTrue(pathlib.Path(f"/proc/{self.hosts.init('b', NAME)}").exists())


    def test_suspended_and_resumed(self):
        self.start_server()
        talking = clients(self, self.hosts, self.address, FEW)
        job = next(each["pid"] for each in self.hosts.ask("host", self.hosts.address("a"))["jobs"])
        for verb in ("suspend", "resume"):
            command = [self.hosts.env["GCR_CLI"], verb, *self.hosts.env["GCR_TLS"].split(), self.hosts.address("a"), job]
            subprocess.run(self.hosts.on("a", *command), check=True, capture_output=True, timeout=HANGS_S)
        self.wait_for_progress("a")
        figures, said = talking.end()
        self.assertEqual(figures["lost"], 0, said)


class Deaths(engine_cases.Deaths):
    HOSTS = JobHosts

    def follow(self, host):
        """All its output is in one file."""
        return begin_command(self, ["true"])


if __name__ == "__main__":
    unittest.main()
