#!/usr/bin/env python3
"""sweeping.py MIB [RESTING [registered] [direct] [filtered]]: writes its number into every page of a memory,
repeatedly, releases memory and allocates other memory, and checks all of it before each line "sweep N". It reports
unexpected content, and ends. With RESTING it uses a GPU, by HIP if GCR_APP_RUNTIME says so, else by CUDA, and has that
many MiB that it only reads; `registered`: they are registered with the driver; `direct`: it has a file open for direct
I/O; `filtered`: it has a seccomp filter, which allows all."""
import ctypes
import mmap
import os
import struct
import sys
import time

PAGE = 4096


def load_first(*names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    sys.exit("there is no HIP")


pages = int(sys.argv[1]) * 256
resting = b""
if len(sys.argv) > 2:
    if os.environ.get("GCR_APP_RUNTIME") != "hip":
        cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        register = cuda.cuMemHostRegister_v2
    else:
        hip = load_first("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")
        assert hip.hipInit(0) == 0 and hip.hipSetDevice(0) == 0
        register = hip.hipHostRegister
    size = int(sys.argv[2]) << 20
    resting = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, size, PAGE):
        resting[page:page + 8] = page.to_bytes(8, "little")
    if "registered" in sys.argv:
        at = ctypes.addressof(ctypes.c_char.from_buffer(resting))
        assert register(ctypes.c_void_p(at), ctypes.c_size_t(size), 0) == 0
    if "direct" in sys.argv:
        os.open(__file__, os.O_RDONLY | os.O_DIRECT)
    if "filtered" in sys.argv:
        rules = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
        program = struct.pack("H6xQ", 1, ctypes.addressof(rules))
        assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0
        assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
written = [0] * pages
passing = {}


def write(page, number):
    memory[page * PAGE:page * PAGE + 8] = number.to_bytes(8, "little")
    written[page] = number


sweep = 0
while True:
    sweep += 1
    # Most pages stay unchanged for long; a few change constantly.
    for page in range(sweep % 16, pages, 16 if sweep < 17 else 256):
        write(page, sweep)
    freed = sweep * 7 % pages
    memory.madvise(mmap.MADV_DONTNEED, freed * PAGE, PAGE)
    written[freed] = 0
    passing[sweep % 5] = mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    passing[sweep % 5][0:8] = sweep.to_bytes(8, "little")
    for page in range(pages):
        found = int.from_bytes(memory[page * PAGE:page * PAGE + 8], "little")
        if found != written[page]:
            sys.exit(f"page {page} has {found}, not {written[page]}")
    for page in range(sweep % 16 * PAGE, len(resting), 16 * PAGE):
        if int.from_bytes(resting[page:page + 8], "little") != page:
            sys.exit(f"the memory that rests has changed at {page}")
    for number in range(max(1, sweep - 4), sweep + 1):
        found = int.from_bytes(passing[number % 5][0:8], "little")
        if found != number:
            sys.exit(f"memory of sweep {number} has {found}")
    print("sweep", sweep, flush=True)
    time.sleep(0.01)
