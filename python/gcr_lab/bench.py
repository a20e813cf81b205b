"""Benchmarks of migrations, from a source tree or a bundle (scripts/bundle). docs/benchmarks.md says what each figure
means. Needs root.

bench [OPTION…] [PART…]    measures, and prints tables of the figures
bench table DIR            prints the figures of an earlier run
bench plot DIR             draws downtime and total time over GPU memory, and the transport's rates over sizes (needs
                           gnuplot)
"""

import argparse, contextlib, os, pathlib, sys
from gcr_lab import base
from gcr_lab.base import GIB, Failure, say
from gcr_lab.figures import Record
from gcr_lab.parts import benchmarks, needs
from gcr_lab.registry import Lab
from gcr_lab.tables import plot, print_tables

PARTS = benchmarks.PARTS
# By kind of GPU: sizes for the parts downtime, size and checkpoint; for dirty, cost and incremental; a bandwidth.
DEFAULTS = {"soft": ("1G,4G", "512M", "100M"), "real": ("8G,32G,64G", "16G", "2G"), "smoke": ("32M", "64M", "40M")}

class BenchLab(Lab):
    @property
    def record(self):
        return Record(self.out / "bench.jsonl", {"part": self.part, **({} if self.part == "transport" else {"gpu": self.gpu})})

    def hosts(self, *options, **more):
        gpus = needs.first_gpus(self) if self.options.apart else []
        if self.options.apart and not gpus:
            raise Failure("--apart needs two GPUs on this machine")
        return super().hosts(*options, *needs.one_each(gpus), **more)

def comma_separated(convert):
    return lambda text: [convert(word) for word in text.split(",")]

def parse(words):
    parser, sizes, seconds = base.Arguments(__doc__), comma_separated(base.size), base.number_between(1, 999999)
    parser.epilog = f"Parts (default: all):\n{PARTS.descriptions()}\n\nThe exit status is 1 if any part failed."
    def add(name, about, kind=None, **more):
        more |= {"type": kind} if kind else {"action": "store_true"}
        parser.add_argument(name, help=about, **more)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    add("--gpu", "the software GPU (default), or this machine's own", str, choices=("soft", "real"), default="soft")
    add("--vram", "for the parts downtime, size and checkpoint (default: 1G,4G; real: 8G,32G,64G)", sizes, metavar="SIZE,…")
    add("--by-hand-up-to", "larger programs are moved by this tool only (default 32G)", base.size, default=32 * GIB, metavar="SIZE")
    add("--program-vram", "for the parts dirty and cost (default: 512M; real: 16G)", base.size, metavar="SIZE")
    add("--runs", "for the parts size, floor, steady and checkpoint (default 3)", base.number_between(1, 99), default=3)
    add("--bandwidth", "for the limited migration of the part cost (default: 100M; real: 2G)", str, metavar="RATE")
    add("--against", "for the part state: the agents of this bundle or source tree move each program first; programs and "
        "scripts are ours", base.folder, metavar="DIR")
    add("--programs", "for the parts state, checkpoint and incremental: these only", comma_separated(str), metavar="NAME,…")
    add("--dir", "for the parts checkpoint and incremental: an existing folder that the checkpoints go to (default: a tmpfs "
        "made for them)", base.folder)
    add("--cold", "for the part checkpoint: files leave the page cache before a restore")
    add("--interval", "for the part incremental (default 10)", seconds, default=10, metavar="S")
    add("--duration", "for the part incremental (default 120)", seconds, default=120, metavar="S")
    add("--apart", "each host gets a GPU of its own (real; if this machine has two)")
    add("--out", "figures (bench.jsonl), logs and traces (default: $OUT, else bench-out)", pathlib.Path,
        default=os.environ.get("OUT") or "bench-out")
    add("--quick", "the part transport in less than a minute")
    add("--smoke", "every part with little memory, on the software GPU: does it still work?")
    options = parser.parse_intermixed_args(words)
    if options.smoke:
        options.gpu, options.runs, options.interval, options.duration = "soft", 1, 2, 4
    vram, program_vram, bandwidth = DEFAULTS["smoke" if options.smoke else options.gpu]
    options.vram = options.vram or sizes(vram)
    options.program_vram = options.program_vram or base.size(program_vram)
    options.bandwidth = options.bandwidth or bandwidth
    options.out = options.out.resolve()
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
        return PARTS[options.part].execute(BenchLab(options.part, options.gpu, options.out, options.program_vram, options))
    return run_parts(PARTS.select(options.parts), words, options.out)

def run_parts(names, words, out):
    """Runs them one after the other, prints the tables and draws the plots; the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    figures, failed = out / "bench.jsonl", 0
    figures.write_bytes(b"")
    for name in names:
        say(f"{name}…")
        outcome = PARTS.run_apart(name, [*words, "--out", out], out)
        if outcome.status != 0:
            failed = 1
            say(f"{name} FAILED (status {outcome.status}): {outcome.result}")
        for line in (line for line in outcome.text.splitlines() if "NOT RUN" in line):
            print(line, file=sys.stderr)
    with open(out / "tables.txt", "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        print_tables(figures)
    print(base.read(out / "tables.txt"), end="", flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            plot(figures, out)
        except Failure as failure:
            print(failure)
    return failed
