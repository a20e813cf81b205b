"""The environment of the Slurm service, in memory: time, Slurm, the socket of its trigger, drains, Prometheus."""

import collections
import itertools
import os
import pwd
import queue

from gcr_moves.slurm import Node, SlurmError


class FakeTime:
    """The clock and the queue of the service. Time passes while the queue is empty: no test waits. Events due at the
    time of a poll happen after it."""

    def __init__(self):
        self.now = 1000.0
        self._ready = collections.deque()
        self._later = []  # (when, action)
        self._idle = 0  # how often it was polled without time passing

    def clock(self):
        return self.now

    def after(self, seconds, action):
        self._later.append((self.now + seconds, action))
        self._later.sort(key=lambda each: each[0])

    def put(self, event):
        self._ready.append(event)

    def get(self, timeout=None):
        until = float("inf") if timeout is None else self.now + timeout
        while not self._ready:
            if self._later and self._later[0][0] < until:
                self.now, action = self._later.pop(0)
                action()
            elif timeout is None:
                raise AssertionError("it waits for ever")
            else:
                self._idle = self._idle + 1 if self.now == until else 0
                assert self._idle < 100, "it turns without end"
                self.now = until
                raise queue.Empty
        return self._ready.popleft()


class FakeSlurm:
    """Counts its calls."""

    def __init__(self, time):
        self.states = {}  # by node
        self.silent = False
        self.takes_triggers = True
        self.placeholders = 0
        self.registered = {}  # program by number
        self.looks = []  # when it was asked for the nodes
        self._time = time
        self._numbers = itertools.count(1)

    def nodes(self):
        self.looks.append(self._time.now)
        self._check()
        return {name: Node(f"address-of-{name}", state) for name, state in self.states.items()}

    def waiting_placeholders(self):
        self._check()
        return self.placeholders

    def user(self):
        self._check()
        return pwd.getpwuid(os.getuid())

    def triggers(self, program):
        self._check()
        return [number for number, other in self.registered.items() if other == program]

    def set_trigger(self, program, _user):
        self._check()
        if not self.takes_triggers:
            raise SlurmError("strigger: Access/permission denied")
        self.registered[str(next(self._numbers))] = program

    def clear_trigger(self, number):
        self._check()
        del self.registered[number]

    def _check(self):
        if self.silent:
            raise SlurmError("slurmctld does not answer")


class FakeListener:
    def __init__(self, path, wake):
        self.path, self.wake = path, wake
        self.admits = True
        self.open = True

    def admit(self, _user_id):
        if not self.admits:
            raise PermissionError(1, "Operation not permitted")

    def close(self):
        self.open = False


class FakeDrain:
    """Runs until a test ends it."""

    def __init__(self, node, words, say, on_end):
        self.node, self.words, self.say, self._on_end = node, words, say, on_end
        self.signals = []
        self._end = None

    def finish(self, status, *processes, report=True):
        self._end = status, {"processes": list(processes)} if report else None
        self._on_end()

    def send_signal(self, number):
        self.signals.append(number)

    def end(self):
        return self._end


class FakePrometheus:
    """The part of prometheus_client that the service uses. Its counts, by name and labels."""

    def __init__(self):
        self.values = {}

    CollectorRegistry = object

    def start_http_server(self, port, address, registry):
        pass

    def Gauge(self, name, _text, **options):  # pylint: disable=invalid-name
        return _Series(self.values, name, options)

    def Counter(self, name, _text, labels=(), **options):  # pylint: disable=invalid-name
        return _Series(self.values, f"{name}_total", options, labels)

    def Histogram(self, name, _text, buckets, **options):  # pylint: disable=invalid-name
        assert list(buckets) == sorted(buckets)
        return _Series(self.values, name, options, observed=True)


class _Series:
    def __init__(self, values, name, options, labels=(), observed=False):
        self._values, self._name = values, f"{options['namespace']}_{options['subsystem']}_{name}"
        self._labels = labels
        if not labels:
            values[self._name] = [] if observed else 0

    def labels(self, value):
        name = f'{self._name}{{{self._labels[0]}="{value}"}}'
        self._values.setdefault(name, 0)
        series = _Series.__new__(_Series)
        series._values, series._name = self._values, name
        return series

    def inc(self, amount=1):
        self._values[self._name] += amount

    def dec(self):
        self.inc(-1)

    def set(self, value):
        self._values[self._name] = value

    def observe(self, value):
        self._values[self._name].append(value)
