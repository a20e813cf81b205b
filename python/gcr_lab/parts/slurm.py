"""Slurm jobs whose node is drained; where Slurm's daemons and munge are."""

import re
from gcr_lab import base
from gcr_lab.base import Failure, is_alive, last_line, wait_until
from gcr_lab.hosts import Program
from gcr_lab.parts import needs
from gcr_lab.parts.programs import LINES
from gcr_lab.parts.undisturbed import STEPS, as_undisturbed
from gcr_lab.registry import Parts

PARTS = Parts()
NO_HIP = "scripts/slurm-hosts knows no AMD GPUs"

def call(two, function, *words):
    library = base.SCRIPTS / "lib"
    text = f'set -euo pipefail; source {library}/common.sh; source {library}/slurm.sh; source {two.folder}/env; "$@"'
    return base.run("bash", "-c", text, base.SCRIPTS / "e2e-real", function, *words)

def ask(two, *words):
    return call(two, "ask_slurm", *words)

class Job(Program):
    """A program in a Slurm job. Slurm knows its processes: `pid` is that of init, which is always alive."""
    def __init__(self, output):  # pylint: disable=super-init-not-called
        self.output, self.pid = output, 1
        output.write_bytes(b"")

    def end(self):
        """scancel has ended it."""

def drained(two, pattern, gpus, command):
    """A job with so many GPUs, whose node is drained. Its lines are those of an undisturbed run; Slurm knows it on the
    other node, and ends it there. The result, and its GPUs there."""
    program = Job(two.work / "app.out")
    job = call(two, "submit_program", "a", program.output, gpus, 16000, *base.words(command)).strip()
    program.wait_for(5, pattern)
    line = last_line(call(two, "drain_node", "a"))
    print(line, flush=True)
    moved = re.fullmatch(rf"moved job={job} to job=(\d+) .*node={two.env['NODE_B']} .*verified=yes", line)
    if not moved:
        raise Failure(line)
    successor = moved[1]
    if not wait_until(60, lambda: not ask(two, "squeue", "--noheader", "--nodelist", two.env["NODE_A"])):
        raise Failure("the drained node is not empty")
    states = [re.search(r"JobState=([A-Z_]*)", ask(two, "scontrol", "show", "job", each))[1] for each in (job, successor)]
    if states != ["COMPLETED", "RUNNING"]:
        raise Failure(f"job {job} is {states[0]}, job {successor} {states[1]}")
    count = program.wait_for_more(10, pattern)
    listed = ask(two, "scontrol", "listpids", successor, two.env["NODE_B"]).splitlines()[1:]
    pids = [int(each.split()[0]) for each in listed if each.split()[0].isdigit()]
    places = two.places("b")
    ask(two, "scancel", successor)
    if not wait_until(60, lambda: not any(map(is_alive, pids))):
        raise Failure(f"scancel of job {successor} did not end {pids}")
    return f"{line}; {as_undisturbed(two, program, command, count, pattern)}; on {places}", places

@PARTS.part("slurm-ring", needs=(needs.slurm,), not_on_hip=NO_HIP)
def ring(lab):
    """a Slurm job of two processes that share memory, whose node is drained"""
    if lab.gpu == "real" and needs.two_gpus(lab):
        raise base.NotRun(needs.two_gpus(lab))
    with lab.hosts("--gpus", 2, "--memory", 32000, script="slurm-hosts") as two:
        return drained(two, LINES, 2, "bin/ring --ranks 2 --period-ms 50")[0]

@PARTS.part("slurm-torch", needs=(needs.slurm,), not_on_hip=NO_HIP)
def torch(lab):
    """a Slurm job of PyTorch, whose node is drained; it gets another GPU"""
    command, gpus = "bin/stencil --mib 256", []
    if lab.gpu == "real":
        if reason := needs.torch(lab) or needs.two_gpus(lab):
            raise base.NotRun(reason)
        command, gpus = "python3 bin/torch_train.py --pace 0.3", needs.first_gpus(lab)
    with lab.hosts("--gpus", 2, "--memory", 32000, script="slurm-hosts") as two:
        # The first GPU of the node that it goes to is another job's: it gets the second one.
        ask(two, "sbatch", "--gres", "gpu:1", "--nodelist", two.env["NODE_B"], "--output", "/dev/null", "--wrap",
            "exec sleep 100000")
        result, places = drained(two, STEPS, 1, command)
    if gpus and places != f"0@{gpus[1][:12]}":
        raise Failure(f"it is not on GPU {gpus[1]}: {result}")
    return result
