#!/usr/bin/env python3
"""scripts/drain --slurm, scripts/rebalance --slurm and scripts/slurm: real slurmctld, slurmd and munged, agents, CRIU,
software GPUs.

Usage: slurm_drain_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from ticker_hosts import ROOT, Hosts, Ticker, movable_users, wait_for  # noqa: E402  # pylint: disable=wrong-import-position

USER, _ = movable_users()
PATIENCE_S = 240
STATUS = 9  # of every job, when its ticker ends


class Nodes(Hosts):
    """Nodes a, b, … of Slurm's."""

    SCRIPT = "slurm-hosts"

    def __init__(self, count, *options):
        super().__init__(count, *options)
        self.outputs = self.folder / "outputs"
        self.outputs.mkdir()
        self.outputs.chmod(0o1777)
        self.environment = []  # of Slurm's commands, and of what uses them
        self._submitted = 0

    def node(self, host):
        return self.env[f"NODE_{host.upper()}"]

    def at_controller(self, *words):
        """The words that run Slurm's commands, and what uses them."""
        return ["nsenter", f"--net={self.env['NS_' + self.env['CONTROLLER'].upper()]}", "env",
                f"SLURM_CONF={self.env['SLURM_CONF']}", *self.environment, *map(str, words)]  # fmt: skip

    def agent(self, command, host):
        """Stops it, or starts it again; its workers go on."""
        subprocess.run([ROOT / "scripts" / "hosts", command, self.folder, host], check=True, timeout=PATIENCE_S)

    def slurm(self, *words):
        """What a command of Slurm's prints."""
        ran = subprocess.run(self.at_controller(*words), capture_output=True, text=True, check=False,
                             timeout=PATIENCE_S)  # fmt: skip
        if ran.returncode != 0:
            raise AssertionError(f"{words}: {ran.stderr}")
        return ran.stdout

    def kill(self, host):
        """Its links are cut, and all its processes end, Slurm's too."""
        subprocess.run([ROOT / "scripts" / "hosts", "kill", self.folder, host], check=True, timeout=PATIENCE_S)

    def submit(self, *options, script="exec sleep 100000"):
        self._submitted += 1
        path = self.outputs / f"script-{self._submitted}"
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="ascii")
        return int(self.slurm("runuser", "-u", USER, "--", "sbatch", "--parsable", "--chdir=/", f"--output={self.outputs}/%j", *options, path))

    def start_ticker_job(self, host, *options):
        """A job with a GPU that can be moved: its number, and its ticker. It ends with STATUS."""
        ticker = f"{self.env['PREFIX']}/bin/ticker --period-ms 20"
        job = self.submit("--migratable", "--gres=gpu:1", "--mem=400", f"--nodelist={self.node(host)}", *options,
                          script=f"{ticker}\nexit {STATUS}")  # fmt: skip
        output = Ticker(self.outputs / str(job), None)
        wait_for(f"the ticker of job {job} starts",
                 lambda: output.path.exists() and len(output.lines()) >= 2, PATIENCE_S)  # fmt: skip
        return job, output

    def start_fixed_job(self, host):
        """A job with a GPU that was submitted without --migratable."""
        ticker = f"{self.env['GCR_CLI']} run -- {self.env['PREFIX']}/bin/ticker --period-ms 20"
        job = self.submit("--gres=gpu:1", "--mem=400", f"--nodelist={self.node(host)}", script=ticker)
        wait_for("it runs", lambda: job in self.owners(host), PATIENCE_S)
        return job

    def detail(self, job, name):
        """A field of `scontrol show job`, up to the next blank."""
        return re.search(rf"\b{name}=(\S*)", self.slurm("scontrol", "show", "job", job)).group(1)

    def wait_for_state(self, job, state):
        wait_for(f"job {job} is {state}", lambda: self.detail(job, "JobState") == state, PATIENCE_S)

    def comment(self, job):
        return re.search(r"Comment=(.*)", self.slurm("scontrol", "show", "job", job)).group(1).strip()

    def jobs_on(self, host):
        """Those that Slurm has there."""
        return {int(each) for each in self.slurm("squeue", "-h", "-o", "%i", "-w", self.node(host)).split()}

    def owners(self, host):
        """The jobs of Slurm's that own the processes which the agent sees there."""
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


def as_of_2205(job):
    """What squeue --json prints of a job, as that of Slurm 22.05 prints it."""

    def plain(name, value):
        if isinstance(value, dict) and "infinite" in value:
            return value["number"] if value["set"] and not value["infinite"] else None
        if isinstance(value, list) and name in ("job_state", "shared"):
            return "+".join(value) or None
        return value

    return {name: plain(name, value) for name, value in job.items()}


def tickers_of(output):
    """The processes that count into it, without the shell and what waits for that."""
    return [pid for pid in output.copies() if pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "ticker\n"]


class Scenario(unittest.TestCase):
    count = 2
    options = ()

    def setUp(self):
        self.nodes = Nodes(self.count, *self.options)
        self.addCleanup(self.nodes.close)

    def fill(self, host, gpus=1):
        """Takes its GPUs; the job that has them."""
        job = self.nodes.submit(f"--gres=gpu:{gpus}", f"--nodelist={self.nodes.node(host)}")
        self.nodes.wait_for_state(job, "RUNNING")
        return job

    def drain(self, *words):
        return self.nodes.moves("drain", self.nodes.node("a"), "--slurm", *words, timeout=PATIENCE_S * 2)

    def begin(self, *words):
        """In the background; its progress can be read line by line from stderr."""
        return self.begin_command(self.nodes.moves_command(*words))

    def begin_command(self, command):
        begun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(begun.stderr.close)
        self.addCleanup(begun.stdout.close)
        self.addCleanup(begun.kill)
        return begun

    def begin_drain(self, *words):
        return self.begin("drain", self.nodes.node("a"), "--slurm", "--json", *words)

    def wait_for_line(self, begun, text):
        said = []
        for line in begun.stderr:
            said.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without saying \"{text}\": {''.join(said)}")

    def end_of(self, begun):
        out, err = begun.communicate(timeout=PATIENCE_S * 2)
        self.assertNotEqual(out, "", err)
        return begun.returncode, json.loads(out), err

    def answers(self, *words):
        return subprocess.run(self.nodes.at_controller(*words), capture_output=True, check=False).returncode == 0

    def assert_owned(self, job, ticker, host, said=""):
        """The ticker runs once, on this host, in this job, and nothing of it was lost or doubled."""
        ticker.goes_on()
        self.assertEqual(ticker.complaint(), "", said)
        self.assertEqual(len(tickers_of(ticker)), 1, said)
        self.assertIn(job, self.nodes.owners(host), said)
        self.assertEqual(self.nodes.detail(job, "JobState"), "RUNNING", said)

    def assert_moved(self, job, ticker, report, said=""):
        """From node a; the successor, which alone has the processes."""
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


class Moves(Scenario):
    def test_a_drained_node_is_empty_and_the_exit_status_arrives_at_the_successor(self):
        job, ticker = self.nodes.start_ticker_job("a", "--comment=mine", "--time=10", "--exclusive")
        follower = self.nodes.submit(f"--dependency=afterok:{job}")
        self.nodes.drain_node("a")
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        successor = self.assert_moved(job, ticker, report, said)
        wait_for("node a is empty", lambda: not self.nodes.jobs_on("a"), PATIENCE_S)
        self.assertEqual(self.nodes.comment(successor), f"gcr-migrate: goes on with job {job}; mine")
        self.assertEqual(self.nodes.detail(job, "ExitCode"), "0:0")
        self.assertLessEqual(self.nodes.detail(successor, "TimeLimit"), "00:10:00")
        self.assertEqual(self.nodes.detail(successor, "OverSubscribe"), "NO")
        self.assertIn(f"afterok:{successor}", self.nodes.detail(follower, "Dependency"))
        os.kill(tickers_of(ticker)[0], signal.SIGTERM)
        self.nodes.wait_for_state(successor, "FAILED")
        self.assertEqual(self.nodes.detail(successor, "ExitCode"), f"{STATUS}:0")
        wait_for("what follows never runs", lambda: "failed" in self.nodes.detail(follower, "Dependency"), PATIENCE_S)

    def test_a_job_moves_on_and_scancel_ends_it_where_it_is(self):
        job, ticker = self.nodes.start_ticker_job("a")
        for there in "ba":
            status, report, said = self.nodes.moves("slurm", "migrate", job, "--to", self.nodes.node(there))
            self.assertEqual(status, 0, said)
            job = self.assert_moved(job, ticker, report, said)
            self.assertEqual(self.host_of(job), there)
        self.nodes.slurm("scancel", job)
        wait_for("its processes end", lambda: not ticker.copies(), PATIENCE_S)
        self.nodes.wait_for_state(job, "CANCELLED")

    def test_what_cannot_move_is_left_and_the_reason_is_said(self):
        shell = self.nodes.start_fixed_job("a")
        status, report, said = self.drain()
        self.assertEqual(status, 1, said)
        self.assertEqual([each["outcome"] for each in report["processes"]], ["left"], said)
        self.assertIn("--migratable", report["processes"][0]["reason"])
        status, report, said = self.nodes.moves("slurm", "migrate", 4711)
        self.assertEqual((status, report), (1, None), said)
        self.assertEqual(self.nodes.owners("a"), [shell])
        self.assertEqual(self.nodes.jobs_on("b"), set())


class WithoutJson(Scenario):
    """A release of Slurm whose squeue prints no JSON."""

    def refuse_json(self):
        """Slurm's commands where PATH has a squeue of that kind first; the variable for env."""
        folder = self.nodes.folder / "old"
        folder.mkdir()
        squeue = folder / "squeue"
        squeue.write_text("#!/bin/sh\necho \"squeue: unrecognized option '--json'\" >&2\nexit 1\n", encoding="ascii")
        squeue.chmod(0o755)
        return f"PATH={folder}:{os.environ['PATH']}"

    def test_a_job_moves_all_the_same(self):
        job, ticker = self.nodes.start_ticker_job("a", "--comment=\u00e4 \"mine\"", "--time=10", "--exclusive")
        self.nodes.submit(f"--dependency=afterok:{job}", "--time=UNLIMITED", "--licenses=", "--mem=0")
        old = json.loads(self.nodes.slurm(f"{self.nodes.env['PREFIX']}/bin/gcr-slurm-jobs"))["jobs"]
        new = json.loads(self.nodes.slurm("squeue", "--all", "--json"))["jobs"]
        self.assertEqual(len(old), 2)
        for each, other in zip(old, new, strict=True):
            each, other = as_of_2205(each), as_of_2205(other)
            self.assertEqual({name: value for name, value in each.items() if other[name] != value}, {}, other)
        self.nodes.environment = [self.refuse_json()]
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        self.assert_moved(job, ticker, report, said)


class TimeLimit(Scenario):
    def test_holds_for_the_processes_at_the_successor(self):
        job, ticker = self.nodes.start_ticker_job("a", "--time=10")
        status, report, said = self.drain()
        self.assertEqual(status, 0, said)
        successor = self.assert_moved(job, ticker, report, said)
        self.nodes.slurm("scontrol", "update", f"JobId={successor}", "TimeLimit=1")
        self.nodes.wait_for_state(successor, "TIMEOUT")
        wait_for("its processes end", lambda: not ticker.copies(), PATIENCE_S)


class Room(Scenario):
    count = 4
    options = ("--gpus", "8", "--cpus", "2", "--cpus-a", "8")

    def test_what_finds_no_room_waits_and_moves_when_there_is(self):
        jobs = dict(self.nodes.start_ticker_job("a") for _ in range(8))
        self.nodes.drain_node("a")
        drain = self.begin_drain()
        moved = [int(re.search(r"goes on as job (\d+)", self.wait_for_line(drain, "goes on as"))[1]) for _ in range(6)]
        wait_for("two are left", lambda: len(self.nodes.jobs_on("a") & jobs.keys()) == 2, PATIENCE_S)
        for job in self.nodes.jobs_on("a"):
            self.assert_owned(job, jobs[job], "a")
        self.nodes.slurm("scancel", *moved[:2])
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        ended = {each["slurm_job"] for each in report["processes"] if each["slurm_successor"] in moved[:2]}
        self.assertEqual(len(ended), 2, said)
        for job in jobs.keys() - ended:
            self.assert_moved(job, jobs[job], report, said)
        wait_for("node a is empty", lambda: not self.nodes.jobs_on("a"), PATIENCE_S)


class Rebalance(Scenario):
    count = 3
    options = ("--gpus", "6", "--cpus", "8")
    words = ("--slurm", "--yes", "--least-gain", "0.001")

    def setUp(self):
        super().setUp()
        self.tickers = {}  # by job

    def start_jobs(self, count):
        self.tickers.update(self.nodes.start_ticker_job("a") for _ in range(count))

    def rebalance(self, *words):
        return self.nodes.moves("rebalance", *self.words, *words, timeout=PATIENCE_S * 2)

    def begin_rebalance(self, *words):
        return self.begin("rebalance", *self.words, "--json", *words)

    def placeholder_of(self, rebalance):
        return int(re.search(r"placeholder (\d+) for", self.wait_for_line(rebalance, ": placeholder"))[1])

    def names(self, hosts):
        return [self.nodes.node(host) for host in hosts]

    def gpus_in_use(self, host):
        jobs = self.nodes.ask("host", self.nodes.address(host))["jobs"]
        return {use["uuid"] for job in jobs for use in job["gpus"]}

    def in_queue(self):
        return {int(each) for each in self.nodes.slurm("squeue", "-h", "-o", "%i").split()}

    def assert_all_stay(self, said):
        for job, ticker in self.tickers.items():
            self.assert_owned(job, ticker, "a", said)

    def test_jobs_of_one_node_are_evened_out_over_three_and_each_has_one_owner(self):
        fixed = self.nodes.start_fixed_job("a")
        self.start_jobs(5)
        status, report, said = self.rebalance("--dry-run")
        self.assertEqual((status, len(report["moves"]), report["processes"]), (0, 4, []), said)
        self.assertEqual([each["slurm_job"] for each in report["left_out"]], [fixed], said)
        self.assertIn("--migratable", report["left_out"][0]["reason"])
        self.assertEqual(self.in_queue(), {fixed, *self.tickers})
        status, report, said = self.rebalance("--start-within", "100000")
        self.assertEqual(status, 0, said)
        moved = {process["slurm_job"]: process for process in report["processes"]}
        self.assertEqual(len(moved), 4, said)
        for job in moved:
            successor = self.assert_moved(job, self.tickers.pop(job), report, said)
            self.assertEqual(self.nodes.address(self.host_of(successor)), moved[job]["destination"], said)
        self.assert_all_stay(said)
        self.assertEqual([len(self.nodes.owners(host)) for host in "abc"], [2, 2, 2], said)
        for host in "bc":
            wait_for("each job has a GPU of its own", lambda host=host: len(self.gpus_in_use(host)) == 2, PATIENCE_S)
        status, again, said = self.rebalance()
        self.assertEqual((status, again["moves"]), (0, []), said)

    def test_a_job_whose_destination_is_full_stays_and_nothing_is_left_in_the_queue(self):
        self.start_jobs(2)
        filler = self.fill("b", gpus=6)
        status, report, said = self.rebalance(*self.names("ab"), "--start-within", "1")
        self.assertEqual(status, 1, said)
        self.assertEqual([process["outcome"] for process in report["processes"]], ["left"], said)
        self.assertIn("Slurm has not started placeholder", report["processes"][0]["reason"])
        wait_for("the placeholder is gone", lambda: self.in_queue() == {filler, *self.tickers}, PATIENCE_S)
        self.assert_all_stay(said)

    def test_told_to_stop_it_leaves_nothing_in_the_queue(self):
        self.start_jobs(2)
        filler = self.fill("b", gpus=6)
        rebalance = self.begin_rebalance(*self.names("ab"), "--start-within", "100000")
        placeholder = self.placeholder_of(rebalance)
        self.assertEqual(self.nodes.detail(placeholder, "JobState"), "PENDING")
        self.assertEqual(self.hosts_that_may_take(placeholder), ["b"])
        rebalance.send_signal(signal.SIGINT)
        status, _, said = self.end_of(rebalance)
        self.assertEqual(status, 7, said)
        wait_for("the placeholder is gone", lambda: self.in_queue() == {filler, *self.tickers}, PATIENCE_S)
        self.assert_all_stay(said)

    def hosts_that_may_take(self, job):
        excluded = self.nodes.slurm("scontrol", "show", "hostnames", self.nodes.detail(job, "ExcNodeList")).split()
        return [host for host in "abc" if self.nodes.node(host) not in excluded]

    def test_killed_after_a_move_it_is_followed_by_one_that_tells_slurm(self):
        self.start_jobs(2)
        rebalance = self.begin_rebalance(*self.names("ab"))
        placeholder = self.placeholder_of(rebalance)
        self.wait_for_line(rebalance, "moving")
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(rebalance, "moved")
        rebalance.kill()
        rebalance.wait()
        self.nodes.script("start", "slurmctld")
        wait_for("slurmctld answers", lambda: self.answers("squeue"), PATIENCE_S)
        status, report, said = self.rebalance(*self.names("ab"))
        self.assertEqual((status, report["moves"], report["processes"]), (0, [], []), said)
        moved = self.nodes.owners("b")
        self.assertEqual(moved, [placeholder], said)
        left = int(re.search(r"goes on with job (\d+)", self.nodes.comment(placeholder))[1])
        self.nodes.wait_for_state(left, "COMPLETED")
        self.assert_owned(placeholder, self.tickers.pop(left), "b", said)
        self.assert_all_stay(said)


class Service(Scenario):
    count = 3
    options = ("--gpus", "2")
    NEVER = "100000"  # in seconds
    METRICS_PORT = 9411

    def serve(self, *words):
        """By Debian's Python, which has Debian's prometheus_client."""
        command = self.nodes.moves_command("slurm", "serve", "--wake-socket", f"{self.nodes.folder}/wake", *words)
        command.insert(command.index(str(ROOT / "scripts" / "slurm")), "/usr/bin/python3")
        return command

    def begin_service(self, *words):
        """It looks once, and again only if it is woken or `words` say so."""
        service = self.begin_command(self.serve("--poll", self.NEVER, *words))
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

    def successor_of(self, job):
        self.nodes.wait_for_state(job, "COMPLETED")
        return int(re.search(r"goes on as job (\d+)", self.nodes.comment(job))[1])

    def metrics(self):
        """By name and labels; what promtool and the page about metrics say against them is said here."""
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

    def test_a_drain_by_the_administrator_wakes_it_and_the_metrics_tell_what_happened(self):
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

    def test_it_drains_two_nodes_at_a_time(self):
        jobs = {host: self.nodes.start_ticker_job(host) for host in "ab"}
        self.nodes.slurm("scontrol", "update", f"node={self.nodes.node('a')},{self.nodes.node('b')}", "state=drain",
                         "reason=test")  # fmt: skip
        service = self.begin_service()
        for _ in jobs:
            self.wait_for_line(service, "drain ended with exit status 0")
        for job, ticker in jobs.values():
            self.assert_owned(self.successor_of(job), ticker, "c")
        self.assert_ends(service)

    def test_told_to_end_it_lets_what_moves_arrive(self):
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

    def test_it_outlives_slurmctld_and_registers_its_trigger_again(self):
        job, _ = self.nodes.start_ticker_job("a")
        service = self.begin_service("--poll", "1")
        (trigger,) = self.triggers()
        self.nodes.slurm("strigger", "--clear", f"--id={trigger.split()[0]}")
        wait_for("the trigger is there again", self.triggers, PATIENCE_S)
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(service, "Slurm does not answer")
        self.nodes.script("start", "slurmctld")
        self.wait_for_line(service, "Slurm answers")
        self.assertEqual(len(self.triggers()), 1)
        self.nodes.drain_node("a")
        self.wait_for_line(service, f"moved job={job} ")
        self.assert_ends(service)

    def test_a_dry_run_says_what_would_move_and_changes_nothing(self):
        job, ticker = self.nodes.start_ticker_job("a")
        self.nodes.drain_node("a")
        ran = subprocess.run(self.serve("--dry-run"), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn(f"would drain node {self.nodes.node('a')}", ran.stderr)
        self.assertRegex(ran.stdout, rf"job {job}, .*: moved to where Slurm places it")
        self.assertEqual(self.triggers(), [])
        self.assert_owned(job, ticker, "a")
        self.assertEqual(self.nodes.slurm("squeue", "-h", "-o", "%i").split(), [str(job)])


class Faults(Scenario):
    """After each of them one job has the processes."""

    def setUp(self):
        super().setUp()
        self.job, self.ticker = self.nodes.start_ticker_job("a")

    def placeholder_of(self, drain):
        return int(re.search(r"placeholder (\d+) for", self.wait_for_line(drain, f"job {self.job}: placeholder"))[1])

    def assert_ends_moved(self, drain):
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        return self.assert_moved(self.job, self.ticker, report, said)

    def test_a_placeholder_that_is_cancelled_before_the_move_is_replaced(self):
        filler = self.fill("b")
        drain = self.begin_drain()
        first = self.placeholder_of(drain)
        self.assertEqual(self.nodes.detail(first, "JobState"), "PENDING")
        self.nodes.slurm("scancel", first)
        self.assertNotEqual(self.placeholder_of(drain), first)
        self.assert_owned(self.job, self.ticker, "a")
        self.nodes.slurm("scancel", filler)
        self.assert_ends_moved(drain)

    def test_a_drain_that_is_told_to_stop_leaves_nothing_in_the_queue(self):
        self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        drain.send_signal(signal.SIGINT)
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 7, said)
        self.assertEqual(report["processes"][0]["outcome"], "left", said)
        self.nodes.wait_for_state(placeholder, "CANCELLED")
        self.assert_owned(self.job, self.ticker, "a", said)
        self.assertEqual(self.nodes.detail(self.job, "Requeue"), "1")

    def test_a_drain_that_is_killed_before_the_move_is_followed_by_one_that_takes_its_placeholder(self):
        filler = self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        drain.kill()
        drain.wait()
        second = self.begin_drain()
        self.wait_for_line(second, "is on")
        self.nodes.slurm("scancel", filler)
        self.assertEqual(self.assert_ends_moved(second), placeholder)

    def test_two_drains_at_a_time_move_it_once(self):
        drains = [self.begin_drain(), self.begin_drain()]
        ends = [self.end_of(drain) for drain in drains]
        said = "".join(said for _, _, said in ends)
        self.nodes.wait_for_state(self.job, "COMPLETED")
        successor = int(re.search(r"goes on as job (\d+)", self.nodes.comment(self.job))[1])
        self.assert_owned(successor, self.ticker, "b", said)
        self.assertEqual(self.nodes.jobs_on("b"), {successor}, said)

    def test_a_job_that_ends_while_it_waits_leaves_no_placeholder(self):
        self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.nodes.slurm("scancel", self.job)
        status, report, said = self.end_of(drain)
        self.assertEqual((status, report["processes"][0]["outcome"]), (0, "ended"), said)
        self.nodes.wait_for_state(placeholder, "CANCELLED")
        self.assertEqual(self.ticker.copies(), [])

    def test_slurmctld_hears_of_the_move_when_it_is_back(self):
        drain = self.begin_drain()
        self.wait_for_line(drain, "moving")
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(drain, "Slurm does not answer")
        self.wait_for_line(drain, "moved")
        self.ticker.goes_on()
        self.nodes.script("start", "slurmctld")
        self.assert_ends_moved(drain)

    def test_a_drain_that_is_killed_after_the_move_is_followed_by_one_that_tells_slurm(self):
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.wait_for_line(drain, "moving")
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(drain, "moved")
        drain.kill()
        drain.wait()
        self.nodes.script("start", "slurmctld")
        wait_for("slurmctld answers", lambda: self.answers("squeue"), PATIENCE_S)
        self.assertEqual(self.nodes.detail(self.job, "JobState"), "RUNNING")
        status, report, said = self.drain()
        self.assertEqual((status, report["processes"]), (0, []), said)
        self.nodes.wait_for_state(self.job, "COMPLETED")
        self.assertIn(f"goes on as job {placeholder}", self.nodes.comment(self.job))
        self.assert_owned(placeholder, self.ticker, "b", said)

    def test_a_slurmd_that_is_killed_during_the_move_finds_the_processes_in_its_job(self):
        drain = self.begin_drain()
        self.wait_for_line(drain, "moving")
        self.nodes.script("stop", "slurmd-b")
        successor = self.assert_ends_moved(drain)
        self.nodes.script("start", "slurmd-b")
        wait_for("slurmd answers", lambda: self.answers(
            "scontrol", "ping") and self.nodes.detail(successor, "JobState") == "RUNNING", PATIENCE_S)  # fmt: skip
        self.nodes.slurm("scancel", successor)
        wait_for("its processes end", lambda: not self.ticker.copies(), PATIENCE_S)
        self.nodes.wait_for_state(successor, "CANCELLED")

    def test_the_destinations_agent_that_ends_during_the_move_leaves_one_owner(self):
        self.end_and_start_agent("b")

    def test_the_sources_agent_that_ends_during_the_move_leaves_one_owner(self):
        self.end_and_start_agent("a")

    def end_and_start_agent(self, host):
        drain = self.begin_drain()
        self.wait_for_line(drain, "moving")
        self.nodes.agent("stop", host)
        self.nodes.agent("start", host)
        self.assert_ends_moved(drain)

    def test_a_placeholder_waits_on_while_slurmctld_is_restarted(self):
        filler = self.fill("b")
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.nodes.slurm("scontrol", "shutdown", "slurmctld")
        self.wait_for_line(drain, "Slurm does not answer")
        self.nodes.script("start", "slurmctld")
        wait_for("slurmctld answers", lambda: self.answers("squeue"), PATIENCE_S)
        self.nodes.slurm("scancel", filler)
        self.assertEqual(self.assert_ends_moved(drain), placeholder)

    def test_a_placeholder_that_is_cancelled_during_the_move_has_the_processes_or_never_gets_them(self):
        drain = self.begin_drain()
        placeholder = self.placeholder_of(drain)
        self.wait_for_line(drain, "moving")
        self.nodes.slurm("scancel", placeholder)
        status, report, said = self.end_of(drain)
        process = report["processes"][0]
        if process["slurm_successor"] == placeholder:  # it was committed before that
            wait_for("its processes end", lambda: not self.ticker.copies(), PATIENCE_S)
            self.nodes.wait_for_state(self.job, "COMPLETED")
            return
        self.assertEqual(status, 0, said)
        self.assert_moved(self.job, self.ticker, report, said)


class NodesThatDie(Scenario):
    count = 3
    options = ("--fault-points", "true", "--slurmd-timeout", "30")

    def setUp(self):
        super().setUp()
        self.job, self.ticker = self.nodes.start_ticker_job("a")
        self.filler = self.nodes.submit("--gres=gpu:1", f"--nodelist={self.nodes.node('c')}")
        self.nodes.wait_for_state(self.filler, "RUNNING")

    def test_before_the_commit_the_job_stays_and_moves_to_another_node(self):
        faults = self.nodes.folder / "b" / "faults"
        faults.write_text("destination.verified stop\n", encoding="ascii")
        drain = self.begin_drain()
        wait_for("it is restored on node b", (faults.parent / "faults.hit").exists, PATIENCE_S)
        self.nodes.kill("b")
        self.nodes.slurm("scancel", self.filler)
        status, report, said = self.end_of(drain)
        self.assertEqual(status, 0, said)
        successor = self.assert_moved(self.job, self.ticker, report, said)
        self.assertEqual(self.host_of(successor), "c", said)

    def test_after_the_commit_it_is_lost_as_any_job_of_that_node(self):
        drain = self.begin_drain()
        successor = int(re.search(r"goes on as job (\d+)", self.wait_for_line(drain, "goes on as"))[1])
        self.nodes.kill("b")
        self.end_of(drain)
        self.nodes.wait_for_state(self.job, "COMPLETED")
        self.nodes.wait_for_state(successor, "NODE_FAIL")
        self.assertEqual(self.ticker.copies(), [])


if __name__ == "__main__":
    unittest.main()
