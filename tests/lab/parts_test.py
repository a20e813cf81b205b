#!/usr/bin/env python3
"""Parts: which there are and which are chosen; what is said of those that fail, hang or cannot run here."""

import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import fakes

# pylint: disable=wrong-import-position
from gcr_lab import base, bench, e2e, registry  # noqa: E402
from gcr_lab.registry import Lab, Parts, run_apart  # noqa: E402

E2E = """counter stencil semantics small suspend storm pool pool-large pinned pinned-large pool-storm pool-torch pool-cupy
without-library torch resnet forked spawned compiled one-process generate trainer accelerate server two-gpus members gates
nccl-cost ten compare bench ring-vram ring-host ring-ipc ring-graph ring-tcp ddp-cumem ddp-ipc ddp-shm ddp-shm-files
container container-by-hand container-resnet container-generate container-huggingface container-gpus container-ddp
ddp-sockets ddp-graphs spawn-offload spawn-symmetric spawn-graphs spawn-queue lightning profiler checkpoint-stencil
checkpoint-train checkpoint-generate checkpoint-resnet slurm-ring slurm-torch campaign""".split()
BENCH = "downtime size floor dirty cost state steady digests checkpoint incremental transport".split()
NOT_ON_HIP = """suspend semantics pool-cupy without-library compare bench slurm-ring slurm-torch ring-host ddp-cumem container
container-by-hand container-resnet container-generate container-huggingface container-gpus container-ddp""".split()


class Registered(unittest.TestCase):
    def test_all_parts_that_documents_name_are_there(self):
        self.assertEqual(sorted(e2e.PARTS), sorted(E2E))
        self.assertEqual(list(bench.PARTS), BENCH)
        self.assertEqual(sorted(name for name, part in e2e.PARTS.items() if part.not_on_hip), sorted(NOT_ON_HIP))

    def test_each_part_is_described_in_the_help_and_bounded(self):
        for name, part in [*e2e.PARTS.items(), *bench.PARTS.items()]:
            with self.subTest(name):
                self.assertTrue(0 < part.limit <= 3600)
                self.assertRegex(Parts({name: part}).descriptions(), rf"^  {name} +\S+")

    def test_limits_of_benchmarks_are_those_that_their_measurements_need(self):
        limits = {name: part.limit for name, part in bench.PARTS.items()}
        self.assertEqual(limits, dict(zip(BENCH, (560, 400, 240, 400, 400, 2400, 300, 200, 2400, 900, 1200))))


class Chosen(unittest.TestCase):
    def test_without_words_all_are(self):
        self.assertEqual(e2e.PARTS.select([]), list(e2e.PARTS))

    def test_a_part_is_itself_and_the_beginning_of_several_is_all_of_these(self):
        self.assertEqual(e2e.PARTS.select(["ten", "pool"]), ["ten", "pool"])
        self.assertEqual(e2e.PARTS.select(["checkpoint"]), [f"checkpoint-{name}" for name in
                                                            ("stencil", "train", "generate", "resnet")])
        self.assertEqual(e2e.PARTS.select(["slurm"]), ["slurm-ring", "slurm-torch"])

    def test_what_is_no_part_is_named(self):
        with self.assertRaisesRegex(base.Failure, r"^no part tenn \(see --help\)$"):
            e2e.PARTS.select(["ten", "tenn"])


class Executed(unittest.TestCase):
    """A part in this process: its last line."""

    def last_line(self, gpu="real", **options):
        parts = Parts()
        def done(lab):
            """says so"""
            return "done"

        parts.part("one", **options)(done)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            parts["one"].execute(Lab("one", gpu, pathlib.Path(), 0))
        return said.getvalue()

    def test_its_result_is_printed(self):
        self.assertEqual(self.last_line(), "done\n")

    def test_what_is_missing_is_said_the_first_of_several(self):
        self.assertEqual(self.last_line(needs=(lambda lab: "", lambda lab: "no GPU here", lambda lab: "no CPU")),
                         "no GPU here: not run\n")

    def test_on_an_amd_gpu_needs_are_not_asked_for(self):
        def fails(lab):
            raise AssertionError

        for gpu in ("hip", "soft-hip"):
            self.assertEqual(self.last_line(gpu, needs=(fails,), not_on_hip="no way"), "no way: not run\n")
        self.assertEqual(self.last_line("soft", not_on_hip="no way"), "done\n")

    def test_a_part_may_find_out_later_that_it_cannot_run(self):
        parts = Parts()

        def late(lab, command):
            raise base.NotRun(f"no {command}")

        parts.command("late-a", late, "a", "x {mib} {gib}")
        parts.command("late-b", late, "b", "y", not_on_hip="no b")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            for name in parts:
                parts[name].execute(Lab(name, "hip", pathlib.Path(), 2 << 30))
        self.assertEqual(said.getvalue(), "no x 2048 2: not run\nno b: not run\n")


class Apart(unittest.TestCase):
    """A part in a process of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        self.log = self.out / "part.log"

    def run_shell(self, text, limit=30):
        return run_apart(["sh", "-c", text], limit, self.log)

    def test_its_last_line_is_the_result_and_the_log_has_all(self):
        outcome = self.run_shell(f"echo begun; echo of hosts >>{self.log}; echo 'error text' >&2; echo done; echo")
        self.assertEqual((outcome.verdict, outcome.result, outcome.status), ("ok", "done", 0))
        self.assertEqual(self.log.read_text(), "begun\nerror text\ndone\n\nof hosts\n")
        self.assertEqual([path.name for path in self.out.iterdir()], ["part.log"])

    def test_a_log_of_an_earlier_run_is_gone(self):
        self.log.write_text("earlier", encoding="ascii")
        self.run_shell("echo now")
        self.assertEqual(self.log.read_text(), "now\n")

    def test_one_that_cannot_run_here_has_not_failed(self):
        outcome = self.run_shell("echo no PyTorch: not run")
        self.assertEqual((outcome.verdict, outcome.status), ("-", 0))

    def test_one_that_fails_has_failed_also_if_it_says_not_run(self):
        outcome = self.run_shell("echo it was not run; exit 3")
        self.assertEqual((outcome.status, outcome.verdict), (3, "FAILED"))
        self.assertEqual(self.run_shell("exit 1").result, "")

    def test_one_that_hangs_is_ended_with_all_that_it_started(self):
        outcome = self.run_shell("sleep 1000 & echo $!; trap 'echo cleaned up; exit 1' TERM; wait", limit=0.5)
        self.assertEqual((outcome.verdict, outcome.status, outcome.result), ("TIMEOUT", 124, "cleaned up"))
        self.assertTrue(base.wait_until(10, lambda: not base.is_alive(int(outcome.text.split()[0]))))

    def test_one_that_does_not_listen_is_killed(self):
        with mock.patch.object(registry, "KILL_AFTER_S", 0.2):
            outcome = self.run_shell("trap '' TERM; echo $$; while :; do sleep 0.1; done", limit=0.5)
        self.assertEqual(outcome.verdict, "TIMEOUT")
        self.assertFalse(base.is_alive(int(outcome.text)))

    def test_it_ends_with_the_process_that_waits_for_it(self):
        program = self.out / "waiting"
        program.write_text(f"""
import pathlib, sys
sys.path.insert(0, {str(fakes.SOURCE / "python")!r})
from gcr_lab import base, registry
path = pathlib.Path({str(self.log)!r})
base.command(lambda words: registry.run_apart(["sh", "-c", "echo $$ >{self.out}/pid; exec sleep 1000"], 100, path))
""", encoding="utf-8")
        waiting = subprocess.Popen([sys.executable, program])
        pid = self.out / "pid"
        self.assertTrue(base.wait_until(20, lambda: pid.exists() and pid.read_text()))
        waiting.send_signal(signal.SIGTERM)
        self.assertEqual(waiting.wait(20), 1)
        self.assertFalse(base.is_alive(int(pid.read_text())))


class AllParts(unittest.TestCase):
    """The table and the exit status of scripts/e2e-real, and scripts/bench's, over parts that are shell commands."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        self.program = self.out / "program"
        for patch in (mock.patch.object(sys, "argv", [str(self.program)]), mock.patch.object(sys, "executable", "/bin/sh")):
            patch.start()
            self.addCleanup(patch.stop)

    def run_e2e(self, text, *names):
        self.program.write_text(f'shift 3; part=$1\n{text}\n', encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as progress:
            status = e2e.run_parts(names, "soft", self.out)
        return status, said.getvalue(), progress.getvalue()

    def test_the_table_has_a_row_for_each_and_one_that_fails_does_not_stop_the_others(self):
        (self.out / "storm.log").write_text("of an earlier run", encoding="ascii")
        status, said, progress = self.run_e2e(
            'case $part in counter) echo fine ;; torch) echo no PyTorch: not run ;; *) echo it broke >&2; exit 1 ;; esac',
            "counter", "stencil", "torch")
        table = ("counter             ok       fine\n"
                 "stencil             FAILED   it broke\n"
                 "torch               -        no PyTorch: not run\n")
        self.assertEqual((status, said), (1, table))
        self.assertEqual((self.out / "summary.txt").read_text(), table)
        self.assertEqual(progress, "program: counter: ok\nprogram: stencil: FAILED\nprogram: torch: -\n")
        self.assertFalse((self.out / "storm.log").exists())

    def test_without_failures_the_status_is_0(self):
        self.assertEqual(self.run_e2e("echo no PyTorch: not run", "torch")[0], 0)

    def test_limit_ends_a_part_that_hangs(self):
        with mock.patch.dict(os.environ, {"LIMIT": "1"}):
            begun = time.monotonic()
            status, said, _ = self.run_e2e("echo begun; exec sleep 1000", "ten")
        self.assertEqual((status, said), (1, "ten                 TIMEOUT  begun\n"))
        self.assertLess(time.monotonic() - begun, 60)

    def test_of_a_comparison_and_a_suspend_more_is_shown(self):
        _, said, _ = self.run_e2e("""case $part in
            compare) printf 'x\\nby hand, step by step:\\n  dump 5 ms\\nby hand / gcr-migrate: 3 times\\nlast\\n' ;;
            suspend) printf 'preflight: a\\n    578.7    0.5  process  close gate\\n2 GiB; fine\\n'
              printf -- '--- suspend.out\\n    578.7    0.5  process  close gate\\n' >>%s/suspend.log ;; esac""" % self.out,
            "compare", "suspend")
        self.assertEqual(said.splitlines()[:4], ["by hand, step by step:", "  dump 5 ms", "by hand / gcr-migrate: 3 times",
                                                 "    578.7    0.5  process  close gate"])
        self.assertEqual(len(said.splitlines()), 6)

    def run_bench(self, text, *words):
        self.program.write_text(text + "\n", encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as progress:
            status = bench.run_parts(["size", "steady"], words, self.out)
        return status, said.getvalue(), progress.getvalue()

    def test_benchmarks_leave_figures_and_tables_also_if_one_fails(self):
        line = '{"part": "size", "asked_bytes": 1048576, "downtime_ms": 5, "total_ms": 9}'
        status, said, progress = self.run_bench(f"""echo "$*" >>{self.out}/words
            case $* in *size) echo '{line}' >>{self.out}/bench.jsonl ;; *) echo 'x was NOT RUN'; echo broken; exit 3 ;; esac""",
            "--runs", "1")
        self.assertEqual(status, 1)
        self.assertIn("1 MiB     1            5         9                1\n", said)
        self.assertEqual((self.out / "tables.txt").read_text(), said)
        self.assertIn("program: steady FAILED (status 3): broken\nx was NOT RUN\n", progress)
        self.assertEqual((self.out / "words").read_text().splitlines()[0], f"--runs 1 --out {self.out} --part size")
        self.assertEqual(self.run_bench("true")[0], 0)


class Processes(unittest.TestCase):
    def test_what_has_ended_is_dead_and_has_no_descendants(self):
        process = subprocess.Popen(["true"])
        self.assertTrue(base.wait_until(10, lambda: not base.is_alive(process.pid)))  # a zombie
        self.assertEqual(base.descendants(process.pid), [])
        process.wait()
        self.assertFalse(base.is_alive(process.pid))
        self.assertEqual(base.descendants(process.pid), [])
        base.end_process(process.pid)

    def test_one_that_ignores_sigterm_is_killed(self):
        process = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=subprocess.PIPE)
        process.stdout.readline()
        base.end_process(process.pid, patience=0.2)
        self.assertEqual(process.wait(), -signal.SIGKILL)
        process.stdout.close()

    def test_a_program_that_fails_is_told_by_its_last_line(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaisesRegex(base.Failure, "^sh: no room$"):
            base.run("sh", "-c", "echo begun; echo why >&2; echo no room >&2; exit 2")
        self.assertEqual(said.getvalue(), "begun\nwhy\nno room\n\n")


class Usage(unittest.TestCase):
    """What is wrong is the last line, and the status is 1."""

    def fail(self, script, *words):
        done = subprocess.run([sys.executable, fakes.SOURCE / "scripts" / script, *words], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        return done.stderr

    def test_unknown_options_and_bad_values_are_named(self):
        self.assertRegex(self.fail("bench", "--vrum", "1G"), r"^bench: .*--vrum.* \(see --help\)\n$")
        self.assertRegex(self.fail("bench", "--vram", "1G,x"), "not a size: x")
        self.assertRegex(self.fail("bench", "--runs", "100"), "it is 1 to 99, not 100")
        self.assertRegex(self.fail("bench", "--dir", "/no/such"), "/no/such is no folder")
        self.assertRegex(self.fail("bench", "table"), "which folder")
        self.assertRegex(self.fail("e2e-real", "--gpu"), "^e2e-real: .*--gpu.*expected one argument")
        self.assertRegex(self.fail("compare-by-hand", "--streams", "33"), "it is 1 to 32, not 33")
        self.assertRegex(self.fail("compare-checkpoints", "--program", "torch"), "invalid choice: 'torch'")
        self.assertRegex(self.fail("bench-launch", "--gpu", "hip"), "invalid choice: 'hip'")

    def test_help_needs_no_root_and_names_each_part(self):
        for script, parts in (("e2e-real", E2E), ("bench", BENCH), ("bench-launch", []), ("compare-by-hand", [])):
            done = subprocess.run([sys.executable, fakes.SOURCE / "scripts" / script, "--help"], capture_output=True, text=True,
                                  check=True)
            for part in parts:
                self.assertRegex(done.stdout, rf"(?m)^  {part} ")

    def test_parts_and_options_of_bench_go_in_any_order(self):
        options = bench.parse(["size", "--runs", "2", "floor", "--vram", "1G,512M", "--program-vram", "64M"])
        self.assertEqual((options.parts, options.runs), (["size", "floor"], 2))
        self.assertEqual((options.vram, options.program_vram), ([1 << 30, 512 << 20], 64 << 20))

    def test_defaults_are_by_kind_of_gpu_and_smoke_is_small(self):
        real = bench.parse(["--gpu", "real"])
        self.assertEqual((real.vram, real.bandwidth), ([8 << 30, 32 << 30, 64 << 30], "2G"))
        smoke = bench.parse(["--gpu", "real", "--smoke"])
        self.assertEqual((smoke.gpu, smoke.vram, smoke.runs, smoke.interval), ("soft", [32 << 20], 1, 2))

    def test_sizes_are_read_and_written(self):
        for text, number in (("512M", 512 << 20), ("8G", 8 << 30), ("3K", 3 << 10), ("17", 17)):
            self.assertEqual((base.size(text), base.short(number)), (number, text))


if __name__ == "__main__":
    fakes.main()
