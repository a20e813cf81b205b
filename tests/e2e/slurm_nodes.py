"""Slurm nodes with jobs on them, and what tests of their moves share: real slurmctld, slurmd and munged, agents, CRIU,
software GPUs."""

import json
import pathlib
import re
import subprocess
import unittest

from ticker_hosts import ROOT, TICKER, Hosts, Ticker, begin_command, movable_users, wait_for

USER, OTHER_USER = movable_users()
PATIENCE_S = 240
STATUS = 9  # of every job, when its ticker ends


class Nodes(Hosts):
    """Slurm nodes a, b, …."""

    SCRIPT = "slurm-hosts"

    def __init__(self, count, *options):
        super().__init__(count, *options)
        self.outputs = self.folder / "outputs"
        self.outputs.mkdir()
        self.outputs.chmod(0o1777)
        self.environment = []  # of Slurm commands, and of programs that use them
        self._submitted = 0

    def node(self, host):
        return self.env[f"NODE_{host.upper()}"]

    def at_controller(self, *words):
        """The command prefix for Slurm commands, and programs that use them."""
        return ["nsenter", f"--net={self.env['NS_' + self.env['CONTROLLER'].upper()]}", "env",
                f"SLURM_CONF={self.env['SLURM_CONF']}", *self.environment, *map(str, words)]  # fmt: skip

    def slurm(self, *words):
        """The output of a Slurm command."""
        ran = subprocess.run(self.at_controller(*words), capture_output=True, text=True, check=False,
                             timeout=PATIENCE_S)  # fmt: skip
        if ran.returncode != 0:
            raise AssertionError(f"{words}: {ran.stderr}")
        return ran.stdout

    def submit(self, *options, script="exec sleep 100000", user=USER):
        self._submitted += 1
        path = self.outputs / f"script-{self._submitted}"
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="ascii")
        return int(self.slurm("runuser", "-u", user, "--", "sbatch", "--parsable", "--chdir=/",
                              f"--output={self.outputs}/%j", *options, path))  # fmt: skip

    def start_ticker_job(self, host, *options):
        """A movable job with a GPU: its number, and its ticker. It ends with STATUS."""
        ticker = f"{self.env['PREFIX']}/bin/{TICKER}"
        job = self.submit("--migratable", "--gres=gpu:1", "--mem=400", f"--nodelist={self.node(host)}", *options,
                          script=f"{ticker}\nexit {STATUS}")  # fmt: skip
        output = Ticker(self.outputs / str(job), None)
        wait_for(f"the ticker of job {job} starts",
                 lambda: output.path.exists() and len(output.lines()) >= 2, PATIENCE_S)  # fmt: skip
        return job, output

    def start_fixed_job(self, host):
        """A job with a GPU that was submitted without --migratable."""
        ticker = f"{self.env['GCR_CLI']} run -- {self.env['PREFIX']}/bin/{TICKER}"
        job = self.submit("--gres=gpu:1", "--mem=400", f"--nodelist={self.node(host)}", script=ticker)
        wait_for("it runs", lambda: job in self.owners(host), PATIENCE_S)
        return job

    def detail(self, job, name):
        """A field of `scontrol show job`, up to the next blank."""
        return re.search(rf"\b{name}=(\S*)", self.slurm("scontrol", "show", "job", job)).group(1)

    def wait_for_state(self, job, state):
        wait_for(f"job {job} is {state}", lambda: self.detail(job, "JobState") == state, PATIENCE_S)

    def comment(self, job):
        """The user's comment, not the administrators'."""
        return re.search(r"^ *Comment=(.*)", self.slurm("scontrol", "show", "job", job), re.MULTILINE).group(1).strip()

    def jobs_on(self, host):
        """Those that Slurm has there."""
        return {int(each) for each in self.slurm("squeue", "-h", "-o", "%i", "-w", self.node(host)).split()}

    def owners(self, host):
        """The Slurm jobs that own the processes which the agent sees there."""
        return sorted(each["slurm_job"] for each in self.ask("host", self.address(host))["jobs"])

    def drain_node(self, host):
        self.slurm("scontrol", "update", f"node={self.node(host)}", "state=drain", "reason=test")

    def moves_command(self, script, *words):
        json_too = ["--json"] * ("--json" in words)
        words = [*(word for word in words if word != "--json"), *json_too]  # a command comes first
        return self.at_controller(
            ROOT / "scripts" / script, *words, *self.env["GCR_TLS"].split(), "--cli", self.env["GCR_CLI"],
            "--interval", "1", "--pause", "1", "--folder", f"{self.folder}/slurm/%n.jobs",
            "--wait-program", f"{self.env['PREFIX']}/bin/gcr-slurm-wait")  # fmt: skip


def tickers_of(output):
    """The processes that count into it, without the shell and the program that waits for it."""
    return [pid for pid in output.copies() if pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "ticker\n"]


class Scenario(unittest.TestCase):
    count = 2
    options = ()

    def setUp(self):
        self.nodes = Nodes(self.count, *self.options)
        self.addCleanup(self.nodes.close)

    def fill(self, host, gpus=1):
        """Occupies its GPUs; returns the job that has them."""
        job = self.nodes.submit(f"--gres=gpu:{gpus}", f"--nodelist={self.nodes.node(host)}")
        self.nodes.wait_for_state(job, "RUNNING")
        return job

    def drain(self, *words):
        return self.nodes.moves("drain", self.nodes.node("a"), "--slurm", *words, timeout=PATIENCE_S * 2)

    def begin(self, *words):
        return begin_command(self, self.nodes.moves_command(*words))

    def begin_drain(self, *words):
        return self.begin("drain", self.nodes.node("a"), "--slurm", "--json", *words)

    def wait_for_line(self, begun, *texts):
        """Returns the one after which all of them were printed, in any order."""
        said, missing = [], texts
        for line in begun.stderr:
            said.append(line)
            missing = [text for text in missing if text not in line]
            if not missing:
                return line
        raise AssertionError(f"it ended without saying {missing}: {''.join(said)}")

    def wait_for_successor(self, begun):
        """The next one that it prints."""
        return int(re.search(r"goes on as job (\d+)", self.wait_for_line(begun, "goes on as"))[1])

    def successor_of(self, job):
        self.nodes.wait_for_state(job, "COMPLETED")
        return int(re.search(r"goes on as job (\d+)", self.nodes.comment(job))[1])

    def end_of(self, begun):
        out, err = begun.communicate(timeout=PATIENCE_S * 2)
        self.assertNotEqual(out, "", err)
        return begun.returncode, json.loads(out), err

    def kill_after_the_move(self, begun):
        """Before it can tell slurmctld, which is down meanwhile."""
        self.wait_for_line(begun, "moving")
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(begun, "moved")
        begun.kill()
        begun.wait()
        self.nodes.script("start", "slurmctld")
        wait_for("slurmctld answers", lambda: self.answers("squeue"), PATIENCE_S)

    def answers(self, *words):
        return subprocess.run(self.nodes.at_controller(*words), capture_output=True, check=False).returncode == 0

    def assert_owned(self, job, ticker, host, said=""):
        """The ticker runs once, on this host, in this job, and no step was lost or repeated."""
        ticker.wait_for_progress()
        self.assertEqual(ticker.complaint(), "", said)
        self.assertEqual(len(tickers_of(ticker)), 1, said)
        self.assertIn(job, self.nodes.owners(host), said)
        self.assertEqual(self.nodes.detail(job, "JobState"), "RUNNING", said)

    def assert_moved(self, job, ticker, report, said=""):
        """From node a; returns the successor, which alone owns the processes."""
        process = next(each for each in report["processes"] if each["slurm_job"] == job)
        self.assertEqual(process["outcome"], "moved", said)
        successor = process["slurm_successor"]
        self.nodes.wait_for_state(job, "COMPLETED")
        self.assertIn(f"goes on as job {successor}", self.nodes.comment(job))
        self.assertIn(f"goes on with job {job}", self.nodes.comment(successor))
        self.assert_owned(successor, ticker, self.host_of(successor), said)
        return successor

    def host_of(self, job):
        node = self.nodes.detail(job, "NodeList")
        return next(host for host in self.nodes.env["HOSTS"].split()[:-1] if self.nodes.node(host) == node)
