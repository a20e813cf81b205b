"""Containers of runc on the hosts of scripts/hosts, made through gcr-runtime: one with a program, others that receive it.

Their root is an overlay over this machine's own root, so the two hosts have the same image.
"""

import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import threading

from ticker_hosts import HANGS_S, Hosts, checksum, wait_for

RUNC = shutil.which("runc") or "/usr/sbin/runc"


def children_of(pid):
    return [int(each) for each in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def name_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()


class Container:
    """Created and started. `lines` grows with its output."""

    count = 0

    def __init__(self, case, host, *words, key=None, edit=lambda spec: None):
        Container.count += 1
        self.case, self.host, self.key = case, host, key
        self.id = f"gcr-e2e-{os.getpid()}-{Container.count}"
        self.folder = case.disk / self.id
        self.bundle = self.folder / "bundle"
        self.root = self.bundle / "rootfs"
        for folder in (self.folder / "upper", self.folder / "work", self.root):
            folder.mkdir(parents=True)
        # Inode numbers of the upper layer, as if both were on one disk.
        layers = f"xino=on,lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", self.root], check=True)
        case.addCleanup(subprocess.run, ["umount", "--lazy", self.root], check=True)
        self.words, self.edit = words, edit
        self.lines = []
        self.pid = 0
        self.start()

    def write_spec(self):
        """As an engine does before each start."""
        (self.bundle / "config.json").unlink(missing_ok=True)
        subprocess.run([RUNC, "spec", "--bundle", self.bundle], check=True)
        path = self.bundle / "config.json"
        spec = json.loads(path.read_text(encoding="utf-8"))
        process = spec["process"]
        del process["rlimits"]  # runc may not be able to raise them here
        process.update(args=[str(word) for word in self.words], terminal=False)
        process["env"] += self.case.hosts.env[f"GPU_ENV_{self.host.upper()}"].split()
        spec["root"]["readonly"] = False
        spec["mounts"].append({"destination": str(self.case.hosts.folder), "type": "bind",
                               "source": str(self.case.hosts.folder), "options": ["rbind"]})  # fmt: skip
        if self.key:
            spec["annotations"] = {"gcr-migrate.receive": self.key}
        self.edit(spec)
        path.write_text(json.dumps(spec), encoding="utf-8")

    def call(self, verb, *words, check=True, **options):
        command = [self.case.runtime, "--root", self.folder / "runc", verb, *words]
        environment = {"PATH": os.environ["PATH"], "GCR_RUNTIME_CONFIG": str(self.case.configs[self.host])}
        ran = subprocess.run(command, check=False, timeout=HANGS_S, env=environment, stdin=subprocess.DEVNULL, **options)
        if check and ran.returncode != 0:
            raise AssertionError(f"{verb}: status {ran.returncode}")
        return ran

    def start(self):
        self.write_spec()
        end, writer = os.pipe()
        self.call("create", "--bundle", self.bundle, "--pid-file", self.folder / "pid", self.id,
                  stdout=writer, stderr=writer)  # fmt: skip
        os.close(writer)
        self.case.addCleanup(self.call, "delete", "--force", self.id, check=False, capture_output=True)
        self.pid = int((self.folder / "pid").read_text(encoding="ascii"))
        self.pidfd = os.pidfd_open(self.pid)
        self.call("start", self.id)
        threading.Thread(target=self.read, args=(end,), daemon=True).start()

    def read(self, end):
        with open(end, encoding="ascii") as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))

    @property
    def job(self):
        """The PID of the job's root."""
        return next(child for child in children_of(self.pid) if name_of(child) == "gcr-supervisor")

    def execute(self, *words):
        return self.call("exec", self.id, *words, check=False, capture_output=True, text=True)

    def signal(self, number):
        self.call("kill", self.id, str(int(number)), capture_output=True)

    def wait_for_name(self, name):
        wait_for(f"{self.id} is {name}", lambda: name_of(self.pid) == name)

    def has_ended(self):
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def status(self):
        """Waits for its end; its exit status as an engine reports it."""
        wait_for(f"{self.id} ends", self.has_ended)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return status if status >= 0 else 128 - status


class ContainerHosts(Hosts):
    """Hosts whose agents and containers share the notes of what was received."""

    def migrate(self, source, target, *options, pid=None):
        """The finished command, and its report."""
        command = [self.env["GCR_CLI"], *self.env["GCR_TLS"].split(), self.address(source.host), self.address(target.host),
                   str(pid or source.job), "--container", f"{target.pid}:{target.key}", "--json", *options]  # fmt: skip
        ran = subprocess.run(self.on("a", *command), capture_output=True, text=True, check=False, timeout=HANGS_S)
        lines = ran.stdout.splitlines()
        return ran, json.loads(lines[-1]) if lines else {}


def new_key():
    return secrets.token_hex(16)


def complaint(lines):
    """The first line of tickers' output that is wrong; empty if there is none."""
    for number, line in enumerate(lines, 1):
        wanted = f"{number} {number} {number} {checksum(number):016x}"
        if line != wanted:
            return f'line {number} is "{line}", not "{wanted}"'
    return ""
