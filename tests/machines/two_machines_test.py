"""docs/install.md and the first page of docs/usage.md, followed to the letter on two virtual machines; then what an
operator does with a job there. The steps build on each other, in the order of their names."""
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from machines import NODES, ROOT, Machines, blocks, wait_until

BUILD = Path(os.environ["GCR_BUILD"])


def value(name, text):
    """Of the last NAME=value."""
    return re.findall(rf"\b{name}=(\S+)", text)[-1]


class TwoMachines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        packages = Path(cls.folder.name) / "packages"
        subprocess.run([ROOT / "scripts/package", "--build", BUILD, "--out", packages], check=True,
                       stdout=subprocess.DEVNULL)
        cls.machines = Machines(Path(cls.folder.name) / "machines", "--packages", packages)
        cls.addClassCleanup(cls.machines.close)
        cls.pid = cls.node = None
        cls.typed = set()

    # ---- the job ----

    def settle(self, node, pid):
        type(self).node, type(self).pid = node, pid

    def other(self):
        return "node2" if self.node == "node1" else "node1"

    def steps(self):
        """What it has printed, on either machine, in order: lines are where the job was then."""
        lines = []
        for node in NODES:
            lines += re.findall(r"^step=(\d+) value=([0-9a-f]{8})$", self.machines.run(node, "cat ~alice/serve.log"),
                                re.MULTILINE)
        return sorted((int(step), int(value, 16)) for step, value in lines)

    def assert_goes_on(self):
        """It prints more, and has neither lost nor repeated a step."""
        before = self.steps()[-1][0]
        wait_until(lambda: self.steps()[-1][0] >= before + 3)
        lines = self.steps()
        for (step, last), following in zip(lines, lines[1:]):
            self.assertEqual(following, (step + 1, (last * 1664525 + step + 1) % (1 << 32)))

    def begin_file_anew(self):
        """A checkpoint's copy prints once more what was printed after it."""
        for node in NODES:
            self.machines.run(node, "truncate -s 0 ~alice/serve.log")
        wait_until(self.steps)

    def assert_one_copy(self):
        for node in NODES:
            count = self.machines.run(node, "pgrep -xc gcr-supervisor || true")
            self.assertEqual(count, "1" if node == self.node else "0", node)

    def move(self, *options):
        words = ["gcr-migrate", *options, self.node, self.other(), self.pid]
        said = self.machines.run("node1", " ".join(words))
        self.assertEqual(value("verified", said), "yes")
        self.settle(self.other(), value("pid", said))

    def type(self, block, lines, **words):
        """What it printed on the last of the machines; words of the document stand for something."""
        words.setdefault("PID", self.pid)
        script = "\n".join(["set -e", *lines])
        for word, meaning in words.items():
            script = re.sub(rf"\b{word}\b", str(meaning), script)
        for node in block.nodes:
            printed = self.machines.run(node, script, user=block.user)
        self.typed.update(lines)
        return printed

    def follow(self, document):
        return [self.type(block, block.lines) for block in blocks(document) if not block.each]

    def type_one(self, document, beginning, **words):
        """The line that begins so."""
        found = [(block, line) for block in blocks(document) if block.each
                 for line in block.lines if line.startswith(beginning)]
        self.assertEqual(len(found), 1, (document, beginning))
        block, line = found[0]
        return self.type(block, [line], **words)

    # ---- the steps ----

    def test_10_install_md(self):
        # What the documents take for granted: a program, its output's file at the destination, a way to copy files.
        program = (ROOT / "tests/machines/serve.py").read_text()
        for node in NODES:
            self.machines.put(node, "serve.py", program, user="alice")
        self.machines.run("node2", "touch serve.log", user="alice")
        self.machines.run("node1", "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; "
                                   "printf 'StrictHostKeyChecking accept-new\\n' >~/.ssh/config")
        key = self.machines.run("node1", "cat ~/.ssh/id_ed25519.pub")
        self.machines.run("node2", "cat >>~/.ssh/authorized_keys", stdin=key + "\n")
        said = self.follow("install.md")
        self.assertTrue(any("listening on 0.0.0.0:7411" in printed for printed in said), said)
        self.settle("node1", said[-1].splitlines()[-1])
        self.assertRegex(self.pid, r"^\d+$")
        wait_until(self.steps)

    def test_20_usage_md(self):
        said = self.follow("usage.md")
        self.assertEqual(value("verified", said[0]), "yes", said)
        self.settle("node2", value("pid", said[0]))
        self.assert_one_copy()
        self.assert_goes_on()

    def test_21_and_back(self):
        self.move()
        self.assert_one_copy()
        self.assert_goes_on()

    def test_30_the_journal_tells_who_moved_what(self):
        for node in NODES:
            journal = self.machines.run(node, "journalctl -u migrate-agent -o cat", user="alice")
            self.assertEqual(len(re.findall(r'audit: .*user="alice".*outcome="migrated"', journal)), 2, journal)

    def test_31_metrics(self):
        for node in NODES:
            self.machines.run(node, "sed -i 's/^#metrics_listen = .*/metrics_listen = \"127.0.0.1:9411\"/' "
                                    "/etc/gcr-migrate/agent.toml && systemctl restart migrate-agent")
            self.assertIn('"ready":true', self.machines.run(node, "curl -sf http://127.0.0.1:9411/healthz"))
        self.assert_goes_on()  # who restarts the agent does not restart the job
        self.move()
        self.move()
        metrics = self.machines.run("node1", "curl -sf http://127.0.0.1:9411/metrics")
        moved = re.findall(r'^gcr_migrations_total\{(.*)\} (\d+)', metrics, re.MULTILINE)
        self.assertEqual(sum(int(count) for labels, count in moved if 'outcome="migrated"' in labels), 2, metrics)

    def test_40_a_user_with_another_number_is_refused(self):
        for node in NODES:
            self.machines.run(node, "cp ~alice/serve.py ~bob/ && chown bob: ~bob/serve.py")
        pid = self.machines.run("node1", "gcr-migrate run --output serve.log --detach -- python3 serve.py", user="bob")
        said = self.machines.run("node1", f"gcr-migrate preflight node1 node2 {pid}", status=3)
        self.assertIn('is "bob" at the source and "carol" here', said)
        self.assertIn("blocker file-differs at the destination", said)
        self.machines.run("node1", f"kill {pid}")

    def test_50_checkpoints(self):
        self.machines.run("node1", "install -d -o alice -g alice /checkpoints")
        said = self.type_one("usage.md", "gcr-migrate checkpoint")
        self.assertIn("checkpointed name=", said)
        self.assert_goes_on()
        self.machines.run("node1", f"kill {self.pid}; while pgrep -x gcr-supervisor; do sleep 0.2; done")
        said = self.type_one("usage.md", "gcr-migrate restore")
        self.settle("node1", value("pid", said))
        self.assert_one_copy()
        self.begin_file_anew()
        self.assert_goes_on()

    def test_51_a_checkpoint_of_one_is_restored_on_the_other(self):
        said = self.machines.run("node1", f"gcr-migrate checkpoint --stop node1 {self.pid} /checkpoints/train")
        self.assertIn("checkpointed name=", said)
        self.machines.run("node1", "scp -qpr /checkpoints node2:/ && ssh node2 chown -R alice: /checkpoints")
        said = self.machines.run("node1", "gcr-migrate restore node2 /checkpoints/train")
        self.settle("node2", value("pid", said))
        self.assert_one_copy()
        self.assert_goes_on()

    def test_52_a_drain(self):
        said = self.machines.run("node1", "gcr-drain node2 --to node1")
        self.settle("node1", self.machines.run("node1", "pgrep -x gcr-supervisor"))
        self.assert_one_copy()
        self.assert_goes_on()
        self.assertIn("node1", said)

    def test_53_off_the_gpu_and_back(self):
        self.type_one("usage.md", "gcr-migrate suspend")
        steps = self.steps()
        self.assertEqual(self.steps(), steps)
        self.type_one("usage.md", "gcr-migrate resume")
        self.assert_goes_on()
        other = self.type_one("usage.md", "gcr-migrate run --output FILE --detach", FILE="other.log",
                              COMMAND="python3 serve.py")
        wait_until(lambda: "step=3 " in self.machines.run("node1", "cat ~alice/other.log"))
        self.type_one("usage.md", "gcr-migrate suspend", PID=other)
        self.type_one("usage.md", "gcr-migrate swap", PID2=other)
        self.type_one("usage.md", "gcr-migrate swap", PID=other, PID2=self.pid)
        self.machines.run("node1", f"gcr-migrate resume node1 {other}; kill {other}")
        wait_until(lambda: self.machines.run("node1", "pgrep -xc gcr-supervisor || true") == "1")
        self.assert_goes_on()

    def test_54_a_program_that_ends(self):
        said = self.type_one("usage.md", "gcr-migrate run --output FILE -- ", FILE="said.log", COMMAND="echo done")
        self.assertRegex(said, r"^\d+$")
        self.assertEqual(self.machines.run("node1", "cat said.log", user="alice"), "done")

    def test_60_upgrades_while_a_job_is_suspended(self):
        self.machines.run("node1", f"gcr-migrate suspend node1 {self.pid}")
        for node in NODES:
            self.machines.run(node, "apt-get -q reinstall -y ./gcr-migrate*.deb")
        self.machines.run("node1", f"gcr-migrate resume node1 {self.pid}")
        self.assert_goes_on()
        self.move()
        self.assert_one_copy()
        self.assert_goes_on()

    def test_90_every_command_of_the_documents_was_typed(self):
        for document in ("install.md", "usage.md"):
            for block in blocks(document):
                self.assertLessEqual(set(block.lines), self.typed)


if __name__ == "__main__":
    unittest.main(failfast=True)
