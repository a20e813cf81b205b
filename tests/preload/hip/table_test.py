#!/usr/bin/env python3
"""Every function of HIP 5.2 is a row of hip_api.def or is named, with a reason, in no_row.txt.

Compares with the library's exports and its headers' declarations; header_check.cc has the types. Usage: table_test.py
SOURCE [INCLUDE LIBRARY]    without the latter two it has nothing to compare with
"""
import pathlib
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from function_tables import no_rows, run

SOURCE, *INSTALLED = sys.argv[1:]
INCLUDE, LIBRARY = INSTALLED or (None, None)
HEADERS = ("hip_runtime_api.h", "amd_detail/amd_hip_runtime_pt_api.h", "hip_ext.h", "hiprtc.h")
ROW = re.compile(
    r"^GCR_HIP_FUNCTION\(([^,]+), (\w+),\s*(\w+), (\d+), (k\w+), (k\w+),\s*\((.*?)\),\s*\((.*?)\)\)$",
    re.MULTILINE | re.DOTALL,
)
DECLARATION = re.compile(
    r'^[ \t]*(?:DEPRECATED\([^)]*\)\s*|extern "C"\s+|inline\s+)*hipError_t\s+(\w+)\s*\(', re.MULTILINE
)
# Called only by compilers, and by code that hcc compiled.
DECLARED_NOWHERE = {
    "__hipRegisterFunction",
    "__hipRegisterManagedVar",
    "__hipUnregisterFatBinary",
    "_ZN8hip_impl22hipLaunchKernelGGLImplEmRK4dim3S2_jP12ihipStream_tPPv",
}
# In a separate namespace, and not exported.
DECLARED_AND_UNUSED = {"hip_init"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Row:
    def __init__(self, match):
        self.result, self.symbol, self.name, since, self.flavour, self.policy, *lists = match
        self.since = int(since)
        self.parameters, self.arguments = (
            [one.strip() for one in text.split(",")] if text.strip() else [] for text in lists
        )


def rows():
    return [Row(match) for match in ROW.findall(read(f"{SOURCE}/preload/hip/hip_api.def"))]


def unused():
    return no_rows(f"{SOURCE}/preload/hip/no_row.txt")


class Table(unittest.TestCase):
    maxDiff = None

    def test_every_row_is_read(self):
        text = read(f"{SOURCE}/preload/hip/hip_api.def")
        self.assertEqual(len(rows()), text.count("\nGCR_HIP_FUNCTION("))

    def test_every_symbol_is_a_row_or_has_one_reason(self):
        names = [row.symbol for row in rows()] + sum(unused().values(), [])
        self.assertEqual(sorted({one for one in names if names.count(one) > 1}), [])

    def test_policies_are_those_of_the_head_comment(self):
        policies = {row.policy for row in rows()}
        self.assertEqual(policies, {"kGated", "kTracked", "kWaits", "kLookup", "kPassed"})

    def test_arguments_are_the_parameter_names(self):
        for row in rows():
            named = [re.search(r"(\w+)$", one)[1] for one in row.parameters]
            self.assertEqual(named, row.arguments, row.symbol)

    def test_per_thread_stream_functions_are_marked(self):
        for row in rows():
            with self.subTest(row.symbol):
                spt = row.symbol.endswith("_spt")
                self.assertEqual(row.flavour, "kSpt" if spt else "kLegacy")
                self.assertEqual(spt, row.symbol == row.name + "_spt")

    def test_only_passed_and_compiler_functions_return_other_types(self):
        other = {row.symbol for row in rows() if row.result != "hipError_t" and row.policy != "kPassed"}
        self.assertEqual(other, DECLARED_NOWHERE)


class Installed(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        listing = subprocess.run(
            ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True
        ).stdout
        symbols = (line.split() for line in listing.splitlines())
        self.exported = {name.split("@")[0] for _, kind, name in symbols if kind != "A"}
        self.declared = set()
        for header in HEADERS:
            self.declared.update(DECLARATION.findall(read(f"{INCLUDE}/hip/{header}")))
        self.declared -= DECLARED_AND_UNUSED
        self.assertGreater(len(self.exported), 300)
        self.assertGreater(len(self.declared), 300)

    def test_exactly_the_rows_not_marked_later_are_exported(self):
        wrong = [row.symbol for row in rows() if (row.since <= 502) != (row.symbol in self.exported)]
        self.assertEqual(wrong, [])

    def test_every_row_that_returns_an_error_is_declared(self):
        names = {row.name if row.symbol.startswith("_Z") else row.symbol
                 for row in rows() if row.since <= 502 and row.result == "hipError_t"}
        self.assertEqual(sorted(names - self.declared), [])

    def test_every_function_is_a_row_or_has_a_reason(self):
        known = set(sum(unused().values(), [])) | {row.symbol for row in rows()}
        known.update(row.name for row in rows() if row.symbol.startswith("_Z"))
        self.assertEqual(sorted((self.exported | self.declared) - known), [])

    def test_exactly_the_reasons_not_marked_later_exist(self):
        for reason, names in unused().items():
            for name in names:
                there = name in self.exported or name in self.declared
                self.assertEqual(there, not reason.startswith("Later"), name)


if __name__ == "__main__":
    sys.exit(run(Table, Installed if INSTALLED else None, "HIP 5.2 (libamdhip64-dev) is not installed"))
