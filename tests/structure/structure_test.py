#!/usr/bin/env python3
"""Rooms, and the folders in them, include each other as docs/design.md says, and never in a circle; its drawing is that
of scripts/draw-rooms.

Reads the includes of all sources of the product and the tables under "## Folders"; of the tests, what
CMake is told.
Usage: structure_test.py SOURCE
"""
import collections
import os
import re
import subprocess
import sys
import unittest

SOURCE = sys.argv.pop()
PRODUCT = ("src", "proto", "transport", "store", "preload", "migrate-agent", "slurm", "container")
WITH_ROOMS = ("src", "migrate-agent")  # the others are rooms themselves
SUFFIXES = (".h", ".cc", ".cu", ".c", ".def", ".proto")
INCLUDE = re.compile(r'\s*(?:#\s*include|import) +"([^"]+)"')
ROW = re.compile(r"^\| `([^`]+)/` \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def design():
    with open(f"{SOURCE}/docs/design.md", encoding="utf-8") as page:
        return page.read().split("\n## Folders\n")[1].split("\n## ")[0]


def rows(text):
    return {row[1]: set(re.findall(r"`([^`]+)/`", row[2])) for row in ROW.finditer(text)}


def tables():
    """What each room may include, and by rooms, what each folder may of its room."""
    first, *others = design().split("\n### ")
    return rows(first), {text.split("/\n")[0]: rows(text) for text in others}


def room_of(folder):
    parts = folder.split("/")
    return "/".join(parts[: 2 if parts[0] in WITH_ROOMS else 1])


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


def between_rooms():
    found = collections.defaultdict(list)
    for (here, there), lines in includes().items():
        if room_of(here) != room_of(there):
            found[room_of(here), room_of(there)] += lines
    return found


def inside(room):
    return {(here, there): lines for (here, there), lines in includes().items()
            if room_of(here) == room_of(there) == room}


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

    def check(self, table, found):
        """The includes in `found` are those of the table, and have no circle."""
        edges = collections.defaultdict(list)
        for here, there in found:
            edges[here].append(there)
        self.assertEqual(circle(edges), [])
        wrong = {f"{here} -> {there}": lines for (here, there), lines in found.items()
                 if there not in table.get(here, ())}
        self.assertEqual(wrong, {})
        unused = [f"{here} -> {there}" for here, folders in table.items() for there in folders
                  if (here, there) not in found]
        self.assertEqual(unused, [], "in the table, and not used")

    def test_rooms_include_what_the_table_says(self):
        table, _ = tables()
        self.assertEqual(set(table), {room_of(os.path.dirname(path)) for path in sources()})
        self.check(table, between_rooms())

    def test_folders_of_a_room_include_what_its_table_says(self):
        folders = {os.path.dirname(path) for path in sources()}
        _, insides = tables()
        for room in sorted(set(map(room_of, folders))):
            mine = {folder for folder in folders if room_of(folder) == room}
            with self.subTest(room):
                table = insides.get(room, {room: set()})
                self.assertEqual(set(table), mine)
                self.check(table, inside(room))

    def test_no_namespace_spans_two_rooms(self):
        """So that a name says its room; a room may have several."""
        rooms = collections.defaultdict(set)
        for path in sources():
            with open(f"{SOURCE}/{path}", encoding="utf-8") as text:
                for name in re.findall(r"^namespace (gcr(?:::\w+)*) \{", text.read(), re.MULTILINE):
                    rooms["::".join(name.split("::")[:2])].add(room_of(os.path.dirname(path)))
        self.assertEqual({name: found for name, found in rooms.items() if len(found) > 1}, {})

    def test_drawing_equals_the_table(self):
        drawing = subprocess.run([f"{SOURCE}/scripts/draw-rooms"], capture_output=True, text=True, check=True).stdout
        self.assertIn(f"\n{drawing}", design(), "scripts/draw-rooms --write")

    def test_list_properties_of_discovered_tests_are_whole(self):
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
