"""Which job has room where, and where it goes. Pure: from pictures alone."""

import dataclasses

# What a restored job's context may take on each of its GPUs besides its buffers; the agents keep
# as much (kContextReserveBytes).
CONTEXT_BYTES = 640 << 20

# How much a share of free VRAM is worth against other work on the host.
LOAD_WEIGHT = 0.25  # per runnable thread and core, up to two
MIGRATION_WEIGHT = 0.05  # per migration under way there


class Room:
    """The free VRAM of a host, less what is planned to go there."""

    def __init__(self, picture):
        self.picture = picture
        self.free = {gpu.uuid: gpu.free_bytes for gpu in picture.gpus}
        self.planned = 0

    def find(self, job, source):
        """The GPUs of this host that the job would get, by its GPUs at `source`; or a text: why
        it does not fit. As the agent there would place it: the same GPU if it can, else the one with
        most free VRAM of the same model."""
        models = {gpu.uuid: gpu for gpu in source.gpus}
        taken = {}
        for uuid, size in job.vram:
            wanted = models.get(uuid)
            if wanted is None:
                return f"its host does not name GPU-{uuid}"
            fitting = [gpu for gpu in self.picture.gpus if self._fits(gpu, wanted, taken)]
            if not fitting:
                return f"no free {wanted.name} with {gib(wanted.total_bytes)}"
            best = max(fitting, key=lambda gpu: (gpu.uuid == uuid, self.free[gpu.uuid]))
            if self.free[best.uuid] < size + CONTEXT_BYTES:
                return (
                    f"{gib(self.free[best.uuid])} of VRAM free, {gib(size)} for buffers and "
                    f"{gib(CONTEXT_BYTES)} for a context are needed"
                )
            taken[uuid] = best.uuid
        if not job.vram and not any(gpu.allowed for gpu in self.picture.gpus):
            return "no GPU for jobs that arrive"
        return taken

    def take(self, job, places):
        """The job is planned to go there."""
        for uuid, size in job.vram:
            self.free[places[uuid]] -= size + CONTEXT_BYTES
        self.planned += 1

    def score(self, job):
        """The share of VRAM that stays free if it comes here, less what other work counts."""
        total = sum(gpu.total_bytes for gpu in self.picture.gpus if gpu.allowed) or 1
        free = sum(self.free[gpu.uuid] for gpu in self.picture.gpus if gpu.allowed)
        busy = min(self.picture.load, 2.0) * LOAD_WEIGHT
        migrations = (len(self.picture.under_way) + self.planned) * MIGRATION_WEIGHT
        return (free - job.vram_bytes) / total - busy - migrations

    @staticmethod
    def _fits(gpu, wanted, taken):
        return (
            gpu.allowed
            and gpu.uuid not in taken.values()
            and gpu.name == wanted.name
            and gpu.total_bytes >= wanted.total_bytes
        )


def gib(size):
    return f"{size / (1 << 30):.1f} GiB"


def candidates(job, source, rooms):
    """The names of `rooms` that have room for the job, the best first; and by name why the
    others have not."""
    fitting, reasons = {}, {}
    for name, room in rooms.items():
        places = room.find(job, source)
        if isinstance(places, str):
            reasons[name] = places
        else:
            fitting[name] = room.score(job)
    return sorted(fitting, key=lambda name: (-fitting[name], name)), reasons


def size_order(job):
    """Biggest first: so most find room."""
    return (-job.vram_bytes, job.pid)


# ---- rebalancing ----


@dataclasses.dataclass(frozen=True)
class Move:
    """One step of a plan. `gap` is by how much the source's share of VRAM in use is above the
    destination's, `gain` by how much that becomes less; each gain lessens the spread."""

    job: object
    source: str
    destination: str
    gap: float
    gain: float


def shares(used, totals):
    return {name: used[name] / totals[name] if totals[name] else 0.0 for name in used}


def spread(used, totals):
    """How uneven: the standard deviation of the hosts' shares of VRAM in use, weighted by VRAM."""
    everything = sum(totals.values())
    if not everything:
        return 0.0
    mean = sum(used.values()) / everything
    share = shares(used, totals)
    return (sum(totals[name] * (share[name] - mean) ** 2 for name in used) / everything) ** 0.5


def totals_of(pictures):
    return {name: sum(gpu.total_bytes for gpu in each.gpus) for name, each in pictures.items()}


def used_of(pictures):
    return {
        name: sum(gpu.total_bytes - gpu.free_bytes for gpu in each.gpus)
        for name, each in pictures.items()
    }


def balance(pictures, threshold, most_moves=1000):
    """The moves that even out the use of VRAM, the one that gains most at the time first, each
    job once, none that gains less than `threshold` (0.01: a hundredth of a host's VRAM); and the
    use by host afterwards."""
    totals, used = totals_of(pictures), used_of(pictures)
    rooms = {name: Room(picture) for name, picture in pictures.items()}
    waiting = {
        (name, job.key): job
        for name, picture in pictures.items()
        for job in picture.jobs
        if job.vram and not job.migration_id
    }
    moves = []
    while len(moves) < most_moves:
        best = max(
            _single_moves(pictures, waiting, rooms, shares(used, totals)),
            key=lambda move: (round(move.gain, 9), move.gap, -move.job.vram_bytes, -move.job.pid),
            default=None,
        )
        if best is None or best.gain < threshold:
            break
        room = rooms[best.destination]
        room.take(best.job, room.find(best.job, pictures[best.source]))
        used[best.source] -= best.job.vram_bytes
        used[best.destination] += best.job.vram_bytes
        del waiting[(best.source, best.job.key)]
        moves.append(best)
    return moves, used


def _single_moves(pictures, waiting, rooms, share):
    totals = totals_of(pictures)
    for (source, _), job in waiting.items():
        for destination, room in rooms.items():
            gap = share[source] - share[destination]
            if gap <= 0 or isinstance(room.find(job, pictures[source]), str):
                continue
            closes = job.vram_bytes * (1 / totals[source] + 1 / totals[destination])
            yield Move(job, source, destination, gap, gap - abs(gap - closes))
