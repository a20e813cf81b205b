"""What the tests of the CUDA table and of the HIP table share."""

import unittest


def no_rows(path):
    """The functions in no_row.txt by their reasons, in the order of the file."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file.read().splitlines():
            if line.endswith(":") and not line.startswith(" "):
                reason = line[:-1]
                found[reason] = []
            elif line.startswith("  "):
                found[reason] += line.split()
    return found


def run(always, compared, nothing):
    """The exit status of these test cases; without `compared`, ctest's for «skipped», and the reason."""
    cases = [always, compared] if compared else [always]
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases))
    good = unittest.TextTestRunner().run(suite).wasSuccessful()
    if good and not compared:
        print(f"nothing to compare with: {nothing}")
        return 77
    return not good
