#!/usr/bin/env python3
"""What is read from gcr-migrate --json, and what becomes of it in records and tables."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import fakes

# pylint: disable=wrong-import-position
from gcr_lab import base, figures, sampling, tables  # noqa: E402
from gcr_lab.figures import Migration, Record  # noqa: E402
from gcr_lab.parts import benchmarks  # noqa: E402


def parsed(**more):
    return Migration(json.dumps({**fakes.REPORT, **more}))


class Reports(unittest.TestCase):
    def test_64_bit_integers_are_numbers_as_in_rounds(self):
        migration = parsed()
        self.assertEqual((migration.vram_bytes, migration.destination_pid, migration.processes), (1 << 20, 7, 2))
        self.assertEqual([each["sent_bytes"] for each in migration.rounds], [200, 100])
        self.assertEqual(migration.times(), "downtime 237.3 ms, total 2018.4 ms")

    def test_the_report_is_the_last_of_several_lines(self):
        events = '{"type": "event", "phase": "preflight"}\n{"type": "progress"}\n'
        self.assertEqual(Migration(events + json.dumps(fakes.REPORT) + "\n\n").total_ms, 2018.4)

    def test_what_is_no_report_is_an_error(self):
        for text in ("", "migrated pid=5", '{"type": "event"}', "[1]", '"downtime_ms"'):
            with self.subTest(text), self.assertRaises(ValueError):
                Migration(text)

    def test_a_report_without_a_figure_that_each_has_is_an_error(self):
        for name in ("downtime_ms", "total_ms", "verified", "vram_bytes"):
            report = {key: value for key, value in fakes.REPORT.items() if key != name}
            with self.subTest(name), self.assertRaises((ValueError, KeyError)):
                Migration(json.dumps(report))

    def test_figures_have_rounds_and_phases_and_only_what_was_reported(self):
        found = parsed().figures()
        self.assertEqual((found["rounds"], found["sent_per_round_bytes"]), (2, [200, 100]))
        self.assertEqual([phase["name"] for phase in found["phases"]], ["prepare", "control checkpoint", "criu restore"])
        self.assertEqual(found["stored_bytes"], 50)
        self.assertNotIn("clock_offset_ms", found)
        self.assertNotIn("migrated", found)

    def test_the_text_for_logs_has_each_phase_and_the_whole_report(self):
        text = parsed().text()
        self.assertRegex(text, r"\n +30\.0 +1\.5  destination  course   criu restore\n")
        self.assertEqual(json.loads(text.splitlines()[-1])["sent_image_bytes"], 173281)


class Records(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "bench.jsonl"
        self.record = Record(self.path, {"part": "steady", "gpu": "soft"})

    def test_a_line_has_what_all_have_and_its_own(self):
        self.record.add(parsed(), way="ours")
        self.record.but(part="read").add(way="hand")
        ours, hand = figures.read(self.path)
        self.assertEqual((ours["part"], ours["way"], ours["downtime_ms"], ours["rounds"]), ("steady", "ours", 237.28, 2))
        self.assertEqual(hand, {"part": "read", "gpu": "soft", "way": "hand"})

    def test_lines_that_are_no_json_are_not_collected(self):
        self.record.collect('warming up\n{"bench": "x", "value": 1}\n{"value": 2}\ndone', side="under")
        self.assertEqual([(line["value"], line["side"]) for line in figures.read(self.path)], [(1, "under"), (2, "under")])
        self.assertNotIn("bench", figures.read(self.path)[0])

    def test_a_record_without_a_file_adds_nothing(self):
        Record(None, {}).add(parsed())


def printed(function, *words):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        function(*words)
    return said.getvalue()


class Tables(unittest.TestCase):
    def table(self, *lines):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            return printed(tables.print_tables, path)

    def test_no_figures_no_tables(self):
        self.assertEqual(self.table(), "")

    def test_downtime_is_the_median_of_each_way_by_size(self):
        ours = [{"part": "downtime", "way": "gcr-migrate", "asked_bytes": 1 << 30, "downtime_ms": ms, "silence_ms": ms + 1,
                 "total_ms": 4000.0} for ms in (100, 300, 200)]
        hand = {"part": "downtime", "way": "by-hand", "asked_bytes": 1 << 30, "downtime_ms": 500}
        small = {**ours[0], "asked_bytes": 2 << 20}
        self.assertEqual(self.table(*ours, hand, small).splitlines()[1:], [
            "Downtime: this tool against the way by hand",
            "      VRAM  downtime ms  silence ms  total ms  by hand ms  by hand/this",
            "     2 MiB          100         101      4000           -             -",
            "  1.00 GiB          200         201      4000         500           2.5",
        ])

    def test_rounds_after_the_first_are_summed(self):
        line = {"part": "dirty", "dirty_per_second": 0.5, "options": "--auto-converge", **parsed().figures(),
                "sent_per_round_bytes": [100 << 20, 20 << 20, 10 << 20]}
        self.assertIn(" 50 % --auto-converge  1 MiB       2  0 MiB           30 MiB ", self.table(line))

    def test_a_series_is_compared_with_its_first_checkpoint(self):
        lines = [{"part": "incremental", "program": "p", "kind": kind, "at_s": at, "added_bytes": added, **parsed().figures()}
                 for kind, at, added in (("series", 0, 1000), ("series", 10, 100), ("series", 20, 300), ("full", 0, 2000))]
        rows = [line.split() for line in self.table(*lines).splitlines()]
        self.assertIn("0.2", next(row for row in rows if row[:4] == ["median", "of", "the", "later"]))
        self.assertIn("2", next(row for row in rows if row[:4] == ["median", "of", "full", "ones"])[7:])

    def test_phases_of_several_runs_are_medians_in_order_of_time(self):
        lines = [{"what": "taken", "phases": [
            {"host": "source", "track": "vram", "name": "copy", "start_ms": start, "duration_ms": ms},
            {"host": "source", "track": "vram", "name": "copy", "start_ms": start + 50, "duration_ms": ms},
            {"host": "source", "track": "course", "name": "begin", "start_ms": 1, "duration_ms": 1}]}
            for start, ms in ((10, 4), (20, 6), (30, 8))]
        self.assertEqual(tables.phase_rows(lines), [[1, 1, 1, "source", "course", "begin"], [20, 12, 2, "source", "vram", "copy"]])

    def test_tls_is_measured_against_what_aes_allows(self):
        cost = {name: 0.1 for name in (*tables.SENDER, *tables.RECEIVER)}
        plain = {"gb_per_s": 10.0, **cost}
        aes = {"encrypt_gb_per_cpu_s": 5.0, "decrypt_gb_per_cpu_s": 2.5, "cores": 2}
        self.assertEqual(tables.tls_bound([plain], [aes]), (2.0, 1.0))

    def test_turns_are_within_bounds(self):
        row, = tables.turns_rows([{"without_s": [0.010] * 100, "under_s": [0.011] * 50 + [0.012] * 50}])
        self.assertEqual([round(value, 3) for value in row], [100, 10, 1.15, 1.1, 1.2])


class Turns(unittest.TestCase):
    TELLS_SECONDS = "import os, sys\nfor _ in sys.stdin: print(os.environ.get('SECONDS', '0.010'), flush=True)"

    def test_the_median_of_the_ratios_is_told_and_a_program_that_fails_is_noticed(self):
        launcher, command = ["env", "SECONDS=0.011"], [sys.executable, "-c", self.TELLS_SECONDS]
        row, = tables.turns_rows([benchmarks.turns(launcher, command)])
        self.assertEqual([tables.cell(value) for value in row], ["100", "10", "1.1", "1.1", "1.1"])
        with self.assertRaisesRegex(base.Failure, "ended with status 3"):
            benchmarks.turns(launcher, [*command[:-1], self.TELLS_SECONDS + "\nsys.exit(3)"])


class Plots(unittest.TestCase):
    DOWNTIME = {"part": "downtime", "way": "by-hand", "asked_bytes": 2 << 30, "downtime_ms": 3000}

    def plot(self, *lines, path=""):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"PATH": path}):
            file = pathlib.Path(folder) / "bench.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            return printed(tables.plot, file, pathlib.Path(folder))

    def test_a_run_without_figures_to_draw_has_no_plots(self):
        said = self.plot({"part": "state"})
        self.assertEqual((said.count("\n"), said.split(";")[0]), (1, "plots: none"))

    def test_without_gnuplot_no_plots_are_drawn(self):
        with self.assertRaisesRegex(base.Failure, "^plots: not drawn, as gnuplot is not installed"):
            self.plot({"part": "transport"})

    def test_gnuplot_gets_the_points_of_each_way(self):
        with mock.patch.object(subprocess, "run") as run, mock.patch("shutil.which", return_value="gnuplot"):
            said = self.plot(self.DOWNTIME, {**self.DOWNTIME, "way": "gcr-migrate", "total_ms": 9000})
        scripts = [call.kwargs["input"] for call in run.call_args_list]
        self.assertEqual([said.count("plot: "), len(scripts)], [2, 2])
        self.assertIn("$c0 << EOD\n2.0 9.0\nEOD\n$c1 << EOD\n2.0 3.0\nEOD\n", scripts[1])  # by hand, total is downtime


class Sampling(unittest.TestCase):
    def test_rates_are_of_the_time_before_while_rounds_ran_and_after(self):
        migration = parsed(total_ms=3000)  # rounds from 0.4 to 1.5 s
        samples = [(time_s, lines) for lines, time_s in enumerate(
            [90 + n / 10 for n in range(100)]  # 10 a second before
            + [100.4 + n / 5 for n in range(6)]  # 5 a second while it is copied
            + [104.1 + n / 20 for n in range(50)])]  # 20 a second afterwards
        found = sampling.rates(samples, 100, migration)
        self.assertEqual((found["before_per_s"], found["during_per_s"], found["after_per_s"]), (10, 5, 20))
        self.assertEqual((found["during_to_before"], found["after_to_before"], found["during_s"]), (0.5, 2, 1.1))

    def test_too_few_lines_are_no_rate(self):
        found = sampling.rates([(n, n) for n in range(100)], 100, parsed())
        self.assertEqual(set(found), {"before_per_s", "during_s"})

    def test_lines_are_seen_when_they_come(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("one\n")
            file.flush()
            begun = time.time()
            with sampling.lines_over_time(file.name) as samples:
                self.assertTrue(base.wait_until(10, lambda: samples, pause=0.001))
                file.write("two\nthree\nfour")
                file.flush()
                self.assertTrue(base.wait_until(10, lambda: len(samples) == 2, pause=0.001))
            self.assertEqual([lines for _, lines in samples], [1, 3])
            self.assertTrue(begun <= samples[0][0] <= samples[1][0] <= time.time())
            self.assertNotIn("sample", [thread.name for thread in threading.enumerate()])

    def test_memory_is_that_of_the_program_s_processes(self):
        with sampling.most_memory(sys.executable) as most:
            pass
        self.assertGreater(most[0], 1 << 20)
        self.assertEqual(sampling.memory_of("/no/such/program"), 0)

    def test_files_leave_the_page_cache_and_their_size_is_known(self):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            (pathlib.Path(folder) / "file").write_bytes(os.urandom(1 << 20))
            self.assertEqual(sampling.cached(folder), 1)
            self.assertGreaterEqual(sampling.bytes_of(folder), 1 << 20)
            sampling.evict(folder)
            self.assertLessEqual(sampling.cached(folder), 1)
        self.assertEqual(sampling.bytes_of(folder), 0)


if __name__ == "__main__":
    fakes.main()
