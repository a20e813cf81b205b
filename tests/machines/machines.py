"""Two virtual machines (scripts/two-machines), and the commands of the documents for them."""
import os
import re
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("GCR_BUILD", ROOT / "build/release"))
SCRIPT = ROOT / "scripts/two-machines"
NODES = ("node1", "node2")
# For commands, some of which are slow on an emulated processor.
LIMIT_S = 600


class Failed(Exception):
    """A command's output, when it ended with an unexpected status."""


class Machines:
    """Both, booted; close() ends them. Commands run as root unless another user is named."""

    def __init__(self, directory, *options):
        self.directory = Path(directory)
        self.environment = {**os.environ, "GCR_MACHINES_DIR": str(directory)}
        self._script("up", *options, limit_s=1800)

    def close(self):
        self._script("down")

    def run(self, node, script, user="root", status=0, stdin=""):
        """The output of a bash script on both streams. Raises Failed for another exit status; None: all are
        accepted."""
        done = subprocess.run(self._command(node, script, user), input=stdin, env=self.environment, text=True,
                              timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if status is not None and done.returncode != status:
            raise Failed(f"{node}, {user}: {script}\nexit status {done.returncode} and not {status}\n{done.stdout}")
        return done.stdout.rstrip("\n")

    def start(self, node, script, user="root"):
        """A bash script that runs concurrently with others: its Popen, with both streams in stdout."""
        return subprocess.Popen(self._command(node, script, user), env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def cut(self, node):
        """Cuts the power."""
        self._script("cut", node)

    def boot(self, node):
        self._script("start", node, limit_s=700)

    def set_clocks(self):
        """As NTP would: the clock of an emulated machine falls behind on a loaded one."""
        for node in NODES:
            self.run(node, f"date -s @{time.time():.3f}")

    def age(self, node, hours):
        """It suspends for a moment (ACPI's S3), while its hardware clock is put forward: afterwards the kernel computes
        a boot time that much earlier."""
        asleep = self.start(node, "echo mem >/sys/power/state")
        wait_until(lambda: "suspended" in self._monitor(node, "info status"))
        later = time.gmtime(time.time() + hours * 3600)
        # With the registers of MC146818's data sheet, and decimal numbers written as hexadecimal digits.
        registers = {0: later.tm_sec, 2: later.tm_min, 4: later.tm_hour, 7: later.tm_mday, 8: later.tm_mon,
                     9: later.tm_year % 100}
        for register, number in registers.items():
            self._monitor(node, f"o /b 0x70 {register}", f"o /b 0x71 0x{number:02}")
        self._monitor(node, "system_wakeup")
        asleep.communicate(timeout=LIMIT_S)

    def put(self, node, path, text, user="root"):
        self.run(node, f"cat >{path}", user=user, stdin=text)

    def copy(self, file, node, path):
        """Copies a file of this machine there."""
        with open(file, "rb") as content:
            subprocess.run(self._command(node, f"cat >{path} && chmod 755 {path}", "root"), env=self.environment,
                           stdin=content, timeout=LIMIT_S, check=True)

    def _monitor(self, node, *commands):
        """The output of each qemu."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self.directory / f"{node}.monitor"))
            said = self._until_prompt(monitor)
            for command in commands:
                monitor.sendall(command.encode() + b"\n")
                said = self._until_prompt(monitor)
        return said

    @staticmethod
    def _until_prompt(monitor):
        said = b""
        while not said.endswith(b"(qemu) "):
            said += monitor.recv(4096) or b"(qemu) "
        return said.decode(errors="replace")

    @staticmethod
    def _command(node, script, user):
        return [SCRIPT, "run", node, "--user", user, "bash", "-c", script]

    def _script(self, *words, limit_s=LIMIT_S):
        done = subprocess.run([SCRIPT, *words], env=self.environment, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s, check=False)
        if done.returncode != 0:
            raise Failed(f"two-machines {' '.join(map(str, words))}\n{done.stdout}")


class Block:
    """A block of a document that is marked `<!-- run: NODE… [as USER][, each] -->`: nodes, user, and lines unchanged.
    "each": they do not follow each other, and a test runs them one by one."""

    def __init__(self, where, text):
        nodes, _, user = where.removesuffix(", each").partition(" as ")
        self.nodes = nodes.split()
        self.user = user or "root"
        self.each = where.endswith(", each")
        self.lines = [line[4:] for line in text.splitlines()]


def blocks(document):
    text = (ROOT / "docs" / document).read_text()
    return [Block(*found) for found in re.findall(r"<!-- run: (.*?) -->\n((?:    .*\n)+)", text)]


def wait_until(asked, limit_s=LIMIT_S):
    """The first true answer."""
    end = time.monotonic() + limit_s
    while True:
        answer = asked()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failed(f"not so after {limit_s} s")
        time.sleep(0.5)
