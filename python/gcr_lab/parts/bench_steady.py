"""Parts of scripts/bench that move nothing: what the library costs, digests, checkpoints, the transport."""

import subprocess, time
from gcr_lab import base, compare_checkpoints, launch, transport
from gcr_lab.base import GIB, MIB, Failure, say
from gcr_lab.hosts import store
from gcr_lab.parts.needs import has
from gcr_lab.registry import Parts
from gcr_lab.sampling import bytes_of

PARTS = Parts()
WARM_UPS, TURNS = 5, 100

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
