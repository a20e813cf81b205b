"""Lines and reports for people."""

import time

from gcr_moves import plan
from gcr_moves.tasks import State, Way

COMMAND_CHARACTERS = 60


def progress_to(stream, quiet=False):
    """A function that prints a line with the time in front."""

    def say(line):
        if not quiet:
            print(f"{time.strftime('%H:%M:%S')} {printable(line)}", file=stream, flush=True)

    return say


def size(amount):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return ""


def printable(words):
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def command(job):
    words = printable(job.command)
    return words if len(words) <= COMMAND_CHARACTERS else words[: COMMAND_CHARACTERS - 3] + "..."


def extent(job):
    gpus = f" on {len(job.vram)} GPUs" if len(job.vram) > 1 else ""
    processes = f", {job.processes} processes" if job.processes > 1 else ""
    vram = "suspended" if job.suspended else size(job.vram_bytes)
    return f"{vram}{gpus}{processes}"


def job_name(job, source="", container=""):
    """`source`: what names a job that does not run. `container`: the name of its container, if that is known."""
    owner = f", job {job.slurm_job}" if job.slurm_job else ""
    if job.container_init:
        owner += f", {printable(container)}" if container else ", in a container"
    return f"{job.pid or source} ({command(job)}, {printable(job.user)}{owner}, {extent(job)})"


def name(task):
    return job_name(task.job, task.source, task.container)


def place(task):
    words = task.destination or "where Slurm places it"
    if task.successor:
        words = f"Slurm's job {task.successor} on {words}"
    if task.pid:
        words += f" as {task.pid}"
    if task.suspended:
        words += ", suspended there"
    if task.downtime_ms:
        words += f": downtime {task.downtime_ms:.0f} ms, {task.total_ms / 1000:.1f} s in all"
    return words


def blockers(findings):
    return "; ".join(f"{each['found']} [{each['id']}]" for each in findings)


def outcome(task):
    """The end of a task, in a few words."""
    if task.state is State.MOVED:
        return f"moved to {place(task)}"
    if task.state is State.RESTORED:
        return f"restored to {place(task)}"
    if task.state is State.CHECKPOINTED:
        return f"checkpointed in {task.checkpoint}, and ended"
    if task.state is State.LOST:
        return f"LOST: moved to {task.destination}, {task.reason}"
    if task.state is State.UNSETTLED:
        aim = f"into {task.checkpoint}" if task.way is Way.CHECKPOINT else f"to {task.destination or '?'}"
        return f"NOT SETTLED: migration {task.migration_id or '(unnamed)'} {aim}: {task.reason}"
    if task.state is State.ENDED:
        return f"ended: {task.reason}"
    return f"LEFT at {task.source}: {task.reason or 'not tried'}"


def summary(course, heading):
    count = {state: sum(task.state is state for task in course.tasks) for state in State}
    words = [f"{count[state]} {state.value}" for state in State if count[state]]
    print(f"{heading}: {', '.join(words) or 'no jobs'}")
    for task in course.tasks:
        print(f"  {name(task)}: {outcome(task)}")
    for task in course.tasks:
        if task.successor:
            print(slurm_move(task, course.cluster))


def task_json(task):
    """For the reports that scripts read (docs/json.md)."""
    job = task.job
    return {
        "source": task.source,
        "pid": job.pid,
        "start_time": job.start_time,
        "command": job.command,
        "user": job.user,
        "vram_bytes": job.vram_bytes,
        "gpus": len(job.vram),
        "processes": job.processes,
        "gpu_processes": job.gpu_processes,
        "outcome": "left" if task.state is State.WAITING else task.state.value,
        "reason": task.reason,
        "destination": task.destination,
        "checkpoint": task.checkpoint,
        "container": task.container,
        "destination_pid": task.pid,
        "slurm_job": job.slurm_job,
        "slurm_successor": task.successor,
        "migration_id": task.migration_id,
        "downtime_ms": task.downtime_ms,
        "total_ms": task.total_ms,
        "verified": task.verified,
        "suspended": task.suspended if task.state is State.MOVED else job.suspended,
        "tries": [
            {"destination": each.destination, "checkpoint": each.checkpoint, "reason": each.reason,
             "migration_id": each.migration_id}
            for each in task.tries
        ],
    }


def slurm_move(task, cluster):
    """The line that scripts read, of a job that has moved."""
    node = cluster.hosts[task.destination].picture.slurm_node
    verified = "yes" if task.verified else "no"
    return (f"moved job={task.job.slurm_job} to job={task.successor} node={node} "
            f"downtime_ms={task.downtime_ms:.0f} verified={verified}")  # fmt: skip


def use_table(pictures, used, totals, out):
    """Each host's use of VRAM, before and after."""
    before = plan.shares(plan.used_of(pictures), totals)
    after = plan.shares(used, totals)
    for host in sorted(pictures):
        print(f"  {host:<24} {before[host]:7.1%} -> {after[host]:7.1%} of {size(totals[host])}", file=out)
