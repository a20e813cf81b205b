"""Parts of scripts/bench that move programs."""

import time
from gcr_lab import compare_by_hand
from gcr_lab.base import GIB, MIB, say
from gcr_lab.hosts import PORT
from gcr_lab.parts.needs import has
from gcr_lab.registry import Parts
from gcr_lab.sampling import lines_over_time, most_memory, rates

PARTS = Parts()

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
