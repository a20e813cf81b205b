#!/usr/bin/env python3
"""scripts/hosts unmounts all that it mounted, despite concurrent mounts and unmounts.

Usage: hosts_test.py SOURCE_DIRECTORY, as root
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop()).resolve()
ROUNDS = 20
# The table has the mounts of others before those of the host.
OTHERS = """
mkdir -p others/{1..30}
while [[ ! -e stop ]]; do
  for each in others/*; do mount -t tmpfs others "$each"; done
  umount others/*
done
"""


class Down(unittest.TestCase):
    def test_nothing_stays_mounted_while_others_mount_and_unmount(self):
        with tempfile.TemporaryDirectory(prefix="gcr-hosts-test-") as folder:
            with subprocess.Popen(["bash", "-c", OTHERS], cwd=folder, stderr=subprocess.DEVNULL) as others:
                try:
                    for _ in range(ROUNDS):
                        self.take_down(pathlib.Path(folder, "hosts"))
                finally:
                    pathlib.Path(folder, "stop").touch()  # killed, it would leave a mount that goes on
            subprocess.run("umount others/*", shell=True, cwd=folder, stderr=subprocess.DEVNULL, check=False)

    def take_down(self, folder):
        for name in ("a/run", "b/run"):
            (folder / name).mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "host", folder / name], check=True)
        down = subprocess.run([SOURCE / "scripts/hosts", "down", folder], capture_output=True, text=True, check=False)
        self.assertEqual((down.returncode, down.stderr), (0, ""))
        self.assertFalse(folder.exists())


if __name__ == "__main__":
    if os.environ.get("GCR_IN_MOUNTS") is None:  # this machine's own mounts are left alone
        os.environ["GCR_IN_MOUNTS"] = "yes"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, __file__, SOURCE])
    unittest.main()
