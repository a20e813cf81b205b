#!/usr/bin/env python3
"""scripts/slurm serve on the controller of Slurm nodes.

Usage: slurm_service_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
from slurm_nodes import PATIENCE_S, Scenario  # noqa: E402
from ticker_hosts import ROOT, begin_command, wait_for  # noqa: E402


class Service(Scenario):
    count = 3
    options = ("--gpus", "2")
    NEVER = "100000"  # in seconds
    METRICS_PORT = 9411

    def serve(self, *words):
        """With Debian's Python, which has Debian's prometheus_client, and with the capabilities of the systemd unit."""
        command = self.nodes.moves_command("slurm", "serve", "--wake-socket", f"{self.nodes.folder}/wake", *words)
        unit = (ROOT / "cmake" / "packaging" / "systemd" / "gcr-slurm.service").read_text(encoding="ascii")
        kept = re.search(r"^CapabilityBoundingSet=(.+)", unit, re.M)[1].lower().replace("cap_", "+").split()
        place = command.index(str(ROOT / "scripts" / "slurm"))
        command[place:place] = ["setpriv", f"--bounding-set={','.join(['-all', *kept])}", "--inh-caps=-all",
                                "--no-new-privs", "/usr/bin/python3"]  # fmt: skip
        return command

    def begin_service(self, *words):
        """It polls once, and again only if it is woken or `words` request it."""
        service = begin_command(self, self.serve("--poll", self.NEVER, *words))
        self.wait_for_line(service, "Slurm answers")
        return service

    def triggers(self):
        return self.nodes.slurm("strigger", "--get", "--noheader").splitlines()

    def assert_ends(self, service):
        service.send_signal(signal.SIGTERM)
        self.wait_for_end(service)

    def wait_for_end(self, service):
        said = service.communicate(timeout=PATIENCE_S)[1]
        self.assertEqual(service.returncode, 0, said)
        self.assertEqual(self.triggers(), [], said)

    def metrics(self):
        """By name and labels; complaints of promtool and of the documentation about metrics are printed here."""
        url = f"http://{self.nodes.address(self.nodes.env['CONTROLLER'])}:{self.METRICS_PORT}/metrics"
        program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode(), end='')"
        text = self.nodes.slurm(sys.executable, "-c", program, url)
        documented = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
        for name in re.findall(r"^# TYPE (\S+)", text, re.M):
            self.assertIn(f"`{name}", documented)
        promtool = ROOT / "build" / "deps" / "promtool" / "promtool"
        if promtool.exists():
            checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True,
                                     check=False)  # fmt: skip
            self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))
        pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def test_administrators_drain_starts_it_and_is_in_the_metrics(self):
        job, ticker = self.nodes.start_ticker_job("a")
        address = self.nodes.address(self.nodes.env["CONTROLLER"])
        service = self.begin_service("--metrics", f"{address}:{self.METRICS_PORT}")
        self.assertEqual(len(self.triggers()), 1)
        self.nodes.drain_node("a")
        self.wait_for_line(service, f"{self.nodes.node('a')}: draining")
        line = self.wait_for_line(service, f"{self.nodes.node('a')}: moved job={job} ")
        successor = self.successor_of(job)
        self.assertRegex(line, rf" to job={successor} node={self.nodes.node(self.host_of(successor))} downtime_ms=[1-9]")
        self.wait_for_line(service, "drain ended with exit status 0")
        self.assert_owned(successor, ticker, self.host_of(successor))
        told = self.metrics()
        self.assertLess(0, told.pop("gcr_slurm_last_look_timestamp_seconds"))
        self.assertLess(0, told.pop("gcr_slurm_downtime_seconds_sum"))
        self.assertEqual({name: value for name, value in told.items() if "_bucket" not in name}, {
            "gcr_slurm_drains_in_progress": 0, 'gcr_slurm_drains_total{status="0"}': 1,
            'gcr_slurm_jobs_total{outcome="moved"}': 1, "gcr_slurm_failed_tries_total": 0,
            "gcr_slurm_placeholders_waiting": 0, "gcr_slurm_downtime_seconds_count": 1, "gcr_slurm_errors_total": 0,
            "gcr_slurm_trigger_registered": 1})  # fmt: skip
        self.assert_ends(service)

    def test_drains_two_nodes_concurrently(self):
        jobs = {host: self.nodes.start_ticker_job(host) for host in "ab"}
        self.nodes.slurm("scontrol", "update", f"node={self.nodes.node('a')},{self.nodes.node('b')}", "state=drain",
                         "reason=test")  # fmt: skip
        service = self.begin_service()
        for _ in jobs:
            self.wait_for_line(service, "drain ended with exit status 0")
        for job, ticker in jobs.values():
            self.assert_owned(self.successor_of(job), ticker, "c")
        self.assert_ends(service)

    def test_stop_lets_running_migrations_finish(self):
        job, ticker = self.nodes.start_ticker_job("a")
        self.nodes.drain_node("a")
        service = self.begin_service()
        wait_for("the migration begins",
                 lambda: self.nodes.ask("list", self.nodes.address("a"), "--all")["migrations"], PATIENCE_S)  # fmt: skip
        service.send_signal(signal.SIGTERM)
        self.wait_for_line(service, f"moved job={job} ")
        self.wait_for_end(service)
        successor = self.successor_of(job)
        self.assert_owned(successor, ticker, self.host_of(successor))

    def test_survives_slurmctld_and_registers_its_trigger_again(self):
        job, _ = self.nodes.start_ticker_job("a")
        service = self.begin_service("--poll", "1")
        (trigger,) = self.triggers()
        self.nodes.slurm("strigger", "--clear", f"--id={trigger.split()[0]}")
        wait_for("the trigger is registered again", self.triggers, PATIENCE_S)
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(service, "Slurm does not answer")
        self.nodes.script("start", "slurmctld")
        self.wait_for_line(service, "Slurm answers")
        self.assertEqual(len(self.triggers()), 1)
        self.nodes.drain_node("a")
        self.wait_for_line(service, f"moved job={job} ")
        self.assert_ends(service)

    def test_dry_run_prints_the_plan_and_changes_nothing(self):
        job, ticker = self.nodes.start_ticker_job("a")
        self.nodes.drain_node("a")
        ran = subprocess.run(self.serve("--dry-run"), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn(f"would drain node {self.nodes.node('a')}", ran.stderr)
        self.assertRegex(ran.stdout, rf"job {job}, .*: moved to where Slurm places it")
        self.assertEqual(self.triggers(), [])
        self.assert_owned(job, ticker, "a")
        self.assertEqual(self.nodes.slurm("squeue", "-h", "-o", "%i").split(), [str(job)])


if __name__ == "__main__":
    unittest.main()
