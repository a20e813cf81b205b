"""docs/install.md and the first page of docs/usage.md, followed to the letter on two virtual machines; then an
operator's commands for a job there. The steps build on each other, in the order of their names."""
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from job import JobTest, machines_with_packages, value
from machines import LIMIT_S, NODES, blocks, wait_until


def next_release(packages, folder):
    """An archive of these packages with the version of another release."""
    for package in packages.glob("*.deb"):
        tree = folder / package.stem
        subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
        control = tree / "DEBIAN/control"
        control.write_text(control.read_text().replace("-1~", "-2~"))
        (tree / "DEBIAN/md5sums").unlink()
        for file in tree.rglob("*"):
            if file.is_file() and not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF":
                subprocess.run(["objcopy", "--add-section", f".release={control}", file], check=True)
        name = package.name.replace("-1~", "-2~")
        subprocess.run(["dpkg-deb", "-Znone", "-b", tree, folder / name], check=True, stdout=subprocess.DEVNULL)
    subprocess.run("tar -cf next.tar *.deb", shell=True, check=True, cwd=folder)
    return folder / "next.tar"


class TwoMachines(JobTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machines, cls.packages = machines_with_packages(cls.addClassCleanup)

    def test_10_install_md(self):
        self.follow_install_md()

    def test_20_usage_md(self):
        said = self.follow("usage.md")
        self.assertEqual(value("verified", said[0]), "yes", said)
        self.settle("node2", value("pid", said[0]))
        self.assert_one_copy()
        self.assert_progress()

    def test_21_and_back(self):
        self.move()
        self.assert_one_copy()
        self.assert_progress()

    def test_30_journal_names_user_and_process(self):
        for node in NODES:
            journal = self.machines.run(node, "journalctl -u migrate-agent -o cat", user="alice")
            self.assertEqual(len(re.findall(r'audit: .*user="alice".*outcome="migrated"', journal)), 2, journal)

    def test_31_metrics(self):
        for node in NODES:
            self.machines.run(node, "sed -i 's/^#metrics_listen = .*/metrics_listen = \"127.0.0.1:9411\"/' "
                                    "/etc/gcr-migrate/agent.toml && systemctl restart migrate-agent")
            self.assertIn('"ready":true', self.machines.run(node, "curl -sf http://127.0.0.1:9411/healthz"))
        self.assert_progress()  # restarting the agent does not restart the job
        self.move()
        self.move()
        metrics = self.machines.run("node1", "curl -sf http://127.0.0.1:9411/metrics")
        moved = re.findall(r'^gcr_migrations_total\{(.*)\} (\d+)', metrics, re.MULTILINE)
        self.assertEqual(sum(int(count) for labels, count in moved if 'outcome="migrated"' in labels), 2, metrics)

    def test_40_user_with_another_id_is_refused(self):
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
        self.assert_progress()
        self.machines.run("node1", f"kill {self.pid}; while pgrep -x gcr-supervisor; do sleep 0.2; done")
        said = self.type_one("usage.md", "gcr-migrate restore")
        self.settle("node1", value("pid", said))
        self.assert_one_copy()
        self.start_new_file()
        self.assert_progress()

    def test_51_checkpoint_is_restored_on_the_other_machine(self):
        said = self.machines.run("node1", f"gcr-migrate checkpoint --stop node1 {self.pid} /checkpoints/train")
        self.assertIn("checkpointed name=", said)
        self.machines.run("node1", "scp -qpr /checkpoints node2:/ && ssh node2 chown -R alice: /checkpoints")
        said = self.machines.run("node1", "gcr-migrate restore node2 /checkpoints/train")
        self.settle("node2", value("pid", said))
        self.assert_one_copy()
        self.assert_progress()

    def test_52_drain(self):
        said = self.machines.run("node1", "gcr-drain node2 --to node1")
        self.settle("node1", self.machines.run("node1", "pgrep -x gcr-supervisor"))
        self.assert_one_copy()
        self.assert_progress()
        self.assertIn("node1", said)

    def test_53_suspend_and_resume(self):
        self.type_one("usage.md", "gcr-migrate suspend")
        steps = self.steps()
        self.assertEqual(self.steps(), steps)
        self.type_one("usage.md", "gcr-migrate resume")
        self.assert_progress()
        other = self.type_one("usage.md", "gcr-migrate run --output FILE --detach", FILE="other.log",
                              COMMAND="python3 serve.py")
        wait_until(lambda: "step=3 " in self.machines.run("node1", "cat ~alice/other.log"))
        self.type_one("usage.md", "gcr-migrate suspend", PID=other)
        self.type_one("usage.md", "gcr-migrate swap", PID2=other)
        self.type_one("usage.md", "gcr-migrate swap", PID=other, PID2=self.pid)
        self.machines.run("node1", f"gcr-migrate resume node1 {other}; kill {other}")
        wait_until(lambda: self.machines.run("node1", "pgrep -xc gcr-supervisor || true") == "1")
        self.assert_progress()

    def test_54_ending_program(self):
        said = self.type_one("usage.md", "gcr-migrate run --output FILE -- ", FILE="said.log", COMMAND="echo done")
        self.assertRegex(said, r"^\d+$")
        self.assertEqual(self.machines.run("node1", "cat said.log", user="alice"), "done")

    def test_60_upgrade_with_a_suspended_and_a_paused_job(self):
        """Another one, whose migration pauses before its switchover."""
        other = self.machines.run("node1", "gcr-migrate run --output other.log --detach -- python3 serve.py", user="alice")
        self.machines.run("node2", "touch ~alice/other.log && chown alice: ~alice/other.log")
        waiting = self.machines.start("node1", f"gcr-migrate --pause-before-switchover node1 node2 {other}")
        number = wait_until(lambda: re.findall(r"^([0-9a-f-]{36})\b.*paused", self.machines.run(
            "node1", "gcr-migrate list node1"), re.MULTILINE))[0]
        self.machines.run("node1", f"gcr-migrate suspend node1 {self.pid}")
        self.upgrade()
        self.machines.run("node1", f"gcr-migrate resume node1 {self.pid}")
        self.assert_progress()
        self.machines.run("node1", f"gcr-migrate continue node1 {number}")
        said = waiting.communicate(timeout=LIMIT_S)[0]
        self.assertEqual((waiting.returncode, value("verified", said)), (0, "yes"), said)
        self.machines.run("node2", f"tail -n 1 ~alice/other.log | grep step= && kill {value('pid', said)}")
        self.move()
        wait_until(lambda: self.copies() == {"node1": 0, "node2": 1})
        self.assert_progress()

    def upgrade(self):
        """To the next release: the same programs, with other bytes in their files."""
        with tempfile.TemporaryDirectory() as folder:
            archive = next_release(self.packages, Path(folder))
            for node in NODES:
                self.machines.copy(archive, node, "/root/next.tar")
                self.machines.run(node, "rm -f *.deb && tar -xf next.tar && apt-get -qq install -y ./*.deb")
                self.assertIn("-2~", self.machines.run(node, "dpkg-query -f '${Version}' -W gcr-migrate"))

    def test_90_every_documented_command_was_run(self):
        for document in ("install.md", "usage.md"):
            for block in blocks(document):
                self.assertLessEqual(set(block.lines), self.typed)


if __name__ == "__main__":
    unittest.main(failfast=True)
