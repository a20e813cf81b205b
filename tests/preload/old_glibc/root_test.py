#!/usr/bin/env python3
"""The preload library works in a program of an older release, with that release's glibc.

Usage: root_test.py ROOT LIBRARY DRIVER
ROOT is a root that scripts/install-deps --with-containers has made, DRIVER the library of using_driver.c. Needs root.
"""
import ctypes
import os
import pathlib
import socket
import struct
import subprocess
import sys
import unittest

DRIVER = sys.argv.pop()
LIBRARY = sys.argv.pop()
ROOT = sys.argv.pop()
# With the libraries in a tmpfs, so that the root stays as it is.
IN_ROOT = """
mount -t proc proc "$0/proc"
mount -t tmpfs tmpfs "$0/tmp"
cp "$1" "$2" "$0/tmp/"
exec chroot "$0" "${@:3}"
"""
LIMIT_S = 120
PIDFD_GETFD = 438
# preload/door_protocol.h
CARD = struct.Struct("<8sIiiI")
VERSION = 3
HELLO = struct.Struct("<6IQ512x").pack(VERSION, 1, 0, 0, 0, 77, 1234)
REPLY = struct.Struct("<2I12xI80xi3100x")


def start(*command):
    """A process in a mount namespace of its own, which becomes the command in the root."""
    return subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "bash", "-euc", IN_ROOT, ROOT, LIBRARY, DRIVER, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def preloaded(*libraries):
    paths = " ".join(f"/tmp/{os.path.basename(library)}" for library in libraries)
    return ["/usr/bin/env", "-i", f"LD_PRELOAD={paths}"]


def memfds(pid, name):
    found = pathlib.Path(f"/proc/{pid}/fd").iterdir()
    return [entry for entry in found if os.readlink(entry) == f"/memfd:{name} (deleted)"]


def agent_end(pid, descriptor):
    process = os.pidfd_open(pid)
    taken = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, descriptor, 0)
    os.close(process)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=taken)


class OldGlibc(unittest.TestCase):
    def start(self, *command):
        process = start(*command)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def run_in_root(self, *command):
        output, errors = self.start(*command).communicate(timeout=LIMIT_S)
        return output, errors

    def wait_for_main(self, process):
        """cat has begun to copy, so everything has been loaded."""
        process.stdin.write(b"x")
        process.stdin.flush()
        if process.stdout.read(1) != b"x":
            _, errors = process.communicate(timeout=LIMIT_S)
            self.fail(f"cat has ended with {process.returncode}: {errors.decode()}")

    def test_program_without_gpu_is_not_affected(self):
        command = ["/bin/ls", "-l", "/etc", "/no/such/folder"]
        self.assertEqual(self.run_in_root(*preloaded(LIBRARY), *command), self.run_in_root(*command))

    def test_program_with_cuda_has_a_door_that_answers(self):
        process = self.start(*preloaded(LIBRARY, DRIVER), "/bin/cat")
        self.wait_for_main(process)
        (card,) = memfds(process.pid, "gcr-preload")
        magic, version, descriptor, owner, _ = CARD.unpack(card.read_bytes())
        self.assertEqual((magic, version, owner), (b"GCRMARK1", VERSION, process.pid))
        with agent_end(process.pid, descriptor) as door:
            door.settimeout(LIMIT_S)
            door.send(HELLO)
            version, outcome, sequence, thread = REPLY.unpack(door.recv(REPLY.size))
        self.assertEqual((version, outcome, sequence), (VERSION, 1, 77))
        name = pathlib.Path(f"/proc/{process.pid}/task/{thread}/comm").read_text(encoding="utf-8")
        self.assertEqual(name, "gcr-door\n")
        self.assertEqual(process.communicate(timeout=LIMIT_S), (b"", b""))
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    if not os.path.exists(f"{ROOT}/bin/cat"):
        sys.exit(f"there is no {ROOT}: run scripts/install-deps --with-containers")
    unittest.main()
