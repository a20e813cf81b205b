"""The way by hand: the driver's checkpoint steps and CRIU, each with its time; how long a program is silent. What both
comparisons have."""

import contextlib, pathlib, select, subprocess, sys, time
from gcr_lab import base
from gcr_lab.base import GIB, Failure
from gcr_lab.figures import Record

def comparison(words, text, what, part, **more):
    """The options of a comparison; `more` are its own ones. `record` and `log` are what they mean."""
    parser = base.Arguments(text)
    add = parser.add_argument
    add("--gpu", choices=("soft", "real"), default="soft")
    add("--vram", type=base.size, default=GIB, help=f"what {what} holds in GPU memory (default 1G)")
    add("--by-hand", choices=("yes", "no"), default="yes", help="no: with gcr-migrate only")
    add("--keep", metavar="DIR", type=pathlib.Path, help="keeps the programs' output and all logs in DIR")
    add("--record", metavar="FILE", type=pathlib.Path, help="adds the figures to FILE as JSON lines, …")
    add("--part", metavar="NAME", default=part, help=f"… as part NAME (default {part})")
    for name, settings in more.items():
        add(f"--{name}", **settings)
    options = parser.parse_args(words)
    base.need_root()
    options.by_hand = options.by_hand == "yes"
    options.record = Record(options.record, {"part": options.part, "gpu": options.gpu})
    options.log = options.keep and options.keep / f"{pathlib.Path(sys.argv[0]).name}.log"
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    return options

class Stopwatch:
    """`figures` has the milliseconds of each phase, as dump_ms."""
    def __init__(self):
        self.figures, self._begun = {}, time.monotonic()
    def ms(self):
        return round((time.monotonic() - self._begun) * 1000, 1)

    @contextlib.contextmanager
    def phase(self, name):
        begun = self.ms()
        yield
        self.figures[f"{name}_ms"] = round(self.ms() - begun, 1)

class DriverTool:
    """A helper on a host that calls the driver's checkpoint API. It has initialised the driver once it is made."""
    def __init__(self, hosts, host, *options):
        self.hosts, self.host, log = hosts, host, hosts.work / f"tool-{host}.log"
        with open(log, "wb") as said:
            self._process = subprocess.Popen(hosts.words(host, base.BIN / "cuda-checkpoint-tool", *options), text=True,
                                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
        ready = select.select([self._process.stdout], [], [], 60)[0] and self._process.stdout.readline()
        if ready != "ready\n":
            self.close()
            raise Failure(f"the checkpoint helper of host {host} does not start: {base.read(log)}")

    def steps(self, pid, watch, *names):
        """Some of lock, checkpoint, restore, unlock; their times are noted."""
        for name in names:
            try:
                print(name, pid, file=self._process.stdin, flush=True)
                answer = self._process.stdout.readline().split()
            except BrokenPipeError:
                answer = []
            if answer[:2] != [name, "ok"]:
                raise Failure(f"by hand: {' '.join(answer) or 'the checkpoint helper ended'}")
            watch.figures[f"{name}_ms"] = float(answer[-1])

    def dump(self, pid, watch, images, *options):
        """Its control state in its own memory, then all of it in images."""
        self.steps(pid, watch, "lock", "checkpoint")
        with watch.phase("dump"):
            self._criu("dump", images, "--tree", pid, "--timeout", 300, *options)

    def restore(self, pid, watch, images):
        with watch.phase("criu_restore"):
            self._criu("restore", images, "--restore-detached")
        self.steps(pid, watch, "restore", "unlock")

    def _criu(self, action, images, *options):
        log = self.hosts.work / f"criu-{action}.log"
        command = self.hosts.words(self.host, base.CRIU, action, "--images-dir", images, "--log-file", log, *options)
        if subprocess.call(command) != 0:
            lines = base.read(log).splitlines() if log.exists() else []
            raise Failure(f"criu {action}: {' '.join([line for line in lines if 'Error' in line][:3])}")

    def close(self):
        self._process.kill()
        self._process.communicate()

@contextlib.contextmanager
def driver_tools(hosts, names, gpu):
    """A DriverTool for each host. A program that moves finds the software GPU of the other host in place of its own."""
    maps = []
    if gpu == "soft" and len(names) > 1:
        maps = ["--map", "=".join(_first_gpu(hosts.gpu_env(host)) for host in names)]
    with contextlib.ExitStack() as tools:
        yield [tools.enter_context(contextlib.closing(DriverTool(hosts, host, *maps))) for host in names]

def _first_gpu(words):
    return next(word.split("=", 1)[1] for word in words if word.startswith("SOFTGPU_DEVICES=")).split(":")[0]

@contextlib.contextmanager
def silence(program):
    """[ms]: the longest time in which the program printed nothing, from a first line on to five lines after the block."""
    tool = subprocess.Popen([base.BIN / "output-gap", program.output], stdout=subprocess.PIPE, text=True)
    longest = []
    try:
        while "ready" not in (line := tool.stdout.readline()):
            if not line:
                raise Failure("output-gap does not start")
        program.wait_for_more(1)
        yield longest
        program.wait_for_more(5)
        tool.terminate()
        longest.append(float(base.last_line(tool.communicate()[0])))
    finally:
        tool.kill()
        tool.wait()
