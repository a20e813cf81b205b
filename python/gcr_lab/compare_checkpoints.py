"""Compares checkpoints: the same program, with gcr-migrate under the preload library and by hand without it, in turns,
into folders of one file system.

A run of either way starts the program, takes a checkpoint, lets the program go on, ends it, and restores the
checkpoint. By hand: lock and checkpoint its CUDA state (driver API), `criu dump` into the folder, restore and unlock;
later `criu restore`, restore and unlock. A helper has initialised the driver before that.

Standstill is measured twice: by the tools (gate closed to gate open; lock to unlock) and from outside (the longest time
in which the program printed nothing). A restore lasts until the program has printed a line.
"""

import concurrent.futures, contextlib, os, pathlib, shutil, tempfile
from gcr_lab import base, tables
from gcr_lab.base import GIB, MIB, Failure, run, say, wait_until
from gcr_lab.driver import Stopwatch, comparison, driver_tools, silence
from gcr_lab.figures import Record
from gcr_lab.hosts import hosts, store
from gcr_lab.sampling import bytes_of, cached, evict

def compare(gpu, program, vram, record, runs=3, by_hand=True, folder=None, cold=False, log=None):
    """Adds a line to `record` for each checkpoint and each restore of each way."""
    # Ours and by hand at the same time never; each with its images and the program's memory in it.
    with hosts(gpu, vram, log=log) as two, store(two.work, folder, 2 * vram + 16 * GIB) as (place, kind):
        record = record.but(program=program, asked_bytes=vram, file_system=kind, cold="yes" if cold else "no")
        command = (f"bin/stencil --mib {vram // MIB} --report 5" if program == "stencil" else
                   f"python3 bin/torch_huggingface.py --gib {vram / GIB:.3f} --tokens 2")
        course = Comparison(two, command, place, record, cold)
        with driver_tools(two, "a", gpu) if by_hand else contextlib.nullcontext([]) as tools:
            for number in range(1, runs + 1):
                say(f"{program}, {base.short(vram)}, run {number} of {runs}")
                course.with_gcr_migrate()
                for tool in tools:
                    course.with_other_tools(tool)

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
        self.restored(program, folder, share, restored, way="gcr-migrate", restore_ms=restore_ms, returned_ms=returned_ms)

    def with_other_tools(self, tool):
        program, folder = self.start("by-hand", library=False), self.place / "by-hand"
        folder.mkdir()
        with silence(program) as gap:
            watch = Stopwatch()
            tool.dump(program.pid, watch, folder, "--leave-running")
            tool.steps(program.pid, watch, "restore", "unlock")
            total_ms = watch.ms()
            run("sync", "-f", folder)  # ours is on the disk when it is complete
            synced_ms = watch.ms()
        self.record.add(way="by-hand", what="taken", downtime_ms=total_ms, total_ms=total_ms, synced_ms=synced_ms,
                        silence_ms=gap[0], **sizes(folder), **watch.figures)
        self.end(program)
        share, watch = self.before_restore(folder), Stopwatch()
        tool.restore(program.pid, watch, folder)
        # The step of the driver is restore_ms too: the whole restore has that name in what is recorded.
        figures = {**watch.figures, "restore_ms": await_line(program, watch)}
        self.restored(program, folder, share, None, way="by-hand", **figures)

    def start(self, name, library):
        return self.two.start("a", name, self.command, lines=10, library=library, patience=300)

    def end(self, program):
        program.kill()
        os.truncate(program.output, 0)

    def before_restore(self, folder):
        """The share of its bytes that the page cache has."""
        if self.cold:
            evict(folder)
        return cached(folder)

    def restored(self, program, folder, share, migration, way, restore_ms, **figures):
        self.record.add(migration, way=way, what="restored", restore_ms=restore_ms, cached=share, **figures)
        say(f"{way}: restored in {restore_ms:g} ms; the page cache had {share:.3f} of the files")
        program.wait_for_more(5)
        self.end(program)
        shutil.rmtree(folder)

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
    options = comparison(
        words, __doc__, "the program", "checkpoint", program={"choices": ("stencil", "huggingface"), "default": "stencil"},
        runs={"type": base.number_between(1, 99), "default": 3, "help": "of each way (default 3)"},
        dir={"type": base.folder, "help": "an existing folder for the checkpoints (default: a tmpfs made for them)"},
        cold={"choices": ("yes", "no"), "default": "no",
              "help": "yes: the checkpoint's files leave the page cache before it is restored"})
    with tempfile.TemporaryDirectory() as work:
        record = Record(options.record.path or pathlib.Path(work) / "figures.txt", options.record.common)
        compare(options.gpu, options.program, options.vram, record, options.runs, options.by_hand, options.dir,
                options.cold == "yes", options.log)
        tables.print_tables(record.path)
