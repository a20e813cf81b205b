#!/usr/bin/env python3
"""When scripts/lib/common.sh considers a process dead.

Usage: processes_test.py SOURCE_DIRECTORY
"""

import pathlib
import subprocess
import sys
import time
import unittest

SOURCE = sys.argv.pop()
# Listens, and runs on without its first thread.
HALF_DEAD = """
import ctypes, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall(60, 0)  # exit, of one thread
"""


def is_alive(pid):
    command = f"source '{SOURCE}/scripts/lib/common.sh' && is_alive {pid}"
    return subprocess.run(["bash", "-c", command], check=False).returncode == 0


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]


def wait_for_state(pid, state):
    end = time.monotonic() + 60
    while state_of(pid) != state:
        assert time.monotonic() < end, f"process {pid} is {state_of(pid)}"
        time.sleep(0.01)


class Processes(unittest.TestCase):
    def start(self, *command):
        process = subprocess.Popen(command)  # pylint: disable=consider-using-with  # end() does
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        process.kill()
        process.wait()

    def test_zombie_is_not_alive(self):
        process = self.start("sleep", "1000")
        self.assertTrue(is_alive(process.pid))
        process.kill()
        wait_for_state(process.pid, "Z")
        self.assertFalse(is_alive(process.pid))
        process.wait()
        self.assertFalse(is_alive(process.pid))

    def test_process_lives_until_its_last_thread_ends(self):
        process = self.start(sys.executable, "-c", HALF_DEAD)
        wait_for_state(process.pid, "Z")
        self.assertTrue(is_alive(process.pid), "it listens")
        self.end(process)
        self.assertFalse(is_alive(process.pid))


unittest.main()
