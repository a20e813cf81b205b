"""The tables of scripts/bench, and its drawings by gnuplot. docs/benchmarks.md says what each figure means."""

import shutil, statistics, subprocess
from operator import itemgetter
from gcr_lab.base import GIB, MIB, Failure
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
    """{(value, …): its lines}, in the order of the lines, sizes in their own; by one name {value: its lines}."""
    groups = {}
    for line in sorted(lines, key=itemgetter("asked_bytes")) if names == ("asked_bytes",) else lines:
        groups.setdefault(itemgetter(*names)(line), []).append(line)
    return groups

TABLES = []

def table(which, title="", heads=None, by=()):
    """Of lines that are `which`, as part or part/what, in the order of these functions. With `by` the function makes a row of
    each group of lines, otherwise all rows. Without a title it prints several tables itself."""
    def register(function):
        TABLES.append((dict(zip(("part", "what"), which.split("/"))), title, heads, by, function))
        return function
    return register

def print_tables(path):
    everything = read(path)
    for wanted, title, heads, by, function in TABLES:
        lines = of(everything, **wanted)
        rows = [function(key, here) for key, here in grouped(lines, *by).items()] if by else function(lines)
        if title:
            print_table(title, heads, rows)

@table("downtime", "Downtime: this tool against the way by hand",
       "VRAM, downtime ms, silence ms, total ms, by hand ms, by hand/this", by=["asked_bytes"])
def compare_row(vram, lines):
    hand = middle(of(lines, way="by-hand"), "downtime_ms")
    ours = middles(of(lines, way="gcr-migrate"), "downtime_ms", "silence_ms", "total_ms")
    return [size(vram), *ours, hand, ratio(hand, ours[0])]

@table("size", "Downtime of an idle program with 128 buffers", "VRAM, runs, downtime ms, total ms, to the smallest")
def size_rows(lines):
    rows = [[size(vram), len(here), *middles(here, "downtime_ms", "total_ms")]
            for vram, here in grouped(lines, "asked_bytes").items()]
    return [[*row, ratio(row[2], rows[0][2])] for row in rows]

@table("floor", "An otherwise empty context, ms", "run, checkpoint, dump, criu restore, restore, alone, downtime, ratio")
def floor_rows(lines):
    """What the driver and CRIU need for it alone, against the tool's downtime; a row per run."""
    rows = []
    for index, (ours, hand) in enumerate(zip(of(lines, way="gcr-migrate"), of(lines, way="by-hand")), 1):
        steps = [hand[step] for step in ("checkpoint_ms", "dump_ms", "criu_restore_ms", "restore_ms")]
        rows.append([index, *steps, sum(steps), ours["downtime_ms"], ratio(ours["downtime_ms"], sum(steps))])
    medians = [statistics.median(column) for column in list(zip(*rows))[1:-1]]
    return [*rows, ["median", *medians, ratio(medians[-1], medians[-2])]] if rows else []

@table("dirty", "Programs that rewrite a share of VRAM per second",
       "rewrites, VRAM, rounds, sent, after the first, downtime ms, total ms, switchover")
def dirty_rows(lines):
    return [[f"{line['dirty_per_second'] * 100:g} % {line['options']}".strip(), size(line["vram_bytes"]), line["rounds"],
             size(line["sent_vram_bytes"]), size(sum(line["sent_per_round_bytes"][1:]) if line["rounds"] else None),
             line["downtime_ms"], line["total_ms"], line["switchover_reason"] or None] for line in lines]

@table("cost", "Steps per second of a program that is moved", "program, bandwidth, before, during, after, during/before, for s")
def cost_rows(lines):
    names = ("program", "bandwidth", "before_per_s", "during_per_s", "after_per_s", "during_to_before", "during_s")
    return [[line.get(name) for name in names] for line in lines]

@table("state", "Programs with state of every kind: medians of so many moves, ms",
       "program, VRAM, moves, before, after, after/before, prepare before, after, agents' memory", by=["program"])
def state_row(program, lines):
    prepared = [{**line, "prepare_ms": sum(phase["duration_ms"] for phase in of(line["phases"], name="prepare"))} for line in lines]
    before, after = (of(prepared, side=side) for side in ("before", "after"))
    (before_ms, prepare_before_ms), (after_ms, prepare_ms) = (middles(side, "downtime_ms", "prepare_ms") for side in (before, after))
    memory = max((line["agents_memory_bytes"] for line in after), default=None)
    return [program, size(middle(after, "vram_bytes")), len(after), before_ms, after_ms, ratio(after_ms, before_ms),
            prepare_before_ms, prepare_ms, size(memory)]

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

@table("checkpoint")
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

@table("incremental")
def incremental_tables(lines):
    for program, here in grouped(lines, "program").items():
        series, full = of(here, kind="series"), of(here, kind="full")
        named = [*((f"{line['at_s']:.0f} s", [line]) for line in series), ("median of the later", series[1:]),
                 ("median of full ones", full)]
        print_table(f"Checkpoints of one job in one directory: {program}",
                    "taken, number, VRAM, stored, on disk, to the first, copied of VRAM, standstill ms, total ms",
                    [series_row(name, some, series[0]["added_bytes"]) for name, some in named if some])

def launch_row(driver, lines):
    bounds = (bound(line["overhead_ns"] for line in lines) for bound in (min, max))
    return [driver, len(lines), *middles(lines, "direct_ns", "interposed_ns", "overhead_ns"), *bounds]

for what, timed in (("launch", "a launch"), ("alloc_async", "cuMemAllocAsync and cuMemFreeAsync"),
                    ("alloc", "cuMemAlloc and cuMemFree")):
    table(f"steady/{what}", f"Steady state: {timed}, ns", "driver, processes, direct, interposed, overhead, at least, at most",
          by=["driver"])(launch_row)

@table("steady/room", "Steady state: VRAM that allocations of random sizes take",
       "sizes, allocations, asked, without, under, more, of it", by=["least_kib", "most_kib"])
def room_row(kib, lines):
    without, under = (of(lines, side=side)[-1] for side in ("without", "under"))
    taken, more = without["taken_bytes"], under["taken_bytes"] - without["taken_bytes"]
    return [f"{kib[0]} to {kib[1]} KiB", under["allocations"], size(under["asked_bytes"]), size(taken), size(taken + more),
            f"{more >> 20} MiB", ratio(more, taken)]

@table("steady/turns", "Steady state: 10 training steps of ResNet-18, with and without the library in turns",
       ["turns", "without, ms", "with/without", "at least", "at most"])
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

def best_of(lines, way):
    """All lines of a way at the number of connections that is best for it by the median rate."""
    return max(grouped(of(lines, way=way), "n").values(), key=lambda here: middle(here, "gb_per_s"), default=[])

def tls_bound(plain, aes):
    """The most that TLS can reach, and its least cost: docs/benchmarks.md has the formula."""
    encrypt, decrypt = middles(aes, "encrypt_gb_per_cpu_s", "decrypt_gb_per_cpu_s")
    cost = middle(plain, *SENDER, *RECEIVER) + 1 / encrypt + 1 / decrypt
    return min(middle(plain, "gb_per_s"), aes[0]["cores"] / cost), cost

@table("transport", "Transport: each way at its best number of connections; CPU seconds per GB",
       "way, n, runs, GB/s, sender, receiver, both, to iperf3 -P, to n iperf3, to the most, least/cost")
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

@table("transport/rate", "Transport: GB/s over connections")
def transport_rates(lines):
    """The first row are the heads, as wherever a table is without."""
    ways = list(grouped(lines, "way"))
    return [["n", *ways], *([n, *(middle(of(lines, way=way, n=n), "gb_per_s") for way in ways)] for n in sorted(grouped(lines, "n")))]

@table("transport/memory", "Transport: memory that is landed in, plain; GB/s and the receiver's CPU s per GB",
       "pages, populated, CPU, not populated, CPU, not/populated, to 4k")
def transport_memory_rows(lines):
    rows = []
    for pages in ("hugetlb", "ordinary", "4k"):
        ready, late = (of(lines, pages=pages, populated=populated) for populated in (True, False))
        if ready and late:
            rates = middle(ready, "gb_per_s"), middle(late, "gb_per_s")
            rows.append([pages, rates[0], middle(ready, *RECEIVER), rates[1], middle(late, *RECEIVER), rates[1] / rates[0]])
    return [[*row, row[1] / rows[-1][1]] for row in rows]

@table("transport/copies", "Transport: what is copied in user mode, per byte; the receiver's CPU s per GB",
       "way, receiver copies, user, system, sender copies", by=["way"])
def transport_copy_row(way, lines):
    return [way, *middles(lines, "receiver_copied_per_byte", *RECEIVER, "sender_copied_per_byte")]

@table("transport/rdma", "Transport: RDMA over soft RoCE on an emulated processor, 1 MiB", "way, runs, MB/s, to ib_write_bw")
def transport_rdma_rows(lines):
    theirs = middle(of(lines, way="ib_write_bw"), "gb_per_s")
    return [[way, len(here), middle(here, "gb_per_s") * 1000, middle(here, "gb_per_s") / theirs]
            for way, here in grouped(lines, "way").items()]

def transport_size_curves(lines):
    """{(tls, connections): [(KiB per write, GB/s), …]}"""
    curves = grouped(of(lines, what="sizes"), "tls", "lanes")
    return {key: sorted((written // 1024, middle(here, "gb_per_s"))
                        for written, here in grouped(curves[key], "write_bytes").items()) for key in sorted(curves)}

@table("transport/sizes", "Transport: GB/s over bytes per write")
def transport_sizes(lines):
    curves = transport_size_curves(lines)
    heads = ["way", "n", *(f"{kib} KiB" for kib, _ in next(iter(curves.values()), ()))]
    return [heads, *(["TLS" if tls else "plain", n, *(rate for _, rate in curve)] for (tls, n), curve in curves.items())]

@table("read", "Reading VRAM out")  # after the digests: the lower one registers first
@table("digest", "Digests")
def all_figures(lines):
    heads = sorted({name for line in lines for name in line} - {"part"})
    return [heads, *([line.get(name) for name in heads] for line in lines)]

def plot(path, folder):
    """Draws downtime.svg, total.svg and transport.svg into `folder`, as far as the file has lines for them."""
    lines = read(path)
    downtime, transport = (of(lines, part=part) for part in ("downtime", "transport"))
    if not downtime and not transport:
        print("plots: none; they are of the parts downtime and transport")
        return
    if shutil.which("gnuplot") is None:
        raise Failure("plots: not drawn, as gnuplot is not installed (Debian: gnuplot-nox)")
    folder.mkdir(parents=True, exist_ok=True)
    for name, title in (("downtime", "downtime"), ("total", "total time")):
        draw(folder / f"{name}.svg", over_memory(downtime, name), f"{title} over GPU memory", "GPU memory (GiB)", "seconds",
             "logscale xy 2", "key left top")
    curves = {f"{'TLS' if tls else 'plain'}, {n} connection{'s' if n > 1 else ''}": points
              for (tls, n), points in transport_size_curves(transport).items()}
    draw(folder / "transport.svg", curves, "TCP transport over bytes per write", "KiB per write", "GB/s", "yrange [0:*]",
         "logscale x 2", "key outside")

def over_memory(lines, name):
    """{way: [(GiB, seconds), …]}. By hand the program is stopped all the time: total and downtime are one."""
    curves = {way: sorted((line["asked_bytes"] / GIB, line.get(f"{name}_ms", line["downtime_ms"]) / 1e3)
                          for line in of(lines, way=way)) for way in ("gcr-migrate", "by-hand")}
    return {way: points for way, points in curves.items() if points}

def draw(target, curves, title, x, y, *settings):
    """Draws curves, {title: [(x, y), …]}; nothing if there are none."""
    if not curves:
        return
    settings = [f"title '{title}'", f"xlabel '{x}'", f"ylabel '{y}'", *settings, "grid",
                "terminal svg size 720,440 background 'white'", f"output '{target}'"]
    data = [f"$c{i} << EOD\n" + "".join(f"{x} {y}\n" for x, y in points) + "EOD" for i, points in enumerate(curves.values())]
    lines = ", ".join(f"$c{i} with linespoints lw 2 pt 7 title '{title}'" for i, title in enumerate(curves))
    script = "\n".join([*(f"set {each}" for each in settings), *data, f"plot {lines}\n"])
    subprocess.run(["gnuplot"], input=script, text=True, check=True)
    print(f"plot: {target}")
