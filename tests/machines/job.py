"""A job on two virtual machines: where it is, that it runs on, and an operator's commands for it."""
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from machines import BUILD, NODES, ROOT, Machines, blocks, wait_until


def value(name, text):
    """Of the last NAME=value."""
    return re.findall(rf"\b{name}=(\S+)", text)[-1]


def machines_with_packages(add_cleanup, *options, others=""):
    """Two machines with this build's packages, or node2 with those in a folder `others`, until the clean-up; and the
    packages' folder."""
    folder = tempfile.TemporaryDirectory()
    add_cleanup(folder.cleanup)
    packages = Path(folder.name) / "packages"
    subprocess.run([ROOT / "scripts/package", "--build", BUILD, "--out", packages], check=True,
                   stdout=subprocess.DEVNULL)
    machines = Machines(Path(folder.name) / "machines", "--packages", f"{packages};{others or packages}", *options)
    add_cleanup(machines.close)
    return machines, packages


class JobTest(unittest.TestCase):
    """Tests build on each other, in the order of their names: `machines`, the job's place (`node`, `pid`) and the
    executed lines of documents belong to the class."""
    machines = node = pid = None

    @classmethod
    def setUpClass(cls):
        cls.typed = set()

    # ---- the job ----

    def settle(self, node, pid):
        type(self).node, type(self).pid = node, pid

    def other(self):
        return "node2" if self.node == "node1" else "node1"

    def steps(self):
        """Its output, on both machines, in order: lines are where the job was then."""
        lines = []
        for node in NODES:
            lines += re.findall(r"^step=(\d+) value=([0-9a-f]{8})$", self.machines.run(node, "cat ~alice/serve.log"),
                                re.MULTILINE)
        return sorted((int(step), int(value, 16)) for step, value in lines)

    def assert_progress(self):
        """It prints more, and has neither lost nor repeated a step."""
        before = self.steps()[-1][0]
        wait_until(lambda: self.steps()[-1][0] >= before + 3)
        lines = self.steps()
        for (step, last), following in zip(lines, lines[1:]):
            self.assertEqual(following, (step + 1, (last * 1664525 + step + 1) % (1 << 32)))

    def start_new_file(self):
        """For lines that may be repeated, as those of a checkpoint's copy, or that a disk has lost."""
        for node in NODES:
            self.machines.run(node, "truncate -s 0 ~alice/serve.log")
        wait_until(self.steps)

    def copies(self):
        """How many processes of the program each machine has."""
        count = "pgrep -fc '^(python3|/opt/job/lib/ld.*) serve.py$' || true"
        return {node: int(self.machines.run(node, count)) for node in NODES}

    def assert_one_copy(self):
        self.assertEqual(self.copies(), {self.node: 1, self.other(): 0})

    def move(self, *options):
        """To the other machine; returns the output of gcr-migrate."""
        words = ["gcr-migrate", *options, self.node, self.other(), self.pid]
        said = self.machines.run("node1", " ".join(words))
        self.assertEqual(value("verified", said), "yes")
        self.settle(self.other(), value("pid", said))
        return said

    # ---- documents ----

    def type(self, block, lines, **words):
        """Its output on the last of the machines; words of the document are placeholders."""
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
        """The line with this beginning."""
        found = [(block, line) for block in blocks(document) if block.each
                 for line in block.lines if line.startswith(beginning)]
        self.assertEqual(len(found), 1, (document, beginning))
        block, line = found[0]
        return self.type(block, [line], **words)

    def follow_install_md(self):
        """With the prerequisites of the documents: a program, its output file at the destination, a way to copy files.
        The job runs on node1 then."""
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
