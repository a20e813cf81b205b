#!/usr/bin/env python3
"""The digest kernel for AMD GPUs: compiled and linked for three architectures, with everything in registers. It is not
run here; tests/gpu/digest/kernel_test.cc runs its arithmetic.

The compiler is Clang 17 or later (the first with gfx942): scripts/install-deps --with-hip."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

DIGEST = pathlib.Path(__file__).resolve().parents[3] / "migrate-agent/gpu/digest"
KERNEL = "gcr_digest_chunks"
THREADS = 256
# Of each: the lanes of a wavefront, the registers that the wavefronts of a SIMD share, the granularity of register
# allocation, and how many SIMDs a work group spreads over (LLVM's AMDGPU backend; the architectures' instruction set
# guides). gfx1100 in work-group-processor mode.
ARCHITECTURES = {
    "gfx90a": (64, 512, 8, 4),
    "gfx942": (64, 512, 8, 4),
    "gfx1100": (32, 1536, 24, 4),
}
BLOCKS_AT_ONCE = 2  # of a compute unit, so that one computes while the other waits for memory


def compiler():
    for name in ("clang++-19", "clang++-20", "clang++-18", "clang++-17"):
        if shutil.which(name):
            return name
    raise FileNotFoundError("no Clang that knows gfx942: scripts/install-deps --with-hip")


def compile_kernel(architecture, *options):
    return subprocess.run(
        [compiler(), "-x", "hip", f"--offload-arch={architecture}", "--cuda-device-only",
         "-nogpulib", "-nogpuinc", "-std=c++20", "-O3", "-Wall", "-Wextra", "-Werror",
         f"-I{DIGEST / 'hip'}", *options, str(DIGEST / "digest_kernel.cu")],
        check=True, capture_output=True, text=True).stdout


class AmdKernel(unittest.TestCase):
    def test_kernel_uses_registers_only(self):
        for architecture, (lanes, registers, unit, simds) in ARCHITECTURES.items():
            with self.subTest(architecture):
                assembly = compile_kernel(architecture, "-S", "-o", "-")
                facts = {name: int(value) for name, value in
                         re.findall(r"^ +\.(\w+): +(\d+)$", assembly, re.MULTILINE)}
                self.assertEqual(facts["vgpr_spill_count"], 0)
                self.assertEqual(facts["sgpr_spill_count"], 0)
                self.assertEqual(facts["private_segment_fixed_size"], 0)
                self.assertEqual(facts["max_flat_workgroup_size"], THREADS)
                self.assertEqual(facts["wavefront_size"], lanes)
                self.assertNotRegex(assembly, r"\n\s+scratch_(load|store)")
                taken = -(-facts["vgpr_count"] // unit) * unit
                waves_at_once = registers // taken * simds
                print(f"{architecture}: {facts['vgpr_count']} vector registers, "
                      f"{facts['sgpr_count']} scalar ones, "
                      f"{waves_at_once * lanes // THREADS} work groups at once")
                self.assertGreaterEqual(waves_at_once * lanes, BLOCKS_AT_ONCE * THREADS)

    def test_kernel_uses_global_loads(self):
        """A flat load has to determine the kind of memory for each lane."""
        for architecture in ARCHITECTURES:
            with self.subTest(architecture):
                assembly = compile_kernel(architecture, "-S", "-o", "-")
                self.assertRegex(assembly, r"\n\s+global_load_(dwordx4|b128)")
                self.assertNotRegex(assembly, r"\n\s+flat_(load|store)")

    def test_kernel_is_a_loadable_code_object(self):
        for architecture in ARCHITECTURES:
            with self.subTest(architecture), tempfile.TemporaryDirectory() as folder:
                code = pathlib.Path(folder) / "kernel.co"
                compile_kernel(architecture, "--no-gpu-bundle-output", "-o", str(code))
                content = code.read_bytes()
                self.assertEqual(content[:4], b"\x7fELF")
                self.assertEqual(int.from_bytes(content[18:20], "little"), 224)  # EM_AMDGPU
                self.assertIn(KERNEL.encode() + b".kd\0", content)


if __name__ == "__main__":
    unittest.main(verbosity=2)
