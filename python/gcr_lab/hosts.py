"""The hosts of scripts/hosts for the length of a block, programs on them, and gcr-migrate."""

import contextlib, json, os, pathlib, re, shlex, shutil, signal, subprocess, sys, tempfile, threading, time
from gcr_lab import base
from gcr_lab.base import Failure, is_alive, last_line
from gcr_lab.figures import Migration

_ASK = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
    asker.settimeout(10)
    asker.sendto(b".", (sys.argv[1], int(sys.argv[2])))
    print(asker.recv(1500).decode(), end="")
"""
PORT = 7500
LOG_LINES = 300
# A program that prints nothing for so long hangs: the longest silence is that of a first start.
PATIENCE_S = 180

class CommandFailed(Failure):
    """gcr-migrate ended with `status`; `said` is all that it printed."""
    def __init__(self, status, said):
        super().__init__(f"exit {status}: {last_line(said)}")
        self.status, self.said = status, said

def _keep_logs(work, log):
    patterns = ("*.out", "*.log", "hosts/*/agent.log", "hosts/slurm/*.log")
    with open(log, "a", encoding="utf-8") as out:
        for path in sorted(path for pattern in patterns for path in work.glob(pattern)):
            text = base.read(path).splitlines()[-LOG_LINES:]
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
            raise Failure(last_line(base.read(work / "up.txt")) or f"{maker}: status {status}")
        yield Hosts(work, work / "hosts")
    finally:
        if log:
            _keep_logs(work, log)
        if (work / "hosts").exists():
            subprocess.call([maker, "down", str(work / "hosts")])
        shutil.rmtree(work, ignore_errors=True)

class Program:
    """Started with `child`, which writes to the file `output`. Its lines are counted from 0 on, complete ones alone."""
    def __init__(self, output, child):
        self.output, self.pid = output, child.pid
        threading.Thread(target=child.wait, daemon=True).start()  # reaped as soon as it ends

    def lines(self, pattern=""):
        return [line for line in base.read(self.output).split("\n")[:-1] if re.search(pattern, line)]
    def tail(self):
        return " ".join(self.lines()[-3:])

    def wait(self, condition, patience=PATIENCE_S):
        """Until `condition`, however long that takes, while the output grows and the program has not ended."""
        seen, end = None, 0
        while True:
            alive = is_alive(self.pid)  # asked first: its last lines count
            if condition():
                return
            length = os.stat(self.output).st_size
            if length != seen:
                seen, end = length, time.monotonic() + patience
            elif not alive:
                raise Failure(f"it has ended: {self.tail()}")
            elif time.monotonic() >= end:
                raise Failure(f"no more output for {patience} s: {self.tail()}")
            time.sleep(0.05)

    def wait_for(self, count, pattern="", **options):
        self.wait(lambda: len(self.lines(pattern)) >= count, **options)
        return count

    def wait_for_more(self, count, pattern="", **options):
        """Until it has `count` lines more than now; how many these are in all."""
        return self.wait_for(len(self.lines(pattern)) + count, pattern, **options)

    def end(self):
        """It ends what it has started; what is left is ended too."""
        below = base.descendants(self.pid)
        base.end_process(self.pid, patience=60)
        for pid in below:
            base.end_process(pid)

    def kill(self):
        """Its PID is free afterwards."""
        base.send(self.pid, signal.SIGKILL)
        if not base.wait_until(60, lambda: not os.path.exists(f"/proc/{self.pid}")):
            raise Failure(f"process {self.pid} does not end")

class Hosts:
    """`env` is what scripts/hosts tells; `work` the folder of this block."""
    def __init__(self, work, folder):
        self.work, self.folder = work, folder
        self.env = dict(word.split("=", 1) for word in shlex.split(base.read(folder / "env")))
        self.cli, self.tls = self.env["GCR_CLI"], self.env["GCR_TLS"].split()

    def ip(self, host):
        return self.env[f"IP_{host.upper()}"]
    def gpu_env(self, host):
        return self.env[f"GPU_ENV_{host.upper()}"].split()

    def words(self, host, *command):
        """A command line that runs `command` on this host, with what it needs to find its GPU."""
        return list(map(str, ["nsenter", f"--net={self.env[f'NS_{host.upper()}']}", "env", *self.gpu_env(host), *command]))

    def on(self, host, *command, **options):
        return base.run(*self.words(host, *command), **options)

    def start(self, host, name, command, lines=0, pattern="", library=True, **waiting):
        """Starts a program that can be migrated: a session of its own, no terminal, no pipes, no descriptors of ours. It
        adds to NAME.out, so that what a checkpoint restores writes after what was written since. It has printed so many
        lines when this returns."""
        output = self.work / f"{name}.out"
        output.write_bytes(b"")
        under = [self.cli, "run", "--"] if library else []
        with open(output, "ab") as file:
            child = subprocess.Popen(self.words(host, *under, *base.words(command)), stdin=subprocess.DEVNULL, stdout=file,
                                     stderr=file, start_new_session=True)
        program = Program(output, child)
        program.wait_for(lines, pattern, **waiting)
        return program

    def expect_answer(self, host, wanted):
        answer = self.on(host, sys.executable, "-c", _ASK, self.ip(host), PORT).strip()
        if answer != str(wanted):
            raise Failure(f"host {host} answered {answer}, not {wanted}")

    def order(self, host, *words):
        """What gcr-migrate prints to standard output. CommandFailed if it fails."""
        done = subprocess.run(self.words(host, self.cli, *words), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout, done.stderr, sep="", flush=True)
            raise CommandFailed(done.returncode, done.stdout + done.stderr)
        print(done.stderr, end="", file=sys.stderr, flush=True)
        return done.stdout

    def _report(self, host, action, *words):
        migration = Migration(self.order(host, *action, *self.tls, "--json", "--quiet", *words))
        print(migration.text(), flush=True)
        return migration

    def migrate(self, source, target, program, *options):
        """Moves it; all bytes were verified."""
        migration = self._report("a", [], *options, self.ip(source), self.ip(target), program.pid)
        if not migration.verified:
            raise Failure(f"not verified: {json.dumps(migration.report)}")
        program.pid = migration.destination_pid
        return migration

    def refuse(self, source, target, program, finding):
        """It must not move, because of this finding."""
        status, said = 0, ""
        try:
            self.migrate(source, target, program)
        except CommandFailed as failed:
            status, said = failed.status, failed.said
        if status != 3:
            raise Failure(f"exit {status}: it was not refused")
        if f"[{finding}" not in said:
            raise Failure("it was refused for another reason")

    def to_and_fro(self, program, moves, arrived, *options):
        """So many moves, from host a on; after each, `arrived` is called with the host that it went to."""
        migrations = []
        for number in range(moves):
            source, target = "ab" if number % 2 == 0 else "ba"
            migrations.append(self.migrate(source, target, program, *options))
            arrived(target)
        return migrations

    def checkpoint(self, host, program, folder):
        return self._report(host, ["checkpoint"], self.ip(host), program.pid, folder)

    def restore(self, host, folder):
        """The newest checkpoint in the folder."""
        return self._report(host, ["restore"], self.ip(host), folder)

    def places(self, host):
        """Which GPUs each process of the host's jobs uses, by rank or PID, most memory first: 0@GPU-1a2b3c4d,GPU-5e6f7081"""
        found = []
        for one in json.loads(self.order("a", "host", *self.tls, self.ip(host), "--json"))["processes"]:
            uses = sorted(one["gpus"], key=lambda use: -int(use["vram_bytes"]))
            if uses:
                found.append(f"{_rank(one['pid'])}@{','.join(use['uuid'][:12] for use in uses)}")
        return " ".join(sorted(found))

def _rank(pid):
    environment, status = (base.read(pathlib.Path(f"/proc/{pid}/{name}")) for name in ("environ", "status"))
    found = re.search("(?:^|\0)LOCAL_RANK=([^\0]+)", environment) or re.search(r"(?m)^NSpid:.*?(\d+)$", status)
    return found[1]

@contextlib.contextmanager
def tmpfs(folder, size_bytes):
    folder.mkdir(exist_ok=True)
    base.run("mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", folder.name, folder)
    try:
        yield
    finally:
        subprocess.call(["umount", "-l", str(folder)])

@contextlib.contextmanager
def store(work, folder, size_bytes):
    """A place for checkpoints and the type of its file system: in `folder`, or in a tmpfs of this size."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="gcr-checkpoints-", dir=folder or work))
    try:
        with contextlib.nullcontext() if folder else tmpfs(path, size_bytes):
            kind = base.run("stat", "-f", "-c", "%T", path).strip()
            space = last_line(base.run("df", "-h", "--output=source,size,avail", path))
            base.say(f"checkpoints are in a file system of type {kind} ({space})")
            yield path, kind
    finally:
        shutil.rmtree(path, ignore_errors=True)
