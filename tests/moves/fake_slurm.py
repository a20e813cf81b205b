"""Slurm nodes that exist in memory, behind the interface of gcr_moves.slurm.Slurm."""

import threading
import time

from gcr_moves.slurm import PLACEHOLDER, SUCCESSOR, Node, SlurmError, SlurmJob


class FakeSlurm:
    """Nodes are the hosts of a FakeCluster; the processes of a cancelled job end."""

    def __init__(self, cluster):
        self.silent = False
        self.closed = set()  # nodes where no job is started
        self.submitted = []  # (job, placeholder, nodes where that may start)
        self.before_answer = lambda: None  # called before jobs() answers
        self._cluster = cluster
        self._jobs = {}  # by id: in the format of squeue
        self._excluded = {}  # by id of a placeholder
        self._lock = threading.RLock()
        for name, host in cluster.hosts.items():
            host["slurm_node"] = name

    # ---- for tests ----

    def add_job(self, node, gpus=1, **fields):
        """Runs there; returns its id."""
        with self._lock:
            number = len(self._jobs) + 1
            self._jobs[number] = {
                "job_id": number, "job_state": "PENDING", "nodes": "", "node_count": 1, "dependency": "",
                "comment": "", "admin_comment": "", "gres_detail": [], "het_job_id": 0, "batch_flag": True, "user_id": 1000,
                "array_job_id": 0, "requeue": True, "state_reason": "Resources", "wanted": gpus, **fields,
            }  # fmt: skip
            self._excluded[number] = set(self._cluster.hosts) - {node}
            self._start_pending()
            return number

    def add_movable(self, node, size_gib, gpus=1):
        """A job and its processes: its id."""
        number = self.add_job(node, gpus)
        used = [int(each) for each in self._gpus(number)]
        self._cluster.add_job(node, size_gib, used, slurm_job=number, slurm_step="batch",
                              slurm_parent="gcr-slurm-wait")  # fmt: skip
        return number

    def state(self, number):
        return self._jobs[number]["job_state"]

    def node(self, number):
        return self._jobs[number]["nodes"]

    def pid(self, number):
        """Of its processes."""
        host = self._cluster.hosts[self.node(number)]
        return next(job["pid"] for job in host["jobs"] if job["slurm_job"] == number)

    def take_gpus_of_placeholders(self):
        """As their users may."""
        for _, placeholder, _ in self.submitted:
            self._jobs[placeholder]["gres_detail"] = []

    def unfinished(self):
        return {number for number in self._jobs if self.state(number) in ("PENDING", "RUNNING")}

    # ---- its own actions ----

    def _gpus(self, number):
        detail = self._jobs[number]["gres_detail"]
        return detail[0].partition("IDX:")[2].rstrip(")").split(",") if detail else []

    def _start_pending(self):
        for number, raw in self._jobs.items():
            if raw["job_state"] != "PENDING":
                continue
            for node in sorted(set(self._cluster.hosts) - self._excluded[number] - self.closed):
                free = self._free_gpus(node)
                if len(free) >= raw["wanted"]:
                    given = free[: raw["wanted"]]
                    raw |= {"job_state": "RUNNING", "nodes": node, "start_time": time.time(),
                            "gres_detail": [f"gpu:{len(given)}(IDX:{','.join(given)})"] if given else []}  # fmt: skip
                    break

    def _free_gpus(self, node):
        taken = {gpu for number in self.unfinished() if self.node(number) == node for gpu in self._gpus(number)}
        every = range(len(self._cluster.hosts[node]["gpus"]))
        return [str(index) for index in every if str(index) not in taken]

    def _end(self, number, state):
        if number in self.unfinished():
            self._jobs[number]["job_state"] = state
            for name, host in self._cluster.hosts.items():
                for job in [each for each in host["jobs"] if each["slurm_job"] == number]:
                    self._cluster.remove(name, job["pid"])
            self._start_pending()

    # ---- as Slurm ----

    def jobs(self):
        self.before_answer()
        self._check()
        with self._lock:
            return {number: SlurmJob(dict(raw)) for number, raw in self._jobs.items()}

    def nodes(self):
        self._check()
        return {name: Node(name, "drained" if name in self.closed else "mixed") for name in self._cluster.hosts}

    def submit_placeholder(self, job, excluded):
        self._check()
        with self._lock:
            mark = f"gcr-migrate: {PLACEHOLDER} job {job.id}"
            number = self.add_job("", len(job.gpus), admin_comment=mark, requeue=False)
            self._excluded[number] = set(excluded)
            self.submitted.append((job.id, number, sorted(set(self._cluster.hosts) - set(excluded))))
            self._start_pending()
            return number

    def set_requeue(self, job_id, may):
        self._jobs[job_id]["requeue"] = may

    def hand_over(self, job, successor, _jobs):
        self._jobs[successor.id]["admin_comment"] = f"gcr-migrate: {SUCCESSOR} job {job.id}"

    def release(self, job_id):
        with self._lock:
            self._end(job_id, "COMPLETED")

    def cancel(self, job_id):
        self._check()
        with self._lock:
            self._end(job_id, "CANCELLED")

    def _check(self):
        if self.silent:
            raise SlurmError("squeue: cannot contact slurmctld")
