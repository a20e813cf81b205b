"""Compares downtime: the same program, moved between the same two hosts in one run, once with gcr-migrate and once
by hand with other tools.

By hand: lock and checkpoint its CUDA state (driver API), `criu dump` into tmpfs, copy the images to the other host's
tmpfs (several plain TCP streams at a time, no encryption), `criu restore`, restore and unlock the CUDA state. The
program then runs without the preload library. Helpers have initialised the driver, and receivers listen, before the
time that is compared begins.

Downtime is measured twice: by the tools (gate closed to gate open; lock to unlock) and from outside (the longest time
in which the program printed nothing).
"""

import contextlib, os, shutil, subprocess, threading
from gcr_lab.base import GIB, MIB, Failure, is_alive, need_programs, number_between, short, wait_until
from gcr_lab.driver import Stopwatch, comparison, driver_tools, silence
from gcr_lab.hosts import hosts, tmpfs

CHUNK = 4 * MIB

def compare(gpu, vram, record, streams=4, by_hand=True, log=None):
    """Prints the comparison and adds a line to `record` for each way."""
    need_programs("nc", "tar", "dd")
    record = record.but(asked_bytes=vram)
    with hosts(gpu, vram, log=log) as two:
        ours, ours_gap = with_gcr_migrate(two, vram, record)
        what = f"stencil, {short(vram)} of VRAM, {gpu} GPU"
        if not by_hand:
            print(f"{what}: downtime {ours.downtime_ms:.1f} ms, printed nothing for {ours_gap:g} ms, total {ours.total_ms:.1f} ms")
            return
        watch, hand_ms, hand_gap = with_other_tools(two, vram, gpu, record, streams)
    print("by hand, step by step:")
    for name, ms in watch.figures.items():
        print(f"  {name.removesuffix('_ms').replace('_', '-'):<12} {ms:g} ms")
    print(f"{what}    downtime    printed nothing for")
    print(f"  gcr-migrate               {ours.downtime_ms:9.0f} ms {ours_gap:9.0f} ms   (total {ours.total_ms:.0f} ms)")
    print(f"  by hand                   {hand_ms:9.0f} ms {hand_gap:9.0f} ms")
    print(f"by hand / gcr-migrate: {hand_ms / ours.downtime_ms:.1f} times the downtime, "
          f"{hand_gap / ours_gap:.1f} times the silence")

def start(two, name, vram, library):
    return two.start("a", name, f"bin/stencil --mib {vram // MIB} --report 5", lines=11, library=library, patience=300)

def with_gcr_migrate(two, vram, record):
    program = start(two, "ours", vram, library=True)
    with silence(program) as gap:
        migration = two.migrate("a", "b", program)
    record.add(migration, way="gcr-migrate", silence_ms=gap[0])
    program.kill()
    return migration, gap[0]

def with_other_tools(two, vram, gpu, record, streams):
    there, here = (two.work / f"images-{host}" for host in "ab")
    with tmpfs(there, vram + 16 * GIB), tmpfs(here, vram + 16 * GIB):
        program = start(two, "by-hand", vram, library=False)
        with driver_tools(two, "ab", gpu) as (source, target), receivers(two, here, streams) as copy, silence(program) as gap:
            watch = Stopwatch()
            source.dump(program.pid, watch, there)
            if not wait_until(30, lambda: not is_alive(program.pid)):
                raise Failure("the dumped program does not end")
            with watch.phase("copy"):
                copy(there)
            # This machine has to hold both hosts' copies.
            threading.Thread(target=shutil.rmtree, args=(there,), kwargs={"ignore_errors": True}, daemon=True).start()
            target.restore(program.pid, watch, here)
            hand_ms = watch.ms()
        record.add(way="by-hand", downtime_ms=hand_ms, silence_ms=gap[0], **watch.figures)
        program.kill()
    return watch, hand_ms, gap[0]

@contextlib.contextmanager
def receivers(two, folder, streams, large="pages-1.img"):
    """On host b: the small files as one archive, the large file in equal parts, which dd puts into place. They listen once
    the block is entered, with a function that copies a folder."""
    with contextlib.ExitStack() as ended:
        def start(*words, **options):
            process = subprocess.Popen(list(map(str, words)), **options)
            ended.enter_context(process)
            ended.callback(process.kill)
            return process

        listening = [start(*two.words("b", "nc", "-l", two.ip("b"), 7600 + number), stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE) for number in range(streams + 1)]

        def transfer(number, read, write):
            """What `read` prints goes through a connection into `write`. Processes that all have to succeed."""
            writer = start(*write, stdin=listening[number].stdout)
            reader = start(*read, stdout=subprocess.PIPE)
            sender = start(*two.words("a", "nc", "-N", two.ip("b"), 7600 + number), stdin=reader.stdout)
            reader.stdout.close()
            listening[number].stdout.close()
            return [writer, reader, sender, listening[number]]

        def copy(images):
            processes = [process for number, pipe in enumerate(pipes(images, folder, streams, large))
                         for process in transfer(number, *pipe)]
            if any([process.wait() for process in processes]):
                raise Failure("by hand: the images were not copied")

        def all_listen():
            table = two.on("b", "cat", "/proc/net/tcp").splitlines()[1:]
            return sum(line.split()[3] == "0A" for line in table) >= streams + 2  # and the agent

        if not wait_until(30, all_listen):
            raise Failure("by hand: the receivers do not listen")
        yield copy

def pipes(images, folder, streams, large):
    """For each connection, the commands that read from `images` and that write into `folder`."""
    pages, target = images / large, folder / large
    length = pages.stat().st_size
    part = (length // streams // CHUNK + 1) * CHUNK
    target.touch()
    os.truncate(target, length)
    yield ["tar", "-C", images, f"--exclude=./{large}", "-cf", "-", "."], ["tar", "-C", folder, "-xf", "-"]
    for number in range(streams):
        offset = min(number * part, length)
        some = ["bs=4M", f"count={min(part, length - offset)}", "status=none"]
        yield (["dd", f"if={pages}", f"skip={offset}", "iflag=skip_bytes,count_bytes", *some],
               ["dd", f"of={target}", f"seek={offset}", "oflag=seek_bytes", "iflag=count_bytes,fullblock", "conv=notrunc", *some])

def main(words):
    options = comparison(words, __doc__, "the program (stencil)", "downtime", streams={
        "type": number_between(1, 32), "default": 4, "help": "that copy the images by hand (default 4)"})
    compare(options.gpu, options.vram, options.record, options.streams, options.by_hand, options.log)
