"""The end-to-end checks on a machine with a GPU, from a bundle (scripts/bundle) or a source tree. Needs root.

Most parts compare what a program prints with an undisturbed run of it. Programs run until they are ended, and an
undisturbed run goes on until it has printed as many lines: a slow machine needs longer and fails nothing. A program that
prints nothing for three minutes fails its part. A part that fails does not stop the others. On AMD GPUs those that HIP
has no way for are left out.
"""

import argparse, os, pathlib, re
from gcr_lab import base
from gcr_lab.parts import campaign, containers, programs, pytorch, saved, slurm
from gcr_lab.registry import Lab, Parts

PARTS = Parts.of(programs, pytorch, containers, saved, slurm, campaign)

EPILOG = """Parts, all by default (the beginning of several, as checkpoint or ring, means all of these):
%s

Environment: OUT (logs go there; default ./out), VRAM (how much the large programs hold; default 8G), LIMIT (seconds
after which a part has hung; default 900); of the campaign MOVES and PAIRS (of hosts at a
time; default 4).
The last lines are a table of the results; the exit status is 1 if any part failed."""

def main(words):
    parser = base.Arguments(__doc__)
    parser.epilog = EPILOG % PARTS.descriptions()
    parser.add_argument("--gpu", choices=("real", "hip", "soft", "soft-hip"), default="real",
                        help="real: this machine's NVIDIA GPUs (default); hip: its AMD GPUs (docs/hip.md has what they "
                        "need); soft, soft-hip: test these checks themselves without hardware")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args(words)
    base.need_root()
    out = pathlib.Path(os.environ.get("OUT") or "out").resolve()
    vram = base.size(os.environ.get("VRAM") or "8G")
    if options.part:
        return PARTS[options.part].execute(Lab(options.part, options.gpu, out, vram))
    return run_parts(PARTS.select(options.parts), options.gpu, out)

def run_parts(names, gpu, out):
    out.mkdir(parents=True, exist_ok=True)
    for name in ("summary.txt", *(f"{name}.log" for name in PARTS)):
        (out / name).unlink(missing_ok=True)
    failed, table = 0, ""
    for name in names:
        outcome = PARTS.run_apart(name, ["--gpu", gpu], out, int(os.environ.get("LIMIT") or 0))
        failed |= outcome.status != 0
        table += f"{name:<19} {outcome.verdict:<8} {outcome.result}\n"
        base.say(f"{name}: {outcome.verdict}")
    for line in details(out):
        print(line)
    print(table, end="", flush=True)
    (out / "summary.txt").write_text(table, encoding="utf-8")
    return int(failed)

def details(out):
    """Of the part compare its table; of suspend the phases of suspend and resume: start and duration in ms."""
    text = {path.stem: base.read(path) for path in out.glob("*.log") if path.stem in ("compare", "suspend")}
    found = re.search(r"(?ms)^by hand, step.*?^by hand / gcr.*?$", text.get("compare", ""))
    printed = text.get("suspend", "").split("\n--- ")[0]  # what follows are the same lines in files
    phases = re.findall(r"(?m)^process .* in all$|^ +[0-9.]+ +[0-9.]+  .*$", printed)
    return (found[0].splitlines() if found else []) + phases
