"""The way by hand: the driver's checkpoint steps and CRIU, each with its time; and how long a program is silent."""

import contextlib
import select
import subprocess
import time

from gcr_lab import base
from gcr_lab.base import Failure


class Stopwatch:
    """`figures` has the milliseconds of each phase, as dump_ms."""

    def __init__(self):
        self.figures, self._begun = {}, time.monotonic()

    def ms(self):
        """Since it was made."""
        return round((time.monotonic() - self._begun) * 1000, 1)

    @contextlib.contextmanager
    def phase(self, name):
        begun = self.ms()
        yield
        self.note(name, round(self.ms() - begun, 1))

    def note(self, name, ms):
        self.figures[f"{name.replace('-', '_')}_ms"] = ms

    def lines(self):
        return [f"{name.removesuffix('_ms').replace('_', '-'):<12} {ms:g} ms" for name, ms in self.figures.items()]


class DriverTool:
    """A helper on a host that calls the driver's checkpoint API. It has initialised the driver once it is made."""

    def __init__(self, hosts, host, *options):
        with open(hosts.work / f"tool-{host}.log", "wb") as log:
            self._process = subprocess.Popen(hosts.words(host, base.BIN / "cuda-checkpoint-tool", *options), text=True,
                                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)  # fmt: skip
        ready = select.select([self._process.stdout], [], [], 60)[0] and self._process.stdout.readline()
        if ready != "ready\n":
            self.end()
            raise Failure(f"the checkpoint helper of host {host} does not start: {(hosts.work / f'tool-{host}.log').read_text()}")

    def step(self, name, pid, watch):
        """One of lock, checkpoint, restore, unlock; its time is noted."""
        try:
            print(name, pid, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline().split()
        except BrokenPipeError:
            answer = []
        if answer[:2] != [name, "ok"]:
            raise Failure(f"by hand: {' '.join(answer) or 'the checkpoint helper ended'}")
        watch.note(name, float(answer[-1]))

    def end(self):
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def driver_tools(hosts, names, gpu):
    """{host: DriverTool}. A program that moves finds the software GPU of the other host in place of its own."""
    maps = []
    if gpu == "soft" and len(names) > 1:
        maps = ["--map", "=".join(_first_gpu(hosts.gpu_env(host)) for host in names)]
    tools = {}
    try:
        for host in names:
            tools[host] = DriverTool(hosts, host, *maps)
        yield tools
    finally:
        for tool in tools.values():
            tool.end()


def _first_gpu(words):
    devices = next(word.split("=", 1)[1] for word in words if word.startswith("SOFTGPU_DEVICES="))
    return devices.split(":")[0]


def criu(hosts, host, action, images, *options):
    log = hosts.work / f"criu-{action}.log"
    done = subprocess.run(hosts.words(host, base.CRIU, action, "--images-dir", images, "--log-file", log, *options),
                          check=False)  # fmt: skip
    if done.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        raise Failure(f"criu {action}: {' '.join([line for line in text.splitlines() if 'Error' in line][:3])}")


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
