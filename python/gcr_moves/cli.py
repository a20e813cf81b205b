"""gcr-migrate as a program: its JSON and its exit status, nothing else.

Nothing here speaks to an agent itself.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess

# Exit statuses of gcr-migrate; its --help has the same table.
DONE, FAILED, USAGE, REFUSED, UNREACHABLE, NOT_AUTHORISED, UNKNOWN, CANCELLED, UNCONFIRMED, ENDED = range(10)

QUESTION_SECONDS = 60  # a backstop: gcr-migrate itself gives up sooner


class CliError(Exception):
    """A question that was not answered."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def find_program():
    """gcr-migrate: GCR_CLI's, the one of the bundle or build around this file, or PATH's."""
    named = os.environ.get("GCR_CLI")
    if named:
        return named
    root = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(os.environ.get("GCR_BUILD", root / "build" / "release"))
    for folder in (root / "bin", build / "bin"):
        if os.access(folder / "gcr-migrate", os.X_OK):
            return str(folder / "gcr-migrate")
    return shutil.which("gcr-migrate") or "gcr-migrate"


def find_installed(name):
    """A program of ours that is not in PATH, as it is installed here or was built."""
    folder = pathlib.Path(find_program()).resolve().parent
    installed = folder.parent / "libexec" / "gcr-migrate" / name
    return str(folder / name if os.access(folder / name, os.X_OK) else installed)


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("gcr-migrate: ") if lines else ""


def blockers_of(findings):
    return [finding for finding in findings if finding["severity"] != "warning"]


def run_to_end(command, seconds):
    """A command without input, in a session of its own; TimeoutExpired or OSError if it does not end or begin."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        start_new_session=True,
        check=False,
    )


@dataclasses.dataclass
class Ended:
    """How a migration ended, as far as gcr-migrate knows."""

    status: int  # as gcr-migrate's exit status; UNKNOWN if it did not come to say one
    message: str = ""
    migration_id: str = ""
    pid: int = 0  # where it moved to; 0 if that is not known
    downtime_ms: float = 0
    total_ms: float = 0
    verified: bool = False  # all contents were proven
    suspended: bool = False  # it was before, and is there
    gone: bool = False  # it ended by itself before it was moved, and runs nowhere


class Migration:
    """One run of gcr-migrate: a migration, a checkpoint or a restore. It is in a session of its own:
    Ctrl-C is for us to judge."""

    def __init__(self, command):
        self.migration_id = ""
        self._report = {}
        # pylint: disable-next=consider-using-with  # wait() reaps it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def cancel(self):
        """Asks the source's agent to give it up; it then ends as one that was cancelled, or not."""
        self._process.send_signal(signal.SIGINT)

    def leave(self):
        """gcr-migrate ends at once; the agents go on."""
        self._process.kill()

    def wait(self):
        """Follows it to the end."""
        for line in self._process.stdout:
            self._take(line)
        message = last_line(self._process.stderr.read())
        status = self._process.wait()
        gone = status == ENDED
        if not DONE <= status <= CANCELLED:
            message = message or f"gcr-migrate ended with status {status}"
            status = UNKNOWN
        report = self._report
        return Ended(
            status=status,
            message=report.get("message") or message,
            migration_id=self.migration_id,
            pid=int(report.get("destination_pid", 0)),
            downtime_ms=float(report.get("downtime_ms", 0)),
            total_ms=float(report.get("total_ms", 0)),
            verified=bool(report.get("verified")),
            suspended=bool(report.get("suspended")),
            gone=gone,
        )

    def _take(self, line):
        try:
            said = json.loads(line)
        except ValueError:
            return
        self.migration_id = said.get("migration_id") or self.migration_id
        if "migrated" in said:
            self._report = said


class Cli:
    """Asks agents. Every question is one run of gcr-migrate; thread-safe."""

    def __init__(self, program, options=()):
        self._program = program
        self._options = list(options)

    def host(self, agent):
        """`gcr-migrate host`."""
        return self._ask("host", agent)

    def status(self, agent, migration_id):
        """The agent's roles in the migration, by name ("source", "destination")."""
        parts = self._ask("status", agent, migration_id)["migrations"]
        return {part["role"]: part for part in parts}

    def findings(self, source, destination, pid, options=()):
        """All findings of a preflight. CliError only if no agent could tell."""
        return self._findings(*options, source, destination, str(pid))

    def preflight(self, source, destination, pid, options=()):
        """The blockers: what stands in the way of it."""
        return blockers_of(self.findings(source, destination, pid, options))

    def preflight_checkpoint(self, source, pid, directory):
        """The same for a checkpoint."""
        return blockers_of(self._findings("--checkpoint", directory, source, str(pid)))

    def _findings(self, *words):
        return self._ask("preflight", *words, fine=(DONE, REFUSED))["findings"]

    def checkpoints(self, directory):
        """`gcr-migrate checkpoints` of a directory of this machine: no agent is asked."""
        at = self._options.index("--ca") if "--ca" in self._options else len(self._options)
        authority = self._options[at : at + 2]
        answer = self._ask("checkpoints", directory, fine=(DONE, FAILED), options=authority)
        return answer["checkpoints"]

    def migrate(self, source, destination, pid, options=()):
        """Begins a migration."""
        command = [source, destination, str(pid), "--json", *options]
        return Migration([self._program, *self._options, *command])

    def checkpoint(self, source, pid, directory, name, options=()):
        """Begins a checkpoint that ends the job."""
        command = [source, str(pid), directory, "--name", name, "--stop", "--json", *options]
        return Migration([self._program, "checkpoint", *self._options, *command])

    def restore(self, destination, directory, name):
        """Begins a restore that has the checkpoint for itself, and removes it in the end."""
        command = [destination, directory, name, "--once", "--json"]
        return Migration([self._program, "restore", *self._options, *command])

    def _ask(self, command, *words, fine=(DONE,), options=None):
        options = self._options if options is None else options
        try:
            ran = run_to_end([self._program, command, *options, *words, "--json"], QUESTION_SECONDS)
        except subprocess.TimeoutExpired:
            raise CliError(UNREACHABLE, f"gcr-migrate {command} does not end") from None
        except OSError as error:
            raise CliError(USAGE, f"cannot run {self._program}: {error.strerror}") from None
        try:
            answer = json.loads(ran.stdout) if ran.returncode in fine else None
        except ValueError:
            answer = None
        if answer is None:
            raise CliError(ran.returncode or USAGE, last_line(ran.stderr) or "no answer")
        return answer
