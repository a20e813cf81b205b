"""Slurm by its commands: what jobs there are, placeholders for those that move, and what follows a move.

Thread-safe, keeps nothing. Works with the JSON of 22.05 and of 24.11, which wraps numbers and lists
states.
"""

import dataclasses
import json
import os
import pwd
import re
import subprocess
import time

ANSWER_SECONDS = 60

# At the beginning of a job's AdminComment: what it is for which other one. Only Slurm's administrators can write there.
# In its comment, which users can write, the same is said for people and never read.
PLACEHOLDER, SUCCESSOR, PREDECESSOR = "placeholder for", "goes on with", "goes on as"
_MARK = re.compile(rf"gcr-migrate: ({PLACEHOLDER}|{SUCCESSOR}|{PREDECESSOR}) job (\d+)(?:; (.*))?", re.DOTALL)
_LONGEST_MARK = 64
_GRES = re.compile(r"([^:,(]+)(?::([^:,(]+))?:(\d+)\(IDX:([0-9,-]+)\)")
_MIG = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)

_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")


class SlurmError(Exception):
    """A Slurm command failed."""


def _number(value):
    """Of JSON; None if it is not set or infinite."""
    if isinstance(value, dict):
        return value["number"] if value.get("set") and not value.get("infinite") else None
    return value


def _indices(text):
    """"0-1,3" -> (0, 1, 3)"""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Gres:
    """What a job has of one kind of generic resource on its node."""

    name: str
    kind: str  # such as a GPU's model; may be empty
    indices: tuple

    def __str__(self):
        return ":".join(filter(None, (self.name, self.kind, str(len(self.indices)))))


@dataclasses.dataclass(frozen=True)
class Node:
    """A node as sinfo describes it."""

    address: str
    state: str  # such as "mixed" or "down*"

    @property
    def draining(self):
        """Whether it is being drained, and still has jobs."""
        return self.state.startswith("draining")

    @property
    def closed(self):
        """Whether no job is started there."""
        return self.state.startswith(("drain", "down", "fail"))


class SlurmJob:
    """One job as squeue describes it."""

    def __init__(self, raw):
        self._raw = raw
        self.id = raw["job_id"]
        states = raw["job_state"]
        self.states = [states] if isinstance(states, str) else list(states)
        self.node = raw["nodes"]
        self.dependency = raw["dependency"]
        self.gres = tuple(
            Gres(name, kind or "", _indices(indices))
            for each in raw.get("gres_detail") or ()
            for name, kind, _, indices in _GRES.findall(each)
        )
        self.mark, self.marked_id, self.admin_comment = _unmarked(self.text("admin_comment"))
        _, _, self.comment = _unmarked(raw["comment"])

    def number(self, name):
        return _number(self._raw.get(name))

    def text(self, name):
        return self._raw.get(name) or ""

    @property
    def running(self):
        return self.states == ["RUNNING"]

    @property
    def pending(self):
        return any(state in _PENDING for state in self.states)

    @property
    def ended(self):
        return not (self.pending or any(state in ("RUNNING", "SUSPENDED") for state in self.states))

    @property
    def array(self):
        """The id of the array that it is a task of; 0: none."""
        return self.number("array_job_id") or 0

    @property
    def exclusive(self):
        """Whether it shares its node with no other job."""
        return self.text("shared") in ("none", ["none"])

    @property
    def gpus(self):
        """The indices of its GPUs on its node, as in gres.conf."""
        return [index for gres in self.gres if gres.name == "gpu" for index in gres.indices]

    def obstacle(self):
        """Why Slurm cannot give its processes to another job; empty if it can."""
        if not self.running:
            return f"job {self.id} is {'+'.join(self.states)}"
        if self.number("node_count") != 1:
            return f"job {self.id} has {self.number('node_count')} nodes"
        if self.number("het_job_id"):
            return f"job {self.id} is a component of a heterogeneous job"
        if not self.text("batch_flag"):
            return f"job {self.id} has no batch script"
        if any(_MIG.search(gres.kind) for gres in self.gres):
            return f"job {self.id} uses MIG"
        return ""

    def is_for(self, other):
        """Whether it was made for the processes of `other`."""
        return (
            self.mark in (PLACEHOLDER, SUCCESSOR)
            and self.marked_id == other.id
            and self.number("user_id") == other.number("user_id")
        )


class Slurm:
    """Runs Slurm's commands, as root or as Slurm's user."""

    def __init__(self, wait_program, folder, options=(), jobs_program=None):
        """`wait_program` and `folder` are what placeholders are started with (gcr-slurm-wait),
        `options` more of theirs for sbatch. `jobs_program`, if there is one, is asked where squeue
        prints no JSON (gcr-slurm-jobs)."""
        self._script = f"exec '{wait_program}' '{folder}'"
        self._options = list(options)
        self._jobs_program = jobs_program

    def jobs(self):
        """Every job that slurmctld remembers, by id."""
        answer = json.loads(self._describe_jobs())
        return {job.id: job for job in map(SlurmJob, answer["jobs"])}

    def nodes(self):
        """Every node, by its name."""
        said = self._run("sinfo", "--all", "--noheader", "--Node", "--format=%N|%o|%T")
        return {name: Node(*rest) for name, *rest in (line.split("|") for line in said.splitlines())}

    def _describe_jobs(self):
        try:
            return self._run("squeue", "--all", "--json")
        except SlurmError as error:
            if not self._jobs_program:
                raise
            try:
                return self._run(self._jobs_program)
            except SlurmError as second:
                raise SlurmError(f"{error}; {second}") from None

    def waiting_placeholders(self):
        """How many placeholders are in the queue."""
        comments = self._run("squeue", "--all", "--noheader", "--states=PENDING",
                             f"--Format=admin_comment:{_LONGEST_MARK}").splitlines()  # fmt: skip
        return sum(mark is not None and mark[1] == PLACEHOLDER for mark in map(_MARK.match, comments))

    def user(self):
        """SlurmUser, who runs slurmctld: its entry in the list of users."""
        said = self._run("scontrol", "show", "config")
        user = re.search(r"^SlurmUser\s*=.*\((\d+)\)$", said, re.MULTILINE)
        try:
            return pwd.getpwuid(int(user[1]))
        except (KeyError, TypeError):
            raise SlurmError("scontrol: SlurmUser is not known here") from None

    def triggers(self, program):
        """The numbers of the triggers that run this command line."""
        said = self._run("strigger", "--get", "--noheader").splitlines()
        return [line.split()[0] for line in said if line.endswith(f" {program}")]

    def set_trigger(self, program, user):
        """slurmctld runs this command line each time that the state of a node has changed, until the trigger is
        cleared. Only SlurmUser may ask for that."""
        self._run("strigger", "--set", "--reconfig", "--flags=PERM", f"--program={program}", user=user)

    def clear_trigger(self, number):
        self._run("strigger", "--clear", f"--id={number}")

    def submit_placeholder(self, job, excluded):
        """The id of a new job like `job`, marked as its placeholder, on none of the nodes `excluded`. It cannot
        start before it is marked: it depends on what cannot be, and Slurm ends it with `job` if it stays so."""
        said = self._run("sbatch", "--parsable", *self._request(job), f"--exclude={','.join(excluded)}", *self._options,
                         f"--dependency=afterok:{job.id},afternotok:{job.id}", "--kill-on-invalid-dep=yes",
                         "--wrap", self._script)  # fmt: skip
        placeholder = int(said.split(";")[0])
        mark = _marked(PLACEHOLDER, job.id, job.admin_comment)
        try:
            self._update(placeholder, f"AdminComment={mark}", "Dependency=")
        except SlurmError:
            self.cancel(placeholder)
            raise
        return placeholder

    def _request(self, job):
        wanted = dict(each.split("=", 1) for each in job.text("tres_req_str").split(",") if "=" in each)
        words = [
            f"--uid={job.number('user_id')}", f"--gid={job.number('group_id')}", "--export=NIL",
            f"--comment={_marked(PLACEHOLDER, job.id, job.comment)}", "--no-requeue",
            "--output=/dev/null", "--nodes=1", "--ntasks=1", f"--cpus-per-task={wanted['cpu']}",
            f"--time={_minutes_left(job)}", f"--chdir={job.text('current_working_directory')}",
        ]  # fmt: skip
        words += [f"--mem={wanted['mem']}"] if "mem" in wanted else ["--mem=0"]
        words += ["--exclusive"] if job.exclusive else []
        words += [f"--gres={','.join(map(str, job.gres))}"] if job.gres else []
        for option, field in (("job-name", "name"), ("account", "account"), ("partition", "partition"),
                              ("qos", "qos"), ("reservation", "resv_name"), ("constraint", "features"),
                              ("licenses", "licenses"), ("wckey", "wckey")):  # fmt: skip
            words += [f"--{option}={job.text(field)}"] if job.text(field) else []
        return words

    def set_requeue(self, job_id, may):
        self._update(job_id, f"Requeue={int(may)}")

    def hand_over(self, job, successor, jobs):
        """`job`'s processes are `successor`'s now: says so in both, and lets what waited for the one wait
        for the other. Harmless if it was done before. `successor` gets no more time than Slurm gave it when it
        started it, by the limits of its partition and QoS, which do not bind us."""
        for each in jobs.values():
            if each.pending and job.id in _ids(each.dependency):
                self._update(each.id, f"Dependency={_renamed(each.dependency, job.id, successor.id)}")
        left, limit = _seconds_left(job), successor.number("time_limit")
        if left is not None:
            spent = time.time() - (successor.number("start_time") or time.time())
            minutes = max(1, -int(-(spent + left) // 60))
            if limit is None or minutes < limit:
                self._update(successor.id, f"TimeLimit={minutes}")
        self._update(successor.id, f"AdminComment={_marked(SUCCESSOR, job.id, job.admin_comment)}",
                     f"Comment={_marked(SUCCESSOR, job.id, job.comment)}")  # fmt: skip
        self._update(job.id, f"Comment={_marked(PREDECESSOR, successor.id, job.comment)}")

    def release(self, job_id):
        """Ends a job whose processes have moved on: its gcr-slurm-wait ends with 0. Does nothing to any
        other job."""
        self._run("scancel", "--batch", "--signal=URG", str(job_id))

    def cancel(self, job_id):
        self._run("scancel", str(job_id))

    def _update(self, job_id, *words):
        self._run("scontrol", "update", f"JobId={job_id}", *words)

    @staticmethod
    def _run(*words, user=None):
        """`user`: an entry in the list of users; None: ours."""
        other = user is not None and user.pw_uid != os.geteuid()
        become = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()} if other else {}
        try:
            ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                 errors="replace", timeout=ANSWER_SECONDS, check=False, **become)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{words[0]} does not end") from None
        except OSError as error:
            raise SlurmError(f"cannot run {words[0]}: {error.strerror}") from None
        if ran.returncode != 0:
            lines = ran.stderr.strip().splitlines()
            raise SlurmError(f"{words[0]}: {lines[-1] if lines else f'status {ran.returncode}'}")
        return ran.stdout


def _marked(mark, job_id, comment):
    return f"gcr-migrate: {mark} job {job_id}" + (f"; {comment}" if comment else "")


def _unmarked(comment):
    """Its mark and the job that this names, and what follows; without a mark "", 0 and all of it."""
    marked = _MARK.fullmatch(comment)
    return (marked[1], int(marked[2]), marked[3] or "") if marked else ("", 0, comment)


def _seconds_left(job):
    """None: it has no time limit."""
    limit, start = job.number("time_limit"), job.number("start_time")
    return None if limit is None else start + limit * 60 - time.time()


def _minutes_left(job):
    left = _seconds_left(job)
    return "UNLIMITED" if left is None else max(1, -int(-left // 60))


def _ids(dependency):
    return {int(each) for each in re.findall(r":(\d+)", dependency)}


def _renamed(dependency, old, new):
    """Without what Slurm adds to say how far it is: "afterok:3(unfulfilled)" -> "afterok:7"."""
    return re.sub(rf":{old}\b", f":{new}", re.sub(r"\([a-z]+\)", "", dependency))
