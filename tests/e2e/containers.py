"""Containers of runc on the hosts of scripts/hosts, made through gcr-runtime: one with a program, others that receive it.

Their root is an overlay over this machine's own root, so the two hosts have the same image.
"""

import ctypes
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

from ticker_hosts import HANGS_S, ROOT, TICKER, Hosts, checksum, wait_for

REFUSED = 3
# Changes of every kind that a program makes to its image, and to a tmpfs of its own.
FILES = """
mkdir /srv/gcr
echo content >/srv/gcr/file
chmod 640 /srv/gcr/file
ln /srv/gcr/file /srv/gcr/other-name
ln -s /absent /srv/gcr/link
rm /etc/issue.net
echo more >>/etc/issue
echo memory >/mnt/file
"""
LIST_FILES = """
cd /; for each in srv/gcr/* etc/issue* mnt/*; do
  echo "$(cat $each 2>/dev/null) $(stat -c '%a %h %N' $each | sed s/^[0-9]*/\\&/)"
done; stat -c '%a /%n' srv/gcr/file | sed 's/^/content /'
"""
LIBC = ctypes.CDLL(None, use_errno=True)
RUNC = shutil.which("runc") or "/usr/sbin/runc"


def children_of(pid):
    return [int(each) for each in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def name_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()


def fault_points(*more_kinds):
    """Of a container's migration: its host, and whether the commit is durable, by name."""
    text = (ROOT / "tests/fault/points.h").read_text(encoding="ascii")
    kinds = "|".join(("Boundary", "Container", *more_kinds))
    rows = re.findall(rf'\{{"([a-z.-]+)", Side::k(\w+), Kind::k(?:{kinds}), (true|false)\}}', text)
    return {name: ({"Source": "a", "Destination": "b"}[side], decided == "true") for name, side, decided in rows}


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

    def migration(self, source, target, *options, pid=None):
        """The command that moves the job of one container into another."""
        command = [self.env["GCR_CLI"], *self.env["GCR_TLS"].split(), self.address(source.host), self.address(target.host),
                   str(pid or source.job), "--container", f"{target.pid}:{target.key}", "--json", *options]  # fmt: skip
        return self.on("a", *command)

    def migrate(self, *words, **options):
        """The finished command, and its report."""
        command = self.migration(*words, **options)
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS_S)
        lines = ran.stdout.splitlines()
        return ran, json.loads(lines[-1]) if lines else {}


def with_tmpfs(spec):
    """Of the container itself, as LIST_FILES expects."""
    spec["mounts"].append({"destination": "/mnt", "type": "tmpfs", "source": "tmpfs"})


class Case(unittest.TestCase):
    """Two hosts, and what tests do with containers on them."""

    options = ()

    def setUp(self):
        LIBC.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: containers become our children, as an engine's
        self.hosts = ContainerHosts(2, *self.options)
        self.addCleanup(self.hosts.close)
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="gcr-containers-"))
        self.addCleanup(self.disk.rmdir)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self.disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.disk], check=True)
        self.runtime = pathlib.Path(self.hosts.env["PREFIX"]) / "bin/gcr-runtime"
        self.configs = {}
        for host in "ab":
            self.configs[host] = self.disk / f"runtime-{host}.toml"
            state = self.hosts.env[f"STATE_{host.upper()}"]
            self.configs[host].write_text(f'state = "{state}/received"\nlog = "{self.disk}/runtime.log"\n', encoding="utf-8")
        self.program = f"{self.hosts.env['PREFIX']}/bin/{TICKER}"

    def ticker(self, host, *words, **options):
        container = Container(self, host, *words or (self.program,), **options)
        wait_for("the ticker starts", lambda: len(container.lines) >= 2)
        return container

    def receiver(self, host, **options):
        container = Container(self, host, self.program, key=new_key(), **options)
        container.wait_for_name("gcr-receiving")
        return container

    def wait_for_progress(self, container):
        before = len(container.lines)
        wait_for("it goes on", lambda: len(container.lines) >= before + 3)

    def move(self, source, target, *options):
        ran, report = self.hosts.migrate(source, target, *options)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertTrue(report["verified"])
        return report

    def refuse(self, reason, source, target, **options):
        ran, _ = self.hosts.migrate(source, target, **options)
        self.assertEqual(ran.returncode, REFUSED, ran.stderr)
        self.assertIn(reason, ran.stderr)
        self.wait_for_progress(source)

    def stop(self, container, status):
        """As an engine does."""
        container.signal(signal.SIGTERM)
        self.assertEqual(container.status(), status)

    def order(self, host, verb, *words):
        """A command of gcr-migrate to the agent of a host; the finished command."""
        command = [self.hosts.env["GCR_CLI"], verb, *self.hosts.env["GCR_TLS"].split(), self.hosts.address(host)]
        return subprocess.run(self.hosts.on(host, *command, *words),
                              capture_output=True, text=True, check=False, timeout=HANGS_S)  # fmt: skip

    def succeed(self, host, verb, *words):
        ran = self.order(host, verb, *words)
        self.assertEqual(ran.returncode, 0, ran.stderr)

    def arm(self, host, text):
        """A fault point of that host's agent; the file that is gone once it was reached."""
        path = self.hosts.folder / host / "faults"
        path.with_suffix(".hit").unlink(missing_ok=True)
        path.with_suffix(".new").write_text(text + "\n", encoding="ascii")
        path.with_suffix(".new").rename(path)
        return path


def new_key():
    return secrets.token_hex(16)


def complaint(lines):
    """The first line of tickers' output that is wrong; empty if there is none."""
    for number, line in enumerate(lines, 1):
        wanted = f"{number} {number} {number} {checksum(number):016x}"
        if line != wanted:
            return f'line {number} is "{line}", not "{wanted}"'
    return ""
