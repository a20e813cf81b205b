#!/usr/bin/env python3
"""Every command and option that docs/install.md and docs/usage.md mention is run by a test that commands.txt names.

Blocks that are marked `<!-- run: … -->` are run by machines.documents. Everything else, in code spans and other blocks,
has a line in commands.txt: as in the document, two spaces, the tests. These have every word of the command in their own
strings or in those of their helpers. Usage: commands_test.py SOURCE BUILD
"""
import functools
import re
import sys
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop())
SOURCE = Path(sys.argv.pop())
DOCUMENTS = ("install.md", "usage.md")
OURS = {"gcr-migrate", "gcr-container", "gcr-make-certs", "gcr-drain", "gcr-rebalance", "gcr-slurm", "gcr-turns",
        "migrate-agent"}
BY_PATH = {"gcr-migrate", "migrate-agent"}  # tests have them from the build folder
SYSTEMS = {"apt", "arping", "cp", "curl", "ip", "journalctl", "kill", "man", "mkdir", "scp", "ssh", "sysctl",
           "systemctl", "unshare"}  # fmt: skip
MARKED = re.compile(r"<!-- run: .*? -->\n(?: {4}.*\n)+")
BLOCK = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
STRING = re.compile(r"""(["'])((?:[^"'\\\n]|\\.|(?!\1)["'])*)\1""")
GTEST = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\).*?^\}", re.MULTILINE | re.DOTALL)


def read(path):
    return (SOURCE / path).read_text(encoding="utf-8")


def page(document):
    return read(f"docs/{document}")


@functools.cache
def verbs():
    """Of gcr-migrate: the man page has all of them, as packaging.documents proves."""
    return set(re.findall(r"^\.It Cm (\w+)", read("docs/man/gcr-migrate.1"), re.MULTILINE))


def is_command(text):
    first = text.split()[0]
    return first in OURS | SYSTEMS | verbs() or first.startswith(("--", "scripts/", "GCR_"))


def commands():
    """As the documents have them, except for line breaks."""
    found = []
    for document in DOCUMENTS:
        text = MARKED.sub("", page(document))
        found += BLOCK.findall(text) + re.findall(r"`([^`]+)`", BLOCK.sub("", text))
    return {text for text in (" ".join(each.split()) for each in found) if is_command(text)}


def table():
    lines = [line for line in read("tests/docs/commands.txt").splitlines() if line and not line.startswith("#")]
    rows = [line.rsplit("  ", 1) for line in lines]
    return {command.rstrip(): tests.split() for command, tests in rows}


def words(command):
    """Those that a test has, too: no placeholders, and no numbers."""
    parts = re.split(r"[\s|,=]+", command.replace("scripts/", ""))
    return [word for word in parts if re.fullmatch(r"(--)?[a-z][a-z-]+|GCR_\w+", word) and word not in BY_PATH]


@functools.cache
def sources():
    """The texts that CMake builds or runs below tests/, by path."""
    paths = (path for path in SOURCE.glob("tests/**/*") if path.suffix in (".cc", ".h", ".py"))
    return {path: path.read_text(encoding="utf-8") for path in paths}


def helpers(path):
    """The file's includes and imports of other test files, without the tests in there."""
    text = sources()[path]
    names = re.findall(r'#include "(tests/.*?)\.h"', text)
    names += [f"{path.parent.relative_to(SOURCE)}/{name}" for name in re.findall(r"^(?:from|import) (\w+)", text, re.M)]
    found = (SOURCE / (name + suffix) for name in names for suffix in (".h", ".cc", ".py"))
    return [GTEST.sub("", sources()[each]) for each in found if each in sources()]


def strings(*texts):
    return " ".join(string for text in texts for _, string in STRING.findall(text))


def of_gtest(test):
    """The strings of the test itself and of its helpers, without the other tests of its file."""
    for path, text in sources().items():
        for match in GTEST.finditer(text) if path.suffix == ".cc" else ():
            if f"{match[1]}.{match[2]}" == test:
                yield strings(match[0], GTEST.sub("", text), *helpers(path))


@functools.cache
def added_tests():
    """The words of the command of each add_test(), by name, as CMake has written them."""
    lines = (re.findall(r"^add_test\(\[=\[(.+?)\]=\] (.*)\)$", path.read_text(encoding="utf-8"), re.M)
             for path in BUILD.glob("tests/**/CTestTestfile.cmake"))  # fmt: skip
    return {name: re.findall(r'"([^"]*)"', command) for found in lines for name, command in found}


def of_added_test(test):
    """What it runs: the command and its scripts; of tests and their helpers the strings."""
    command = added_tests().get(test, [])
    yield from command
    for script in filter(Path.is_file, map(Path, command)):
        if script.is_relative_to(SOURCE) and not script.is_relative_to(BUILD):
            yield strings(read(script), *helpers(script)) if script in sources() else read(script)


@functools.cache
def evidence(test):
    """The strings of the named test; nothing if there is no such test."""
    typed = MARKED.findall("".join(map(page, DOCUMENTS))) if test == "machines.documents" else []
    return "\n".join([*of_gtest(test), *of_added_test(test), *typed])


class Commands(unittest.TestCase):
    maxDiff = None

    def test_every_documented_command_has_a_test(self):
        self.assertEqual(sorted(commands() - set(table())), [], "without a line in commands.txt")

    def test_every_line_of_the_table_is_a_documented_command(self):
        self.assertEqual(sorted(set(table()) - commands()), [], "in commands.txt, but in neither document")

    def test_every_test_of_the_table_exists(self):
        named = {test for tests in table().values() for test in tests}
        self.assertEqual(sorted(test for test in named if not evidence(test)), [], "no such tests")

    def test_tests_of_a_command_contain_it(self):
        for command, tests in table().items():
            said = "\n".join(map(evidence, tests))
            absent = [word for word in words(command) if not re.search(rf"(?<![\w-]){word}(?![\w-])", said)]
            with self.subTest(command):
                self.assertEqual(absent, [], f"not in {', '.join(tests)}")


if __name__ == "__main__":
    unittest.main()
