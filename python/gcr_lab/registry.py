"""Parts of an experiment: what each is called, how long it may take, what it needs. Each runs in a process of its own."""

import collections, contextlib, dataclasses, os, pathlib, signal, subprocess, sys, typing
from gcr_lab.base import GIB, MIB, Failure, NotRun, last_line, read
from gcr_lab.hosts import hosts

KILL_AFTER_S = 30

@dataclasses.dataclass(frozen=True)
class Lab:
    """What a part is given: its name, and the options of the command. `vram` is what large programs hold, in bytes."""
    part: str
    gpu: str
    out: pathlib.Path
    vram: int
    options: object = None

    @property
    def log(self):
        return self.out / f"{self.part}.log"
    def hosts(self, *options, vram=None, script="hosts"):
        return hosts(self.gpu, vram or self.vram, *options, script=script, log=self.log)

@dataclasses.dataclass(frozen=True)
class Part:
    """`about` is for the help. `run` gets a Lab and returns its result in a line, or None. Each of `needs` gets the Lab
    and returns why the part cannot run here, or an empty text; `not_on_hip` says so of AMD GPUs. After `limit` seconds a
    part has hung."""
    about: str
    run: typing.Callable
    limit: int = 900
    needs: tuple = ()
    not_on_hip: str = ""
    command: str = ""

    def execute(self, lab):
        """Runs it here. Its last line is the result, or why it was not run."""
        reason = self.not_on_hip if lab.gpu.endswith("hip") else ""
        reason = reason or next(filter(None, (need(lab) for need in self.needs)), "")
        command = [self.command.format(mib=lab.vram // MIB, gib=lab.vram // GIB)] if self.command else []
        try:
            result = f"{reason}: not run" if reason else self.run(lab, *command)
        except NotRun as not_run:
            result = f"{not_run}: not run"
        if result:
            print(result, flush=True)

class Parts(dict):
    """Parts by name, in the order in which they run."""

    def part(self, name, **more):
        """Registers a function, which the first line of its comment describes."""
        def register(function):
            self[name] = Part(function.__doc__.splitlines()[0], function, **more)
            return function
        return register

    def command(self, name, run, about, command, *needs, **more):
        """A part that is `run(lab, command)`; {mib} and {gib} in the command are the lab's VRAM."""
        self[name] = Part(about, run, needs=needs, command=command, **more)

    @staticmethod
    def of(*modules):
        """All parts of these modules, each of which has its own in PARTS."""
        return Parts((name, part) for module in modules for name, part in module.PARTS.items())

    def descriptions(self):
        return "\n".join(f"  {name:19} {part.about}" for name, part in self.items())

    def select(self, words):
        """The names that these words mean: parts, or the beginning of several. All without words."""
        chosen = []
        for word in words:
            found = [word] if word in self else [name for name in self if name.startswith(f"{word}-")]
            if not found:
                raise Failure(f"no part {word} (see --help)")
            chosen += found
        return chosen or list(self)

    def run_apart(self, name, words, out, limit=None):
        command = [sys.executable, sys.argv[0], *words, "--part", name]
        return run_apart(command, limit or self[name].limit, out / f"{name}.log")

# Of a part in a process of its own.
Outcome = collections.namedtuple("Outcome", "status text result verdict")

def run_apart(command, limit, log):
    """Runs a part by this command. The file `log` has what it prints, then what it adds to that file itself. Ended
    after `limit` seconds, with all that is in its process group; also if this process is ended meanwhile."""
    printed = log.with_suffix(".txt")
    log.unlink(missing_ok=True)
    with open(printed, "wb") as file:
        child = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0)
    try:
        status = child.wait(limit)
    except subprocess.TimeoutExpired:
        status = 124
    finally:
        if child.returncode is None:
            _end_group(child)
        text = read(printed)
        log.write_text(text + (read(log) if log.exists() else ""), encoding="utf-8")
        printed.unlink()
    result = last_line(text)
    good = "-" if result.endswith("not run") else "ok"
    return Outcome(status, text, result, {0: good, 124: "TIMEOUT", 137: "TIMEOUT"}.get(status, "FAILED"))

def _end_group(child):
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, number)
            child.wait(KILL_AFTER_S)
            return
