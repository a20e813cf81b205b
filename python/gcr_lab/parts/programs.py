"""Programs of the tests that are moved: counter, stencil, storm, pinned, ticker, ring."""

import functools
import pathlib
import re
import statistics
import subprocess

from gcr_lab import base, compare_by_hand, launch
from gcr_lab.base import GIB, MIB, Failure, last_line, short, words
from gcr_lab.figures import Record
from gcr_lab.hosts import PORT
from gcr_lab.parts import needs
from gcr_lab.parts.undisturbed import (STEPS, as_undisturbed, downtimes, moved_five_times, moved_once, once,
                                       same_first_lines)  # fmt: skip
from gcr_lab.registry import Parts

PARTS = Parts()
LINES = "^[0-9]"
CUDA_DUMP = "only CRIU's dump takes control state from AMD's driver"


def start_counter(two, vram):
    program = two.start("a", "app", base.BIN / "counter", "--port", PORT, "--vram", vram)
    program.wait_for(1)
    two.expect_answer("a", 101)
    return program


@PARTS.part("counter")
def counter(lab):
    """a program that answers by numbers, without a gap"""
    with lab.hosts() as two:
        program = start_counter(two, 256 * MIB)
        for number in range(102, 151):
            two.expect_answer("a", number)
        migration = two.migrate("a", "b", program)
        for number in range(151, 161):
            two.expect_answer("b", number)
    return f"151 to 160 follow 101 to 150; {migration.times()}"


@PARTS.part("stencil")
def stencil(lab):
    """a program with VRAM"""
    with lab.hosts() as two:
        migration, compared = moved_once(two, *words("bin/stencil --mib {mib}", lab.vram))
    return f"{short(lab.vram)}; {compared}; {migration.times()}"


@PARTS.part("semantics", not_on_hip="its program calls CUDA")
def semantics(lab):
    """what programs see of memory"""
    with lab.hosts() as two:
        library = f"GCR_PRELOAD_LIBRARY={base.PREFIX / 'lib/libgcr-preload.so'}"
        if subprocess.call(two.words("a", "env", library, base.BIN / "allocation_semantics")) != 0:
            raise Failure("programs see other memory under the library")


PARTS.commands(once, (), {
    "small": ("5,000 buffers", "bin/stencil --mib 2 --small 5000 --small-kib 532"),
    "pool": ("1.3 GiB in the stream-ordered pool", "bin/stencil --pool --mib 1331"),
})  # fmt: skip
PARTS.commands(functools.partial(once, vram=32 * GIB), (), {
    "pool-large": ("32 GiB in that pool", "bin/stencil --pool --gib 32"),
})  # fmt: skip


def ordered(two, action, program):
    """{name: value} of the last line of `gcr-migrate suspend` or `resume`; what comes before it are its phases."""
    text = two.order("a", action, *two.tls, two.ip("a"), program.pid)
    print(text, end="", flush=True)
    return dict(word.split("=", 1) for word in last_line(text).split() if "=" in word)


def speed(fields, name):
    return f"{int(fields['vram_bytes']) / float(fields[name]) / 1e6:.1f} GB/s"


def vram_in_use(lab, pid):
    """What nvidia-smi tells: of the process, if it knows it, and of the GPU."""
    if lab.gpu != "real":
        return ""
    apps, gpus = (base.run("nvidia-smi", query, "--format=csv,noheader,nounits") for query in
                  ("--query-compute-apps=pid,used_memory", "--query-gpu=memory.used"))  # fmt: skip
    used = sum(int(found[1]) for found in re.finditer(rf"(?m)^{pid}, *(\d+)", apps))
    return f"process {used} MiB, GPU {gpus.split()[0]} MiB"


@PARTS.part("suspend", not_on_hip=CUDA_DUMP)
def suspend(lab):
    """off the GPU and back, with its speeds"""
    command = words("bin/stencil --mib {mib}", lab.vram)
    with lab.hosts() as two:
        program = two.start("a", "app", *command)
        program.wait_for(5, STEPS)
        before = vram_in_use(lab, program.pid)
        fields = ordered(two, "suspend", program)
        result = (f"copy {speed(fields, 'copy_ms')}, standstill {speed(fields, 'standstill_ms')}, nvidia-smi: {before}, "
                  f"then {vram_in_use(lab, program.pid)}")  # fmt: skip
        fields = ordered(two, "resume", program)
        result += f"; resume: copy {speed(fields, 'copy_ms')}, in all {speed(fields, 'standstill_ms')}"
        count = program.wait_for_more(10, STEPS)
        as_undisturbed(two, program, count, STEPS, *command)
    return f"{short(lab.vram)}; {count} lines as undisturbed; suspend: {result}"


def storm_moved(lab, *command):
    """Allocations that the program checks, and ten moves meanwhile. An undisturbed run at the same time must print the
    same lines."""

    def allocations():
        found = re.match(r"step=(\d+) ", last_line("\n".join(program.lines())))
        return int(found[1]) if found else 0

    with lab.hosts() as two:
        other = two.start("b", "undisturbed", *command, library=False)
        program = two.start("a", "app", *command)
        program.wait_for(5)
        migrations = two.to_and_fro(program, 10, lambda host: program.wait_for_more(3))
        program.wait(lambda: allocations() >= 1000000)
        count = len(program.lines(STEPS))
        other.wait_for(count, STEPS)
        for each in (other, program):
            each.end()
        if not allocations():
            raise Failure(f"it ended wrongly: {last_line(program.tail())}")
        same_first_lines(program, other, count, STEPS)
        return f"{allocations()} allocations, {count} lines as undisturbed; downtimes in ms: {downtimes(migrations)}"


PARTS.commands(storm_moved, (), {
    "storm": ("a million allocations on 16 threads, ten moves", "bin/storm"),
    "pool-storm": ("the same in the order of streams", "bin/storm --pool"),
})  # fmt: skip


def pinned_moved(lab, *command):
    """Page-locked memory, which both hosts have at a time, five times."""
    gib = int(command[-1])
    free = int(re.search(r"MemAvailable: *(\d+)", pathlib.Path("/proc/meminfo").read_text(encoding="ascii"))[1]) >> 20
    if free <= gib * 5 // 2:
        raise base.NotRun(f"the machine has {free} GiB to spare")
    with lab.hosts() as two:
        return f"{gib} GiB: {moved_five_times(two, STEPS, command, '--period-ms', 10)[1]}"


PARTS.commands(pinned_moved, (), {
    "pinned": ("4 GiB of page-locked memory", "bin/pinned --report 10 --gib 4"),
    "pinned-large": ("32 GiB of it", "bin/pinned --report 10 --gib 32"),
})  # fmt: skip


@PARTS.part("without-library", not_on_hip="HIP has no call that checkpoints a process")
def without_library(lab):
    """programs that were not started under it: refused, and moved through the driver alone (--allow-slow)"""
    mib = min(lab.vram // MIB, 1024)
    command = words(f"bin/stencil --mib {mib}")
    with lab.hosts() as two:
        program = two.start("a", "app", *command, library=False)
        program.wait_for(5, STEPS)
        there = two.migrate("a", "b", program, "--allow-slow")
        program.wait_for_more(10, STEPS)
        two.refuse("b", "a", program, "no-library")
        back = two.migrate("b", "a", program, "--allow-slow")
        count = program.wait_for_more(5, STEPS)
        as_undisturbed(two, program, count, STEPS, *command)
        result = f"{mib} MiB: {count} lines as undisturbed; {there.times()}; back: {back.times()}"
        if not needs.torch(lab):
            migration, compared = moved_once(two, *words("python3 bin/torch_train.py"), library=False)
            result += f"; PyTorch: {compared}; {migration.times()}"
    return result


@PARTS.part("two-gpus", needs=(needs.two_gpus,))
def two_gpus(lab):
    """from one GPU to another and back"""
    gpus = needs.first_gpus(lab)
    with lab.hosts("--gpus-a", gpus[0], "--gpus-b", gpus[1]) as two:
        program = start_counter(two, GIB)
        there = two.migrate("a", "b", program)
        two.expect_answer("b", 102)
        for query in ("compute-apps=gpu_uuid,pid,used_memory", "gpu=uuid,memory.used") if lab.gpu != "hip" else ():
            subprocess.call(["nvidia-smi", f"--query-{query}", "--format=csv"])
        back = two.migrate("b", "a", program)
        two.expect_answer("a", 103)
    return f"there: {there.times()}; back: {back.times()}"


@PARTS.part("members")
def members(lab):
    """the downtime of a job of two processes with a GPU each, and of one with one"""
    second = 1 if needs.first_gpus(lab) else 0
    ticker = base.BIN / "ticker"
    results = {}
    with lab.hosts() as two:
        both = f"{ticker} --device 0 & {ticker} --device {second} >{two.work}/second.out & wait"
        for kind, command in (("one", [ticker]), ("two", ["sh", "-c", both])):
            (two.work / "second.out").write_bytes(b"")
            program = two.start("a", kind, *command)
            program.wait_for(3, LINES)
            if kind == "two":
                program.wait(lambda: (two.work / "second.out").read_bytes().count(b"\n") >= 3)
            results[kind] = two.to_and_fro(program, 5, lambda host: None)
            program.end()
    one, two = (statistics.median(each.downtime_ms for each in results[kind]) for kind in ("one", "two"))
    return (f"one: {downtimes(results['one'])}; two: {downtimes(results['two'])}; "
            f"medians {one:.0f} and {two:.0f} ms: {two / one:.2f} times")  # fmt: skip


@PARTS.part("ten")
def ten(lab):
    """ten moves to and fro"""
    numbers = iter(range(102, 112))
    with lab.hosts() as two:
        program = start_counter(two, 256 * MIB)
        migrations = two.to_and_fro(program, 10, lambda host: two.expect_answer(host, next(numbers)))
    return f"ten moves; downtimes in ms: {downtimes(migrations)}"


@PARTS.part("compare", not_on_hip="by hand is cuda-checkpoint")
def compare(lab):
    """its downtime next to that by hand"""
    compare_by_hand.compare(lab.gpu, lab.vram, Record(None, {}), log=lab.log)


@PARTS.part("bench", not_on_hip="it measures calls of CUDA")
def bench(lab):
    """what the library costs a launch and an allocation"""
    launch.measure(lab.gpu)


def five_of_ring(lab, *command):
    """Five moves of ranks that print numbers."""
    with lab.hosts() as two:
        return f"five moves, {moved_five_times(two, LINES, command, '--period-ms', 20)[1]}"


RINGS = {"vram": "", "host": " --host-memory", "ipc": " --legacy-ipc", "graph": " --graph", "tcp": " --tcp"}
SHARING = "processes that share memory, and whose kernels wait for each other"
for kind, option in RINGS.items():
    PARTS.commands(five_of_ring, (), {f"ring-{kind}": (SHARING, f"bin/ring --ranks 2{option}")},
                   not_on_hip="HIP has no memory of the host to share" if kind == "host" else "")  # fmt: skip
