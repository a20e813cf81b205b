#!/usr/bin/env python3
"""The folders include each other as docs/design.md says, and never in a circle.

Reads the includes of all sources of the product and the table under "## Folders"; of the tests, what
CMake is told.
Usage: structure_test.py SOURCE
"""
import collections
import os
import re
import sys
import unittest

SOURCE = sys.argv.pop()
PRODUCT = ("src", "proto", "transport", "preload", "migrate-agent", "slurm")
SUFFIXES = (".h", ".cc", ".cu", ".c", ".def", ".proto")
INCLUDE = re.compile(r'\s*(?:#\s*include|import) +"([^"]+)"')
ROW = re.compile(r"\| `([^`]+)/` \|[^|]*\|([^|]*)\|$")


def table():
    """The folders that each folder may include, by its name."""
    with open(f"{SOURCE}/docs/design.md", encoding="utf-8") as page:
        section = page.read().split("\n## Folders\n")[1].split("\n## ")[0]
    rows = filter(None, map(ROW.match, section.splitlines()))
    return {row[1]: set(re.findall(r"`([^`]+)/`", row[2])) for row in rows}


def sources():
    for top in PRODUCT:
        for folder, _, names in os.walk(f"{SOURCE}/{top}"):
            for name in names:
                if name.endswith(SUFFIXES):
                    yield os.path.relpath(f"{folder}/{name}", SOURCE)


def includes():
    """Where a folder includes another, as FILE:LINE, by both; generated headers count too."""
    found = collections.defaultdict(list)
    for path in sources():
        here = os.path.dirname(path)
        with open(f"{SOURCE}/{path}", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                match = INCLUDE.match(line)
                there = os.path.dirname(match[1]) if match else ""
                if there.split("/")[0] in PRODUCT + ("tests",) and there != here:
                    found[here, there].append(f"{path}:{number}")
    return found


def circle(edges):
    """Folders that include each other in a circle, in order; none if there is no circle."""
    done = set()

    def walk(folder, path):
        if folder in path:
            return path[path.index(folder) :]
        if folder in done:
            return []
        found = next(filter(None, (walk(one, path + [folder]) for one in edges[folder])), [])
        done.add(folder)
        return found

    return next(filter(None, (walk(folder, []) for folder in list(edges))), [])


class Structure(unittest.TestCase):
    maxDiff = None

    def test_no_folders_include_each_other_in_a_circle(self):
        edges = collections.defaultdict(list)
        for here, there in includes():
            edges[here].append(there)
        self.assertEqual(circle(edges), [])

    def test_every_folder_is_in_the_table(self):
        self.assertEqual({os.path.dirname(path) for path in sources()}, set(table()))

    def test_every_include_is_one_that_the_table_has(self):
        allowed = table()
        wrong = {
            f"{here} -> {there}": lines
            for (here, there), lines in includes().items()
            if there not in allowed.get(here, ())
        }
        self.assertEqual(wrong, {})

    def test_the_table_allows_nothing_that_is_not_used(self):
        used = set(includes())
        unused = [
            f"{here} -> {there}"
            for here, folders in table().items()
            for there in folders
            if (here, there) not in used
        ]
        self.assertEqual(unused, [])

    def test_no_property_of_discovered_tests_loses_a_part(self):
        """gtest_discover_tests() drops all but the first of a list (CMake 3.25)."""
        wrong = []
        for folder, _, names in os.walk(f"{SOURCE}/tests"):
            if "CMakeLists.txt" not in names:
                continue
            with open(f"{folder}/CMakeLists.txt", encoding="utf-8") as text:
                calls = re.findall(r"gtest_discover_tests\([^()]*\)", text.read())
            wrong += [call for call in calls if re.search(r'PROPERTIES.*"[^"]*;', call, re.DOTALL)]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
