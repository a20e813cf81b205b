#!/usr/bin/env python3
"""scripts/bench --smoke runs every part, and its results are valid numbers.

Usage: bench_smoke_test.py SCRIPTS_BENCH
"""

import json
import math
import subprocess
import sys
import tempfile
import unittest

SCRIPT = sys.argv.pop()


def numbers_of(line, *names):
    return [float(line[name]) for name in names]


class Smoke(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="gcr-bench-smoke-")
        cls.bench = subprocess.run(
            [SCRIPT, "--smoke", "--out", cls.folder.name], capture_output=True, text=True, check=False
        )
        with open(f"{cls.folder.name}/bench.jsonl", encoding="utf-8") as file:
            cls.lines = [json.loads(line) for line in file]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def of(self, part, **wanted):
        lines = [
            line
            for line in self.lines
            if line["part"] == part and all(line.get(key) == value for key, value in wanted.items())
        ]
        self.assertTrue(lines, f"no line of {part} {wanted}")
        return lines

    def assert_positive(self, line, *names):
        for name, value in zip(names, numbers_of(line, *names)):
            self.assertTrue(math.isfinite(value) and value > 0, f"{name} is {value} in {line}")

    def test_every_part_succeeds(self):
        self.assertEqual(self.bench.returncode, 0, self.bench.stderr)

    def test_idle_program_is_timed_at_its_size(self):
        for line in self.of("size", program="counter"):
            self.assert_positive(line, "downtime_ms", "total_ms", "asked_bytes")
            self.assertEqual(sum(line["sent_per_round_bytes"][1:]), 0)

    def test_moves_by_gcr_migrate_and_by_hand_are_timed(self):
        for part in ("downtime", "floor"):
            for line in self.of(part, way="gcr-migrate"):
                self.assert_positive(line, "downtime_ms", "total_ms", "silence_ms", "asked_bytes")
                self.assertTrue(line["verified"])
            for line in self.of(part, way="by-hand"):
                self.assert_positive(
                    line, "downtime_ms", "checkpoint_ms", "dump_ms", "criu_restore_ms", "restore_ms"
                )

    def test_checkpoints_and_restores_are_timed(self):
        for way in ("gcr-migrate", "by-hand"):
            for line in self.of("checkpoint", way=way, what="taken"):
                self.assert_positive(line, "downtime_ms", "total_ms", "silence_ms", "apparent_bytes", "disk_bytes")
                self.assertGreaterEqual(line["total_ms"], line["downtime_ms"])
                self.assertGreaterEqual(line["apparent_bytes"], line["asked_bytes"] / 2)
            for line in self.of("checkpoint", way=way, what="restored"):
                self.assert_positive(line, "restore_ms")
                self.assertTrue(0 <= line["cached"] <= 1, line)
        for line in self.of("checkpoint", way="gcr-migrate", what="restored"):
            self.assert_positive(line, "returned_ms", "total_ms")
        for what, phase in (("taken", "control checkpoint"), ("restored", "criu restore")):
            for line in self.of("checkpoint", way="gcr-migrate", what=what):
                self.assertIn(phase, {each["name"] for each in line["phases"]})

    def test_later_checkpoints_of_a_series_store_less(self):
        first, *later = self.of("incremental", kind="series")
        self.assertEqual(len(later), 2)
        self.assert_positive(first, "stored_bytes", "added_bytes", "downtime_ms", "total_ms")
        for line in later:
            self.assert_positive(line, "shared_bytes", "downtime_ms", "total_ms")
            self.assertLess(line["added_bytes"], first["added_bytes"] / 2)
        for line in self.of("incremental", kind="full"):
            self.assertGreater(line["added_bytes"], first["added_bytes"] / 2)

    def test_rounds_and_their_bytes_are_counted(self):
        for line in self.of("dirty", program="scribbler"):
            self.assert_positive(line, "rounds", "sent_vram_bytes", "downtime_ms")
            self.assertEqual(line["rounds"], len(line["sent_per_round_bytes"]))
            self.assertEqual(line["sent_vram_bytes"], sum(line["sent_per_round_bytes"]))

    def test_speed_is_measured_before_during_and_after_a_move(self):
        for line in self.of("cost", program="stencil"):
            self.assert_positive(line, "before_per_s", "during_s", "after_per_s")
        self.assertEqual(len(self.of("cost")), 2)

    def test_programs_with_every_kind_of_state_move(self):
        for program in ("counter", "pool-64", "buffers-32", "threads-1000"):
            lines = self.of("state", program=program, side="after")
            self.assertEqual(len(lines), 2)
            for line in lines:
                self.assert_positive(line, "downtime_ms", "vram_bytes", "agents_memory_bytes")
                self.assertTrue(line["verified"])

    def test_launches_digests_and_reads_are_timed(self):
        for driver in ("empty", "soft"):
            for what in ("launch", "alloc_async", "alloc"):
                (line,) = self.of("steady", what=what, driver=driver)
                self.assert_positive(line, "direct_ns", "interposed_ns")
        for side in ("without", "under"):
            for line in self.of("steady", what="room", side=side):
                self.assertGreaterEqual(line["taken_bytes"], line["asked_bytes"])
        for line in self.of("digest"):
            self.assert_positive(line, "value")
        for line in self.of("read"):
            self.assert_positive(line, "gb_per_s", "of_plain")

    def test_transport_values_are_complete(self):
        for way in ("iperf3 -P n", "n iperf3", "plain", "TLS"):
            for line in self.of("transport", what="rate", way=way):
                self.assert_positive(line, "gb_per_s", "n")
                for end in ("sender", "receiver"):
                    # The kernel divides a time by its ticks: within a tenth of a second one part may be 0.
                    self.assertGreater(sum(numbers_of(line, f"{end}_user_s_per_gb", f"{end}_system_s_per_gb")), 0)
        for line in self.of("transport", what="aes"):
            self.assert_positive(line, "encrypt_gb_per_cpu_s", "decrypt_gb_per_cpu_s", "cores")
        for pages in ("hugetlb", "ordinary", "4k"):
            for populated in (True, False):
                for line in self.of("transport", what="memory", pages=pages, populated=populated):
                    self.assert_positive(line, "gb_per_s")
                    self.assertEqual(line["bytes"], line["region_bytes"])
        for tls in (True, False):
            for line in self.of("transport", what="sizes", tls=tls):
                self.assert_positive(line, "gb_per_s", "write_bytes", "lanes")

    def test_plain_receiver_copies_nothing(self):
        for line in self.of("transport", what="copies", way="plain"):
            self.assertLess(line["receiver_copied_per_byte"], 0.01)
        for line in self.of("transport", what="copies", way="plain, copied once more"):
            self.assertGreater(line["receiver_copied_per_byte"], 0.99)

    def test_traces_are_written(self):
        with open(f"{self.folder.name}/cost-stencil-none.trace.json", encoding="utf-8") as file:
            self.assertTrue(json.load(file)["traceEvents"])

    def test_every_value_is_in_a_table(self):
        for title in ("Downtime:", "otherwise empty", "rewrite", "Steps per second", "a launch", "over connections",
                      "Checkpoints:", "Restores:", "Phases, taken:", "Phases, restored:",
                      "one directory"):
            self.assertIn(title, self.bench.stdout)


if __name__ == "__main__":
    unittest.main()
