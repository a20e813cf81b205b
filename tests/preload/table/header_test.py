#!/usr/bin/env python3
"""Every function of the CUDA driver is a row of driver_api.def or is named, with a reason, in no_row.txt.

Compares with the declarations of the toolkit's headers, including older and per-thread forms. Usage: header_test.py
SOURCE [COMPILER INCLUDE]    without the latter two it has nothing to compare with
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from function_tables import no_rows, run

SOURCE, *INSTALLED = sys.argv[1:]
ROW = re.compile(r"^GCR_DRIVER_FUNCTION\((\w+),\s*(\w+),\s*(\d+)", re.MULTILINE)
DECLARATION = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(")
HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
# Their includes of other projects, which need not be installed.
STAND_INS = {
    "GL/gl.h": "typedef unsigned GLuint; typedef unsigned GLenum;",
    "vdpau/vdpau.h": "",
    "EGL/egl.h": "typedef void *EGLStreamKHR, *EGLImageKHR, *EGLSyncKHR; typedef int EGLint;",
    "EGL/eglext.h": "",
}


def rows():
    text = pathlib.Path(SOURCE, "preload/cuda/driver_api.def").read_text(encoding="utf-8")
    found = ROW.findall(text)
    assert len(found) == text.count("\nGCR_DRIVER_FUNCTION(")
    return found


def unused():
    return no_rows(f"{SOURCE}/preload/cuda/no_row.txt")


class Table(unittest.TestCase):
    maxDiff = None

    def test_every_symbol_is_a_row_or_has_one_reason(self):
        names = [symbol for symbol, _, _ in rows()] + sum(unused().values(), [])
        self.assertEqual(sorted({one for one in names if names.count(one) > 1}), [])


class Installed(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        compiler, include = INSTALLED
        with tempfile.TemporaryDirectory() as directory:
            for name, text in STAND_INS.items():
                path = pathlib.Path(directory, name)
                os.makedirs(path.parent, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            source = "#define __CUDA_API_VERSION_INTERNAL\n" + "".join(
                f"#include <{header}>\n" for header in HEADERS if pathlib.Path(include, header).exists()
            )
            text = subprocess.run(
                [compiler, "-E", "-P", "-x", "c++", f"-I{include}", f"-I{directory}", "-"],
                input=source, capture_output=True, text=True, check=True,
            ).stdout
        self.declared = set(DECLARATION.findall(text))
        self.assertGreater(len(self.declared), 600)
        version = re.search(r"#define CUDA_VERSION (\d+)", pathlib.Path(include, "cuda.h").read_text())
        self.version = int(version[1])

    def test_every_function_is_a_row_or_has_a_reason(self):
        known = {symbol for symbol, _, _ in rows()} | set(sum(unused().values(), []))
        self.assertEqual(sorted(self.declared - known), [])

    def test_undeclared_rows_are_newer_than_the_toolkit(self):
        there = {symbol for symbol, _, since in rows() if int(since) <= self.version}
        for reason, names in unused().items():
            if not reason.startswith(("Later", "Declared in no header")):
                there.update(names)
        self.assertEqual(sorted(there - self.declared), [])


if __name__ == "__main__":
    sys.exit(run(Table, Installed if INSTALLED else None, "no toolkit of CUDA 13 is installed"))
