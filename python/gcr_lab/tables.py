"""The tables of scripts/bench. docs/benchmarks.md says what each figure means."""

import statistics
from gcr_lab.base import GIB, MIB
from gcr_lab.figures import of, read

SENDER = ("sender_user_s_per_gb", "sender_system_s_per_gb")
RECEIVER = ("receiver_user_s_per_gb", "receiver_system_s_per_gb")

def size(value):
    if value is None:
        return "-"
    return f"{value / GIB:.2f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"

def cell(value):
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)

def print_table(title, heads, rows):
    """Nothing without rows. `heads` are separated by commas, or a list, or the first of the rows."""
    if heads is None:
        heads, *rows = rows
    if not rows:
        return
    heads = heads.split(", ") if isinstance(heads, str) else heads
    rows = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    print(f"\n{title}")
    for row in [heads, *rows]:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(row, widths)))

def ratio(above, below):
    return above / below if above is not None and below else None

def middle(lines, *names):
    """The median over the lines that have these figures of their sum; None without such lines."""
    sums = [sum(line[name] for name in names) for line in lines if all(name in line for name in names)]
    return statistics.median(sums) if sums else None

def middles(lines, *names):
    return [middle(lines, name) for name in names]

def grouped(lines, *names):
    """{(value, …): its lines}, in the order of the lines; by one name {value: its lines}."""
    groups = {}
    for line in lines:
        values = tuple(line[name] for name in names)
        groups.setdefault(values if len(names) > 1 else values[0], []).append(line)
    return groups

def by_size(lines):
    return sorted(grouped(lines, "asked_bytes").items())

def compare_rows(lines):
    rows = []
    for vram, here in by_size(lines):
        hand = middle(of(here, way="by-hand"), "downtime_ms")
        ours = middles(of(here, way="gcr-migrate"), "downtime_ms", "silence_ms", "total_ms")
        rows.append([size(vram), *ours, hand, ratio(hand, ours[0])])
    return rows

def size_rows(lines):
    rows = [[size(vram), len(here), *middles(here, "downtime_ms", "total_ms")] for vram, here in by_size(lines)]
    return [[*row, ratio(row[2], rows[0][2])] for row in rows]

def floor_rows(lines):
    """What the driver and CRIU need for it alone, against the tool's downtime; a row per run."""
    rows = []
    for index, (ours, hand) in enumerate(zip(of(lines, way="gcr-migrate"), of(lines, way="by-hand")), 1):
        steps = [hand[step] for step in ("checkpoint_ms", "dump_ms", "criu_restore_ms", "restore_ms")]
        rows.append([index, *steps, sum(steps), ours["downtime_ms"], ratio(ours["downtime_ms"], sum(steps))])
    if rows:
        medians = [statistics.median(column) for column in list(zip(*rows))[1:-1]]
        rows.append(["median", *medians, ratio(medians[-1], medians[-2])])
    return rows

def dirty_rows(lines):
    return [[f"{line['dirty_per_second'] * 100:g} % {line['options']}".strip(), size(line["vram_bytes"]), line["rounds"],
             size(line["sent_vram_bytes"]), size(sum(line["sent_per_round_bytes"][1:]) if line["rounds"] else None),
             line["downtime_ms"], line["total_ms"], line["switchover_reason"] or None] for line in lines]

def cost_rows(lines):
    names = ("before_per_s", "during_per_s", "after_per_s", "during_to_before", "during_s")
    return [[line["program"], line["bandwidth"], *map(line.get, names)] for line in lines]

def state_rows(lines):
    rows = []
    for program, here in grouped(lines, "program").items():
        sides = [of(here, side=side) for side in ("before", "after")]
        before, after = (middle(side, "downtime_ms") for side in sides)
        prepare = [middle([{"ms": sum(phase["duration_ms"] for phase in of(line["phases"], name="prepare"))} for line in side], "ms")
                   for side in sides]
        memory = max((line["agents_memory_bytes"] for line in sides[1]), default=None)
        rows.append([program, size(middle(sides[1], "vram_bytes")), len(sides[1]), before, after, ratio(after, before),
                     *prepare, size(memory)])
    return rows

CHECKPOINTED = ("program", "asked_bytes", "file_system", "cold")

def checkpoint_rows(lines, *names):
    rows = []
    for (program, asked_bytes, file_system, _), here in grouped(lines, *CHECKPOINTED).items():
        for name in names:
            ours, hand = ([line for line in of(here, way=way) if name in line] for way in ("gcr-migrate", "by-hand"))
            mine, theirs = middle(ours, name), middle(hand, name)
            rows.append([program, size(asked_bytes), file_system, name, len(ours), mine, theirs, ratio(mine, theirs),
                         ratio(theirs, mine)])
    return rows

def checkpoint_tables(lines):
    heads = "program, VRAM, file system, figure, runs, this tool, by hand, this/by hand, by hand/this"
    taken = [{"synced_ms": line["total_ms"], **line} for line in of(lines, what="taken")]
    print_table("Checkpoints: medians", heads, checkpoint_rows(
        taken, "downtime_ms", "silence_ms", "total_ms", "synced_ms", "apparent_bytes", "disk_bytes"))
    print_table('Restores: medians; "cached" is the share of the files in the page cache', heads, checkpoint_rows(
        of(lines, what="restored"), "restore_ms", "returned_ms", "total_ms", "cached"))
    reported = [line for line in lines if "phases" in line]
    for (what, program, asked_bytes, file_system, _), here in grouped(reported, "what", *CHECKPOINTED).items():
        title = f"Phases, {what}: {program}, {size(asked_bytes)}, {file_system}; medians of {len(here)}"
        print_table(title, "start ms, ms, times, host, track, phase", phase_rows(here))

def phase_rows(lines):
    """A row per phase, in order of time: medians over the reports that have it."""
    found = {}
    for line in lines:
        for key, phases in grouped(line["phases"], "host", "track", "name").items():
            total_ms = sum(phase["duration_ms"] for phase in phases)
            found.setdefault(key, []).append((len(phases), phases[0]["start_ms"], total_ms))
    rows = []
    for key, runs in found.items():
        times, start, total_ms = map(statistics.median, zip(*runs))
        rows.append([round(start, 1), round(total_ms, 1), round(times), *key])
    return sorted(rows, key=lambda row: (row[0], -row[1]))

def series_row(name, here, first):
    vram, stored, added, sent = middles(here, "vram_bytes", "stored_bytes", "added_bytes", "sent_vram_bytes")
    return [name, len(here), size(vram), size(stored), size(added), ratio(added, first), size(sent),
            *middles(here, "downtime_ms", "total_ms")]

def incremental_tables(lines):
    for program, here in grouped(lines, "program").items():
        series, full = of(here, kind="series"), of(here, kind="full")
        named = [*((f"{line['at_s']:.0f} s", [line]) for line in series), ("median of the later", series[1:]),
                 ("median of full ones", full)]
        print_table(f"Checkpoints of one job in one directory: {program}",
                    "taken, number, VRAM, stored, on disk, to the first, copied of VRAM, standstill ms, total ms",
                    [series_row(name, some, series[0]["added_bytes"]) for name, some in named if some])

def launch_rows(lines):
    return [[driver, len(here), *middles(here, "direct_ns", "interposed_ns", "overhead_ns"),
             *(bound(line["overhead_ns"] for line in here) for bound in (min, max))]
            for driver, here in grouped(lines, "driver").items()]

def turns_rows(lines):
    """A row per pair of processes: the median of the turns' ratios, and between what it lies by 95 % (ranks of a
    binomial distribution, approximated)."""
    rows = []
    for line in lines:
        ratios = sorted(map(ratio, line["under_s"], line["without_s"]))
        aside, rank = int(0.98 * len(ratios) ** 0.5) + 1, len(ratios) // 2
        rows.append([len(ratios), 1000 * statistics.median(line["without_s"]), statistics.median(ratios),
                     ratios[rank - aside], ratios[rank + aside]])
    return rows

def room_rows(lines):
    rows = []
    for (least, most), here in grouped(lines, "least_kib", "most_kib").items():
        sides = {line["side"]: line for line in here}
        without, under = (sides[side]["taken_bytes"] for side in ("without", "under"))
        rows.append([f"{least} to {most} KiB", sides["under"]["allocations"], size(sides["under"]["asked_bytes"]),
                     size(without), size(under), f"{(under - without) >> 20} MiB", ratio(under - without, without)])
    return rows

def best_of(lines, way):
    """All lines of a way at the number of connections that is best for it by the median rate."""
    return max(grouped(of(lines, way=way), "n").values(), key=lambda here: middle(here, "gb_per_s"), default=[])

def tls_bound(plain, aes):
    """The most that TLS can reach, and its least cost: docs/benchmarks.md has the formula."""
    encrypt, decrypt = middles(aes, "encrypt_gb_per_cpu_s", "decrypt_gb_per_cpu_s")
    cost = middle(plain, *SENDER, *RECEIVER) + 1 / encrypt + 1 / decrypt
    return min(middle(plain, "gb_per_s"), aes[0]["cores"] / cost), cost

def transport_best_rows(lines):
    if not lines:
        return []
    rates = of(lines, what="rate")
    best = {way: best_of(rates, way) for way in ("iperf3 -P n", "n iperf3", "plain", "TLS")}
    bound, least_cost = tls_bound(best["plain"], of(lines, what="aes"))
    rows = []
    for way, here in best.items():
        if not here:
            continue
        rate, cost = middle(here, "gb_per_s"), middle(here, *SENDER, *RECEIVER)
        peers = [ratio(rate, middle(best[peer], "gb_per_s")) if way == "plain" else None for peer in ("iperf3 -P n", "n iperf3")]
        bounds = [rate / bound, least_cost / cost] if way == "TLS" else [None, None]
        rows.append([way, here[0]["n"], len(here), rate, middle(here, *SENDER), middle(here, *RECEIVER), cost, *peers, *bounds])
    return [*rows, ["TLS at most", None, None, bound, None, None, least_cost, None, None, None, None]]

def transport_memory_rows(lines):
    rows = []
    for pages in ("hugetlb", "ordinary", "4k"):
        ready, late = (of(lines, pages=pages, populated=populated) for populated in (True, False))
        if ready and late:
            rates = middle(ready, "gb_per_s"), middle(late, "gb_per_s")
            rows.append([pages, rates[0], middle(ready, *RECEIVER), rates[1], middle(late, *RECEIVER), rates[1] / rates[0]])
    return [[*row, row[1] / rows[-1][1]] for row in rows]

def transport_copy_rows(lines):
    names = ("receiver_copied_per_byte", "receiver_user_s_per_gb", "receiver_system_s_per_gb", "sender_copied_per_byte")
    return [[way, *middles(here, *names)] for way, here in grouped(lines, "way").items()]

def transport_rdma_rows(lines):
    theirs = middle(of(lines, way="ib_write_bw"), "gb_per_s")
    return [[way, len(here), middle(here, "gb_per_s") * 1000, middle(here, "gb_per_s") / theirs]
            for way, here in grouped(lines, "way").items()]

def transport_rates(lines):
    ways = list(grouped(lines, "way"))
    return [["n", *ways], *([n, *(middle(of(lines, way=way, n=n), "gb_per_s") for way in ways)]
                            for n in sorted(grouped(lines, "n")))]

def transport_size_curves(lines):
    """{(tls, connections): [(KiB per write, GB/s), …]}"""
    curves = grouped(of(lines, what="sizes"), "tls", "lanes")
    return {key: sorted((written // 1024, middle(here, "gb_per_s"))
                        for written, here in grouped(curves[key], "write_bytes").items()) for key in sorted(curves)}

def transport_sizes(lines):
    curves = transport_size_curves(lines)
    heads = ["way", "n", *(f"{kib} KiB" for kib, _ in next(iter(curves.values()), ()))]
    return [heads, *(["TLS" if tls else "plain", n, *(rate for _, rate in curve)] for (tls, n), curve in curves.items())]

def all_figures(lines):
    heads = sorted({name for line in lines for name in line} - {"part"})
    return [heads, *([line.get(name) for name in heads] for line in lines)]

LAUNCHES = "driver, processes, direct, interposed, overhead, at least, at most"
# In their order: which lines, as part or part/what; title; heads, if these are always the same; what makes rows of lines.
TABLES = (
    ("downtime", "Downtime: this tool against the way by hand",
     "VRAM, downtime ms, silence ms, total ms, by hand ms, by hand/this", compare_rows),
    ("size", "Downtime of an idle program with 128 buffers", "VRAM, runs, downtime ms, total ms, to the smallest", size_rows),
    ("floor", "An otherwise empty context, ms", "run, checkpoint, dump, criu restore, restore, alone, downtime, ratio", floor_rows),
    ("dirty", "Programs that rewrite a share of VRAM per second",
     "rewrites, VRAM, rounds, sent, after the first, downtime ms, total ms, switchover", dirty_rows),
    ("cost", "Steps per second of a program that is moved",
     "program, bandwidth, before, during, after, during/before, for s", cost_rows),
    ("state", "Programs with state of every kind: medians of so many moves, ms",
     "program, VRAM, moves, before, after, after/before, prepare before, after, agents' memory", state_rows),
    ("checkpoint", checkpoint_tables),
    ("incremental", incremental_tables),
    ("steady/launch", "Steady state: a launch, ns", LAUNCHES, launch_rows),
    ("steady/alloc_async", "Steady state: cuMemAllocAsync and cuMemFreeAsync, ns", LAUNCHES, launch_rows),
    ("steady/alloc", "Steady state: cuMemAlloc and cuMemFree, ns", LAUNCHES, launch_rows),
    ("steady/room", "Steady state: VRAM that allocations of random sizes take",
     "sizes, allocations, asked, without, under, more, of it", room_rows),
    ("steady/turns", "Steady state: 10 training steps of ResNet-18, with and without the library in turns",
     ["turns", "without, ms", "with/without", "at least", "at most"], turns_rows),
    ("transport", "Transport: each way at its best number of connections; CPU seconds per GB",
     "way, n, runs, GB/s, sender, receiver, both, to iperf3 -P, to n iperf3, to the most, least/cost", transport_best_rows),
    ("transport/rate", "Transport: GB/s over connections", None, transport_rates),
    ("transport/memory", "Transport: memory that is landed in, plain; GB/s and the receiver's CPU s per GB",
     "pages, populated, CPU, not populated, CPU, not/populated, to 4k", transport_memory_rows),
    ("transport/copies", "Transport: what is copied in user mode, per byte; the receiver's CPU s per GB",
     "way, receiver copies, user, system, sender copies", transport_copy_rows),
    ("transport/rdma", "Transport: RDMA over soft RoCE on an emulated processor, 1 MiB",
     "way, runs, MB/s, to ib_write_bw", transport_rdma_rows),
    ("transport/sizes", "Transport: GB/s over bytes per write", None, transport_sizes),
    ("digest", "Digests", None, all_figures),
    ("read", "Reading VRAM out", None, all_figures),
)

def print_tables(path):
    lines = read(path)
    for which, *table, rows_of in TABLES:
        rows = rows_of(of(lines, **dict(zip(("part", "what"), which.split("/")))))
        if table:
            print_table(*table, rows)
