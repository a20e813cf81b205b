"""Hosts of scripts/hosts with tickers on them, for tests in Python.

A ticker (tests/apps/ticker.cc) prints a line for every step, and every line follows from its step alone: a lost or
repeated step shows, and so does a second copy that ran for one step.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

CAP_SYS_RESOURCE = 24
HANGS_S = 600  # a command that takes longer hangs
UNREACHABLE = 4  # the command's status: it waits 10 s for an agent, and an emulated one may be slower
TICKER = "ticker"
SLICES, SLICE_WORDS = 64, 8192  # as tests/apps/ticker.h has them


def checksum(step):
    """Over the ticker's ring after that step: see ticker_checksum() in tests/apps/ticker.h."""
    total = 0
    for piece in range(SLICES):
        behind = (step + SLICES - piece) % SLICES
        filled = step - behind if behind < step else 0
        first = piece * SLICE_WORDS
        total += filled * ((first + SLICE_WORDS) ** 2 - first**2)
    return total % 2**64


def movable_users():
    """One user whose processes the agents here may move, and another. Without CAP_SYS_RESOURCE, as in many containers,
    that is only root."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    capabilities = int(status.split("CapEff:")[1].split()[0], 16)
    return ("daemon", "games") if capabilities >> CAP_SYS_RESOURCE & 1 else ("root", "daemon")


def begin_command(case, command):
    """In the background, until the test case ends; its progress can be read line by line from stderr."""
    begun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    case.addCleanup(begun.stderr.close)
    case.addCleanup(begun.stdout.close)
    case.addCleanup(begun.kill)
    return begun


def wait_for(what, condition, seconds=120):
    """The first true result of condition(). Checking, which may start programs, takes a fifth of the time."""
    end = time.monotonic() + seconds
    looked = time.monotonic()
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain: {what}")
        time.sleep(max(0.02, 4 * (time.monotonic() - looked)))
        looked = time.monotonic()
    return result


class Ticker:
    """A program with its own output file, which identifies it wherever it runs."""

    def __init__(self, path, process):
        self.path = path
        self.process = process  # as it was started; it has ended once it has moved

    def lines(self):
        return self.path.read_text(encoding="ascii").splitlines()

    def complaint(self):
        """The error in its output; empty if there is none."""
        for number, line in enumerate(self.lines(), 1):
            wanted = f"{number} {number} {number} {checksum(number):016x}"
            if line != wanted:
                return f'{self.path}: line {number} is "{line}", not "{wanted}"'
        return ""

    def wait_for_progress(self):
        before = len(self.lines())
        wait_for(f"{self.path} grows", lambda: len(self.lines()) >= before + 3)

    def copies(self):
        """The PIDs of all processes that have its output open."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/fd/1"):
            try:
                if os.readlink(entry) == str(self.path):
                    found.append(int(entry.parts[2]))
            except OSError:
                pass  # it has ended
        return found


class Hosts:
    """Hosts a, b, … until close()."""

    SCRIPT = "hosts"

    def __init__(self, count, *options):
        self._folder = tempfile.TemporaryDirectory(prefix="gcr-drain-")  # pylint: disable=consider-using-with
        os.chmod(self._folder.name, 0o755)  # for programs of other users
        self.folder = pathlib.Path(self._folder.name).resolve() / "hosts"
        self.script("up", "--hosts", str(count), "--vram", "4G", *options)
        self.env = {}
        for line in (self.folder / "env").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            self.env[name] = value.strip("'")
        self._programs = []

    def close(self):
        self.script("down")
        for program in self._programs:
            program.wait()
        self._folder.cleanup()

    def script(self, command, *words):
        ran = subprocess.run(
            [ROOT / "scripts" / self.SCRIPT, command, self.folder, *words],
            capture_output=True, text=True, check=False, timeout=HANGS_S)  # fmt: skip
        if ran.returncode != 0:
            raise AssertionError(f"scripts/{self.SCRIPT} {command}: {ran.stderr}")

    def host_script(self, command, host):
        """Actions of scripts/hosts on one: start or stop its agent, whose workers run on, or kill every process on
        it."""
        subprocess.run([ROOT / "scripts" / "hosts", command, self.folder, host], check=True, timeout=HANGS_S)

    def address(self, host):
        return self.env[f"IP_{host.upper()}"]

    def on(self, host, *command):
        """The command that runs COMMAND on the host."""
        upper = host.upper()
        gpu = self.env[f"GPU_ENV_{upper}"].split()
        return ["nsenter", f"--net={self.env[f'NS_{upper}']}", "env", *gpu, *map(str, command)]

    def start(self, host, name, *options, stdin=subprocess.DEVNULL):
        """A sample program under the preload library, so that it can be moved; and its output."""
        path = self.folder / f"{name}-{len(self._programs)}"
        command = [self.env["GCR_CLI"], "run", "--", f"{self.env['PREFIX']}/bin/{name}", *options]
        with open(path, "ab") as output:
            process = subprocess.Popen(  # pylint: disable=consider-using-with
                self.on(host, *command), stdin=stdin, stdout=output, stderr=output, start_new_session=True)  # fmt: skip
        self._programs.append(process)
        return path, process

    def start_ticker(self, host, stdin=subprocess.DEVNULL):
        ticker = Ticker(*self.start(host, TICKER, stdin=stdin))
        wait_for("the ticker starts", lambda: len(ticker.lines()) >= 2)
        return ticker

    def start_job_of_tickers(self, host, count):
        """Tickers below one supervisor; its PID."""
        tickers = [Ticker(self.folder / f"job-{number}", None) for number in range(count)]
        ticker = f"{self.env['PREFIX']}/bin/{TICKER}"
        script = "".join(f"{ticker} >>{each.path} 2>&1 & " for each in tickers) + "wait"
        ran = subprocess.run(
            self.on(host, self.env["GCR_CLI"], "run", "--output", self.folder / "job.log", "--detach",
                    "--", "/bin/sh", "-c", script),
            capture_output=True, text=True, check=True, timeout=HANGS_S)  # fmt: skip
        for each in tickers:
            wait_for("the ticker starts", lambda each=each: each.path.exists() and len(each.lines()) >= 2)
        return int(ran.stdout), tickers

    def ask(self, *words):
        """The JSON output of gcr-migrate, run on host a."""
        command = [self.env["GCR_CLI"], words[0], *self.env["GCR_TLS"].split(), *words[1:], "--json"]
        for _ in range(10):
            ran = subprocess.run(self.on("a", *command), capture_output=True, text=True, timeout=HANGS_S)
            if ran.returncode != UNREACHABLE:
                break
        if ran.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: status {ran.returncode}: {ran.stderr}")
        return json.loads(ran.stdout)

    def processes(self, host):
        return {each["pid"] for each in self.ask("host", self.address(host))["processes"]}

    def migrations(self, host):
        """All that its agent knows, including finished ones."""
        return self.ask("list", self.address(host), "--all")["migrations"]

    def moves_command(self, script, *words):
        """scripts/drain or scripts/rebalance, on host a, fast enough for a test."""
        return self.on(
            "a", ROOT / "scripts" / script, *self.env["GCR_TLS"].split(), "--cli", self.env["GCR_CLI"],
            "--interval", "1", "--pause", "1", *words)  # fmt: skip

    def moves(self, script, *words, timeout=HANGS_S):
        """Runs it to the end: its exit status, its report, its progress lines."""
        ran = subprocess.run(
            self.moves_command(script, "--json", *words),
            capture_output=True, text=True, check=False, timeout=timeout)  # fmt: skip
        return ran.returncode, json.loads(ran.stdout) if ran.stdout else None, ran.stderr
