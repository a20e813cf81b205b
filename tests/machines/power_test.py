"""At named points of a migration a machine loses its power and boots again with its disk, or both agents are stopped:
there is one copy of the job then, and it has lost nothing. Long: scripts/two-machines --all."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from job import JobTest, machines_with_packages, value
from machines import BUILD, LIMIT_S, NODES, wait_until

# Where the job is afterwards. "decided": an operator decides, because it cannot be known whether the copy ran.
POINTS = {
    "destination.prepared": "source",
    "destination.imaged": "source",
    "destination.criu-restored": "source",
    "destination.control-restored": "source",
    "destination.stopped": "source",
    "destination.restored": "source",
    "destination.told": "source",
    "destination.committed": "decided",
    "destination.resumed": "decided",
    "source.voted": "destination",
    "source.committed": "destination",
    "source.confirmed": "destination",
}
HIT = "until [[ -e /run/gcr-faults.hit ]]; do sleep 0.2; done"
TIMES = int(os.environ.get("GCR_POWER_OFFS", "2"))
STOPS = (
    "source.prepared", "source.gated", "source.dumped", "source.voted", "source.committed", "destination.prepared",
    "destination.control-restored", "destination.restored", "destination.committed",
)


def report(row):
    print(row, file=sys.stderr, flush=True)


class PowerTest(JobTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machines, _ = machines_with_packages(cls.addClassCleanup)

    def test_10_install_md(self):
        self.follow_install_md()
        config = self.machines.run("node1", "tar -C ~ -c .config | base64")
        with tempfile.NamedTemporaryFile() as stripped:
            subprocess.run(["strip", "-o", stripped.name, BUILD / "bin/migrate-agent-faults"], check=True)
            for node in NODES:
                self.machines.copy(stripped.name, node, "/usr/sbin/migrate-agent-faults")
        for node in NODES:
            self.machines.run(node, "base64 -d | tar -C ~ -x", stdin=config)
            self.machines.run(node, "mkdir -p /etc/systemd/system/migrate-agent.service.d && cat "
                                    ">/etc/systemd/system/migrate-agent.service.d/faults.conf && "
                                    "systemctl daemon-reload && systemctl restart migrate-agent && sync",
                              stdin="[Service]\nEnvironment=GCR_FAULTS=/run/gcr-faults\nExecStart=\n"
                                    "ExecStart=/usr/sbin/migrate-agent-faults --config /etc/gcr-migrate/agent.toml\n")

    def test_20_stops(self):
        for point in STOPS:
            self.stop_both(point)

    def stop_both(self, point):
        """Each agent first finishes its migrations."""
        source, destination = self.node, self.other()
        at = source if point.startswith("source") else destination
        self.machines.run(at, f"rm -f /run/gcr-faults.hit; echo {point} run sleep 8 >/run/gcr-faults")
        moving = self.machines.start("node1", f"gcr-migrate {source} {destination} {self.pid}")
        self.machines.run(at, HIT)
        stops = [self.machines.start(node, "systemctl stop migrate-agent") for node in NODES]
        said = moving.communicate(timeout=LIMIT_S)[0]
        self.assertEqual(moving.returncode, 0, said)
        for stop in stops:
            self.assertEqual((stop.communicate(timeout=LIMIT_S)[0], stop.returncode), ("", 0))
        for node in NODES:
            self.machines.run(node, "systemctl start migrate-agent")
        self.settle(destination, value("pid", said))
        self.assert_one_copy()
        self.assert_progress()
        report(f"{point}: both stopped; downtime {value('downtime_ms', said)} ms; one copy at {destination}")

    def test_30_power_offs(self):
        for point in os.environ.get("GCR_POINTS", " ".join(POINTS)).split():
            for _ in range(TIMES):
                self.power_off(point)

    def power_off(self, point):
        source, destination = self.node, self.other()
        victim, survivor = (source, destination) if point.startswith("source") else (destination, source)
        self.machines.set_clocks()
        self.start_new_file()
        self.machines.run(victim, f"sync; rm -f /run/gcr-faults.hit; echo {point} stop >/run/gcr-faults")
        moving = self.machines.start(survivor, f"gcr-migrate {source} {destination} {self.pid}")
        self.machines.run(victim, HIT)
        before = self.steps()[-1]
        self.machines.cut(victim)
        said = moving.communicate(timeout=LIMIT_S)[0].splitlines()[-1]
        self.machines.boot(victim)
        self.machines.set_clocks()
        decided = ""
        if POINTS[point] == "decided":
            number = wait_until(lambda: re.search(r"([0-9a-f-]{36})(?s:.*)an operator is needed", self.statuses()))[1]
            decided = self.machines.run(survivor, f"gcr-migrate resolve {source} {number} --run-here --peer-is-gone")
        node = source if POINTS[point] in ("source", "decided") else destination
        wait_until(lambda: self.copies() == {node: 1, ({*NODES} - {node}).pop(): 0} and not self.unfinished())
        self.settle(node, self.machines.run(node, "pgrep -x gcr-supervisor"))
        self.assert_follows(before)
        self.assert_progress()
        report(f"{point}: {victim} off; status {moving.returncode}, {said!r}; {decided!r}; one copy at {node}")

    def assert_follows(self, before):
        """Its output now continues the output from before the power failure."""
        self.start_new_file()
        step, last = before
        target, reached = self.steps()[0]
        self.assertGreater(target, step)
        while step < target:
            step += 1
            last = (last * 1664525 + step) % (1 << 32)
        self.assertEqual(last, reached)

    def unfinished(self):
        return [line for node in NODES for line in self.machines.run(node, f"gcr-migrate list {node}").splitlines()
                if re.match(r"[0-9a-f]{8}", line)]

    def statuses(self):
        """Of unfinished migrations, as an operator reads it."""
        return "\n".join(self.machines.run(node, f"for id in $(gcr-migrate list {node} | grep -oE '^[0-9a-f-]{{36}}'); "
                                                 f"do gcr-migrate status {node} $id; done", status=None)
                         for node in NODES)


if __name__ == "__main__":
    unittest.main(failfast=True)
