#!/usr/bin/env python3
"""How scripts/drain --slurm interprets Slurm's output: SlurmJob."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from gcr_moves import slurm  # noqa: E402


def job(**fields):
    """The output of squeue 22.05 for a job that can move."""
    raw = {"job_id": 7, "job_state": "RUNNING", "nodes": "n1", "node_count": 1, "dependency": "", "comment": "", "admin_comment": "",
           "gres_detail": ["gpu:h200:2(IDX:1,3)"], "het_job_id": 0, "batch_flag": True, "user_id": 1000,
           "array_job_id": 0}  # fmt: skip
    return slurm.SlurmJob(raw | fields)


class Jobs(unittest.TestCase):
    def test_batch_job_of_one_node_can_move(self):
        self.assertEqual(job().obstacle(), "")

    def test_untransferable_job_is_refused_with_the_reason(self):
        for fields, words in (
            ({"node_count": 2}, "2 nodes"),
            ({"het_job_id": 6}, "heterogeneous"),
            ({"batch_flag": False}, "no batch script"),
            ({"gres_detail": ["gpu:1g.10gb:1(IDX:0)"]}, "MIG"),
            ({"job_state": "SUSPENDED"}, "SUSPENDED"),
            ({"job_state": "COMPLETING"}, "COMPLETING"),
        ):
            self.assertIn(words, job(**fields).obstacle())

    def test_json_of_newer_releases_means_the_same(self):
        newer = job(job_state=["RUNNING"], node_count={"set": True, "infinite": False, "number": 1},
                    het_job_id={"set": True, "infinite": False, "number": 0}, shared=["none"],
                    time_limit={"set": True, "infinite": True, "number": 0})  # fmt: skip
        self.assertEqual(newer.obstacle(), "")
        self.assertTrue(newer.exclusive)
        self.assertFalse(job(shared=[]).exclusive)
        self.assertFalse(job(shared=["oversubscribe"]).exclusive)
        self.assertIsNone(newer.number("time_limit"))
        self.assertFalse(job(job_state=["RUNNING", "CONFIGURING"]).running)
        self.assertTrue(job(job_state=["CANCELLED"]).ended)

    def test_gpus_are_read_by_index_and_requested_by_model(self):
        self.assertEqual(job().gpus, [1, 3])
        self.assertEqual([str(each) for each in job().gres], ["gpu:h200:2"])
        several = job(gres_detail=["gpu:4(IDX:0-2,5),fpga:1(IDX:0)"])
        self.assertEqual(several.gpus, [0, 1, 2, 5])
        self.assertEqual([str(each) for each in several.gres], ["gpu:4", "fpga:1"])

    def test_admin_comment_marks_placeholders_of_the_same_user(self):
        mark = "gcr-migrate: placeholder for job 7"
        place = job(job_id=8, admin_comment=f"{mark}; checked", comment=f"{mark}; night run")
        self.assertTrue(place.is_for(job()))
        self.assertEqual((place.admin_comment, place.comment), ("checked", "night run"))
        self.assertFalse(place.is_for(job(job_id=70)))
        self.assertFalse(place.is_for(job(user_id=1001)))
        self.assertFalse(job(admin_comment="night run").is_for(job()))

    def test_user_comments_are_no_marks(self):
        for mark in (slurm.PLACEHOLDER, slurm.SUCCESSOR):
            forged = job(job_id=8, comment=f"gcr-migrate: {mark} job 7")
            self.assertEqual((forged.mark, forged.marked_id), ("", 0))
            self.assertFalse(forged.is_for(job()))

    def test_dependants_wait_for_the_successor(self):
        renamed = slurm._renamed("afterok:7(unfulfilled),afterany:70(unfulfilled):7", 7, 9)  # pylint: disable=protected-access
        self.assertEqual(renamed, "afterok:9,afterany:70:9")


if __name__ == "__main__":
    unittest.main()
