"""Hosts that exist in memory, behind the interface of gcr_moves.cli.Cli."""

import threading
import uuid

from gcr_moves import cli

GIB = 1 << 30


class FakeMigration:
    """Ends at once, or when it is released. `act` has the effect of success, and returns the new PID."""

    def __init__(self, hosts, source, destination, pid, act):
        self.migration_id = str(uuid.uuid4())
        self._move = (hosts, source, destination, pid)
        self._act = act
        self.released = threading.Event()
        self.cancelled = False

    def cancel(self):
        self.cancelled = True
        self.released.set()

    def leave(self):
        self.cancel()

    def wait(self):
        hosts, source, destination, pid = self._move
        script = hosts.outcome_of(source, destination, pid)
        if hosts.hold:
            self.released.wait(10)
        if self.cancelled:
            script = (cli.CANCELLED, "cancelled")
        status, message = script
        gone = status == cli.ENDED
        status = cli.UNKNOWN if gone else status
        new_pid = 0
        if status == cli.DONE:
            new_pid = self._act()
        elif status in (cli.UNKNOWN, cli.UNCONFIRMED):
            hosts.unsettled[self.migration_id] = (source, destination, pid)
        hosts.end(self)
        suspended = status == cli.DONE and bool(destination) and hosts.is_suspended(destination, new_pid)
        return cli.Ended(status, message, self.migration_id, new_pid, downtime_ms=10, total_ms=100, suspended=suspended,
                         gone=gone)  # fmt: skip


class FakeCluster:
    """Call add_host and add_job; then it is used as a Cli."""

    def __init__(self):
        self.hosts = {}
        self.silent = set()  # names of hosts that do not answer
        self.blockers = {}  # by PID, or by PID and destination: findings
        self.outcomes = {}  # by PID: (status, message) of its next migrations, in turn
        self.unsettled = {}  # by migration id: job, source and destination
        self.verdicts = {}  # by migration id: the source's part, in the format of `status`
        self.hold = False  # migrations wait until they are released
        self.started = []  # (source, destination, pid) of every migration
        self.checkpointed = []  # (source, pid, directory) of every checkpoint that was begun
        self.restored = []  # (directory, destination) of every restore that was begun
        self.stored = {}  # by directory: what `gcr-migrate checkpoints` lists there, and the job
        self.checkpoint_blockers = []
        self.under_way = []
        self.most_under_way = 0
        self._next_pid = 1000
        self._lock = threading.Lock()

    def add_host(self, name, total_gib=80, model="H200", gpus=1, load=0.0):
        self.hosts[name] = {
            "schema": 1,
            "gpus": [
                {"uuid": f"{name}-{number}", "name": model, "total_bytes": total_gib * GIB,
                 "free_bytes": total_gib * GIB, "device_file": "", "allowed": True}
                for number in range(gpus)
            ],
            "jobs": [],
            "migrations": [],
            "load": load,
            "max_migrations": 16, "slurm_node": "",
        }  # fmt: skip

    def add_job(self, host, size_gib, gpus=(0,), **fields):
        """With that much VRAM on each of its GPUs, and a process for each below a launcher; `fields` are further fields
        of `gcr-migrate host`."""
        self._next_pid += 1
        self._put(host, {
            "pid": self._next_pid, "start_time": 7, "command": "serve.py", "uid": 1, "user": "alice",
            "migration_id": "",
            "gpus": [{"uuid": f"{host}-{gpu}", "vram_bytes": int(size_gib * GIB)} for gpu in gpus],
            "processes": 1 + len(gpus), "gpu_processes": len(gpus),
            "slurm_job": 0, "slurm_step": "", "slurm_parent": "", "container_init": 0,
            **fields,
        })  # fmt: skip
        return self._next_pid

    def suspend(self, host, pid):
        """It frees its GPUs."""
        job = self.remove(host, pid)
        self._put(host, {**job, "gpus": []})
        self._take_over(host, pid)

    def is_suspended(self, host, pid):
        migrations = self.hosts[host]["migrations"]
        return any(each["state"] == "suspended" and pid in each["members"] for each in migrations)

    def _take_over(self, host, pid):
        """It is suspended there, by a migration without a worker."""
        job = next(each for each in self.hosts[host]["jobs"] if each["pid"] == pid)
        job["migration_id"] = str(uuid.uuid4())
        self.hosts[host]["migrations"].append({
            "migration_id": job["migration_id"], "peer": "", "phase": "", "state": "suspended", "members": [pid],
            "operator_needed": False,
        })  # fmt: skip

    def _put(self, host, job):
        self.hosts[host]["jobs"].append(job)
        for use in job["gpus"]:
            self._gpu(host, use["uuid"])["free_bytes"] -= use["vram_bytes"]

    def _gpu(self, host, name):
        return next(gpu for gpu in self.hosts[host]["gpus"] if gpu["uuid"] == name)

    def remove(self, host, pid):
        jobs = self.hosts[host]["jobs"]
        job = next(each for each in jobs if each["pid"] == pid)
        jobs.remove(job)
        migrations = self.hosts[host]["migrations"]
        migrations[:] = [each for each in migrations if pid not in each["members"]]
        for use in job["gpus"]:
            self._gpu(host, use["uuid"])["free_bytes"] += use["vram_bytes"]
        return job

    def move(self, source, destination, pid, options=()):
        """`options`: those of the migration."""
        given = dict(zip(options[::2], options[1::2]))
        places = dict(pair.split("=") for pair in given.get("--device-map", "").split(",") if pair)
        with self._lock:
            suspended = self.is_suspended(source, pid)
            job = self.remove(source, pid)
            self._next_pid += 1
            gpus = [{**use, "uuid": places.get(use["uuid"], f"{destination}-{n}")}
                    for n, use in enumerate(job["gpus"])]  # fmt: skip
            slurm_job = int(given.get("--slurm-job", job["slurm_job"]))
            init = int(given.get("--container", "0:").split(":")[0])
            self._put(destination, {**job, "pid": self._next_pid, "gpus": gpus, "slurm_job": slurm_job,
                                    "container_init": init})  # fmt: skip
            if suspended:
                self._take_over(destination, self._next_pid)
            return self._next_pid

    def outcome_of(self, _source, destination, pid):
        if destination in self.silent:
            return cli.FAILED, f"{destination} is silent"
        waiting = self.outcomes.get(pid)
        return waiting.pop(0) if waiting else (cli.DONE, "")

    def end(self, migration):
        with self._lock:
            self.under_way.remove(migration)

    def pids(self, host):
        return {job["pid"] for job in self.hosts[host]["jobs"]}

    # ---- as Cli ----

    def _answering(self, agent):
        if agent in self.silent:
            raise cli.CliError(cli.UNREACHABLE, f"cannot connect to {agent}")

    def host(self, agent):
        self._answering(agent)
        with self._lock:
            known = self.hosts[agent]
            return {**known, "jobs": list(known["jobs"])}

    def status(self, agent, migration_id):
        self._answering(agent)
        if migration_id not in self.verdicts:
            raise cli.CliError(cli.REFUSED, "this agent knows no such migration")
        return {part["role"]: part for part in self.verdicts[migration_id].get(agent, [])}

    def findings(self, source, destination, pid, _options=()):
        self._answering(source)
        return self.blockers.get((pid, destination), self.blockers.get(pid, []))

    preflight = findings

    def migrate(self, source, destination, pid, options=()):
        self.started.append((source, destination, pid))
        return self._begin(FakeMigration(
            self, source, destination, pid, lambda: self.move(source, destination, pid, options)))  # fmt: skip

    def _begin(self, migration):
        with self._lock:
            self.under_way.append(migration)
            self.most_under_way = max(self.most_under_way, len(self.under_way))
        return migration

    def preflight_checkpoint(self, source, _pid, _directory):
        self._answering(source)
        return self.checkpoint_blockers

    def checkpoints(self, directory):
        found = self.stored.get(directory)
        if found is None:
            raise cli.CliError(cli.USAGE, f"cannot open {directory}")
        return [found[0]]

    def checkpoint(self, source, pid, directory, name, _options=()):
        def store():
            with self._lock:
                job = self.remove(source, pid)
                model = self.hosts[source]["gpus"][0]
                gpus = [{**use, "name": model["name"], "total_bytes": model["total_bytes"]}
                        for use in job["gpus"]]  # fmt: skip
                self.stored[directory] = ({
                    "name": name, "taken_unix_ms": 1, "command": job["command"], "processes": 2,
                    "stopped": True, "problem": "", "restore_id": "", "gpus": gpus,
                }, job)  # fmt: skip
                return 0

        self.checkpointed.append((source, pid, directory))
        return self._begin(FakeMigration(self, source, "", pid, store))

    def restore(self, destination, directory, _name):
        def load():
            with self._lock:
                _, job = self.stored.pop(directory)
                gpus = [{**use, "uuid": f"{destination}-{n}"} for n, use in enumerate(job["gpus"])]
                self._put(destination, {**job, "gpus": gpus})
                return job["pid"]

        self.restored.append((directory, destination))
        return self._begin(FakeMigration(self, destination, destination, directory, load))


def blocker(host, name="some-blocker"):
    return {"id": name, "severity": "blocker", "host": host, "found": "something", "why": "", "remedy": ""}
