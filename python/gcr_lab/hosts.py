"""The hosts of scripts/hosts for the length of a block, programs on them, and gcr-migrate."""

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

from gcr_lab import base
from gcr_lab.base import Failure, last_line
from gcr_lab.migration import Migration
from gcr_lab.program import Program

_ASK = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
    asker.settimeout(10)
    asker.sendto(b".", (sys.argv[1], int(sys.argv[2])))
    print(asker.recv(1500).decode(), end="")
"""
PORT = 7500
LOG_LINES = 300


class CommandFailed(Failure):
    """gcr-migrate ended with `status`; `said` is all that it printed."""

    def __init__(self, status, said):
        super().__init__(f"exit {status}: {last_line(said)}")
        self.status, self.said = status, said


def _keep_logs(work, log):
    patterns = ("*.out", "*.log", "hosts/*/agent.log", "hosts/slurm/*.log")
    with open(log, "a", encoding="utf-8") as out:
        for path in sorted(path for pattern in patterns for path in work.glob(pattern)):
            text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
            if text:
                print(f"--- {path.relative_to(work)} (its last lines)", *(line[:2000] for line in text), sep="\n", file=out)


@contextlib.contextmanager
def hosts(gpu, vram_bytes, *options, script="hosts", log=None):
    """Hosts a and b, with `vram_bytes` and 1 GiB more on each software GPU. `script` makes them: a name in scripts/, or
    a path. When the block is left, the last lines of each output and log are added to the file `log`, all processes on the
    hosts are ended, and what was mounted is unmounted."""
    maker = str(base.SCRIPTS / script)
    work = pathlib.Path(tempfile.mkdtemp(prefix="gcr-lab-", dir="/tmp"))
    work.chmod(0o755)  # munged has a user of its own
    try:
        with open(work / "up.txt", "w", encoding="utf-8") as said:
            words = [maker, "up", work / "hosts", "--gpu", gpu, "--vram", vram_bytes + base.GIB, *options]
            status = subprocess.call(list(map(str, words)), stdout=said, stderr=said)
        if status != 0:
            raise Failure(last_line((work / "up.txt").read_text(encoding="utf-8")) or f"{maker}: status {status}")
        yield Hosts(work, work / "hosts")
    finally:
        if log:
            _keep_logs(work, log)
        if (work / "hosts").exists():
            subprocess.call([maker, "down", str(work / "hosts")])
        shutil.rmtree(work, ignore_errors=True)


class Hosts:
    """`env` is what scripts/hosts tells; `work` the folder of this block."""

    def __init__(self, work, folder):
        self.work, self.folder = work, folder
        words = shlex.split((folder / "env").read_text(encoding="utf-8"))
        self.env = dict(word.split("=", 1) for word in words)
        self.cli, self.tls = self.env["GCR_CLI"], self.env["GCR_TLS"].split()

    def ip(self, host):
        return self.env[f"IP_{host.upper()}"]

    def gpu_env(self, host):
        return self.env[f"GPU_ENV_{host.upper()}"].split()

    def words(self, host, *command):
        """A command line that runs `command` on this host, with what it needs to find its GPU."""
        return list(map(str, ["nsenter", f"--net={self.env[f'NS_{host.upper()}']}", "env", *self.gpu_env(host), *command]))

    def on(self, host, *command, **options):
        """What it prints. Failure if it fails."""
        return base.run(*self.words(host, *command), **options)

    def start(self, host, name, *command, library=True):
        """Starts a program that can be migrated: a session of its own, no terminal, no pipes, no descriptors of ours. It
        adds to NAME.out, so that what a checkpoint restores writes after what was written since."""
        output = self.work / f"{name}.out"
        output.write_bytes(b"")
        under = [self.cli, "run", "--"] if library else []
        with open(output, "ab") as file:
            child = subprocess.Popen(self.words(host, *under, *command), stdin=subprocess.DEVNULL, stdout=file,
                                     stderr=file, start_new_session=True)  # fmt: skip
        return Program(output, child)

    def ask(self, host):
        """What the program `counter` of this host answers."""
        return self.on(host, sys.executable, "-c", _ASK, self.ip(host), PORT).strip()

    def expect_answer(self, host, wanted):
        answer = self.ask(host)
        if answer != str(wanted):
            raise Failure(f"host {host} answered {answer}, not {wanted}")

    # ---- gcr-migrate ----

    def order(self, host, *words):
        """What gcr-migrate prints to standard output. CommandFailed if it fails."""
        done = subprocess.run(self.words(host, self.cli, *words), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout, done.stderr, sep="", flush=True)
            raise CommandFailed(done.returncode, done.stdout + done.stderr)
        print(done.stderr, end="", file=sys.stderr, flush=True)
        return done.stdout

    def _report(self, host, *words):
        migration = Migration.parse(self.order(host, *words))
        print(migration.text(), flush=True)
        return migration

    def migrate(self, source, target, program, *options):
        """Moves it; all bytes were verified."""
        migration = self._report("a", *self.tls, "--json", "--quiet", *options, self.ip(source), self.ip(target), program.pid)
        if not migration.verified:
            raise Failure(f"not verified: {json.dumps(migration.report)}")
        program.pid = migration.destination_pid
        return migration

    def refuse(self, source, target, program, finding):
        """It must not move, because of this finding."""
        try:
            self.migrate(source, target, program)
        except CommandFailed as failed:
            if failed.status != 3:
                raise Failure(f"exit {failed.status}: it was not refused") from failed
            if f"[{finding}" not in failed.said:
                raise Failure("it was refused for another reason") from failed
            return
        raise Failure("exit 0: it was not refused")

    def to_and_fro(self, program, moves, arrived, *options):
        """So many moves, from host a on; after each, `arrived` is called with the host that it went to."""
        migrations = []
        for number in range(moves):
            source, target = "ab" if number % 2 == 0 else "ba"
            migrations.append(self.migrate(source, target, program, *options))
            arrived(target)
        return migrations

    def checkpoint(self, host, program, folder, *options):
        return self._report(host, "checkpoint", *self.tls, "--json", "--quiet", *options, self.ip(host), program.pid, folder)

    def restore(self, host, folder):
        """The newest checkpoint in the folder."""
        return self._report(host, "restore", *self.tls, "--json", "--quiet", self.ip(host), folder)

    def places(self, host):
        """Which GPUs each process of the host's jobs uses, by rank or its own PID, the one with most of its memory
        first: 0@GPU-1a2b3c4d,GPU-5e6f7081"""
        found = []
        for one in json.loads(self.order("a", "host", *self.tls, self.ip(host), "--json"))["processes"]:
            uses = sorted(one["gpus"], key=lambda use: -int(use["vram_bytes"]))
            if uses:
                found.append(f"{_rank(one['pid'])}@{','.join(use['uuid'][:12] for use in uses)}")
        return " ".join(sorted(found))


def _rank(pid):
    proc = pathlib.Path(f"/proc/{pid}")
    entries = (proc / "environ").read_text(encoding="utf-8", errors="replace").split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    status = (proc / "status").read_text(encoding="utf-8")
    return environment.get("LOCAL_RANK") or next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:"))


@contextlib.contextmanager
def store(work, folder, size_bytes):
    """A place for checkpoints and the type of its file system: in `folder`, or in a tmpfs of this size."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="gcr-checkpoints-", dir=folder or work))
    try:
        if not folder:
            base.run("mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "gcr-checkpoints", path)
        kind = base.run("stat", "-f", "-c", "%T", path).strip()
        base.say(f"checkpoints are in a file system of type {kind} "
                 f"({last_line(base.run('df', '-h', '--output=source,size,avail', path))})")  # fmt: skip
        yield path, kind
    finally:
        if os.path.ismount(path):
            subprocess.call(["umount", "-l", str(path)])
        shutil.rmtree(path, ignore_errors=True)
