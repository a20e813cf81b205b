#!/usr/bin/env python3
"""Each part of scripts/e2e-real and of scripts/bench, and each comparison, over fake programs and hosts: what it starts,
what it says, and that nothing is left of it, also if it fails.
"""

import contextlib
import io
import os
import pathlib
import re
import shlex
import signal
import tempfile
import time
import unittest
from unittest import mock

import fakes

# pylint: disable=wrong-import-position
from gcr_lab import base, bench, compare_by_hand, compare_checkpoints, e2e, figures, hosts, podman  # noqa: E402
from gcr_lab.parts import programs, pytorch, saved, undisturbed  # noqa: E402
from gcr_lab.hosts import Program  # noqa: E402
from gcr_lab.registry import Lab  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
# What a part says in the end, where that is more than the words of `once` or `five`.
ONCE = r"^\d+ lines as undisturbed; 1048576 bytes tracked; downtime 237.3 ms, total 2018.4 ms$"
FIVE = r"^five moves of 2 processes, 1048576 bytes of VRAM, \d+ lines as undisturbed; downtimes in ms:( 237.3){5}; rank and GPU: "
SAYS = {
    "counter": "^151 to 160 follow 101 to 150; downtime 237.3 ms",
    "stencil": r"^64M; \d+ lines as undisturbed; downtime",
    "semantics": "^$",
    "suspend": r"^64M; \d+ lines as undisturbed; suspend: copy 10.0 GB/s, standstill 5.0 GB/s, nvidia-smi: process 0 MiB, GPU 512 MiB, "
               "then .*; resume: copy 10.0 GB/s, in all 5.0 GB/s$",
    "storm": r"^\d{7,} allocations, \d+ lines as undisturbed; downtimes in ms:( 237.3){10}$",
    "pinned": r"^4 GiB: \d+ lines as undisturbed",
    "without-library": r"^64 MiB: \d+ lines as undisturbed; .*; back: .*; PyTorch: \d+ lines as undisturbed; ",
    "two-gpus": "^there: downtime .*; back: downtime",
    "container": r"^64M; \d+ lines as undisturbed; downtime 237.3 ms",
    "container-resnet": r"^5 moves, \d+ lines as undisturbed; downtimes in ms:( 237.3){5}; rank and GPU: 0@",
    "container-gpus": r"^5 moves, \d+ lines as undisturbed; downtimes in ms:( 237.3){5}; rank and GPU: 0@",
    "container-by-hand": r"^64M; downtime 237.3 ms, total 2018.4 ms, silent for 12 ms; by hand \d+\.?\d* ms \(lock 5, checkpoint 5, "
                         r"podman_checkpoint .*, copy .*, podman_restore .*, restore 5, unlock 5\), silent for 12 ms, \d+ lines as undisturbed$",
    "members": "^one:( 237.3){5}; two:( 237.3){5}; medians 237 and 237 ms: 1.00 times$",
    "ten": "^ten moves; downtimes in ms:( 237.3){10}$",
    "compare": r"^by hand / gcr-migrate: \d+\.\d times the downtime, 1.0 times the silence$",
    "bench": "^launch 3 ns$",
    "server": r"^five moves, step=\d+ checksum and each answer right, 1 connections; downtimes",
    "gates": "^cumem: 200 closings; ipc: 200 closings; shm: 200 closings; sockets: 200 closings$",
    "nccl-cost": r"^1 MiB, median of 3 loops: 12.50 us without, 12.50 us with the library \(\+0.00 %\); .*16 MiB, quickest of 3 loops",
    "profiler": "^refused, and went on$",
    "campaign": "^200 moves$",
    "slurm-ring": r"^moved job=7 to job=8 .*verified=yes; \d+ lines as undisturbed; on \d+@GPU",
    **{f"ring-{kind}": r"^five moves, \d+ lines as undisturbed" for kind in programs.RINGS},
    **{f"checkpoint-{name}": r"^\d+ lines as undisturbed; standstill 237.3 ms, total 2018.4 ms; restores in ms:( 2018.4)+$"
       for name in ("stencil", "train", "generate", "resnet")},
    **{name: ONCE for name in ("small", "pool", "pool-large", "pool-torch", "pool-cupy", "torch", "forked", "generate")},
    **{name: FIVE for name in ("resnet", "spawned", "compiled", "one-process", "trainer", "accelerate", "lightning")},
    **{f"ddp-{way}": FIVE for way in pytorch.WAYS}, **{f"spawn-{way}": FIVE for way in ("offload", "symmetric", "graphs", "queue")},
}
SAYS.update({"container-generate": SAYS["container-resnet"], "container-huggingface": SAYS["container-resnet"], "container-ddp": SAYS["container-resnet"]})
SAYS.update({"pool-storm": SAYS["storm"], "pinned-large": r"^32 GiB: |^the machine has \d+ GiB to spare: not run$",
             "slurm-torch": SAYS["slurm-ring"]})
# Others of the same function and with another command: these are not run, but their commands are checked.
SAME = {"pool", "pool-storm", "pinned-large", "forked", "generate", "compiled", "spawned", "checkpoint-generate",
        "checkpoint-resnet", "container-resnet", "container-generate", "container-huggingface", "container-ddp", *(f"ring-{kind}" for kind in ("host", "ipc", "graph", "tcp")),
        *(f"ddp-{way}" for way in ("ipc", "shm", "sockets", "graphs")),
        *(f"spawn-{way}" for way in ("offload", "symmetric", "graphs"))}
SWAPPED = ["one-process", "accelerate", "lightning", *(name for name in SAYS if name.startswith(("ddp-", "spawn-")))]


def stop(program):
    """In place of its end, where CRIU restores it."""
    os.kill(program.pid, signal.SIGSTOP)


class Experiment(unittest.TestCase):
    def setUp(self):
        fakes.forget()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        for patch in (mock.patch.object(base, "SCRIPTS", fakes.ROOT / "scripts"),
                      mock.patch.object(base, "python3", lambda: f"{fakes.ROOT}/tools/python3"),
                      mock.patch.object(podman, "CDI", str(self.out / "cdi")),
                      mock.patch.object(podman, "python_paths", lambda: []),
                      mock.patch.object(podman, "driver_files", lambda: [pathlib.Path("/usr/lib/libcuda.so.1")]),
                      mock.patch.object(podman, "gpu_nodes", lambda: {"GPU-aaaaaaaa-1": "/dev/nvidia0", "GPU-bbbbbbbb-1": "/dev/nvidia1"}),
                      # A program that CRIU dumps is stopped here, and so has its PID afterwards.
                      mock.patch.object(compare_by_hand, "is_alive", lambda pid: False)):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(self.assert_nothing_is_left)

    def assert_nothing_is_left(self):
        base.wait_until(10, lambda: not fakes.left_behind())
        self.assertEqual(fakes.left_behind(), [])
        calls = [line.split()[1:3] for line in fakes.called("hosts-calls")]
        ups, downs = ({folder for action, folder in calls if action == wanted} for wanted in ("up", "down"))
        self.assertEqual(downs, {folder for folder in ups if "HOSTS_FAIL" not in os.environ})
        self.assertEqual([folder for folder in ups if pathlib.Path(folder).parent.exists()], [])

    def run_part(self, parts, lab):
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
            parts[lab.part].execute(lab)
        return base.last_line(said.getvalue())

    def e2e(self, name, gpu="real", vram=64 * MIB):
        return self.run_part(e2e.PARTS, Lab(name, gpu, self.out, vram))


class EndToEnd(Experiment):
    def test_each_part_says_what_it_found(self):
        self.assertEqual(sorted(SAYS), sorted(e2e.PARTS))
        for name in sorted(set(SAYS) - SAME):
            fakes.forget()
            with self.subTest(name):
                with mock.patch.object(hosts, "_rank", lambda pid: "0"):
                    self.assertRegex(self.e2e(name), SAYS[name])
                self.assert_nothing_is_left()
                swaps = "--device-map GPU-aaaaaaaa-1=GPU-bbbbbbbb-1,GPU-bbbbbbbb-1=GPU-aaaaaaaa-1"
                self.assertEqual(any(swaps in call for call in fakes.called("calls")), name in SWAPPED)

    def test_each_command_names_programs_that_are_built(self):
        built = {path.stem.removesuffix("_main") if path.suffix == ".cc" else path.name for path in (fakes.SOURCE / "tests/apps").iterdir()}
        checked = [part.command for part in e2e.PARTS.values() if part.command]
        self.assertGreater(len(checked), 25)
        for command in checked:
            named = [word for word in command.split() if word.startswith("bin/")]
            self.assertEqual([word for word in named if word[4:] not in built], [], command)
            self.assertEqual(len(named), 1, command)

    def test_programs_in_commands_are_those_of_the_build(self):
        self.assertEqual(base.words("python3 bin/x.py --gib 8"), [base.python3(), f"{fakes.ROOT}/bin/x.py", "--gib", "8"])

    def test_without_modules_and_gpus_parts_say_what_is_missing(self):
        with mock.patch.dict(os.environ, {"NO_MODULES": "1", "NO_GPUS": "1"}):
            for name, reason in (("torch", "no PyTorch on this machine"), ("pool-cupy", "no CuPy on this machine"),
                                 ("ddp-ipc", "no PyTorch, or not two GPUs, on this machine"), ("two-gpus", "this machine has not two GPUs"),
                                 ("trainer", "no Trainer here"), ("server", "no aiohttp or uvloop here"),
                                 ("slurm-ring", "this machine has not two GPUs"), ("lightning", "no Lightning here")):
                with self.subTest(name):
                    self.assertEqual(self.e2e(name), f"{reason}: not run")
            self.assertNotIn("PyTorch", self.e2e("without-library"))
        self.assertEqual(len([line for line in fakes.called("hosts-calls") if " up " in line]), 1)  # of without-library

    def test_hosts_get_the_memory_that_a_part_needs_and_the_gpus(self):
        self.e2e("pool-large")
        self.e2e("two-gpus")
        first, second = (line for line in fakes.called("hosts-calls") if " up " in line)
        self.assertTrue(first.endswith(f"--gpu real --vram {33 * GIB}"), first)
        self.assertTrue(second.endswith(f"--vram {64 * MIB + GIB} --gpus-a GPU-aaaaaaaa-1 --gpus-b GPU-bbbbbbbb-1"), second)

    def test_slurm_jobs_are_submitted_to_one_node_and_a_gpu_of_the_other_is_taken(self):
        with mock.patch.object(hosts, "_rank", lambda pid: "0"):
            self.e2e("slurm-torch")
        occupied, job = fakes.called("sbatch")
        self.assertRegex(occupied, "--gres gpu:1 --nodelist gcr-1-b .*--wrap exec sleep")
        self.assertRegex(job, "--migratable --gres gpu:1 --mem 16000 --nodelist gcr-1-a ")

    def test_a_campaign_is_told_programs_and_a_gpu_for_each_host(self):
        with mock.patch.dict(os.environ, {"MOVES": "12"}):
            self.e2e("campaign")
        words = " ".join(fakes.called("campaign"))
        self.assertIn("--runs 12 ", words)
        self.assertIn("--host-option=--gpus-a --host-option=GPU-aaaaaaaa-1 ", words)
        programs_told = (self.out / "campaign-programs.txt").read_text().splitlines()
        self.assertEqual(len(programs_told), 12)
        self.assertTrue(all(re.match(r"\w+ step= 3 /", line) for line in programs_told), programs_told)

    def test_logs_of_programs_and_agents_are_kept(self):
        self.e2e("small")
        log = (self.out / "small.log").read_text()
        self.assertIn("--- app.out (its last lines)\nstep=0 checksum\n", log)
        self.assertIn("--- hosts/a/agent.log (its last lines)\nan agent\n", log)


class Failures(Experiment):
    def fail(self, name, pattern, **options):
        with self.assertRaisesRegex(base.Failure, pattern):
            self.e2e(name, **options)

    def program(self, name, text):
        """Replaces a program for this test."""
        path = fakes.ROOT / name
        before = path.read_text(encoding="utf-8")
        self.addCleanup(path.write_text, before, encoding="utf-8")
        path.write_text(text, encoding="utf-8")

    def test_hosts_that_cannot_be_made_say_why(self):
        with mock.patch.dict(os.environ, {"HOSTS_FAIL": "1"}):
            self.fail("small", "^hosts: no room for another$")
            self.assert_nothing_is_left()
        fakes.forget()

    def test_a_program_that_ends_fails_its_part_at_once(self):
        self.program("bin/stencil", fakes.shell("echo step=1 a; echo broken"))
        self.fail("small", "^it has ended: step=1 a broken$")

    def test_a_program_that_prints_nothing_more_hangs(self):
        self.program("bin/stencil", fakes.shell("echo step=1 a; exec sleep 1000"))
        with mock.patch.object(Program.wait, "__defaults__", (5,)):
            self.fail("small", "^no more output for 5 s: step=1 a$")

    def test_other_lines_than_those_of_an_undisturbed_run_are_noticed(self):
        self.program("bin/stencil", fakes.PROGRAM.replace('"$words$n$end"', '"$words$n$end $$"'))
        self.fail("stencil", "^it prints other lines than an undisturbed run$")

    def test_a_wrong_number_is_noticed(self):
        self.program("bin/counter", fakes.shell('echo 99 >"$FAKE/count"; echo ready; exec sleep 1000'))
        self.fail("ten", "^host a answered 100, not 101$")

    def test_a_migration_that_fails_is_told_with_its_status(self):
        self.program("bin/gcr-migrate", fakes.shell('[ "$1" = run ] && { shift 2; exec "$@"; }; echo "gcr-migrate: no room" >&2; exit 4'))
        self.fail("small", "^exit 4: gcr-migrate: no room$")

    def test_one_that_was_not_verified_has_failed(self):
        report = fakes.GCR_MIGRATE.replace("@REPORT@", fakes.json.dumps({**fakes.REPORT, "verified": False}))
        self.program("bin/gcr-migrate", report)
        self.fail("small", "^not verified: ")

    def test_a_refusal_that_does_not_come_or_has_another_reason_fails(self):
        migrate = fakes.PROGRAMS["bin"]["gcr-migrate"]
        self.program("bin/gcr-migrate", migrate.replace('b"--profiled" in', "b'' not in"))
        self.fail("profiler", "^exit 0: it was not refused$")
        self.program("bin/gcr-migrate", migrate.replace('refuse("profiler")', 'refuse("busy")'))
        self.fail("profiler", "^it was refused for another reason$")

    def test_a_restore_that_repeats_or_leaves_out_lines_is_noticed(self):
        whole = [f"step={n} a" for n in range(20)]
        saved.is_part_of(whole, whole[3:9])
        for lines in (whole[3:5] + whole[6:9], whole[3:5] + whole[4:6], ["step=99 a"], []):
            with self.subTest(lines), self.assertRaises(base.Failure):
                saved.is_part_of(whole, lines)

    def test_a_program_on_the_same_gpus_as_before_has_not_swapped_them(self):
        self.program("bin/gcr-migrate", fakes.PROGRAMS["bin"]["gcr-migrate"].replace("if count % 2", "if True"))
        self.fail("one-process", "^it is on the same GPUs: ")

    def test_a_job_that_slurm_has_on_no_other_node_has_failed(self):
        self.program("scripts/drain", fakes.shell("echo left job=7"))
        self.fail("slurm-ring", "^left job=7$")

    def test_a_failing_driver_step_is_named_and_no_helper_is_left(self):
        self.program("bin/cuda-checkpoint-tool", fakes.shell('echo ready; read -r name pid; echo "$name failed: 999"; exec sleep 1000'))
        self.fail("compare", "^by hand: lock failed: 999$", gpu="soft")
        self.program("bin/cuda-checkpoint-tool", fakes.shell("echo no driver >&2"))
        self.fail("compare", "^the checkpoint helper of host a does not start: no driver", gpu="soft")


class Benchmarks(Experiment):
    def lab(self, part, *words):
        options = bench.parse([*words, "--out", str(self.out)])
        return bench.BenchLab(part, options.gpu, self.out, options.program_vram, options)

    def lines(self, part, *words):
        (self.out / "bench.jsonl").unlink(missing_ok=True)
        with mock.patch("time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.1))):
            self.run_part(bench.PARTS, self.lab(part, *words))
        return figures.read(self.out / "bench.jsonl")

    def count(self, part, *words, **wanted):
        return len(figures.of(self.lines(part, *words), **wanted))

    def test_downtime_is_compared_up_to_a_size(self):
        lines = self.lines("downtime", "--vram", "1M,2M", "--by-hand-up-to", "1M")
        self.assertEqual([(line["way"], line["asked_bytes"]) for line in lines],
                         [("gcr-migrate", MIB), ("by-hand", MIB), ("gcr-migrate", 2 * MIB)])
        hand = lines[1]
        self.assertEqual((hand["lock_ms"], hand["checkpoint_ms"], hand["restore_ms"], hand["silence_ms"]), (5, 5, 5, 12))
        self.assertGreaterEqual(hand["downtime_ms"], hand["dump_ms"] + hand["copy_ms"] + hand["criu_restore_ms"])
        self.assertEqual(fakes.called("driver-tools"), ["--map GPU-1=GPU-1"] * 2)

    def test_sizes_and_floor_run_as_often_as_asked(self):
        self.assertEqual(self.count("size", "--runs", "2", "--vram", "1M,2M", asked_bytes=2 * MIB), 2)
        self.assertEqual(self.count("floor", "--runs", "2", way="by-hand"), 2)

    def test_rewriting_programs_move_at_each_share_and_once_slowed_down(self):
        lines = self.lines("dirty")
        self.assertEqual([(line["dirty_per_second"], line["options"]) for line in lines],
                         [(0, ""), (0.01, ""), (0.1, ""), (0.5, ""), (0.5, "--auto-converge")])
        self.assertTrue((self.out / "dirty-0.5--auto-converge.trace.json").exists())

    def test_the_cost_has_a_line_for_each_program_and_bandwidth(self):
        lines = self.lines("cost", "--gpu", "real")
        self.assertEqual([(line["program"], line["bandwidth"]) for line in lines],
                         [(name, rate) for rate in ("none", "2G") for name in ("stencil", "torch_generate", "torch_loop")])
        self.assertTrue(any("--max-bandwidth 2G" in call for call in fakes.called("calls")))

    def test_state_has_five_moves_of_each_program_of_either_side(self):
        against = ["--against", str(fakes.ROOT)]
        lines = self.lines("state", "--gpu", "real", "--programs", "counter,jax,none", *against)
        self.assertEqual([(line["program"], line["side"]) for line in lines[::5]],
                         [(name, side) for name in ("counter", "jax") for side in ("before", "after")])
        self.assertEqual(len(lines), 20)
        self.assertEqual({line["agents_memory_bytes"] for line in lines}, {0})
        self.assertEqual(len(self.lines("state", "--smoke")), 2 * 4)

    def test_programs_of_the_part_state_depend_on_the_machine(self):
        from gcr_lab.parts.benchmarks import state_programs  # pylint: disable=import-outside-toplevel
        real = state_programs(self.lab("state", "--gpu", "real"))
        self.assertEqual(list(real), ["counter", "stencil", "small", "pool-1331", "pool-32768", "buffers-100", "buffers-10000",
                                      "threads-0", "threads-1000", "resnet18", "resnet18-threads", "heap-16", "huggingface", "jax"])
        self.assertIn("XLA_PYTHON_CLIENT_MEM_FRACTION=0.45", real["jax"][0])
        self.assertIn("JAX_CUDA_VISIBLE_DEVICES=0", state_programs(self.lab("state", "--gpu", "real", "--apart"))["jax"][0])
        self.assertNotIn("jax", state_programs(self.lab("state")))

    def test_steady_has_launches_room_and_turns(self):
        lines = self.lines("steady", "--gpu", "real", "--runs", "1")
        self.assertEqual(len(figures.of(lines, what="launch", driver="empty")), 5)
        self.assertEqual([line["side"] for line in figures.of(lines, what="room")], ["without", "under"])
        turns, = figures.of(lines, what="turns")
        self.assertEqual((len(turns["without_s"]), len(turns["under_s"])), (100, 100))

    def test_digests_and_reads_are_parts_of_their_own(self):
        self.assertEqual([line["part"] for line in self.lines("digests")], ["digest", "read"])

    def test_checkpoints_are_compared_in_both_ways(self):
        with mock.patch.object(Program, "kill", stop):
            lines = self.lines("checkpoint", "--runs", "1", "--vram", "1M", "--programs", "stencil", "--dir", str(self.out))
        self.assertEqual([(line["what"], line["way"]) for line in lines], [
            ("taken", "gcr-migrate"), ("restored", "gcr-migrate"), ("taken", "by-hand"), ("restored", "by-hand")])
        self.assertTrue(all(line["cold"] == "no" and line["program"] == "stencil" for line in lines))
        self.assertGreater(lines[2]["disk_bytes"], 9000000)
        self.assertGreaterEqual(lines[3]["restore_ms"], lines[3]["criu_restore_ms"])
        self.assertEqual(list(self.out.glob("gcr-checkpoints-*")), [])

    def test_a_series_of_checkpoints_is_taken_and_two_full_ones(self):
        lines = self.lines("incremental", "--smoke")
        self.assertEqual([line["kind"] for line in lines], ["series"] * 3 + ["full"] * 2)
        self.assertTrue(all(line["program"] == "scribbler" and "added_bytes" in line for line in lines))

    def test_the_transport_is_measured_next_to_others(self):
        lines = self.lines("transport", "--quick")
        self.assertEqual({line["what"] for line in lines}, {"rate", "aes", "memory", "copies", "sizes", "rdma"})
        rates = figures.of(lines, what="rate", n=4, way="n iperf3")
        self.assertEqual([rate["gb_per_s"] for rate in rates], [4.0, 4.0])
        self.assertAlmostEqual(figures.of(lines, what="aes")[0]["encrypt_gb_per_cpu_s"], 2.0, places=3)
        self.assertEqual({line["way"] for line in figures.of(lines, what="rdma")}, {"ib_write_bw", "RDMA"})
        with contextlib.redirect_stdout(io.StringIO()) as said:
            bench.print_tables(self.out / "bench.jsonl")
        self.assertIn("RDMA over soft RoCE", said.getvalue())

    def test_apart_needs_two_gpus_and_gives_each_host_one(self):
        self.lines("dirty", "--gpu", "real", "--apart")
        self.assertIn("--gpus-a GPU-aaaaaaaa-1 --gpus-b GPU-bbbbbbbb-1", fakes.called("hosts-calls")[0])
        with mock.patch.dict(os.environ, {"NO_GPUS": "1"}), self.assertRaisesRegex(base.Failure, "--apart needs two GPUs"):
            self.lines("dirty", "--gpu", "real", "--apart")


class Comparisons(Experiment):
    def main(self, module, *words):
        """Its log is called as the command is, here as this test."""
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()), \
                mock.patch.object(base, "need_root", lambda: None), mock.patch.object(Program, "kill", stop):
            self.assertIsNone(module.main([*words, "--keep", str(self.out / "kept")]))
        return said.getvalue()

    def test_downtime_by_both_ways_or_by_one(self):
        record = self.out / "figures"
        said = self.main(compare_by_hand, "--vram", "2M", "--streams", "3", "--record", str(record), "--part", "mine")
        self.assertRegex(said, r"(?s)by hand, step by step:\n  lock +5 ms\n.*\n  criu-restore .*\nstencil, 2M of VRAM, soft GPU ")
        self.assertEqual([(line["part"], line["way"]) for line in figures.read(record)], [("mine", "gcr-migrate"), ("mine", "by-hand")])
        self.assertIn("--- by-hand.out", (self.out / "kept/experiments_test.py.log").read_text())
        said = self.main(compare_by_hand, "--by-hand", "no")
        self.assertIn("stencil, 1G of VRAM, soft GPU: downtime 237.3 ms, printed nothing for 12 ms, total 2018.4 ms", said)

    def test_checkpoints_in_turns_and_a_table(self):
        said = self.main(compare_checkpoints, "--vram", "1M", "--runs", "2", "--cold", "yes", "--dir", str(self.out),
                         "--program", "huggingface")
        self.assertRegex(said, r"huggingface +1 MiB +\S+ +restore_ms +2 ")
        self.assertIn("--- hosts/a/agent.log", (self.out / "kept/experiments_test.py.log").read_text())


class Hosts(Experiment):
    def test_what_is_in_the_block_is_ended_also_by_an_exception(self):
        with self.assertRaises(KeyError), hosts.hosts("soft", MIB) as two:
            program = two.start("a", "app", "sh -c 'sleep 1000 & echo; exec sleep 1000'", lines=1, library=False)
            self.assertTrue(base.is_alive(program.pid))
            raise KeyError
        self.assertTrue(base.wait_until(10, lambda: not base.is_alive(program.pid)))

    def test_a_program_inherits_no_descriptor_and_is_alone_in_its_session(self):
        with hosts.hosts("soft", MIB) as two, open("/dev/null", "rb") as other:
            os.set_inheritable(other.fileno(), True)
            program = two.start("a", "app", "sh -c 'ls /proc/$$/fd; exec sleep 1000'", library=False)
            program.wait_for(3)
            self.assertEqual(program.lines("^[0-9]+$"), ["0", "1", "2"])
            self.assertEqual(os.getsid(program.pid), program.pid)

    def test_a_program_that_has_ended_is_reaped_at_once(self):
        with hosts.hosts("soft", MIB) as two:
            program = two.start("a", "app", "true", library=False)
            self.assertTrue(base.wait_until(10, lambda: not os.path.exists(f"/proc/{program.pid}")))

    def test_ending_a_program_ends_what_it_started(self):
        with hosts.hosts("soft", MIB) as two:
            text = shlex.quote("sh -c 'trap \"\" TERM; echo $$; sleep 0.2; exec sleep 1000' & wait")
            program = two.start("a", "app", f"sh -c {text}", lines=1, library=False)
            child = int(program.lines()[0])
            self.assertIn(child, base.descendants(program.pid))
            base.end_process(child, patience=0.1)
            program.end()
            self.assertFalse(base.is_alive(child) or base.is_alive(program.pid))

    def test_an_incomplete_line_does_not_count(self):
        program = Program(self.out / "x", mock.Mock(pid=os.getpid()))
        program.output.write_text("step=1 a\nstep=2 b\nother\nstep=3", encoding="ascii")
        self.assertEqual((program.lines(), program.lines("step=")), (["step=1 a", "step=2 b", "other"], ["step=1 a", "step=2 b"]))

    def test_places_are_by_rank_the_gpu_with_most_memory_first(self):
        with mock.patch.dict(os.environ, {"MANY": "1", "LOCAL_RANK": "3"}), hosts.hosts("soft", MIB) as two:
            self.assertRegex(two.places("a"), r"^\d+@GPU-bbbbbbbb,GPU-cccccccc$")

    def test_undisturbed_runs_are_compared_as_far_as_both_went(self):
        first, second = (Program(self.out / name, mock.Mock(pid=1)) for name in "ab")
        first.output.write_text("step=1 a\nx\nstep=2 a\nstep=3 c\n", encoding="ascii")
        second.output.write_text("step=1 a\nstep=2 a\nstep=3 b\n", encoding="ascii")
        undisturbed.same_first_lines(first, second, 2, "step=")
        with self.assertRaises(base.Failure):
            undisturbed.same_first_lines(first, second, 3, "step=")


if __name__ == "__main__":
    fakes.main()
