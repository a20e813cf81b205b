"""Benchmarks of migrations, from a source tree or a bundle (scripts/bundle). docs/benchmarks.md says what each figure
means. Needs root.

bench [OPTION…] [PART…]    measures, and prints tables of the figures
bench table DIR            prints the figures of an earlier run
bench plot DIR             draws downtime and total time over GPU memory, and the transport's rates over sizes (needs
                           gnuplot)
"""

import contextlib
import dataclasses
import os
import pathlib
import sys

from gcr_lab import base
from gcr_lab.base import GIB, Failure, say
from gcr_lab.e2e import descriptions
from gcr_lab.figures import Record
from gcr_lab.parts import bench_moves, bench_steady, needs
from gcr_lab.plots import plot
from gcr_lab.registry import Lab, Parts, run_apart
from gcr_lab.tables import print_tables

PARTS = Parts.of(bench_moves, bench_steady)
# By kind of GPU: sizes for the parts downtime, size and checkpoint; for dirty, cost and incremental; a bandwidth.
DEFAULTS = {"soft": ("1G,4G", "512M", "100M"), "real": ("8G,32G,64G", "16G", "2G"), "smoke": ("32M", "64M", "40M")}


@dataclasses.dataclass(frozen=True)
class BenchLab(Lab):
    @property
    def record(self):
        return Record(self.out / "bench.jsonl", {"part": self.part, **({} if self.part == "transport" else {"gpu": self.gpu})})

    def hosts(self, *options, **more):
        gpus = needs.first_gpus(self) if self.options.apart else []
        if self.options.apart and not gpus:
            raise Failure("--apart needs two GPUs on this machine")
        return super().hosts(*options, *(["--gpus-a", gpus[0], "--gpus-b", gpus[1]] if gpus else []), **more)


def sizes(text):
    return [base.size(word) for word in text.split(",")]


def parse(words):
    parser = base.Arguments(__doc__)
    parser.epilog = f"Parts (default: all):\n{descriptions(PARTS)}\n\nThe exit status is 1 if any part failed."
    add, seconds = parser.add_argument, base.number_between(1, 999999)
    add("parts", nargs="*", metavar="PART")
    add("--gpu", choices=("soft", "real"), default="soft", help="the software GPU (default), or this machine's own")
    add("--vram", type=sizes, metavar="SIZE,…",
        help="for the parts downtime, size and checkpoint (default: 1G,4G; real: 8G,32G,64G)")
    add("--by-hand-up-to", type=base.size, default=32 * GIB, metavar="SIZE",
        help="larger programs are moved by this tool only (default 32G)")
    add("--program-vram", type=base.size, metavar="SIZE", help="for the parts dirty and cost (default: 512M; real: 16G)")
    add("--runs", type=base.number_between(1, 99), default=3, help="for the parts size, floor, steady and checkpoint (default 3)")
    add("--bandwidth", metavar="RATE", help="for the limited migration of the part cost (default: 100M; real: 2G)")
    add("--against", type=base.folder, metavar="DIR", help="for the part state: the agents of this bundle or source tree "
        "move each program first; programs and scripts are ours")  # fmt: skip
    add("--programs", type=lambda text: text.split(","), metavar="NAME,…",
        help="for the parts state, checkpoint and incremental: these only")
    add("--dir", type=base.folder, help="for the parts checkpoint and incremental: an existing folder that the "
        "checkpoints go to (default: a tmpfs made for them)")  # fmt: skip
    add("--cold", action="store_true", help="for the part checkpoint: files leave the page cache before a restore")
    add("--interval", type=seconds, default=10, metavar="S", help="for the part incremental (default 10)")
    add("--duration", type=seconds, default=120, metavar="S", help="for the part incremental (default 120)")
    add("--apart", action="store_true", help="each host gets a GPU of its own (real; if this machine has two)")
    add("--out", type=pathlib.Path, help="figures (bench.jsonl), logs and traces (default: $OUT, else bench-out)")
    add("--quick", action="store_true", help="the part transport in less than a minute")
    add("--smoke", action="store_true", help="every part with little memory, on the software GPU: does it still work?")
    add("--part", help=base.HIDDEN)
    options = parser.parse_intermixed_args(words)
    if options.smoke:
        options.gpu, options.runs, options.interval, options.duration = "soft", 1, 2, 4
    defaults = DEFAULTS["smoke" if options.smoke else options.gpu]
    options.vram = options.vram or sizes(defaults[0])
    options.program_vram = options.program_vram or base.size(defaults[1])
    options.bandwidth = options.bandwidth or defaults[2]
    options.out = (options.out or pathlib.Path(os.environ.get("OUT") or "bench-out")).resolve()
    return options


def main(words):
    if words[:1] in (["table"], ["plot"]):
        if len(words) != 2:
            raise Failure(f"{words[0]}: which folder? (see --help)")
        folder = pathlib.Path(words[1])
        return print_tables(folder / "bench.jsonl") if words[0] == "table" else plot(folder / "bench.jsonl", folder)
    options = parse(words)
    base.need_root()
    if options.part:
        PARTS[options.part].execute(BenchLab(options.part, options.gpu, options.out, options.program_vram, options))
        return 0
    return run_parts(PARTS.select(options.parts), words, options.out)


def run_parts(names, words, out):
    """Runs them one after the other, prints the tables and draws the plots; the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    figures = out / "bench.jsonl"
    figures.write_bytes(b"")
    failed = False
    for name in names:
        say(f"{name}…")
        command = [sys.executable, sys.argv[0], *words, "--out", out, "--part", name]
        outcome = run_apart(command, PARTS[name].limit, out / f"{name}.log")
        if outcome.failed:
            say(f"{name} FAILED (status {outcome.status}): {outcome.result}")
        for line in outcome.text.splitlines():
            if "NOT RUN" in line:
                print(line, file=sys.stderr)
        failed |= outcome.failed
    with open(out / "tables.txt", "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        print_tables(figures)
    print((out / "tables.txt").read_text(encoding="utf-8"), end="", flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            plot(figures, out)
        except Failure as failure:
            print(failure)
    return int(failed)
