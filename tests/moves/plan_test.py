#!/usr/bin/env python3
"""Where jobs move, decided from snapshots."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from gcr_moves import plan  # noqa: E402
from gcr_moves.cluster import Gpu, Picture, Job  # noqa: E402

GIB = 1 << 30


def gpu(name, free, total=80, model="H200", allowed=True):
    return Gpu(name, model, total * GIB, int(free * GIB), allowed)


def job(pid, **vram):
    return Job(pid, 1, vram=tuple((uuid, int(size * GIB)) for uuid, size in vram.items()))


def picture(*gpus, jobs=(), load=0.0, migrations=()):
    return Picture(tuple(gpus), tuple(jobs), tuple(migrations), load)


SOURCE = picture(gpu("s0", 0), gpu("s1", 0))


class Placing(unittest.TestCase):
    def test_host_with_the_largest_free_share_comes_first(self):
        rooms = {"small": plan.Room(picture(gpu("a", 30))), "large": plan.Room(picture(gpu("b", 60)))}
        fitting, reasons = plan.candidates(job(1, s0=10), SOURCE, rooms)
        self.assertEqual((fitting, reasons), (["large", "small"], {}))

    def test_load_and_running_migrations_count_against_a_host(self):
        busy = picture(gpu("a", 60), load=1.0)
        calm = picture(gpu("b", 50))
        fitting, _ = plan.candidates(
            job(1, s0=10), SOURCE, {"busy": plan.Room(busy), "calm": plan.Room(calm)})  # fmt: skip
        self.assertEqual(fitting, ["calm", "busy"])
        moving = [{"migration_id": str(n), "phase": "precopy"} for n in range(4)]
        receiving = picture(gpu("a", 60), migrations=moving)
        fitting, _ = plan.candidates(
            job(1, s0=10), SOURCE, {"receiving": plan.Room(receiving), "calm": plan.Room(calm)})  # fmt: skip
        self.assertEqual(fitting, ["calm", "receiving"])

    def test_paused_migration_does_not_count(self):
        waiting = [
            {"migration_id": "1", "phase": ""},
            {"migration_id": "2", "phase": "commit", "operator_needed": True},
        ]
        self.assertEqual(picture(migrations=waiting).under_way, set())

    def test_planned_moves_use_room(self):
        room = plan.Room(picture(gpu("a", 25)))
        first, second = job(1, s0=12), job(2, s1=12)
        room.take(first, room.find(first, SOURCE))
        self.assertIn("12.4 GiB of VRAM free", room.find(second, SOURCE))

    def test_context_needs_room_too(self):
        self.assertEqual(plan.Room(picture(gpu("a", 10.7))).find(job(1, s0=10), SOURCE), {"s0": "a"})
        self.assertIsInstance(plan.Room(picture(gpu("a", 10.5))).find(job(1, s0=10), SOURCE), str)

    def test_unsuitable_gpus_are_not_used(self):
        for unfit in (gpu("a", 40, model="H100"), gpu("a", 40, total=79), gpu("a", 40, allowed=False)):
            self.assertIn("no free H200", plan.Room(picture(unfit)).find(job(1, s0=1), SOURCE))

    def test_each_gpu_gets_a_distinct_target_with_most_room_first(self):
        room = plan.Room(picture(gpu("a", 10), gpu("b", 40), gpu("c", 20)))
        self.assertEqual(room.find(job(1, s0=5, s1=5), SOURCE), {"s0": "b", "s1": "c"})
        one = plan.Room(picture(gpu("a", 40)))
        self.assertIsInstance(one.find(job(1, s0=5, s1=5), SOURCE), str)

    def test_gpu_shared_by_both_hosts_is_kept(self):
        self.assertEqual(
            plan.Room(picture(gpu("x", 40), gpu("s0", 20))).find(job(1, s0=5), SOURCE), {"s0": "s0"})  # fmt: skip


class Balancing(unittest.TestCase):
    @staticmethod
    def uneven():
        """One host full, two empty."""
        full = [job(pid, f0=size) for pid, size in ((1, 40), (2, 20), (3, 10))]
        return {
            "full": picture(gpu("f0", 10), jobs=full),
            "empty": picture(gpu("e0", 80)),
            "other": picture(gpu("o0", 80)),
        }

    def test_largest_gain_comes_first(self):
        pictures = self.uneven()
        moves, used = plan.balance(pictures, 0.01)
        gains = [move.gain for move in moves]
        self.assertEqual(gains, sorted(gains, reverse=True))
        self.assertTrue(all(gain >= 0.01 for gain in gains))
        totals = plan.totals_of(pictures)
        before, after = plan.spread(plan.used_of(pictures), totals), plan.spread(used, totals)
        self.assertLess(after, before / 2)
        self.assertEqual(sum(used.values()), sum(plan.used_of(pictures).values()))
        self.assertEqual(len(moves), 2)

    def test_no_job_moves_twice_or_while_it_migrates(self):
        pictures = self.uneven()
        moving = Job(4, 1, vram=(("f0", 5 * GIB),), migration_id="some")
        full = pictures["full"]
        pictures["full"] = picture(*full.gpus, jobs=[*full.jobs, moving])
        moves, _ = plan.balance(pictures, 1e-6)
        pids = [move.job.pid for move in moves]
        self.assertEqual(len(pids), len(set(pids)))
        self.assertNotIn(4, pids)

    def test_moves_below_the_threshold_are_not_planned(self):
        moves, _ = plan.balance(self.uneven(), 0.99)
        self.assertEqual(moves, [])
        moves, _ = plan.balance(self.uneven(), 0.01, most_moves=1)
        self.assertEqual([move.job.pid for move in moves], [1])

    def test_nothing_goes_to_another_model(self):
        pictures = self.uneven()
        pictures["empty"] = picture(gpu("e0", 80, model="H100"))
        moves, _ = plan.balance(pictures, 0.01)
        self.assertTrue(moves)
        self.assertEqual({move.destination for move in moves}, {"other"})

    def test_two_gpu_job_moves_to_two_free_gpus(self):
        pictures = {
            "full": picture(gpu("f0", 10), gpu("f1", 10), jobs=[job(1, f0=30, f1=30)]),
            "one": picture(gpu("o0", 80), gpu("o1", 10)),
            "both": picture(gpu("b0", 70), gpu("b1", 70)),
        }
        moves, _ = plan.balance(pictures, 0.001)
        self.assertEqual([(move.job.pid, move.destination) for move in moves], [(1, "both")])

    def test_hosts_of_different_size_are_compared_by_shares(self):
        pictures = {
            "large": picture(gpu("l0", 40, total=80), jobs=[job(1, l0=40)]),
            "small": picture(gpu("m0", 5, total=10), jobs=[job(2, m0=5)]),
        }
        self.assertEqual(plan.balance(pictures, 0.001)[0], [])

    def test_every_move_reduces_the_spread(self):
        pictures = self.uneven()
        pictures["large"] = picture(gpu("l0", 120, total=160), jobs=[job(9, l0=40)])
        totals, used = plan.totals_of(pictures), plan.used_of(pictures)
        moves, _ = plan.balance(pictures, 0.001)
        self.assertTrue(moves)
        for move in moves:
            before = plan.spread(used, totals)
            used[move.source] -= move.job.vram_bytes
            used[move.destination] += move.job.vram_bytes
            self.assertLess(plan.spread(used, totals), before)


if __name__ == "__main__":
    unittest.main()
