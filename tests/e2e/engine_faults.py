"""The fault matrix over a container: each point of a migration, and what can happen there to an agent, to an engine, to
gcr-container or to a container. Import the module, not its classes, which unittest would run.

The agent stops at the point until the harm is done. Then everything that was killed is started again, and gcr-container
is given again. After that one copy of the program runs, in the only container of its name, or none if the owner ended
it. The program writes into a volume that both hosts have: each step of any copy is there, of containers that are gone
too.

Environment: GCR_ALL_POINTS for all points, or GCR_POINTS for those, with commas; by default each harm has a few.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from containers import children_of, complaint, fault_points
from engine_cases import DONE, KILLED, NAME, REFUSED
from ticker_hosts import HANGS_S, TICKER, begin_command, wait_for

SILENCE_MS = 8000
CUT_S = 1.25 * SILENCE_MS / 1000  # both sides have given up, if they may
PATIENCE_S = 60  # of gcr-container
GRACE_S = 1  # of a stopped container
EXITING = 0x4  # PF_EXITING, of /proc/PID/stat
NOWHERE = "nowhere"
PLACES = {"a": "source", "b": "destination", NOWHERE: NOWHERE}


def fields_of(pid):
    """Of /proc/PID/stat, from the state on; none if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return []


def is_ending(pid):
    fields = fields_of(pid)
    return not fields or fields[0] in "ZX" or bool(int(fields[6]) & EXITING)


def of_processes(name):
    """The contents of /proc/PID/NAME, by PID."""
    found = {}
    for entry in pathlib.Path("/proc").glob(f"[0-9]*/{name}"):
        try:
            found[int(entry.parts[2])] = entry.read_bytes()
        except OSError:
            pass  # it has ended
    return found


class Cell:
    """One migration with one harm at one point."""

    def __init__(self, case, point):
        self.case, self.hosts, self.point = case, case.hosts, point
        self.host, self.decided = fault_points(*case.MORE_KINDS)[point]
        self.output = self.hosts.folder / "out" / f"lines-{time.monotonic_ns()}"
        self.moving = None
        self.owner = None  # its command that ends a container

    # ---- what is true ----

    def lines(self):
        return self.output.read_text(encoding="ascii").splitlines() if self.output.exists() else []

    def copies(self):
        """Of the program, suspended ones too."""
        store = self.hosts.env["GPU_ENV_A"].partition("SOFTGPU_STORE=")[2].split()[0].rpartition("/")[0].encode()
        named = (pid for pid, name in of_processes("comm").items() if name.strip() == TICKER.encode())
        return [pid for pid in named if store in of_process(pid, "environ")]

    def place(self):
        """The host whose engine has the copy in a running container, when the agents have settled it."""
        wait_for("nothing is unfinished", lambda: all(
            each["finished"] for host in "ab" for each in self.hosts.migrations(host)))  # fmt: skip
        places = [host for host in "ab" if self.hosts.states(host).get(NAME) == "running" and self._is_in(host)]
        self.case.assertLessEqual(len(places), 1)
        self.case.assertEqual(len(self.copies()), len(places))
        return places[0] if places else NOWHERE

    def _is_in(self, host):
        members = [member for root in children_of(self.hosts.init(host, NAME)) for member in children_of(root)]
        return bool(set(members).intersection(self.copies()))

    # ---- what happens ----

    def options(self):
        """More of them, for the container."""
        return ()

    def script(self):
        return f"exec {self.hosts.program} >>{self.output}"

    def start(self):
        self.hosts.start_container("a", NAME, "--volume", f"{self.output.parent}:{self.output.parent}", *self.options(),
                                   words=("sh", "-c", self.script()))  # fmt: skip
        wait_for("the ticker starts", lambda: len(self.lines()) >= 2)

    def reach(self):
        """Moves it until the agent has stopped at the point; the agent's process."""
        armed = self.hosts.folder / self.host / "faults"
        hit = armed.with_suffix(".hit")
        hit.unlink(missing_ok=True)
        armed.with_suffix(".new").write_text(f"{self.point} stop\n", encoding="ascii")
        armed.with_suffix(".new").rename(armed)
        self.moving = begin_command(self.case, self.command())
        wait_for("the point is reached", lambda: hit.exists() or self.moving.poll() is not None)
        if not hit.exists():
            self.end_of_move()
            self.case.fail("the point was not reached")
        worker = int(hit.read_text(encoding="ascii").split()[-1])
        wait_for("it has stopped", lambda: fields_of(worker)[:1] in (["T"], []))
        return worker

    def command(self):
        return self.hosts.move_command(NAME, "a", "b", "--patience", PATIENCE_S)

    def end_of_move(self):
        """The exit status of gcr-container, which was begun before."""
        said = self.moving.communicate(timeout=HANGS_S)
        self.case.said.append((self.moving.returncode, *said))
        return self.moving.returncode

    def give_again(self):
        self.moving = begin_command(self.case, self.command())
        return self.end_of_move()

    def order(self, host, *words):
        """An order of the owner to an engine, until the container's first process is ending."""
        init = self.hosts.init(host, NAME)
        self.owner = (host, words, begin_command(self.case, self.hosts.engine_command(host, *words, NAME)))
        wait_for("it is ending", lambda: is_ending(init) or self.owner[2].poll() is not None)

    def finish_order(self):
        host, words, command = self.owner
        said = command.communicate(timeout=HANGS_S)
        while NAME in self.hosts.states(host) and command.returncode != 0:
            self.case.said.append((command.returncode, *said))
            command = self.hosts.engine(host, *words, NAME, check=False)
            said = command.stdout, command.stderr

    # ---- what is left afterwards ----

    def check(self):
        """What else must be true of it."""

    def clean_up(self):
        for host in "ab":
            for name in self.hosts.states(host):
                self.hosts.engine(host, *self.hosts.REMOVE, name)

    def leftovers(self):
        """What a migration may leave: mounts, processes, control groups."""
        folder = str(self.hosts.folder)
        mounts = sorted(line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
                        if folder in line)  # fmt: skip
        words = of_processes("cmdline")
        processes = sorted(words[pid].split(b"\0")[0].decode() for pid in words
                           if folder.encode() in words[pid] or self._is_on_host(pid))  # fmt: skip
        groups = [str(path) for pattern in ("gcr-migrate-*", "*/gcr-migrate-*")
                  for path in pathlib.Path("/sys/fs/cgroup").glob(pattern)
                  if any(each in path.name for each in self.case.migrations)]  # fmt: skip
        return mounts, processes, groups

    def _is_on_host(self, pid):
        try:
            network = os.stat(f"/proc/{pid}/ns/net")
        except OSError:
            return False  # it has ended
        return any(os.path.samestat(network, os.stat(self.hosts.env[f"NS_{host}"])) for host in "AB")


def of_process(pid, name):
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class Matrix(unittest.TestCase):
    """What is true after a fault."""

    HOSTS = None
    CELL = Cell
    POINTS = {}  # of harms, by default
    MORE_KINDS = ()  # of points

    table = {}  # what was found, by point and harm
    migrations = set()  # ids
    hosts = None
    before = None

    @classmethod
    def tearDownClass(cls):
        cls.end_hosts()
        print_table(cls.table, fault_points(*cls.MORE_KINDS))

    @classmethod
    def end_hosts(cls):
        hosts, cls.hosts = cls.hosts, None
        if hosts is not None:
            hosts.close()

    def begin(self, point):
        """A cell, on hosts that have nothing left of earlier ones."""
        if self.hosts is None:
            type(self).hosts = self.HOSTS("--fault-points", "true", "--peer-silence-ms", str(SILENCE_MS))
            (self.hosts.folder / "out").mkdir()
            self.migrations.clear()
            type(self).before = self.CELL(self, point).leftovers()
        self.said = []
        return self.CELL(self, point)

    def at_points(self, harm, inflict, mend=lambda cell: None, judge=None):
        """`inflict`, `mend` and `judge` take a cell."""
        for point in self.points(harm):
            with self.subTest(harm=harm, point=point):
                self.table.setdefault(point, {})[harm] = "FAILED"
                cell = self.begin(point)
                try:
                    place = self.run_cell(cell, inflict, mend, judge or self.lives)
                except BaseException:
                    print(harm, point, *(f"{each}\n" for each in self.said), file=sys.stderr, flush=True)
                    self.keep_logs(harm, point)
                    self.end_hosts()
                    raise
                self.table[point][harm] = place
                print(f"{harm} at {point}: {place}", file=sys.stderr, flush=True)

    def points(self, harm):
        if "GCR_POINTS" in os.environ:
            return os.environ["GCR_POINTS"].split(",")
        return fault_points(*self.MORE_KINDS) if "GCR_ALL_POINTS" in os.environ else self.POINTS.get(harm, ())

    def engine_is_killed(self, harm, host, judge):
        """Of engines that are daemons."""
        self.at_points(harm, lambda cell: self.hosts.kill_engine(host), lambda cell: self.hosts.start_engine(host), judge)

    def keep_logs(self, harm, point):
        folder = os.environ.get("GCR_KEEP_LOGS")
        if folder:
            there = pathlib.Path(folder, f"{harm}-{point}".replace(" ", "-"))
            there.mkdir(parents=True, exist_ok=True)
            for path in [*self.hosts.folder.glob("[ab]/agent.log"), *self.hosts.folder.glob("*/*.log")]:
                (there / "-".join(path.parts[-2:])).write_bytes(path.read_bytes())

    def run_cell(self, cell, inflict, mend, judge):
        cell.start()
        worker = cell.reach()
        inflict(cell)
        if fields_of(worker):
            os.kill(worker, signal.SIGCONT)
        mend(cell)
        status = cell.end_of_move()
        self.migrations.update(each["migration_id"] for host in "ab" for each in self.hosts.migrations(host))
        # One that was killed is given again at once, without waiting for the agents.
        place = "not asked" if status == KILLED else cell.place()
        judge(cell, status, place)
        self.assertEqual(complaint(cell.lines()), "")
        cell.check()
        cell.clean_up()
        try:
            wait_for("nothing is left", lambda: cell.leftovers() == self.before)
        except AssertionError:
            self.assertEqual(cell.leftovers(), self.before)
        return PLACES.get(place, place)

    # ---- what must be true afterwards ----

    def lives(self, cell, status, place):
        """The job has moved, or does when gcr-container is given again."""
        if status != DONE:
            self.assertEqual(cell.give_again(), DONE)
            place = cell.place()
        self.assertEqual(place, "b")
        self.assert_only("b")
        before = len(cell.lines())
        wait_for("it goes on", lambda: len(cell.lines()) >= before + 3)

    def lives_or_has_ended(self, cell, status, place):
        """The same, or nothing is left but a container that its owner stopped."""
        if place != NOWHERE:
            self.lives(cell, status, place)
            return
        if status != DONE:
            self.assertEqual(cell.give_again(), REFUSED)
        self.assertEqual(self.hosts.states("b"), {})
        self.assertIn(self.hosts.states("a"), ({}, {NAME: "exited"}))
        self.assertEqual(cell.copies(), [])

    def lives_or_was_stopped_there(self, cell, status, place):
        """The same, by the engine that has received the job."""
        if place == NOWHERE and self.hosts.states("b") == {NAME: "exited"}:
            self.assertEqual(status if status == DONE else cell.give_again(), DONE)
            self.assertEqual((self.hosts.states("a"), cell.copies()), ({}, []))
        else:
            self.lives_unless_committed(cell, status, place)

    def lives_unless_committed(self, cell, status, place):
        if not cell.decided:
            self.assertEqual(place, "a")
        self.lives_or_has_ended(cell, status, place)

    def assert_only(self, host):
        other = "a" if host == "b" else "b"
        self.assertEqual((self.hosts.states(host), self.hosts.states(other)), ({NAME: "running"}, {}))


class Faults(Matrix):
    """What can happen under each engine."""

    # ---- agents ----

    def kill_agent(self, host):
        """The daemon and its workers."""
        daemon = int((self.hosts.folder / host / "agent.pid").read_text(encoding="ascii"))
        for pid in (*children_of(daemon), daemon):
            os.kill(pid, signal.SIGKILL)

    def agent_is_killed(self, harm, host):
        self.at_points(harm, lambda cell: self.kill_agent(host), lambda cell: self.hosts.host_script("start", host))

    def test_one_copy_is_left_when_the_source_agent_is_killed(self):
        self.agent_is_killed("source agent", "a")

    def test_one_copy_is_left_when_the_destination_agent_is_killed(self):
        self.agent_is_killed("destination agent", "b")

    def set_link(self, state):
        subprocess.run(self.hosts.on("b", "ip", "link", "set", "veth0", state), check=True)

    def test_one_copy_is_left_when_the_link_is_cut(self):
        def mend(_):
            time.sleep(CUT_S)  # that long is the cut
            self.set_link("up")

        self.at_points("link", lambda cell: self.set_link("down"), mend)

    # ---- gcr-container ----

    def test_one_copy_is_left_when_gcr_container_is_killed(self):
        def kill(cell):
            cell.moving.kill()
            cell.moving.wait()

        self.at_points("gcr-container", kill)

    # ---- owners ----

    def test_receiving_container_that_is_removed_leaves_one_copy_or_none(self):
        self.at_points("receiver removed", lambda cell: cell.order("b", *self.hosts.REMOVE),
                       Cell.finish_order, self.lives_unless_committed)  # fmt: skip

    def test_container_that_is_removed_leaves_one_copy_or_none(self):
        self.at_points("container removed", lambda cell: cell.order("a", *self.hosts.REMOVE),
                       Cell.finish_order, self.lives_or_has_ended)  # fmt: skip

    def test_container_that_is_stopped_leaves_one_copy_or_none(self):
        self.at_points("container stopped", lambda cell: cell.order("a", "stop", "--time", GRACE_S),
                       Cell.finish_order, self.lives_or_has_ended)  # fmt: skip


def print_table(table, points):
    """Where the program ran when gcr-container had ended for the first time, by point and harm."""
    harms = list(dict.fromkeys(harm for row in table.values() for harm in row))
    if not harms:
        return
    lines = [f"{'after a fault at':32}" + "".join(f"{harm:27}" for harm in harms)]
    for point in [each for each in points if each in table]:
        lines.append(f"{point:32}" + "".join(f"{table[point].get(harm, '-'):27}" for harm in harms))
    cells = [place for row in table.values() for place in row.values()]
    lines.append(f"points={len(table)} harms={len(harms)} cells={len(cells)} failures={cells.count('FAILED')}")
    print("\n".join(lines), file=sys.stderr, flush=True)
