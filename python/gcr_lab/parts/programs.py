"""Programs of the tests that are moved: counter, stencil, storm, pinned, ticker, ring."""

import functools, pathlib, re, shlex, statistics, subprocess
from gcr_lab import base, compare_by_hand, launch
from gcr_lab.base import GIB, MIB, Failure, last_line, short
from gcr_lab.figures import Record
from gcr_lab.hosts import PORT
from gcr_lab.parts import needs
from gcr_lab.parts.undisturbed import STEPS, as_undisturbed, downtimes, moved_five_times, moved_once, once, same_first_lines
from gcr_lab.registry import Parts

PARTS = Parts()
LINES = "^[0-9]"

def start_counter(two, vram):
    program = two.start("a", "app", f"bin/counter --port {PORT} --vram {vram}", lines=1)
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

def stencil_moved(lab, command):
    with lab.hosts() as two:
        migration, compared = moved_once(two, command)
    return f"{short(lab.vram)}; {compared}; {migration.times()}"

PARTS.command("stencil", stencil_moved, "a program with VRAM", "bin/stencil --mib {mib}")

@PARTS.part("semantics", not_on_hip="its program calls CUDA")
def semantics(lab):
    """what programs see of memory"""
    with lab.hosts() as two:
        library = f"GCR_PRELOAD_LIBRARY={base.PREFIX / 'lib/libgcr-preload.so'}"
        if subprocess.call(two.words("a", "env", library, base.BIN / "allocation_semantics")) != 0:
            raise Failure("programs see other memory under the library")

PARTS.command("small", once, "5,000 buffers", "bin/stencil --mib 2 --small 5000 --small-kib 532")
PARTS.command("pool", once, "1.3 GiB in the stream-ordered pool", "bin/stencil --pool --mib 1331")
PARTS.command("pool-large", functools.partial(once, vram=32 * GIB), "32 GiB in that pool", "bin/stencil --pool --gib 32")

def ordered(two, action, program):
    """Runs `gcr-migrate suspend` or `resume`. A function: the speed of VRAM by the name of a time in its last line."""
    text = two.order("a", action, *two.tls, two.ip("a"), program.pid)
    print(text, end="", flush=True)
    fields = dict(word.split("=", 1) for word in last_line(text).split() if "=" in word)
    return lambda name: f"{int(fields['vram_bytes']) / float(fields[name]) / 1e6:.1f} GB/s"

def vram_in_use(lab, pid):
    """What nvidia-smi tells: of the process, if it knows it, and of the GPU."""
    if lab.gpu != "real":
        return ""
    apps, gpus = (base.run("nvidia-smi", query, "--format=csv,noheader,nounits") for query in
                  ("--query-compute-apps=pid,used_memory", "--query-gpu=memory.used"))
    used = sum(map(int, re.findall(rf"(?m)^{pid}, *(\d+)", apps)))
    return f"process {used} MiB, GPU {gpus.split()[0]} MiB"

def suspended(lab, command):
    with lab.hosts() as two:
        program = two.start("a", "app", command, 5, STEPS)
        before = vram_in_use(lab, program.pid)
        speed = ordered(two, "suspend", program)
        result = (f"suspend: copy {speed('copy_ms')}, standstill {speed('standstill_ms')}, nvidia-smi: {before}, "
                  f"then {vram_in_use(lab, program.pid)}")
        speed = ordered(two, "resume", program)
        compared = as_undisturbed(two, program, command, program.wait_for_more(10, STEPS))
    return f"{short(lab.vram)}; {compared}; {result}; resume: copy {speed('copy_ms')}, in all {speed('standstill_ms')}"

PARTS.command("suspend", suspended, "off the GPU and back, with its speeds", "bin/stencil --mib {mib}",
              not_on_hip="only CRIU's dump takes control state from AMD's driver")

def storm_moved(lab, command):
    """Allocations that the program checks, and ten moves meanwhile. An undisturbed run at the same time must print the
    same lines."""
    def allocations():
        found = re.match(r"step=(\d+) ", last_line("\n".join(program.lines())))
        return int(found[1]) if found else 0
    with lab.hosts() as two:
        other = two.start("b", "undisturbed", command, library=False)
        program = two.start("a", "app", command, lines=5)
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

PARTS.command("storm", storm_moved, "a million allocations on 16 threads, ten moves", "bin/storm")
PARTS.command("pool-storm", storm_moved, "the same in the order of streams", "bin/storm --pool")

def pinned_moved(lab, command):
    """Page-locked memory, which both hosts have at a time, five times."""
    gib = int(command.split()[-1])
    free = int(re.search(r"MemAvailable: *(\d+)", base.read(pathlib.Path("/proc/meminfo")))[1]) >> 20
    if free <= gib * 5 // 2:
        raise base.NotRun(f"the machine has {free} GiB to spare")
    with lab.hosts() as two:
        return f"{gib} GiB: {moved_five_times(two, command, '--period-ms 10')[1]}"

PARTS.command("pinned", pinned_moved, "4 GiB of page-locked memory", "bin/pinned --report 10 --gib 4")
PARTS.command("pinned-large", pinned_moved, "32 GiB of it", "bin/pinned --report 10 --gib 32")

@PARTS.part("without-library", not_on_hip="HIP has no call that checkpoints a process")
def without_library(lab):
    """programs that were not started under it: refused, and moved through the driver alone (--allow-slow)"""
    mib = min(lab.vram // MIB, 1024)
    command = f"bin/stencil --mib {mib}"
    with lab.hosts() as two:
        program = two.start("a", "app", command, 5, STEPS, library=False)
        there = two.migrate("a", "b", program, "--allow-slow")
        program.wait_for_more(10, STEPS)
        two.refuse("b", "a", program, "no-library")
        back = two.migrate("b", "a", program, "--allow-slow")
        compared = as_undisturbed(two, program, command, program.wait_for_more(5, STEPS))
        result = f"{mib} MiB: {compared}; {there.times()}; back: {back.times()}"
        if not needs.torch(lab):
            migration, compared = moved_once(two, "python3 bin/torch_train.py", library=False)
            result += f"; PyTorch: {compared}; {migration.times()}"
    return result

@PARTS.part("two-gpus", needs=(needs.two_gpus,))
def two_gpus(lab):
    """from one GPU to another and back"""
    with lab.hosts(*needs.one_each(needs.first_gpus(lab))) as two:
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
    ticker, results, medians = base.BIN / "ticker", [], []
    with lab.hosts() as two:
        second = two.work / "second.out"
        second.write_bytes(b"")
        both = f"{ticker} --device 0 & {ticker} --device {1 if needs.first_gpus(lab) else 0} >{second} & wait"
        for kind, command, lines in (("one", "bin/ticker", 0), ("two", f"sh -c {shlex.quote(both)}", 3)):
            program = two.start("a", kind, command, 3, LINES)
            program.wait(lambda: second.read_bytes().count(b"\n") >= lines)
            migrations = two.to_and_fro(program, 5, lambda host: None)
            program.end()
            results.append(f"{kind}: {downtimes(migrations)}")
            medians.append(statistics.median(each.downtime_ms for each in migrations))
    one, two = medians
    return f"{'; '.join(results)}; medians {one:.0f} and {two:.0f} ms: {two / one:.2f} times"

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

def five_of_ring(lab, command):
    with lab.hosts() as two:
        return f"five moves, {moved_five_times(two, command, '--period-ms 20', LINES)[1]}"

RINGS = {"vram": "", "host": " --host-memory", "ipc": " --legacy-ipc", "graph": " --graph", "tcp": " --tcp"}
for name, option in RINGS.items():
    PARTS.command(f"ring-{name}", five_of_ring, "processes that share memory, and whose kernels wait for each other",
                  f"bin/ring --ranks 2{option}", not_on_hip="HIP has no memory of the host to share" if name == "host" else "")
