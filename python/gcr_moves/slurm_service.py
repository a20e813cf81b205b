"""scripts/slurm serve: one scripts/drain --slurm for each node that Slurm's administrator drains.

The main thread owns everything; other threads and signal handlers hand it what to do next.
"""

import argparse
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from gcr_moves import cli as program
from gcr_moves import command_line
from gcr_moves.slurm import SlurmError
from gcr_moves.slurm_metrics import Metrics, Served
from gcr_moves.slurm_trigger import Listener, Trigger

DRAIN = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "drain"

_CLOCK = re.compile(r"\d\d:\d\d:\d\d ")  # before each line of a drain's progress


def _address(words):
    host, separator, port = words.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError("must be ADDRESS:PORT")
    return host.strip("[]"), int(port)


def own_options():
    """Those that are the service's alone: drains get the others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    seconds = command_line.positive(float)
    group = parser.add_argument_group("the service: docs/slurm.md")
    group.add_argument("--poll", type=seconds, default=60.0, metavar="S",
                       help="seconds between two looks at Slurm's nodes while a Slurm trigger wakes the "
                       "service; without one it is --interval (default %(default)s)")
    group.add_argument("--again", type=seconds, default=300.0, metavar="S",
                       help="seconds before a node is drained again that a drain has left jobs on (default %(default)s)")
    group.add_argument("--metrics", type=_address, metavar="ADDRESS:PORT",
                       help="serve metrics for Prometheus there")
    group.add_argument("--wake-socket", metavar="FILE",
                       default=f"{os.environ.get('RUNTIME_DIRECTORY', '/run/gcr-slurm')}/wake",
                       help="where Slurm's trigger wakes the service (default %(default)s)")
    return parser


class Log:
    """Lines on standard error, each with its node in front. Of a node, a line that was the last one, or that
    the drain before said too, is left out: a drain that changes nothing says nothing."""

    def __init__(self, quiet):
        self._quiet = quiet
        self._before = {}  # by node: the lines of the drain before
        self._lines = {}  # by node: those of this one

    def say(self, line, node=""):
        """From any thread; of a node, from one at a time."""
        if node:
            said = self._lines.setdefault(node, [])
            known = said[-1:] == [line] or line in self._before.get(node, ())
            said.append(line)
            if known:
                return
            line = f"{node}: {line}"
        if not self._quiet:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def begin(self, node):
        """A drain of it."""
        self._before[node] = set(self._lines.pop(node, ()))

    def forget(self, node):
        self._before.pop(node, None)
        self._lines.pop(node, None)


class NodeDrain:
    """One scripts/drain, in a session of its own: it is told to stop by us."""

    def __init__(self, node, words, say, on_end):
        """Calls `say` with each line of its progress, and `on_end`, in a thread of its own."""
        self._report = tempfile.TemporaryFile("w+", encoding="utf-8")  # pylint: disable=consider-using-with
        self._process = subprocess.Popen(  # pylint: disable=consider-using-with
            [DRAIN, node, "--slurm", "--json", *words], stdin=subprocess.DEVNULL, stdout=self._report,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)  # fmt: skip
        threading.Thread(target=self._follow, args=(say, on_end), daemon=True).start()

    def _follow(self, say, on_end):
        with self._process.stderr as lines:
            for line in lines:
                clock = _CLOCK.match(line)
                say(line[clock.end() if clock else 0 :].rstrip())
        self._process.wait()
        on_end()

    def send_signal(self, number):
        self._process.send_signal(number)

    def end(self):
        """Once it has ended: its exit status, and its report, if it came to print one."""
        with self._report as file:
            file.seek(0)
            try:
                return self._process.returncode, json.load(file)
            except ValueError:
                return self._process.returncode, None


class Service:
    """Runs until it is told to stop, and then until all drains have ended."""

    def __init__(self, options, words, slurm, metrics, listen=Listener, drain=NodeDrain,
                 clock=time.monotonic):  # fmt: skip
        """`words` go on to every drain. OSError if the socket of the trigger cannot be there."""
        self._slurm, self._words, self._metrics, self._drain = slurm, words, metrics, drain
        self._interval, self._poll, self._again = options.interval, options.poll, options.again
        self._json = options.json
        self._clock = clock
        self._log = Log(options.quiet)
        self._events = queue.SimpleQueue()  # what the main thread does next
        self._drains = {}  # by node
        self._not_before = {}  # by node: when it may be drained again
        self._nodes = {}  # the names of all nodes, by their addresses
        self._look_at = 0.0
        self._check_trigger_at = 0.0
        self._told = {}  # by subject: what was said of it last
        self._stopping = False
        self._listener = listen(options.wake_socket, lambda: self._events.put(self._wake))
        self._trigger = Trigger(slurm, self._listener)

    def run(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: self._events.put(lambda: self.stop(number)))
        while self.step():
            pass
        return program.DONE

    def step(self):
        """Waits until something happens or it is time to look, and attends to that; false at the end."""
        seconds = None if self._stopping else max(self._look_at - self._clock(), 0.0)
        try:
            self._events.get(timeout=seconds)()
        except queue.Empty:
            self._look()
        if self._stopping and not self._drains:
            self._end()
            return False
        return True

    def _tell(self, subject, line):
        """Once, until something else is to be said of it."""
        if self._told.get(subject) != line:
            self._told[subject] = line
            self._log.say(line)

    # ---- what happens ----

    def _wake(self):
        self._look_at = 0.0

    def stop(self, number):
        """Each drain lets its migrations end; told again, it cancels them."""
        if not self._stopping:
            self._log.say("stopping: the migrations under way end first")
        self._stopping = True
        for drain in self._drains.values():
            drain.send_signal(number)

    def _drain_ended(self, node):
        status, report = self._drains.pop(node).end()
        processes = report["processes"] if report else []
        self._metrics.drain_ended(status, processes)
        for process in processes:
            self._log.say(self._line(process), node)
        self._log.say(f"drain ended with exit status {status}", node)
        if self._json and report:
            print(json.dumps(report), flush=True)
        self._not_before[node] = self._clock() + self._again
        self._wake()

    def _line(self, process):
        """What the report says of one job."""
        words = [process["outcome"], f"job={process['slurm_job']}", f"pid={process['pid']}"]
        if process["slurm_successor"]:
            words += ["to", f"job={process['slurm_successor']}",
                      f"node={self._nodes.get(process['destination'], process['destination'])}",
                      f"downtime_ms={process['downtime_ms']:.0f}",
                      f"verified={'yes' if process['verified'] else 'no'}"]  # fmt: skip
        return " ".join(words) + (f": {process['reason']}" if process["reason"] else "")

    def _end(self):
        try:
            self._trigger.remove()
        except SlurmError as error:
            self._log.say(f"the trigger stays registered: {error}")
        self._listener.close()

    # ---- what Slurm says ----

    def _look(self):
        """Drains what is to be drained, and decides when to look again. What happens from then on wakes us, if
        Slurm has the trigger."""
        now = self._clock()
        self._look_at = now + self._interval
        self._keep_trigger(now)
        try:
            nodes = self._slurm.nodes()
            self._metrics.looked(self._slurm)
        except SlurmError as error:
            self._metrics.slurm_failed()
            self._tell("Slurm", f"Slurm does not answer: {error}")
            self._check_trigger_at = 0.0
            return
        self._tell("Slurm", "Slurm answers")
        self._nodes = {node.address: name for name, node in nodes.items()}
        self._begin({name for name, node in nodes.items() if node.draining}, now)
        if self._trigger.registered and not self._drains:
            self._look_at = min([now + self._poll, *self._not_before.values()])

    def _keep_trigger(self, now):
        if now < self._check_trigger_at:
            return
        self._check_trigger_at = now + self._poll
        try:
            self._trigger.keep()
            self._tell("trigger", "Slurm's trigger wakes this service")
        except (SlurmError, OSError) as error:
            if isinstance(error, SlurmError):
                self._metrics.slurm_failed()
            self._tell("trigger", f"no trigger, asking Slurm every {self._interval:g} s: {error}")
        self._metrics.trigger(self._trigger.registered)

    def _begin(self, draining, now):
        for node in self._not_before.keys() - draining:
            del self._not_before[node]
            self._log.forget(node)
        for node in sorted(draining - self._drains.keys()):
            if now >= self._not_before.get(node, 0.0):
                self._not_before.pop(node, None)
                self._start(node, now)

    def _start(self, node, now):
        self._log.begin(node)
        self._log.say("draining", node)
        try:
            self._drains[node] = self._drain(
                node, self._words, lambda line: self._log.say(line, node),
                lambda: self._events.put(lambda: self._drain_ended(node)))  # fmt: skip
        except OSError as error:
            self._log.say(f"cannot start the drain: {error.strerror}", node)
            self._not_before[node] = now + self._again
            return
        self._metrics.drain_began()


def dry_run(slurm, words, parser):
    """What a service would begin with; the exit status: DONE if all jobs there can move."""
    try:
        draining = [name for name, node in slurm.nodes().items() if node.draining]
    except SlurmError as error:
        parser.error(f"cannot ask Slurm for its nodes: {error}")
    if not draining:
        print("no node with jobs is being drained")
    status = program.DONE
    for node in sorted(draining):
        print(f"would drain node {node}", file=sys.stderr, flush=True)
        status = subprocess.run([DRAIN, node, "--slurm", *words], check=False).returncode or status
    return status


def serve(options, words):
    """`words` are those of the command line for drains."""
    slurm = command_line.slurm_of(options)
    if options.dry_run:
        return dry_run(slurm, words, options.parser)
    try:
        metrics = Served(*options.metrics) if options.metrics else Metrics()
    except ImportError:
        options.parser.error("--metrics needs Python's prometheus_client (Debian: python3-prometheus-client)")
    except OSError as error:
        options.parser.error(f"cannot serve metrics at {':'.join(map(str, options.metrics))}: {error.strerror}")
    try:
        service = Service(options, words, slurm, metrics)
    except OSError as error:
        options.parser.error(f"cannot listen at {options.wake_socket}: {error.strerror or error}")
    return service.run()
