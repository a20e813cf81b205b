"""Checkpoints of programs, and restores of each."""

import functools, re
from gcr_lab.base import GIB, Failure
from gcr_lab.hosts import store
from gcr_lab.parts import needs
from gcr_lab.parts.undisturbed import STEPS
from gcr_lab.registry import Parts

PARTS = Parts()

def checkpointed(lab, command, restores):
    """A checkpoint, after which the program goes on and is ended; then so many restores of it. All lines are those of
    an undisturbed run."""
    with lab.hosts() as two, store(two.work, None, lab.vram * 2 + 8 * GIB) as (place, _):
        program = two.start("a", "app", command, 5, STEPS)
        taken = two.checkpoint("a", program, place / "one")
        program.wait_for_more(5, STEPS)
        pieces, took = [take_output(program)], ""
        for _ in range(restores):
            restored = two.restore("a", place / "one")
            program.pid = restored.destination_pid
            program.wait_for(5, STEPS)
            pieces.append(take_output(program))
            took += f" {restored.total_ms:.1f}"
        two.order("a", "verify", "--ca", two.folder / "tls/ca.crt", place / "one")
        last = max(int(step) for lines in pieces for step in re.findall(rf"(?m)^{STEPS}(\d+) ", "\n".join(lines)))
        other = two.start("b", "undisturbed", command, 1, f"^{STEPS}{last} ", library=False)
        other.end()
        for piece in pieces:
            is_part_of(other.lines(STEPS), piece)
    return (f"{sum(map(len, pieces))} lines as undisturbed; standstill {taken.downtime_ms:.1f} ms, total "
            f"{taken.total_ms:.1f} ms; restores in ms:{took}")

def take_output(program):
    """Ends the program; its lines, which are taken out of its output."""
    program.kill()
    lines = program.lines(STEPS)
    (program.output.parent / f"{program.output.stem}-before.out").write_text("\n".join(lines) + "\n", encoding="utf-8")
    program.output.write_bytes(b"")
    return lines

def is_part_of(undisturbed, lines):
    """Each line is, without a gap, one of the undisturbed run."""
    if not lines or lines[0] not in undisturbed:
        raise Failure(f"its first line is not one of the undisturbed run: {lines[:1]}")
    at = undisturbed.index(lines[0])
    if undisturbed[at : at + len(lines)] != lines:
        raise Failure("it prints other lines than an undisturbed run")

PARTS.command("checkpoint-stencil", functools.partial(checkpointed, restores=10),
              "a checkpoint, the program's end and ten restores", "bin/stencil --mib {mib}")
for name, options in (("train", ""), ("generate", " --gib {gib}"), ("resnet", "")):
    PARTS.command(f"checkpoint-{name}", functools.partial(checkpointed, restores=2),
                  "the same of a program of PyTorch, two restores", f"python3 bin/torch_{name}.py{options}", needs.torch)
