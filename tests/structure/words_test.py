#!/usr/bin/env python3
"""No text of the project has a word of WORDS: for each there is a plainer one, or the field's own.

Reads what git has of SOURCE: sources, comments, messages, documents, names of tests. A line of words.txt,
"PATH: TEXT", excepts the lines of PATH that contain TEXT.
Usage: words_test.py SOURCE [PATH...]    (of PATHs alone)
"""
import os
import re
import subprocess
import sys
import unittest

SOURCE, *PATHS = sys.argv[1:]
HERE = os.path.dirname(os.path.abspath(__file__))
WORDS = {
    r"(?:no|any|every|some)body": "a process, a user, a caller",
    r"(?:who|what|which|when|where)ever": "each, every, any; or the thing's name",
    r"\bof (?:Slurm|AMD|CRIU|NVIDIA|CUDA|HIP|Debian|OpenSSL|Python|GoogleTest|podman|docker|Linux|RDMA|PyTorch)'s\b":
        "Slurm job, AMD GPU, CRIU image",
    r"\bst(?:ands?|anding|ood) still\b": "is stopped, is frozen; downtime",
    r"\b(?:goes|go|going|went|gone) back\b": "rolls back, resumes, returns",
    r"\blikewise\b": "also",
    r"beside(?!s)": "concurrently with, next to, with",
    r"\b(?:comes?|coming|came) to life\b": "is restored, starts",
    r"\b(?:is|are|was|were) there again\b": "is restored, exists again",
    r"heed|obey|spoil|calm_down|stand_still": "a verb of the field",
    r"\bon (?:its|their|the) way\b": "in flight, being sent, before it finished",
    r"\bminds? not\b": "tolerates",
}
PATTERN = re.compile("|".join(f"(?:{word})" for word in WORDS), re.IGNORECASE)


def exceptions():
    with open(f"{HERE}/words.txt", encoding="utf-8") as lines:
        return [tuple(line.rstrip("\n").split(": ", 1)) for line in lines if not line.startswith("#")]


def files():
    listed = subprocess.run(["git", "-c", f"safe.directory={SOURCE}", "-C", SOURCE, "ls-files", "-z", *PATHS],
                            capture_output=True, check=True)
    mine = {os.path.relpath(__file__, SOURCE), os.path.relpath(f"{HERE}/words.txt", SOURCE)}
    return [path for path in listed.stdout.decode().split("\0") if path and path not in mine]


def found():
    """Lines with one of WORDS that no exception names, as "PATH:LINE: WORD"; exceptions that name none."""
    unused = set(exceptions())
    lines = []
    for path in files():
        if not os.path.isfile(f"{SOURCE}/{path}") or path.endswith((".ptx", ".svg")):
            continue
        with open(f"{SOURCE}/{path}", encoding="utf-8", errors="replace") as text:
            for number, line in enumerate(text, 1):
                match = PATTERN.search(line)
                if not match:
                    continue
                named = {one for one in unused | set(exceptions()) if one[0] == path and one[1] in line}
                unused -= named
                if not named:
                    lines.append(f"{path}:{number}: {match[0]}")
    return lines, unused


class Words(unittest.TestCase):
    maxDiff = None

    def test_every_text_is_plain(self):
        lines, unused = found()
        self.assertEqual(lines, [], "; ".join(set(WORDS.values())))
        if not PATHS:
            self.assertEqual(unused, set(), "in words.txt, and not needed")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
