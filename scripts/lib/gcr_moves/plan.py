"""Which process has room where, and where it goes. Pure: from pictures alone."""

import dataclasses

# What a restored process's context may take on each of its GPUs beside its buffers; the agents keep
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

    def find(self, process, source):
        """The GPUs of this host that the process would get, by its GPUs at `source`; or a text: why
        it does not fit. As the agent there would place it: the same GPU if it can, else the one with
        most free VRAM of the same model."""
        models = {gpu.uuid: gpu for gpu in source.gpus}
        taken = {}
        for uuid, size in process.vram:
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
        if not process.vram and not any(gpu.allowed for gpu in self.picture.gpus):
            return "no GPU for processes that arrive"
        return taken

    def take(self, process, places):
        """The process is planned to go there."""
        for uuid, size in process.vram:
            self.free[places[uuid]] -= size + CONTEXT_BYTES
        self.planned += 1

    def score(self, process):
        """The share of VRAM that stays free if it comes here, less what other work counts."""
        total = sum(gpu.total_bytes for gpu in self.picture.gpus if gpu.allowed) or 1
        free = sum(self.free[gpu.uuid] for gpu in self.picture.gpus if gpu.allowed)
        busy = min(self.picture.load, 2.0) * LOAD_WEIGHT
        migrations = (len(self.picture.under_way) + self.planned) * MIGRATION_WEIGHT
        return (free - process.vram_bytes) / total - busy - migrations

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


def candidates(process, source, rooms):
    """The names of `rooms` that have room for the process, the best first; and by name why the
    others have not."""
    fitting, reasons = {}, {}
    for name, room in rooms.items():
        places = room.find(process, source)
        if isinstance(places, str):
            reasons[name] = places
        else:
            fitting[name] = room.score(process)
    return sorted(fitting, key=lambda name: (-fitting[name], name)), reasons


def size_order(process):
    """Biggest first: so most find room."""
    return (-process.vram_bytes, process.pid)


# ---- rebalancing ----


@dataclasses.dataclass(frozen=True)
class Move:
    """One step of a plan. `gain` is by how much the spread becomes less."""

    process: object
    source: str
    destination: str
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
    """The moves that even out the use of VRAM, the largest gain first, each process once, none that
    gains less than `threshold` (0.01: a hundredth of all VRAM); and the use by host afterwards."""
    totals, used = totals_of(pictures), used_of(pictures)
    rooms = {name: Room(picture) for name, picture in pictures.items()}
    waiting = {
        (name, process.key): process
        for name, picture in pictures.items()
        for process in picture.processes
        if process.vram and not process.migration_id
    }
    moves = []
    while len(moves) < most_moves:
        best = max(
            (move for move in _single_moves(pictures, waiting, rooms, used, totals)),
            key=lambda move: (move.gain, -move.process.vram_bytes, -move.process.pid),
            default=None,
        )
        if best is None or best.gain < threshold:
            break
        room = rooms[best.destination]
        room.take(best.process, room.find(best.process, pictures[best.source]))
        _shift(used, best)
        del waiting[(best.source, best.process.key)]
        moves.append(best)
    return moves, used


def _shift(used, move):
    used[move.source] -= move.process.vram_bytes
    used[move.destination] += move.process.vram_bytes


def _single_moves(pictures, waiting, rooms, used, totals):
    before = spread(used, totals)
    for (source, _), process in waiting.items():
        for destination, room in rooms.items():
            if destination == source or isinstance(room.find(process, pictures[source]), str):
                continue
            after = dict(used)
            move = Move(process, source, destination, 0.0)
            _shift(after, move)
            yield dataclasses.replace(move, gain=before - spread(after, totals))
