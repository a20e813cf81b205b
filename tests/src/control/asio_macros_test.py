#!/usr/bin/env python3
"""All code that includes Asio, directly or not, is compiled with the same Asio macros.

Reads ninja's data about the built objects: their commands and the headers that they include. Usage: asio_macros_test.py
BUILD
"""
import json
import re
import shlex
import subprocess
import sys
import unittest

BUILD = sys.argv.pop()
REQUIRED = {
    "ASIO_STANDALONE",
    "ASIO_NO_DEPRECATED",
    "ASIO_SEPARATE_COMPILATION",
    "ASIO_DISABLE_STD_ALIGNED_ALLOC",
}


def commands():
    """The compile command of each object, by its path in the build folder."""
    with open(f"{BUILD}/compile_commands.json", encoding="utf-8") as file:
        entries = json.load(file)
    words = (shlex.split(entry["command"]) for entry in entries)
    return {command[command.index("-o") + 1]: command for command in words}


def headers():
    """The files that each object read when it was built. Precompiled headers have separate objects."""
    listing = subprocess.run(
        ["ninja", "-C", BUILD, "-t", "deps"], check=True, capture_output=True, text=True
    ).stdout
    read = {}
    for line in listing.splitlines():
        if line.startswith("    "):
            read[current].add(line.strip())
        elif ": #deps " in line:
            current = line.split(": #deps ")[0]
            read[current] = set()
    return read


def includes_asio(name, read):
    paths = read.get(name, set())
    precompiled = (path for path in paths if path.endswith(".gch"))
    return any(re.search(r"/asio(/|\.hpp$)", path) for path in paths) or any(
        includes_asio(path, read) for path in precompiled if path != name
    )


class AsioMacros(unittest.TestCase):
    def test_asio_macros_are_the_same_everywhere(self):
        read = headers()
        users = {
            name: {word[2:] for word in command if word.startswith("-DASIO_")}
            for name, command in commands().items()
            if includes_asio(name, read)
        }
        self.assertTrue(any("/gcr_asio.dir/" in name for name in users))
        self.assertEqual({name: macros for name, macros in users.items() if macros != REQUIRED}, {})


if __name__ == "__main__":
    unittest.main()
