"""Compares downtime: the same program, moved between the same two hosts in one run, once with gcr-migrate and once
by hand with other tools.

By hand: lock and checkpoint its CUDA state (driver API), `criu dump` into tmpfs, copy the images to the other host's
tmpfs (several plain TCP streams at a time, no encryption), `criu restore`, restore and unlock the CUDA state. The
program then runs without the preload library. Helpers have initialised the driver, and receivers listen, before the
time that is compared begins.

Downtime is measured twice: by the tools (gate closed to gate open; lock to unlock) and from outside (the longest time
in which the program printed nothing).
"""

import contextlib
import os
import shutil
import subprocess
import threading

from gcr_lab import base
from gcr_lab.base import GIB, MIB, Failure, is_alive, run, wait_until
from gcr_lab.driver import Stopwatch, criu, driver_tools, silence
from gcr_lab.figures import Record
from gcr_lab.hosts import hosts

CHUNK = 4 * MIB


def compare(gpu, vram, record, streams=4, by_hand=True, log=None):
    """Prints the comparison and adds a line to `record` for each way."""
    base.need_programs("nc", "tar", "dd")
    record = record.but(asked_bytes=vram)
    with hosts(gpu, vram, log=log) as two:
        ours, ours_gap = with_gcr_migrate(two, vram, record)
        what = f"stencil, {base.short(vram)} of VRAM, {gpu} GPU"
        if not by_hand:
            print(f"{what}: downtime {ours.downtime_ms:.1f} ms, printed nothing for {ours_gap:g} ms, total {ours.total_ms:.1f} ms")
            return
        watch, hand_ms, hand_gap = with_other_tools(two, vram, gpu, record, streams)
    print("by hand, step by step:", *(f"  {line}" for line in watch.lines()), sep="\n")
    print(f"{what}    downtime    printed nothing for")
    print(f"  gcr-migrate               {ours.downtime_ms:9.0f} ms {ours_gap:9.0f} ms   (total {ours.total_ms:.0f} ms)")
    print(f"  by hand                   {hand_ms:9.0f} ms {hand_gap:9.0f} ms")
    print(f"by hand / gcr-migrate: {hand_ms / ours.downtime_ms:.1f} times the downtime, "
          f"{hand_gap / ours_gap:.1f} times the silence")  # fmt: skip


def start(two, name, vram, library):
    program = two.start("a", name, base.BIN / "stencil", "--mib", vram // MIB, "--report", 5, library=library)
    program.wait_for(11, patience=300)
    return program


def with_gcr_migrate(two, vram, record):
    program = start(two, "ours", vram, library=True)
    with silence(program) as gap:
        migration = two.migrate("a", "b", program)
    record.add(migration, way="gcr-migrate", silence_ms=gap[0])
    program.kill()
    return migration, gap[0]


def with_other_tools(two, vram, gpu, record, streams):
    with mounted(two.work, "images-a", vram) as there, mounted(two.work, "images-b", vram) as here:
        program = start(two, "by-hand", vram, library=False)
        with driver_tools(two, "ab", gpu) as tools, Receivers(two, here, streams) as receivers, silence(program) as gap:
            watch = Stopwatch()
            tools["a"].step("lock", program.pid, watch)
            tools["a"].step("checkpoint", program.pid, watch)
            with watch.phase("dump"):
                criu(two, "a", "dump", there, "--tree", program.pid, "--timeout", 300)
            if not wait_until(30, lambda: not is_alive(program.pid)):
                raise Failure("the dumped program does not end")
            with watch.phase("copy"):
                receivers.copy(there)
            # This machine has to hold both hosts' copies.
            threading.Thread(target=shutil.rmtree, args=(there,), kwargs={"ignore_errors": True}, daemon=True).start()
            with watch.phase("criu-restore"):
                criu(two, "b", "restore", here, "--restore-detached")
            tools["b"].step("restore", program.pid, watch)
            tools["b"].step("unlock", program.pid, watch)
            hand_ms = watch.ms()
        record.add(way="by-hand", downtime_ms=hand_ms, silence_ms=gap[0], **watch.figures)
        program.kill()
    return watch, hand_ms, gap[0]


@contextlib.contextmanager
def mounted(work, name, vram):
    folder = work / name
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={vram + 16 * GIB},mode=700", "images", folder)
    try:
        yield folder
    finally:
        subprocess.call(["umount", "-l", str(folder)])


class Receivers:
    """On host b: the small files as one archive, the pages in equal parts, which dd puts into place. They listen once
    the block is entered."""

    def __init__(self, two, folder, streams):
        self.two, self.folder, self.streams, self.processes, self.listening = two, folder, streams, [], []

    def _start(self, *words, **options):
        self.processes.append(subprocess.Popen(list(map(str, words)), **options))
        return self.processes[-1]

    def __enter__(self):
        for port in range(7600, 7601 + self.streams):
            self.listening.append(self._start(*self.two.words("b", "nc", "-l", self.two.ip("b"), port),
                                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))  # fmt: skip
        if not wait_until(30, self._all_listen):
            self.__exit__()
            raise Failure("by hand: the receivers do not listen")
        return self

    def _all_listen(self):
        table = self.two.on("b", "cat", "/proc/net/tcp").splitlines()[1:]
        return sum(line.split()[3] == "0A" for line in table) >= self.streams + 2  # and the agent

    def copy(self, images):
        """All images, complete when this returns."""
        pages, target = images / "pages-1.img", self.folder / "pages-1.img"
        length = pages.stat().st_size
        part = (length // self.streams // CHUNK + 1) * CHUNK
        target.touch()
        os.truncate(target, length)
        self._pass(0, ["tar", "-C", images, "--exclude=./pages-1.img", "-cf", "-", "."], ["tar", "-C", self.folder, "-xf", "-"])
        for number in range(self.streams):
            offset = min(number * part, length)
            some = ["bs=4M", f"count={min(part, length - offset)}", "status=none"]
            self._pass(number + 1, ["dd", f"if={pages}", f"skip={offset}", "iflag=skip_bytes,count_bytes", *some],
                       ["dd", f"of={target}", f"seek={offset}", "oflag=seek_bytes", "iflag=count_bytes,fullblock",
                        "conv=notrunc", *some])  # fmt: skip
        if any([process.wait() for process in self.processes]):
            raise Failure("by hand: the images were not copied")

    def _pass(self, number, read, write):
        """What `read` prints goes through a connection into `write`."""
        self._start(*write, stdin=self.listening[number].stdout)
        reader = self._start(*read, stdout=subprocess.PIPE)
        self._start(*self.two.words("a", "nc", "-N", self.two.ip("b"), 7600 + number), stdin=reader.stdout)
        reader.stdout.close()
        self.listening[number].stdout.close()

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        for process in self.listening:
            process.stdout.close()


def main(words):
    parser = base.comparison(__doc__, "the program (stencil)", "downtime")
    parser.add_argument("--streams", type=base.number_between(1, 32), default=4, help="that copy the images by hand (default 4)")
    options = parser.parse_args(words)
    base.need_root()
    record = Record(options.record, {"part": options.part, "gpu": options.gpu})
    compare(options.gpu, options.vram, record, options.streams, options.by_hand == "yes", base.kept_log(options))
