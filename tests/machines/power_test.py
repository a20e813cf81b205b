"""A machine loses its power at named points of a migration, and boots again with its disk: there is one copy of the
job then, and it has lost nothing. Long: scripts/two-machines --all."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from job import JobTest, machines_with_packages
from machines import BUILD, NODES, blocks, wait_until

# Where the job is afterwards. "decided": an operator decides, because nobody can know whether the copy ran.
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
TIMES = int(os.environ.get("GCR_POWER_OFFS", "2"))


class PowerTest(JobTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machines, _ = machines_with_packages(cls.addClassCleanup)
        cls.rows = []
        cls.addClassCleanup(lambda: print("\n".join(cls.rows), flush=True))

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

    def test_20_power_offs(self):
        for point in os.environ.get("GCR_POINTS", " ".join(POINTS)).split():
            for _ in range(TIMES):
                self.power_off(point)

    def power_off(self, point):
        source, destination = self.node, self.other()
        victim, survivor = (source, destination) if point.startswith("source") else (destination, source)
        self.begin_file_anew()
        self.machines.run(victim, f"sync; echo {point} stop >/run/gcr-faults")
        moving = self.machines.start(survivor, f"gcr-migrate {source} {destination} {self.pid}")
        self.machines.run(victim, "until [[ -e /run/gcr-faults.hit ]]; do sleep 0.2; done")
        before = self.steps()[-1]
        self.machines.cut(victim)
        said = moving.communicate(timeout=240)[0].splitlines()[-1]
        self.machines.boot(victim)
        decided = ""
        if POINTS[point] == "decided":
            number = wait_until(lambda: re.search(r"([0-9a-f-]{36})(?s:.*)an operator is needed", self.statuses()))[1]
            decided = self.machines.run(survivor, f"gcr-migrate resolve {source} {number} --run-here --peer-is-gone")
        node = source if POINTS[point] in ("source", "decided") else destination
        row = f"{point}: {victim} off; status {moving.returncode}, {said!r}"
        try:
            wait_until(lambda: self.copies() == {node: 1, ({*NODES} - {node}).pop(): 0}, 120)
            wait_until(lambda: not self.unfinished(), 60)
        except Exception:
            self.rows.append(f"{row}; {self.copies()}")
            for one in NODES:
                print(self.machines.run(one, "gcr-migrate list --all $(hostname) | tail -n 2; journalctl -b -u migrate-agent -o cat | "
                                             "tail -n 25; ps -eo pid,stat,args | grep -v ]$ | tail -n 20", status=None), flush=True)
            raise
        self.settle(node, self.machines.run(node, "pgrep -x gcr-supervisor"))
        self.assert_follows(before)
        self.assert_goes_on()
        self.rows.append(f"{row}; {decided!r}; one copy at {node}")
        print(self.rows[-1], file=sys.stderr, flush=True)

    def assert_follows(self, before):
        """What it prints now comes of what it printed before the power was off."""
        self.begin_file_anew()
        step, value = before
        target, reached = self.steps()[0]
        self.assertGreater(target, step)
        while step < target:
            step += 1
            value = (value * 1664525 + step) % (1 << 32)
        self.assertEqual(value, reached)

    def unfinished(self):
        return [line for node in NODES for line in self.machines.run(node, f"gcr-migrate list {node}").splitlines()
                if re.match(r"[0-9a-f]{8}", line)]

    def statuses(self):
        """Of what is not finished, as an operator reads it."""
        return "\n".join(self.machines.run(node, f"for id in $(gcr-migrate list {node} | grep -oE '^[0-9a-f-]{{36}}'); "
                                                 f"do gcr-migrate status {node} $id; done", status=None)
                         for node in NODES)


if __name__ == "__main__":
    unittest.main(failfast=True)
