#!/usr/bin/env python3
"""scripts/guest, with a program in place of qemu: how it handles a machine that does not start."""

import os
import pathlib
import subprocess
import tempfile
import time
import unittest

GUEST = pathlib.Path(__file__).resolve().parents[2] / "scripts/guest"

# Finds the file of the status and that of its own number in its arguments, as qemu does. Each start uses the next line
# of the plan.
MACHINE = """#!/bin/bash
here=${0%/*}
for argument; do
  [[ $argument != file,id=status,path=* ]] || status=${argument#file,id=status,path=}
  [[ $argument != */pid ]] || echo $$ >"$argument"
done
echo >>"$here/starts"
what=$(sed -n "$(wc -l <"$here/starts")p" "$here/plan")
[[ $what != stuck ]] || exec sleep 1000
echo begun >"$status"
[[ $what != endless ]] || exec sleep 1000
echo "output of the command"
echo "$what" >"$status.new" && cat "$status.new" >>"$status"
"""


class Guest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "qemu-system-x86_64").write_text(MACHINE)
        (self.folder / "qemu-system-x86_64").chmod(0o755)
        (self.folder / "deps/guest/modules").mkdir(parents=True)
        (self.folder / "deps/guest/modules/order").touch()

    def run_guest(self, plan, *options):
        (self.folder / "plan").write_text("".join(line + "\n" for line in plan))
        began = time.monotonic()
        done = subprocess.run(
            [GUEST, *options, "--", "true"], capture_output=True, text=True, timeout=120,
            env=os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}", "GCR_DEPS_DIR": str(self.folder / "deps")})
        return done, time.monotonic() - began, len((self.folder / "starts").read_text())

    def test_exit_status_is_that_of_the_command(self):
        done, _, starts = self.run_guest(["7"])
        self.assertEqual((done.returncode, done.stdout, starts), (7, "output of the command\n", 1))

    def test_unstarted_machine_is_replaced(self):
        # More than three where one takes 2 s to begin.
        done, _, starts = self.run_guest(["stuck", "stuck", *["0"] * 20], "--start", "2")
        self.assertEqual((done.returncode, done.stdout), (0, "output of the command\n"), done.stderr)
        self.assertGreaterEqual(starts, 3)
        self.assertEqual(done.stderr.count("had not started the command after 2 s"), starts - 1)

    def test_timeout_covers_all_machines(self):
        done, seconds, starts = self.run_guest(["stuck"] * 50, "--start", "2", "--timeout", "5")
        self.assertEqual(done.returncode, 124, done.stderr)
        self.assertGreaterEqual(starts, 2)
        self.assertGreaterEqual(seconds, 4)

    def test_started_command_has_all_the_time(self):
        done, seconds, starts = self.run_guest(["endless"], "--start", "15", "--timeout", "18")
        self.assertEqual((done.returncode, starts), (124, 1), done.stderr)
        self.assertGreaterEqual(seconds, 17)


if __name__ == "__main__":
    unittest.main(verbosity=2)
