#!/usr/bin/env python3
"""sweeping.py MIB: writes its number into every page of a memory, again and again, gives memory back
and takes other memory, and looks at all of it before each line "sweep N". What it does not find as it
was written it says, and ends."""
import mmap
import sys

PAGE = 4096
pages = int(sys.argv[1]) * 256
memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
written = [0] * pages
passing = {}


def write(page, number):
    memory[page * PAGE:page * PAGE + 8] = number.to_bytes(8, "little")
    written[page] = number


sweep = 0
while True:
    sweep += 1
    # Most pages stay as they are for long; a few change all the time.
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
    for number in range(max(1, sweep - 4), sweep + 1):
        found = int.from_bytes(passing[number % 5][0:8], "little")
        if found != number:
            sys.exit(f"memory of sweep {number} has {found}")
    print("sweep", sweep, flush=True)
