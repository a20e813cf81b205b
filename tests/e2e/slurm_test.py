#!/usr/bin/env python3
"""Slurm jobs that own migrated processes: real slurmctld, slurmd and munged, agents, CRIU, software GPUs.

If Slurm's control groups and those that freeze processes are in one hierarchy (version 2), processes leave the frozen
group when they join. The last class tests that on every machine, with a fake Slurm library.

Usage: slurm_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import errno
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

from ticker_hosts import TICKER, Hosts, Ticker, movable_users, wait_for  # noqa: E402  # pylint: disable=wrong-import-position

USER, ANOTHER_USER = movable_users()
MEMORY_MB = 600
PATIENCE_S = 240

# The program that stays in place of the processes: it ends when they have moved on, or as their root does.
PLACEHOLDER = """#!/bin/bash
folder={folder}/$SLURM_JOB_ID
until [[ -e $folder/status || -e $folder/moved ]]; do sleep 0.5; done
[[ ! -e $folder/moved ]] || exit 0
status=$(cat "$folder/status")
exit $((status > 255 ? status >> 8 : 128 + status))
"""

# The root is a shell, which ends with 7 when its ticker ends. They alone have the job's output.
JOB = """#!/bin/bash
exec 3>&1 >/dev/null 2>&1
setsid {cli} run -- /bin/sh -c '{ticker}; exit 7' </dev/null >&3 3>&-
"""


class Cluster(Hosts):
    """Nodes a and b, with two GPUs each."""

    SCRIPT = "slurm-hosts"

    def __init__(self):
        super().__init__(2, "--fault-points", "true", "--gpus", "2")
        self.outputs = self.folder / "outputs"
        self.outputs.mkdir()
        self.outputs.chmod(0o1777)

    def node(self, host):
        return self.env[f"NODE_{host.upper()}"]

    def jobs_folder(self, host):
        return self.folder / "slurm" / f"{self.node(host)}.jobs"

    def slurm(self, *words, host=None, check=True):
        """The output of a Slurm command."""
        namespace = self.env[f"NS_{(host or self.env['CONTROLLER']).upper()}"]
        ran = subprocess.run(
            ["nsenter", f"--net={namespace}", "env", f"SLURM_CONF={self.env['SLURM_CONF']}", *map(str, words)],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S)  # fmt: skip
        if check and ran.returncode != 0:
            raise AssertionError(f"{words}: {ran.stderr}")
        return ran.stdout

    def submit(self, host, script, user=USER):
        """A job with one GPU on the host; returns its number, once it runs."""
        path = self.outputs / "script"
        path.write_text(script, encoding="ascii")
        job = int(self.slurm(
            "runuser", "-u", user, "--", "sbatch", "--parsable", f"--nodelist={self.node(host)}", "--gres=gpu:1",
            f"--mem={MEMORY_MB}", "--chdir=/", f"--output={self.outputs}/%j", "--open-mode=append", path))  # fmt: skip
        wait_for(f"job {job} runs", lambda: self.state(job) == "RUNNING", PATIENCE_S)
        return job

    def submit_placeholder(self, host, user=USER):
        return self.submit(host, PLACEHOLDER.format(folder=self.jobs_folder(host)), user)

    def start_job(self, host):
        """A job that counts: its number, its ticker, the PID of its root."""
        ticker = f"{self.env['PREFIX']}/bin/{TICKER}"
        job = self.submit(host, JOB.format(cli=self.env["GCR_CLI"], ticker=ticker))
        output = Ticker(self.outputs / str(job), None)
        wait_for("the ticker starts", lambda: output.path.exists() and len(output.lines()) >= 2, PATIENCE_S)
        return job, output, self.root_of(host, job)["pid"]

    def root_of(self, host, job):
        """The job's root as the agent of the host knows it."""
        return wait_for(
            f"job {job} is at host {host}",
            lambda: [each for each in self.ask("host", self.address(host))["jobs"] if each["slurm_job"] == job],
            PATIENCE_S)[0]  # fmt: skip

    def details(self, job):
        return self.slurm("scontrol", "show", "job", "-d", job)

    def state(self, job):
        return re.search(r"JobState=(\w+)", self.details(job)).group(1)

    def extern_pids(self, host, job):
        """Of the job's extern step there, as Slurm lists them, without Slurm's own process."""
        listed = self.slurm("scontrol", "listpids", job, self.node(host), host=host)
        rows = [line.split() for line in listed.splitlines()[1:]]
        pids = {int(row[0]) for row in rows if row[2] == "extern"}
        return {pid for pid in pids if pid > 0 and command_of(pid) not in ("sleep", "slurmstepd")}

    def gcr(self, command, *words):
        """Exit status, standard output, standard error."""
        ran = subprocess.run(
            self.on("a", self.env["GCR_CLI"], *command, *self.env["GCR_TLS"].split(), *words),
            capture_output=True, text=True, check=False, timeout=PATIENCE_S * 2)  # fmt: skip
        return ran.returncode, ran.stdout, ran.stderr

    def move(self, source, destination, pid, job):
        return self.gcr(
            [], "--json", "--quiet", "--slurm-job", job, self.address(source), self.address(destination), pid)  # fmt: skip

    def begin_move(self, source, destination, pid, job):
        """In the background, and silently."""
        words = ("--slurm-job", job, self.address(source), self.address(destination), pid)
        return subprocess.Popen(
            self.on("a", self.env["GCR_CLI"], *self.env["GCR_TLS"].split(), *words),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    def blockers(self, source, destination, pid, job):
        """Preflight's findings about the job."""
        _, out, err = self.gcr(
            ["preflight"], "--json", "--slurm-job", job, self.address(source), self.address(destination), pid)  # fmt: skip
        if not out:
            raise AssertionError(f"preflight: {err}")
        return [each["found"] for each in json.loads(out)["findings"] if each["id"] == "slurm-job"]

    def was_hit(self, host):
        """Whether the armed fault has happened."""
        return (self.folder / host / "faults.hit").exists()

    def arm(self, host, line):
        (self.folder / host / "faults.hit").unlink(missing_ok=True)
        (self.folder / host / "faults").write_text(line + "\n", encoding="ascii")


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def tree_of(pid):
    """A process and all below it."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return {pid}.union(*(tree_of(int(child)) for child in children))


def group_of(pid, controller):
    """The directory of a process's control group: of version 1, else of the one hierarchy of version 2."""
    folder = pathlib.Path("/sys/fs/cgroup")
    one_hierarchy = (folder / "cgroup.controllers").exists()
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        if one_hierarchy or controller in names.split(","):
            return (folder if one_hierarchy else folder / controller) / path.lstrip("/")
    raise AssertionError(f"process {pid} is in no group of {controller}")


def memory_limit(group):
    """Bytes: the smallest of a group and its ancestors."""
    limits = []
    while group.name != "cgroup":
        for name in ("memory.limit_in_bytes", "memory.max"):
            if (group / name).exists():
                text = (group / name).read_text(encoding="ascii").strip()
                limits += [] if text == "max" else [int(text)]
        group = group.parent
    return min(limits)


def reason_not_to_open(path, group):
    """The errno of open(2) on a device, for a process of the control group."""

    def join():
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    script = "import os, sys\ntry: os.open(sys.argv[1], os.O_RDWR)\nexcept OSError as e: sys.exit(e.errno)"
    return subprocess.run(
        [sys.executable, "-c", script, path], preexec_fn=join, check=False, timeout=PATIENCE_S).returncode  # fmt: skip


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        self.addCleanup(self.cancel_all)

    def cancel_all(self):
        self.cluster.slurm("scancel", "--state=RUNNING", f"--user={USER}")
        self.cluster.slurm("scancel", "--state=RUNNING", f"--user={ANOTHER_USER}")
        wait_for("no job is left", lambda: not self.cluster.slurm("squeue", "-h"), PATIENCE_S)

    def text_of(self, host, job, name):
        """A file of the job's folder, once it exists."""
        path = self.cluster.jobs_folder(host) / str(job) / name
        wait_for(f"{path} is there", path.exists, PATIENCE_S)
        return path.read_text(encoding="ascii")

    def assert_owned(self, host, job, ticker):
        """Its processes run on the host, in the job's extern step, and nowhere else; returns the root's PID."""
        root = int(self.text_of(host, job, "pid"))
        ticker.wait_for_progress()
        self.assertEqual(ticker.complaint(), "")
        members = tree_of(root)
        self.assertEqual(len(members), 2, members)
        self.assertEqual(self.cluster.extern_pids(host, job), members)
        self.assertEqual(set(ticker.copies()), members)
        return root

    def move_job(self):
        """From a to b: the old job, the job that owns it now, the ticker, the root at b."""
        source, ticker, pid = self.cluster.start_job("a")
        job = self.cluster.submit_placeholder("b")
        status, out, err = self.cluster.move("a", "b", pid, job)
        self.assertEqual(status, 0, out + err)
        return source, job, ticker, self.assert_owned("b", job, ticker)

    def test_moved_job_joins_the_placeholder_step_and_its_limits(self):
        source, job, _, root = self.move_job()
        found = self.cluster.root_of("b", job)
        self.assertEqual((found["pid"], found["slurm_step"], found["slurm_parent"]), (root, "extern", "gcr-reaper"))
        host = self.cluster.ask("host", self.cluster.address("b"))
        self.assertEqual(host["slurm_node"], self.cluster.node("b"))
        self.assertEqual([gpu["device_file"] for gpu in host["gpus"]], ["", ""], "these GPUs have none")
        self.assertEqual(self.text_of("a", source, "moved"), f"{job}\n")
        for pid in tree_of(root):
            memory = group_of(pid, "memory")
            self.assertIn(f"job_{job}/step_extern", str(memory))
            self.assertEqual(memory_limit(memory), MEMORY_MB << 20)
        mine = int(re.search(r"GRES=gpu[^ ]*\(IDX:(\d)\)", self.cluster.details(job)).group(1))
        devices = [self.cluster.folder / "slurm" / f"gpu{number}" for number in (mine, 1 - mine)]
        group = group_of(root, "devices")
        # Allowed: whether it can be opened depends on whether this machine has NVIDIA's driver.
        self.assertIn(reason_not_to_open(devices[0], group), (0, errno.ENXIO))
        self.assertEqual(reason_not_to_open(devices[1], group), errno.EPERM)

    def test_scancel_ends_a_moved_job(self):
        _, job, ticker, _ = self.move_job()
        self.cluster.slurm("scancel", job)
        wait_for("the ticker ends", lambda: not ticker.copies(), PATIENCE_S)
        self.assertIn(self.text_of("b", job, "status"), (f"{signal.SIGTERM}\n", f"{signal.SIGKILL}\n", f"{7 << 8}\n"))

    def test_successor_gets_the_exit_status(self):
        _, job, _, root = self.move_job()
        for pid in tree_of(root) - {root}:
            os.kill(pid, signal.SIGTERM)
        self.assertEqual(self.text_of("b", job, "status"), f"{7 << 8}\n")
        wait_for("the placeholder ends", lambda: self.cluster.state(job) == "FAILED", PATIENCE_S)
        self.assertIn("ExitCode=7:0", self.cluster.details(job))

    def test_moved_job_moves_again_and_its_old_job_completes(self):
        _, job, ticker, root = self.move_job()
        back = self.cluster.submit_placeholder("a")
        status, out, err = self.cluster.move("b", "a", root, back)
        self.assertEqual(status, 0, out + err)
        self.assert_owned("a", back, ticker)
        self.assertEqual(self.text_of("b", job, "moved"), f"{back}\n")
        wait_for("the first successor ends", lambda: self.cluster.state(job) == "COMPLETED", PATIENCE_S)

    def test_preflight_refuses_an_unsuitable_slurm_job(self):
        _, ticker, pid = self.cluster.start_job("a")
        mine = self.cluster.submit_placeholder("b")
        theirs = self.cluster.submit_placeholder("b", ANOTHER_USER)
        self.assertEqual(self.cluster.blockers("a", "b", pid, mine), [])
        self.assertIn(f"Slurm job {theirs} belongs to user ", self.cluster.blockers("a", "b", pid, theirs)[0])
        self.assertEqual(
            self.cluster.blockers("a", "b", pid, 4711),
            [f"job 4711 has no extern step on node {self.cluster.node('b')}"])  # fmt: skip
        status, _, err = self.cluster.move("a", "b", pid, theirs)
        self.assertNotEqual(status, 0, err)
        config = pathlib.Path(self.cluster.env["CONFIG_B"])
        whole = config.read_text(encoding="utf-8")
        self.addCleanup(config.write_text, whole, encoding="utf-8")
        config.write_text(re.sub(r"\nnode = .*", "", whole), encoding="utf-8")
        self.assertIn("has no slurm.node", self.cluster.blockers("a", "b", pid, mine)[0])
        ticker.wait_for_progress()
        self.assertEqual(self.cluster.root_of("a", int(ticker.path.name))["pid"], pid)

    def test_recovery_completes_a_failed_join(self):
        for point in ("destination.joining", "destination.joined"):
            for harm in ("kill", "error"):
                with self.subTest(point=point, harm=harm):
                    _, ticker, pid = self.cluster.start_job("a")
                    job = self.cluster.submit_placeholder("b")
                    self.cluster.arm("b", f"{point} {harm}")
                    said = self.cluster.move("a", "b", pid, job)
                    self.assertTrue(self.cluster.was_hit("b"), said)
                    self.assert_owned("b", job, ticker)
                    self.cancel_all()

    def test_restarted_agent_completes_the_join(self):
        _, ticker, pid = self.cluster.start_job("a")
        job = self.cluster.submit_placeholder("b")
        daemon = (self.cluster.folder / "b" / "agent.pid").read_text(encoding="ascii").strip()
        self.cluster.arm("b", f"destination.joining run kill -KILL {daemon} $PPID")
        move = self.cluster.begin_move("a", "b", pid, job)
        wait_for("the agent dies", lambda: self.cluster.was_hit("b") and not command_of(int(daemon)), PATIENCE_S)
        self.cluster.host_script("start", "b")
        self.assertEqual(move.wait(PATIENCE_S), 0)
        self.assert_owned("b", job, ticker)

    def test_processes_end_with_their_slurm_job_at_the_commit(self):
        _, ticker, pid = self.cluster.start_job("a")
        job = self.cluster.submit_placeholder("b")
        spool = self.cluster.folder / "slurm" / f"{self.cluster.node('b')}.spool"
        namespace = self.cluster.env[f"NS_{self.cluster.env['CONTROLLER'].upper()}"]
        self.cluster.arm(
            "b", f"destination.joining run SLURM_CONF={self.cluster.env['SLURM_CONF']} nsenter --net={namespace} "
            f"scancel {job} && while ls {spool} | grep -q _{job}[.]; do sleep 0.1; done")  # fmt: skip
        _, out, err = self.cluster.move("a", "b", pid, job)
        self.assertIn(f"Slurm job {job}, which owned the processes, has ended", out + err)
        self.assertEqual(self.text_of("b", job, "status"), f"{signal.SIGKILL}\n")
        self.assertEqual(ticker.copies(), [])


def hierarchy_of_version_2():
    for line in pathlib.Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        if line.split()[2] == "cgroup2":
            return pathlib.Path(line.split()[1])
    raise AssertionError("this host has no control groups of version 2")


def removed(group):
    try:
        group.rmdir()
        return True
    except OSError:
        return False


class OneHierarchy(unittest.TestCase):
    JOB = 7

    def setUp(self):
        self.group = self.make_group()
        self.hosts = Hosts(2, "--fault-points", "true")
        self.addCleanup(self.hosts.close)
        spool, jobs = self.hosts.folder / "spool", self.hosts.folder / "jobs"
        spool.mkdir()
        (spool / f"node_{self.JOB}").write_text(f"{os.getuid()}\n", encoding="ascii")
        (spool / f"node_{self.JOB}.group").symlink_to(self.group)
        self.pid_file = jobs / str(self.JOB) / "pid"
        library = f"{self.hosts.env['PREFIX']}/tests/preflight/libfake_slurm.so"
        with open(self.hosts.env["CONFIG_B"], "a", encoding="utf-8") as config:
            config.write(f'[slurm]\nnode = "node"\nspool = "{spool}"\nlibrary = "{library}"\nfolder = "{jobs}"\n')

    def make_group(self):
        group = hierarchy_of_version_2()
        for name in ("system.slice", f"gcr-{os.getpid()}_slurmstepd.scope", f"job_{self.JOB}", "step_extern"):
            group /= name
            if not group.exists():
                group.mkdir()
                self.addCleanup(wait_for, "the group is empty", lambda group=group: removed(group))
        return group

    def test_nothing_runs_before_all_processes_have_joined(self):
        pid, tickers = self.hosts.start_job_of_tickers("a", 2)
        states = self.hosts.folder / "states"
        # A process that leaves the frozen group has to be scheduled once before it shows as stopped. A running one
        # never does.
        look = f"sed 's/.*) //' $(sed 's,.*,/proc/&/stat,' {self.group}/cgroup.procs) >{states}"
        (self.hosts.folder / "b" / "faults").write_text(
            f"destination.joined run for i in $(seq 300); do {look}; grep -qv ^T {states} || break; sleep 0.1; done\n",
            encoding="ascii")  # fmt: skip
        addresses = [self.hosts.address(host) for host in "ab"]
        ran = subprocess.run(
            self.hosts.on("a", self.hosts.env["GCR_CLI"], *self.hosts.env["GCR_TLS"].split(),
                          "--slurm-job", self.JOB, *addresses, pid),
            capture_output=True, text=True, check=False, timeout=PATIENCE_S * 2)  # fmt: skip
        self.assertEqual(ran.returncode, 0, ran.stderr)
        root = int(self.pid_file.read_text(encoding="ascii"))
        members = {int(member) for member in (self.group / "cgroup.procs").read_text(encoding="ascii").split()}
        self.assertEqual(members, tree_of(root))
        self.assertEqual(len(members), 4, "supervisor, shell, two tickers")
        self.assertEqual([line[0] for line in states.read_text(encoding="ascii").splitlines()], ["T"] * 4)
        for ticker in tickers:
            ticker.wait_for_progress()
            self.assertEqual(ticker.complaint(), "")


if __name__ == "__main__":
    unittest.main()
