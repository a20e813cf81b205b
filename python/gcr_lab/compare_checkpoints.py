"""Compares checkpoints: the same program, with gcr-migrate under the preload library and by hand without it, in turns,
into folders of one file system.

A run of either way starts the program, takes a checkpoint, lets the program go on, ends it, and restores the
checkpoint. By hand: lock and checkpoint its CUDA state (driver API), `criu dump` into the folder, restore and unlock;
later `criu restore`, restore and unlock. A helper has initialised the driver before that.

Standstill is measured twice: by the tools (gate closed to gate open; lock to unlock) and from outside (the longest time
in which the program printed nothing). A restore lasts until the program has printed a line.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import tempfile

from gcr_lab import base, tables
from gcr_lab.base import GIB, MIB, Failure, run, say, wait_until
from gcr_lab.driver import Stopwatch, criu, driver_tools, silence
from gcr_lab.figures import Record
from gcr_lab.hosts import hosts, store
from gcr_lab.sampling import bytes_of, cached, evict


def compare(gpu, program, vram, record, runs=3, by_hand=True, folder=None, cold=False, log=None):
    """Adds a line to `record` for each checkpoint and each restore of each way."""
    # Ours and by hand at the same time never; each with its images and the program's memory in it.
    with hosts(gpu, vram, log=log) as two, store(two.work, folder, 2 * vram + 16 * GIB) as (place, kind):
        record = record.but(program=program, asked_bytes=vram, file_system=kind, cold="yes" if cold else "no")
        course = Comparison(two, command_of(program, vram), place, record, cold)
        with driver_tools(two, "a", gpu) if by_hand else contextlib.nullcontext() as tools:
            for number in range(1, runs + 1):
                say(f"{program}, {base.short(vram)}, run {number} of {runs}")
                course.with_gcr_migrate()
                if by_hand:
                    course.with_other_tools(tools["a"])


def command_of(program, vram):
    if program == "stencil":
        return [base.BIN / "stencil", "--mib", vram // MIB, "--report", 5]
    return [base.python3(), base.BIN / "torch_huggingface.py", "--gib", f"{vram / GIB:.3f}", "--tokens", 2]


class Comparison:
    def __init__(self, two, command, place, record, cold):
        self.two, self.command, self.place, self.record, self.cold = two, command, place, record, cold

    def with_gcr_migrate(self):
        program, folder = self.start("ours", library=True), self.place / "ours"
        with silence(program) as gap:
            taken = self.two.checkpoint("a", program, folder)
        self.record.add(taken, way="gcr-migrate", what="taken", silence_ms=gap[0], **sizes(folder))
        self.end(program)
        share, watch = self.before_restore(folder), Stopwatch()
        # The program may print before the command ends.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            restoring = pool.submit(lambda: (self.two.restore("a", folder), watch.ms()))
            restore_ms = await_line(program, watch, lambda: restoring.done() and restoring.exception())
            restored, returned_ms = restoring.result()
        program.pid = restored.destination_pid
        self.restored(program, share, restored, way="gcr-migrate", restore_ms=restore_ms, returned_ms=returned_ms)
        shutil.rmtree(folder)

    def with_other_tools(self, tool):
        folder = self.place / "by-hand"
        folder.mkdir()
        program = self.start("by-hand", library=False)
        with silence(program) as gap:
            watch = Stopwatch()
            tool.step("lock", program.pid, watch)
            tool.step("checkpoint", program.pid, watch)
            with watch.phase("dump"):
                criu(self.two, "a", "dump", folder, "--tree", program.pid, "--timeout", 300, "--leave-running")
            tool.step("restore", program.pid, watch)
            tool.step("unlock", program.pid, watch)
            total_ms = watch.ms()
            run("sync", "-f", folder)  # ours is on the disk when it is complete
            synced_ms = watch.ms()
        self.record.add(way="by-hand", what="taken", downtime_ms=total_ms, total_ms=total_ms, synced_ms=synced_ms,
                        silence_ms=gap[0], **sizes(folder), **watch.figures)  # fmt: skip
        self.end(program)
        share, watch = self.before_restore(folder), Stopwatch()
        with watch.phase("criu-restore"):
            criu(self.two, "a", "restore", folder, "--restore-detached")
        tool.step("restore", program.pid, watch)
        tool.step("unlock", program.pid, watch)
        # The step of the driver is restore_ms too: the whole restore has that name in what is recorded.
        figures = {**watch.figures, "restore_ms": await_line(program, watch)}
        self.restored(program, share, None, way="by-hand", **figures)
        shutil.rmtree(folder)

    def start(self, name, library):
        program = self.two.start("a", name, *self.command, library=library)
        program.wait_for(10, patience=300)
        return program

    def end(self, program):
        program.kill()
        os.truncate(program.output, 0)

    def before_restore(self, folder):
        """The share of its bytes that the page cache has."""
        if self.cold:
            evict(folder)
        return cached(folder)

    def restored(self, program, share, migration, way, restore_ms, **figures):
        """Records a restore, and ends what was restored."""
        self.record.add(migration, way=way, what="restored", restore_ms=restore_ms, cached=share, **figures)
        say(f"{way}: restored in {restore_ms:g} ms; the page cache had {share:.3f} of the files")
        program.wait_for_more(5)
        self.end(program)


def await_line(program, watch, failed=lambda: None):
    """The milliseconds of `watch` when the program has printed a line; looks every few milliseconds."""
    printed = wait_until(120, lambda: failed() or program.output.stat().st_size, pause=0.005)
    if failed():
        raise failed()
    if not printed:
        raise Failure(f"{program.output.stem} prints nothing after it is restored")
    return watch.ms()


def sizes(folder):
    return {"apparent_bytes": bytes_of(folder, "--apparent-size"), "disk_bytes": bytes_of(folder)}


def main(words):
    parser = base.comparison(__doc__, "the program", "checkpoint")
    parser.add_argument("--program", choices=("stencil", "huggingface"), default="stencil")
    parser.add_argument("--runs", type=base.number_between(1, 99), default=3, help="of each way (default 3)")
    parser.add_argument("--dir", type=base.folder, help="an existing folder for the checkpoints (default: a tmpfs made for them)")
    parser.add_argument("--cold", choices=("yes", "no"), default="no",
                        help="yes: the checkpoint's files leave the page cache before it is restored")
    options = parser.parse_args(words)
    base.need_root()
    with tempfile.TemporaryDirectory() as work:
        path = options.record or pathlib.Path(work) / "figures.txt"
        compare(options.gpu, options.program, options.vram, Record(path, {"part": options.part, "gpu": options.gpu}),
                options.runs, options.by_hand == "yes", options.dir, options.cold == "yes", base.kept_log(options))  # fmt: skip
        tables.print_tables(path)
