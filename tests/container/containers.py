"""Containers that runc makes of bundles through gcr-runtime, as an engine does."""

import ctypes
import itertools
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["GCR_BUILD"])
RUNTIME = BUILD / "bin/gcr-runtime"
JOB = BUILD / "bin/container-job"
LIBRARY = BUILD / "lib/libgcr-preload.so"
RUNC = shutil.which("runc") or "/usr/sbin/runc"
PATIENCE_S = 120
ORDER = signal.SIGRTMAX - 1
NUMBERS = itertools.count()

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: containers become our children, as an engine's


def send_order(pid, value, number=ORDER):
    """What the agent does: sigqueue(3)."""
    assert LIBC.sigqueue(pid, number, ctypes.c_void_p(value & 0xFFFFFFFF)) == 0, os.strerror(ctypes.get_errno())


def name_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def inner_pid(pid):
    """The PID in the innermost namespace."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("NSpid:")).split()[-1])


def wait_until(holds, what):
    """For what the kernel gives no event for."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"after {PATIENCE_S} s: {what}"
        time.sleep(0.01)


def status_of(pid):
    """Waits for the end of a child; its exit status as an engine reports it."""
    ended = select.poll()
    pidfd = os.pidfd_open(pid)
    ended.register(pidfd, select.POLLIN)
    assert ended.poll(PATIENCE_S * 1000), f"process {pid} does not end"
    os.close(pidfd)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


def programs_libraries(program):
    """The loader and the libraries of a program, by their names in its image."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]


def make_root(folder):
    """An image with the job and all of this machine's C library that the job and the preload library need."""
    for name in ("dev", "etc", "proc", "sys", "tmp"):
        (folder / name).mkdir(parents=True)
    for source, target in [(JOB, "/bin/job")] + [(path, path) for path in {*programs_libraries(JOB), *programs_libraries(LIBRARY)}]:
        place = folder / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
    (folder / "etc/data").write_text("not a program\n", encoding="ascii")


class Lines:
    """The lines that a container writes to a pipe or a terminal."""

    def __init__(self, end):
        self.end = end
        self.rest = b""

    def next(self):
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.end], [], [], PATIENCE_S)
            assert ready, f"no line after {self.rest!r}"
            part = os.read(self.end, 65536)
            assert part, f"ended after {self.rest!r}"
            self.rest += part
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()


class Container:
    """A bundle with a root of its own, and the container that is made of it."""

    def __init__(self, case, *words):
        self.case = case
        self.id = f"gcr-test-{os.getpid()}-{next(NUMBERS)}"
        self.bundle = case.folder / self.id
        self.root = self.bundle / "rootfs"
        self.config = self.bundle / "config.json"
        self.pid_file = self.bundle / "pid"
        make_root(self.root)
        subprocess.run([RUNC, "spec", "--bundle", self.bundle], check=True)
        self.spec = json.loads(self.config.read_text(encoding="utf-8"))
        # Here runc may not be able to raise limits.
        del self.spec["process"]["rlimits"]
        self.spec["process"].update(args=["job", *words], terminal=False)
        self.spec["root"]["readonly"] = False
        self.lines = None
        self.pid = None
        case.addCleanup(self.delete)

    @property
    def process(self):
        return self.spec["process"]

    def annotate(self, name, value):
        self.spec.setdefault("annotations", {})[name] = value

    def save(self):
        """Writes the configuration as an engine does before each start."""
        self.config.write_text(json.dumps(self.spec), encoding="utf-8")

    def edited(self):
        return json.loads(self.config.read_text(encoding="utf-8"))

    def command(self, verb, *options, runtime=RUNTIME):
        """With global options before the verb, and the bundle after it."""
        where = ("--bundle", self.bundle) if verb in ("create", "run") else ()
        return [runtime, "--root", self.case.folder / "runc", verb, *where, *options, self.id]

    def call(self, verb, *words, runtime=RUNTIME, **options):
        command = self.command(verb, runtime=runtime) + list(words)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
                              env=self.case.environment, stdin=subprocess.DEVNULL, **options)  # fmt: skip

    def run(self, runtime=RUNTIME, **options):
        """In the foreground, until it has ended."""
        self.save()
        return self.call("run", runtime=runtime, **options)

    def create(self, *options, verb="create"):
        """Returns the finished command. The container's output is in `lines`."""
        self.save()
        end, writer = os.pipe()
        self.case.addCleanup(os.close, end)
        self.lines = Lines(end)
        errors = self.bundle / "errors"
        with open(errors, "w", encoding="utf-8") as stderr:
            done = subprocess.run(
                self.command(verb, *options), stdin=subprocess.DEVNULL, stdout=writer, stderr=stderr, check=False,
                timeout=PATIENCE_S, env=self.case.environment)  # fmt: skip
        os.close(writer)
        done.stderr = errors.read_text(encoding="utf-8")
        if done.returncode == 0:
            self.pid = json.loads(self.call("state").stdout)["pid"]
        return done

    def start(self):
        """Creates and starts it."""
        done = self.create("--pid-file", self.pid_file)
        self.case.assertEqual(done.returncode, 0, done.stderr)
        done = self.call("start")
        self.case.assertEqual(done.returncode, 0, done.stderr)
        return self

    def signal(self, number):
        done = self.call("kill", str(int(number)))
        self.case.assertEqual(done.returncode, 0, done.stderr)

    def execute(self, *words):
        """An exec session; its first line."""
        process = subprocess.Popen(self.command("exec") + list(words), stdout=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL, env=self.case.environment)  # fmt: skip
        with process:
            line = process.stdout.readline().strip()
        self.case.assertEqual(process.returncode, 0)
        return line

    def wait_for_name(self, name):
        wait_until(lambda: name_of(self.pid) == name, f"gcr-init is {name_of(self.pid)}, not {name}")

    def status(self):
        return status_of(self.pid)

    def end(self):
        """Stops it, and removes what runc has of it; its exit status."""
        self.signal(signal.SIGTERM)
        status = self.status()
        self.delete()
        return status

    def delete(self):
        self.call("delete", "--force", runtime=RUNC)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gcr-container-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.folder.chmod(0o755)
        self.log = self.folder / "log"
        self.log.touch()
        self.received = self.folder / "state/received"
        self.environment = {"PATH": os.environ["PATH"], "GCR_RUNTIME_CONFIG": str(self.folder / "runtime.toml")}
        self.configure()

    def configure(self, runtime=RUNC, **keys):
        keys = {"runtime": runtime, "log": self.log, "state": self.received, **keys}
        lines = [f"{key} = {json.dumps(value if isinstance(value, bool) else str(value))}\n" for key, value in keys.items()]
        (self.folder / "runtime.toml").write_text("".join(lines), encoding="utf-8")

    def container(self, *words):
        return Container(self, *words)

    def logged(self):
        return self.log.read_text(encoding="utf-8")
