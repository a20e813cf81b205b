#!/usr/bin/env python3
"""The preload library needs glibc 2.28, and of it only what its list of symbols has.

Usage: versions_test.py SYMBOLS LIBRARY TABLE_LIBRARY PROGRAM GCC
SYMBOLS is preload/glibc/symbols.txt. TABLE_LIBRARY is the library of tests/preload/table, which is linked in the same way,
PROGRAM any program that is linked with this machine's glibc, and GCC the version of the compiler.
"""
import collections
import re
import subprocess
import sys
import unittest

SYMBOLS, LIBRARY, TABLE_LIBRARY, PROGRAM, GCC = sys.argv[1:]
del sys.argv[1:]
OLDEST = (2, 28)
NEEDED = re.compile(r"^ +NEEDED +(\S+)$", re.MULTILINE)
REQUIRED = re.compile(r"^  required from (\S+):\n((?:    .*\n)+)", re.MULTILINE)
UNDEFINED = re.compile(r"\*UND\*\s+\S+ +\(?(\S+?)\)? +(\S+)$", re.MULTILINE)
# Weak references of the compiler's, which need no version.
OPTIONAL = re.compile(r"_ITM_|_ZGT|__gmon_start__$|__cxa_pure_virtual$")


def objdump(option, file):
    return subprocess.run(["objdump", option, file], capture_output=True, text=True, check=True).stdout


def required_versions(file):
    """Versions that an object requires, by library."""
    found = collections.defaultdict(set)
    for library, lines in REQUIRED.findall(objdump("-p", file)):
        found[library] |= {line.split()[3] for line in lines.splitlines()}
    return found


def newest(file):
    """The newest release of glibc that an object needs; no other versions may be among those that it requires."""
    names = set().union(*required_versions(file).values())
    return max(tuple(map(int, re.fullmatch(r"GLIBC_([0-9.]+)", name)[1].split("."))) for name in names)


def used():
    """Names and versions that either library does not define."""
    table = objdump("-T", LIBRARY) + objdump("-T", TABLE_LIBRARY)
    return {(name, version) for version, name in UNDEFINED.findall(table) if not OPTIONAL.match(name)}


def listed():
    """By library, names and versions on the list; and those of other compilers."""
    here, elsewhere = collections.defaultdict(set), set()
    others = False
    with open(SYMBOLS, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#"):
                others = others or line.startswith("# Only ")
            elif line.strip():
                library, version, *names = line.split()
                pairs = {(name.split("=")[0], version) for name in names}
                elsewhere |= pairs if others else set()
                here[library] |= set() if others else pairs
    return here, elsewhere


class Versions(unittest.TestCase):
    maxDiff = None

    def test_glibc_2_28_is_enough(self):
        for file in (LIBRARY, TABLE_LIBRARY):
            self.assertLessEqual(newest(file), OLDEST)

    def test_program_of_this_machine_needs_a_newer_one(self):
        """So a library that is linked with this machine's glibc would be found."""
        self.assertGreater(newest(PROGRAM), OLDEST)

    def test_only_listed_libraries_are_needed(self):
        here, _ = listed()
        self.assertEqual(set(NEEDED.findall(objdump("-p", LIBRARY))), set(here))
        self.assertLessEqual(set(required_versions(LIBRARY)), set(here))

    def test_all_that_is_used_is_listed(self):
        here, elsewhere = listed()
        self.assertEqual(used() - elsewhere.union(*here.values()), set())

    @unittest.skipUnless(GCC.startswith("12."), "of the list, only the part for GCC 12 is checked")
    def test_all_that_is_listed_is_used(self):
        here, elsewhere = listed()
        self.assertTrue(elsewhere, "the list has a part for other compilers")
        self.assertEqual(set().union(*here.values()) - used(), set())

    def test_nothing_is_listed_twice(self):
        here, elsewhere = listed()
        names = [name for pairs in (*here.values(), elsewhere) for name, _ in pairs]
        self.assertEqual(sorted(names), sorted(set(names)))


if __name__ == "__main__":
    unittest.main()
