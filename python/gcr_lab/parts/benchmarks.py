"""Parts of scripts/bench: programs that are moved; what the library costs, digests, checkpoints, the transport."""

import subprocess, time
from gcr_lab import base, compare_by_hand, compare_checkpoints, launch, transport
from gcr_lab.base import GIB, MIB, Failure, say
from gcr_lab.hosts import PORT, store
from gcr_lab.parts.needs import has
from gcr_lab.registry import Parts
from gcr_lab.sampling import bytes_of, lines_over_time, most_memory, rates

PARTS = Parts()
WARM_UPS, TURNS = 5, 100

def pace(lab):
    return " --period-ms 3" if lab.options.smoke else ""

@PARTS.part("downtime", limit=560)
def downtime(lab):
    """this tool against the way by hand, over GPU memory"""
    for size in lab.options.vram:
        compare_by_hand.compare(lab.gpu, size, lab.record, by_hand=size <= lab.options.by_hand_up_to, log=lab.log)

@PARTS.part("size", limit=400)
def sizes(lab):
    """how downtime depends on the size of GPU memory: an idle program"""
    # The counter's GPU is idle but for one answer at a time. It has 128 buffers at any size.
    with lab.hosts(vram=max(lab.options.vram)) as two:
        for size in sorted(lab.options.vram * lab.options.runs, key=lab.options.vram.index):
            program = two.start("a", "size", f"bin/counter --port {PORT} --vram {size} --piece {size // 128}", lines=1)
            two.expect_answer("a", 101)
            migration = two.migrate("a", "b", program)
            two.expect_answer("b", 102)
            lab.record.add(migration, program="counter", asked_bytes=size)
            program.kill()

@PARTS.part("floor", limit=240)
def floor(lab):
    """an otherwise empty context: what the driver and CRIU need for it alone, and this tool"""
    for _ in range(lab.options.runs):
        compare_by_hand.compare(lab.gpu, 2 * MIB, lab.record, log=lab.log)  # the smallest stencil holds 3 MiB

@PARTS.part("dirty", limit=400)
def dirty(lab):
    """a program that rewrites 0, 1, 10, 50 % of its GPU memory per second"""
    shares = [0.5] if lab.options.smoke else [0, 0.01, 0.1, 0.5]
    with lab.hosts() as two:
        for share, options in [*((share, ()) for share in shares), (shares[-1], ("--auto-converge",))]:
            name = f"dirty-{share}{''.join(options)}"
            program = two.start("a", name, f"bin/scribbler --vram {lab.vram} --dirty-per-second {share}", lines=10)
            migration = two.migrate("a", "b", program, *options, "--trace", lab.out / f"{name}.trace.json")
            program.wait_for_more(10)
            lab.record.add(migration, program="scribbler", dirty_per_second=share, options=" ".join(options))
            program.kill()

@PARTS.part("cost", limit=400)
def cost(lab):
    """how much slower a program is while its GPU memory is copied"""
    # A checksum reads all memory: with each step it would be all that is measured.
    programs = {"stencil": f"bin/stencil{pace(lab)} --mib {lab.vram // MIB} --report 20"}
    if has(lab, "torch"):
        programs |= {name: f"python3 bin/{name}.py --gib {lab.vram // GIB}" for name in ("torch_generate", "torch_loop")}
    with lab.hosts() as two:
        for limit in ("none", lab.options.bandwidth):
            for name, command in programs.items():
                slowed(lab, two, name, limit, command)

def slowed(lab, two, program_name, limit, command):
    """How fast the program is before, while and after it is copied. The rounds have the gate open; what comes after
    them is downtime, which other parts measure."""
    name = f"cost-{program_name}-{limit}"
    program = two.start("a", name, command, lines=10)
    def measure():
        time.sleep(1 if lab.options.smoke else 3)
        program.wait_for_more(10)  # enough lines for a rate
    with lines_over_time(program.output) as samples:
        measure()
        begun = time.time()
        limiting = [] if limit == "none" else ["--max-bandwidth", limit]
        migration = two.migrate("a", "b", program, *limiting, "--trace", lab.out / f"{name}.trace.json")
        program.wait_for_more(10)
        time.sleep(1)
        measure()
    lab.record.add(migration, program=program_name, bandwidth=limit, **rates(samples, begun, migration))
    program.kill()

def state_programs(lab):
    """{name: (command, VRAM in bytes)} of what this machine can run."""
    stencil = f"bin/stencil{pace(lab)} --report 20"
    pools, few, mib, counts, counts_mib = {
        "smoke": ((64,), 200, 64, (32,), 64),
        "real": ((1331, 32768), 5000, 8192, (100, 10000), 20000),
        "soft": ((256, 512), 1000, 512, (60, 600), 1200)}["smoke" if lab.options.smoke else lab.gpu]
    programs = {
        "counter": (f"bin/counter --port {PORT} --vram {70 * MIB}", GIB),
        "stencil": (f"{stencil} --mib {mib}", mib * MIB),
        "small": (f"{stencil} --mib 2 --small {few} --small-kib 532", 2 * GIB),
        **{f"pool-{pool}": (f"{stencil} --mib {pool} --pool", pool * MIB) for pool in pools},
        **{f"buffers-{count}": (f"{stencil} --mib {counts_mib} --buffers {count}", (counts_mib + 64) * MIB) for count in counts},
        # A program whose state is its threads, and the same without them.
        **{f"threads-{count}": (f"bin/ticker --threads {count}", GIB) for count in (0, 1000)},
    }
    if lab.options.smoke:  # the stencil moves in other parts
        programs = {name: programs[name] for name in programs if name not in ("stencil", "small", "threads-0")}
    if has(lab, "torch"):
        for name, options in (("resnet18", ""), ("resnet18-threads", " --threads 1000"), ("heap-16", " --host-gib 16")):
            programs[name] = (f"python3 bin/torch_resnet.py{options}", GIB)
    if has(lab, "transformers"):
        programs["huggingface"] = ("python3 bin/torch_huggingface.py", GIB)
    if has(lab, "jax"):
        # JAX makes a context on each GPU that it sees. Where both hosts have one, it has to hold that memory twice.
        variable = "JAX_CUDA_VISIBLE_DEVICES=0" if lab.options.apart else "XLA_PYTHON_CLIENT_MEM_FRACTION=0.45"
        programs["jax"] = (f"env {variable} python3 bin/jax_loop.py", GIB)
    return programs

@PARTS.part("state", limit=2400)
def state(lab):
    """programs with state of every kind, each moved to and fro five times"""
    programs = state_programs(lab)
    for name in lab.options.programs or programs:
        if name not in programs:
            say(f"{name} was NOT RUN: not on this machine")
            continue
        for side in ["before", "after"] if lab.options.against else ["after"]:
            moved_to_and_fro(lab, name, side, *programs[name])

def moved_to_and_fro(lab, name, side, command, vram):
    """Moves of a program by the agents of that side."""
    script = lab.options.against / "scripts/hosts" if side == "before" else "hosts"
    with lab.hosts(vram=vram, script=script) as two:
        program = two.start("a", f"{name}-{side}", command, lines=1)
        def works(host, number):
            if name == "counter":
                two.expect_answer(host, 101 + number)
            else:
                program.wait_for_more(5)
        works("a", 0)
        for number in range(1, 3 if lab.options.smoke else 6):
            source, target = "ab" if number % 2 else "ba"
            with most_memory(f"{two.env['PREFIX']}/bin/migrate-agent") as memory:
                migration = two.migrate(source, target, program)
            works(target, number)
            lab.record.add(migration, program=name, side=side, agents_memory_bytes=memory[0])
        program.kill()

@PARTS.part("steady", limit=300)
def steady(lab):
    """what the preload library costs a program that is not moved"""
    under = [base.BIN / "gcr-migrate", "run", "--"]
    with launch.gpu_environment(lab.gpu) as environment:
        # Processes differ by more than one shows in itself.
        for _ in range(1 if lab.options.smoke else 5 * lab.options.runs):
            launch.record_launches(lab.record, "empty", launch.TRIVIAL)
            launch.record_launches(lab.record, lab.gpu, environment)
        # How much VRAM allocations of random sizes take.
        room = [base.BIN / "bench_room", "--vram", 4 * GIB if lab.gpu == "real" else 64 * MIB]
        for side, launcher in (("without", []), ("under", under)):
            lab.record.collect(launch.on_gpu(environment, *launcher, *room, stderr=subprocess.STDOUT), side=side)
    if not has(lab, "torch"):
        say("no PyTorch, or no GPU for it: torch_resnet.py was NOT RUN")
        return
    for _ in range(lab.options.runs):
        lab.record.add(what="turns", **turns(under, base.words("python3 bin/torch_resnet.py --timed")))

def turns(launcher, command):
    """Seconds of a program with and without a launcher. It works as long as it says for each line of its input; two of
    it take turns."""
    programs = [subprocess.Popen([*before, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for before in ([], launcher)]
    taken = {program: [] for program in programs}
    for turn in range(WARM_UPS + TURNS):
        for program in programs if turn % 2 else programs[::-1]:
            print(file=program.stdin, flush=True)
            taken[program].append(float(program.stdout.readline()))
    for program in programs:
        program.communicate()  # it ends with its input
    if failed := [program.returncode for program in programs if program.returncode]:
        raise Failure(f"{' '.join(map(str, command))} ended with status {failed[0]}")
    return {side: taken[program][WARM_UPS:] for side, program in zip(("without_s", "under_s"), programs)}

@PARTS.part("digests", limit=200)
def digests(lab):
    """digests of GPU memory, and reading it out, against the memory's and PCIe's own speed"""
    # The software GPU's kernels run on the processor: it says nothing about a GPU's memory.
    digest, read = ["--gpu"] if lab.gpu == "real" else [], [8] if lab.gpu == "real" else []
    if lab.options.smoke:
        digest, read = ["--host-mib", 64, "--repetitions", 3], [0.03125]
    with launch.gpu_environment(lab.gpu) as environment:
        for part, *command in (("digest", "bench_digest", "--json", *digest), ("read", "bench_read", *read)):
            text = launch.on_gpu(environment, base.BIN / command[0], *command[1:], stderr=subprocess.STDOUT)
            print(text)
            lab.record.but(part=part).collect(text)

@PARTS.part("checkpoint", limit=2400)
def checkpoint(lab):
    """checkpoints and restores, this tool against the way by hand, over GPU memory"""
    names = lab.options.programs or ["stencil", "huggingface"]
    wanted = [("stencil", size) for size in lab.options.vram if "stencil" in names]
    if "huggingface" in names and has(lab, "transformers"):
        wanted.append(("huggingface", 8 * GIB))
    elif "huggingface" in names:
        say("huggingface was NOT RUN: not on this machine")
    for name, size in wanted:
        compare_checkpoints.compare(lab.gpu, name, size, lab.record, runs=lab.options.runs, folder=lab.options.dir,
                                    cold=lab.options.cold, log=lab.log)

@PARTS.part("incremental", limit=900)
def incremental(lab):
    """one job's checkpoints, every few seconds into one directory, against full ones"""
    # Full checkpoints of training, one after the other.
    size = 8 * GIB if lab.gpu == "real" else lab.vram
    commands = {
        "scribbler": f"bin/scribbler --vram {size} --dirty-per-second 0.01",
        "torch_train": "python3 bin/torch_train.py --gib 2",
        "torch_generate": "python3 bin/torch_generate.py --gib 8",
        "huggingface": "python3 bin/torch_huggingface.py --gib 8 --context 2048",
    }
    names = ["torch_train", "torch_generate"] if has(lab, "torch") else ["scribbler"]
    names += ["huggingface"] if has(lab, "transformers") else []
    for name in lab.options.programs or names:
        if name not in commands:
            raise Failure(f"no program {name} for this part")
        with lab.hosts(vram=size) as two, store(two.work, lab.options.dir, size * 6 + 8 * GIB) as (place, kind):
            program = two.start("a", name, commands[name], lines=10)
            record = lab.record.but(program=name, file_system=kind)
            begun = time.monotonic()
            # One each interval, counted from the first one's beginning; one that is late at once.
            for number in range(lab.options.duration // lab.options.interval + 1):
                time.sleep(max(0, begun + number * lab.options.interval - time.monotonic()))
                take(two, program, record.but(kind="series", at_s=int(time.monotonic() - begun)), place / "series")
            for number in (1, 2):
                take(two, program, record.but(kind="full", at_s=0), place / f"full-{number}")
            program.kill()

def take(two, program, record, folder):
    """One checkpoint, after which the program goes on."""
    before = bytes_of(folder)
    taken = two.checkpoint("a", program, folder)
    program.wait_for_more(5)
    record.add(taken, added_bytes=bytes_of(folder) - before)

@PARTS.part("transport", limit=1200)
def tcp_and_rdma(lab):
    """TCP and TLS against iperf3 and openssl speed, between two network namespaces; RDMA against ib_write_bw"""
    options = lab.options
    transport.measure(lab.record, "smoke" if options.smoke else "quick" if options.quick else "full")
