"""What is sampled while a program moves: its lines, the agents' memory; which share of files the page cache has."""

import contextlib, ctypes, mmap, os, pathlib, re, threading, time
from gcr_lab.base import Failure, read, run

@contextlib.contextmanager
def sampled(sample, pause):
    """Calls `sample` in a thread every `pause` seconds until the block is left, and at least once."""
    stopped = threading.Event()
    def loop():
        sample()
        while not stopped.wait(pause):
            sample()
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()

@contextlib.contextmanager
def lines_over_time(path):
    """[(seconds since the epoch, lines), …]: grows as lines are added, at a grain of some milliseconds."""
    samples = []
    def sample():
        added = file.read().count(b"\n")
        if added:
            samples.append((time.time(), (samples[-1][1] if samples else 0) + added))
    with open(path, "rb") as file, sampled(sample, 0.002):
        yield samples

def rate(samples, begin, end):
    """Lines per second between the first and the last sample inside; None: too few for a figure."""
    inside = [sample for sample in samples if begin <= sample[0] <= end]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) if len(inside) >= 5 else None

def rates(samples, start, migration):
    """Figures: lines per second before the migration that was asked for at `start`, while rounds ran with the gate
    open, and from a second after its end. What comes after the rounds is downtime."""
    first_round = migration.rounds[0]["start_ms"] / 1e3 if migration.rounds else 0
    gate_closed = migration.gate_closed_ms / 1e3
    windows = {"before": (0, start), "during": (start + first_round, start + gate_closed),
               "after": (start + migration.total_ms / 1e3 + 1, float("inf"))}
    found = {name: rate(samples, *window) for name, window in windows.items()}
    figures = {f"{name}_per_s": float(f"{value:.4g}") for name, value in found.items() if value is not None}
    for name in ("during", "after"):
        if found["before"] and found[name]:
            figures[f"{name}_to_before"] = round(found[name] / found["before"], 4)
    return {**figures, "during_s": round(gate_closed - first_round, 3)}

def memory_of(program):
    """Bytes in private pages and hugepages of all processes that execute `program`."""
    total = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is a kernel thread
            if os.readlink(process / "exe") == program:
                found = re.findall(r"(?m)^(?:RssAnon|HugetlbPages):\s*(\d+)", read(process / "status"))
                total += sum(map(int, found)) << 10
    return total

@contextlib.contextmanager
def most_memory(program):
    """[bytes]: the most that its processes had at a time."""
    program, most = os.path.realpath(program), [0]
    def sample():
        most[0] = max(most[0], memory_of(program))
    with sampled(sample, 0.02):
        yield most

def files_below(folder):
    for path, _, names in os.walk(folder):
        yield from (os.path.join(path, name) for name in names)

def bytes_of(folder, *options):
    """What its files take on the disk, or with --apparent-size hold; 0 if it does not exist."""
    return int(run("du", "-s", "-B", "1", *options, folder).split()[0]) if os.path.exists(folder) else 0

def evict(folder):
    """Drops its files from the page cache."""
    for path in files_below(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

def cached(folder):
    """Which share of the pages of its files the page cache has."""
    states = b"".join(map(_page_states, files_below(folder)))
    return round(sum(state & 1 for state in states) / len(states), 3) if states else 0.0

def _page_states(path):
    """mincore(2): a byte for each page."""
    length = os.path.getsize(path)
    if not length:
        return b""
    states, flags = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))(), mmap.MAP_PRIVATE | 0x4000  # MAP_NORESERVE
    with open(path, "rb") as file, mmap.mmap(file.fileno(), length, flags=flags) as mapping:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        if ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), states):
            raise Failure(f"cannot tell what the page cache has of {path}")
    return bytes(states)
