#!/usr/bin/env python3
"""Programs that runc runs through gcr-runtime behave as without it, and can move.

Usage: runtime_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import os
import pathlib
import pty
import signal
import subprocess
import sys
import tty
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from containers import BUILD, JOB, RUNC, RUNTIME, Case, Lines, children_of, inner_pid, name_of, send_order, wait_until  # noqa: E402  # pylint: disable=wrong-import-position

LIBRARY = "/dev/.gcr/libgcr-preload.so"


def parent_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("PPid:")).split()[1])


def tree(root):
    """The processes below one, by name."""
    return sorted((name_of(child), tree(child)) for child in children_of(root))


class Programs(Case):
    def test_exit_status_is_the_programs(self):
        for status in ("0", "3", "255"):
            self.assertEqual(self.container("exit", status).run().returncode, int(status))

    def assert_starts_as_without_runtime(self, change):
        outputs = {}
        for runtime in (RUNC, RUNTIME):
            container = self.container("facts")
            change(container)
            done = container.run(runtime=runtime)
            self.assertEqual(done.returncode, 0, done.stderr)
            outputs[runtime] = done.stdout.splitlines()
        self.assertIn("leads its session: 1, its group: 1", outputs[RUNC])
        self.assertEqual(outputs[RUNTIME], outputs[RUNC])

    def test_program_starts_with_the_same_ids_signals_and_descriptors(self):
        self.assert_starts_as_without_runtime(lambda container: None)

    def test_program_of_another_user_starts_with_the_same_capabilities(self):
        def change(container):
            container.process.update(user={"uid": 1000, "gid": 1000, "additionalGids": [7]}, cwd="/tmp")
            container.process["noNewPrivileges"] = False

        self.assert_starts_as_without_runtime(change)

    def test_ignored_and_blocked_signals_stay_so(self):
        """Without runc, which resets some of them."""

        def change():
            for number in (signal.SIGUSR2, signal.SIGCHLD):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR1])

        lines = []
        for program in ([JOB], [BUILD / "bin/gcr-init", "run", JOB]):
            done = subprocess.run([*program, "facts"], capture_output=True, text=True, check=True, preexec_fn=change)
            lines.append([line for line in done.stdout.splitlines() if line.startswith("Sig")])
        self.assertIn(f"SigBlk:\t{1 << (signal.SIGUSR1 - 1):016x}", lines[0])
        self.assertEqual(lines[1], lines[0])

    def test_signals_reach_the_program(self):
        container = self.container("signals").start()
        self.assertEqual(container.lines.next(), "ready")
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT):
            container.signal(number)
            self.assertEqual(container.lines.next(), f"signal {int(number)}")
        self.assertEqual(container.end(), 7)

    def test_value_of_a_signal_reaches_the_program(self):
        container = self.container("signals").start()
        self.assertEqual(container.lines.next(), "ready")
        send_order(container.pid, 5, signal.SIGRTMIN + 3)
        self.assertEqual(container.lines.next(), f"signal {signal.SIGRTMIN + 3} with 5")

    def test_deadly_signal_gives_128_plus_its_number(self):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGABRT):
            container = self.container("wait").start()
            self.assertEqual(container.lines.next(), "ready")
            container.signal(number)
            self.assertEqual(container.status(), 128 + number)

    def test_kill_ends_the_container_at_once(self):
        container = self.container("signals").start()
        self.assertEqual(container.lines.next(), "ready")
        container.signal(signal.SIGKILL)
        self.assertEqual(container.status(), 137)

    def test_missing_program_gives_127(self):
        container = self.container()
        container.process["args"] = ["absent", "word"]
        done = container.run()
        self.assertEqual((done.returncode, done.stderr),
                         (127, "gcr-init: cannot start absent: No such file or directory\n"))  # fmt: skip

    def test_file_that_is_not_executable_gives_126(self):
        container = self.container()
        container.process["args"] = ["/etc/data"]
        done = container.run()
        self.assertEqual((done.returncode, done.stderr), (126, "gcr-init: cannot start /etc/data: Permission denied\n"))

    def test_orphans_are_adopted_and_reaped_by_the_supervisor(self):
        done = self.container("orphan").run()
        self.assertEqual((done.returncode, done.stdout), (0, "Name:\tgcr-supervisor\nreaped\n"))

    def test_daemon_stays_in_the_tree_of_the_supervisor(self):
        container = self.container("daemon").start()
        self.assertEqual([container.lines.next(), container.lines.next()], ["ready", "ready"])
        self.assertEqual(name_of(container.pid), "gcr-init")
        self.assertEqual(tree(container.pid), [("gcr-supervisor", [("job", []), ("job", [])])])

    def test_orphan_of_an_exec_session_is_reaped(self):
        container = self.container("signals").start()
        os.mkfifo(container.root / "tmp/fifo")
        orphan = int(container.execute("job", "root", "/tmp/fifo"))
        outside = next(child for child in children_of(container.pid) if inner_pid(child) == orphan)
        (container.root / "tmp/fifo").write_text("3", encoding="ascii")
        wait_until(lambda: outside not in children_of(container.pid), "it is not reaped")
        self.assertEqual(container.end(), 7)

    def test_signal_to_all_processes_is_not_returned_to_its_sender(self):
        container = self.container("kill-all").start()
        self.assertEqual(container.lines.next(), "signalled 1")
        self.assertEqual(container.lines.next(), "ready")
        container.signal(signal.SIGTERM)
        # The supervisor has taken the first signal before the second one.
        self.assertEqual(container.lines.next(), f"signal {int(signal.SIGTERM)}")
        self.assertEqual(container.status(), 7)

    def test_init_and_supervisor_have_only_the_standard_streams(self):
        container = self.container("wait").start()
        self.assertEqual(container.lines.next(), "ready")
        for pid in (container.pid, *children_of(container.pid)):
            wait_until(lambda pid=pid: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"],
                       f"of {pid}: {os.listdir(f'/proc/{pid}/fd')}")  # fmt: skip


class Terminals(Case):
    def start(self, *words):
        container = self.container(*words)
        container.process["terminal"] = True
        container.save()
        controller, terminal = pty.openpty()
        tty.setraw(terminal)  # runc does it too, but after it has begun to copy
        self.addCleanup(os.close, controller)
        process = subprocess.Popen(container.command("run"), stdin=terminal, stdout=terminal, stderr=terminal,
                                   env=self.environment)  # fmt: skip
        os.close(terminal)
        self.addCleanup(process.wait)
        self.addCleanup(container.delete)  # first
        return process, Lines(controller)

    def test_program_has_the_terminal_in_the_foreground(self):
        _, lines = self.start("facts")
        found = ""
        while not found.startswith("terminal"):
            found = lines.next().strip()
        self.assertEqual(found, "terminal: 1, in the foreground: 1")

    def test_interrupt_from_the_terminal_reaches_the_program(self):
        process, lines = self.start("signals")
        self.assertEqual(lines.next().strip(), "ready")
        os.write(lines.end, b"\x03")
        self.assertEqual(lines.next().strip(), f"^Csignal {int(signal.SIGINT)}")
        process.send_signal(signal.SIGTERM)  # runc passes it on
        self.assertEqual(lines.next().strip(), f"signal {int(signal.SIGTERM)}")
        self.assertEqual(process.wait(), 7)


class Library(Case):
    def value(self, *environment):
        container = self.container("variable", "LD_PRELOAD")
        container.process["env"] += environment
        done = container.run()
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_library_is_loaded(self):
        container = self.container("read", "/proc/self/maps")
        done = container.run()
        self.assertIn(LIBRARY, done.stdout, done.stderr)
        self.assertEqual(done.stderr, "")

    def test_library_is_first_in_an_existing_list(self):
        self.assertEqual(self.value(), LIBRARY)
        self.assertEqual(self.value("LD_PRELOAD=/lib64/ld-linux-x86-64.so.2"), f"{LIBRARY}:/lib64/ld-linux-x86-64.so.2")
        self.assertEqual(self.value(f"LD_PRELOAD={LIBRARY}"), LIBRARY)

    def test_mounts_are_read_only_and_leave_nothing_in_the_image(self):
        container = self.container("read", "/proc/self/mountinfo")
        before = sorted(container.root.rglob("*"))
        done = container.run()
        mounts = [line.split() for line in done.stdout.splitlines() if "/dev/.gcr/" in line]
        self.assertEqual([mount[4] for mount in mounts], ["/dev/.gcr/init", LIBRARY])
        for mount in mounts:
            self.assertLessEqual({"ro", "nosuid", "nodev"}, set(mount[5].split(",")))
        self.assertEqual(sorted(container.root.rglob("*")), before)


class Seccomp(Case):
    # What docker's and podman's profiles do with the call.
    BY_DEFAULT = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["vmsplice"], "action": "SCMP_ACT_ALLOW"}]}
    BY_RULE = {"defaultAction": "SCMP_ACT_LOG",
               "syscalls": [{"names": ["userfaultfd", "vmsplice"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}  # fmt: skip
    IN_DEFAULT_ALLOW = {**BY_RULE, "defaultAction": "SCMP_ACT_ALLOW"}

    def answer(self, profile):
        container = self.container("userfaultfd")
        container.spec["linux"]["seccomp"] = profile
        done = container.run()
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_userfaultfd_is_allowed(self):
        for profile in (self.BY_RULE, self.IN_DEFAULT_ALLOW):
            self.assertEqual(self.answer(profile), "allowed")

    def test_userfaultfd_stays_refused_if_configured(self):
        self.configure(allow_userfaultfd=False)
        for profile in (self.BY_RULE, self.IN_DEFAULT_ALLOW):
            self.assertEqual(self.answer(profile), "Operation not permitted")


if __name__ == "__main__":
    unittest.main()
