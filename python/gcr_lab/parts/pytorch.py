"""Programs of PyTorch, CuPy and what is built on PyTorch, that are moved."""

import functools, statistics, subprocess
from gcr_lab.base import BIN, Failure, last_line, words
from gcr_lab.hosts import PORT
from gcr_lab.parts import needs
from gcr_lab.parts.undisturbed import STEPS, downtimes, five, once
from gcr_lab.registry import Parts

PARTS = Parts()
swapping = functools.partial(five, swap=True)
# The environments that choose NCCL's ways, on one host. NVLink multicast is not used: the driver cannot checkpoint it.
WAYS = {
    "cumem": "", "ipc": "NCCL_CUMEM_ENABLE=0", "shm": "NCCL_P2P_DISABLE=1", "graphs": "",
    "shm-files": "NCCL_P2P_DISABLE=1 NCCL_CUMEM_HOST_ENABLE=0", "sockets": "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
}

def two_ranks(way, program):
    return (f"env NCCL_NVLS_ENABLE=0 {WAYS[way]} torchrun --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29511 "
            f"--local-addr=127.0.0.1 --nproc-per-node=2 bin/{program}")

for part, function, about, command in (
    ("pool-torch", once, "PyTorch's training in the stream-ordered pool",
     "env PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync python3 bin/torch_train.py"),
    ("torch", once, "training", "python3 bin/torch_train.py"),
    ("forked", once, "training whose data comes from four other processes", "python3 bin/torch_train.py --workers 4"),
    ("generate", once, "a language model that generates tokens", "python3 bin/torch_generate.py --gib {gib}"),
    ("resnet", five, "ResNet-18 in training, whose downtime is that of control state, not of buffers", "python3 bin/torch_resnet.py"),
    ("spawned", five, "training whose data comes from four processes that are spawned",
     "python3 bin/torch_train.py --workers 4 --start spawn"),
    ("compiled", five, "training of a model that torch.compile compiled", "python3 bin/torch_train.py --compile"),
):
    PARTS.command(part, function, about, command, needs.torch)
PARTS.command("pool-cupy", once, "CuPy's pool", "python3 bin/cupy_pool.py", needs.cupy, not_on_hip="CuPy is CUDA's here")
PARTS.command("trainer", five, "the Trainer of Hugging Face",
              "env CUDA_VISIBLE_DEVICES=0 python3 bin/torch_trainer.py --workers 2", needs.trainer)
PARTS.command("accelerate", swapping, "the same on two GPUs by accelerate",
              "env NCCL_NVLS_ENABLE=0 accelerate launch --num_processes 2 --num_machines 1 --mixed_precision no "
              "--dynamo_backend no --main_process_port 29512 bin/torch_trainer.py", needs.trainer, needs.two_gpus)
PARTS.command("one-process", swapping, "one process with two GPUs", "python3 bin/torch_train.py --devices 2",
              needs.torch, needs.two_gpus)
for each in ("offload", "symmetric", "graphs", "queue"):
    PARTS.command(f"spawn-{each}", swapping, "two ranks and a parent that asked NVML; see torch_spawn.py",
                  f"python3 bin/torch_spawn.py --way {each}", needs.torch, needs.two_gpus)
# Where mpi4py is, Lightning starts Open MPI, whose orted asks OpenCL: that is not followed.
PARTS.command("lightning", swapping, "Lightning on two GPUs",
              "env HWLOC_COMPONENTS=-opencl,-gl python3 bin/torch_lightning.py --devices 2", needs.lightning, needs.two_gpus)
for each in WAYS:
    PARTS.command(f"ddp-{each}", swapping, "data-parallel training, by a way of NCCL or in CUDA graphs",
                  two_ranks(each, "torch_ddp.py --graphs" if each == "graphs" else "torch_ddp.py"), needs.two_ranks,
                  not_on_hip="RCCL has no such way" if each == "cumem" else "")

@PARTS.part("server", needs=(needs.server,))
def server(lab):
    """an HTTP server, and a client that connects again"""
    with lab.hosts() as two:
        program = two.start("a", "app", f"python3 bin/torch_server.py serve {PORT}", lines=1)
        asking = f"python3 bin/torch_server.py ask {two.ip('a')},{two.ip('b')} {PORT}"
        client = two.start("b", "client", asking, lines=5, library=False)
        migrations = two.to_and_fro(program, 5, lambda host: client.wait_for_more(5), "--tcp", "close")
        if client.lines("error:"):
            raise Failure("a wrong answer")
        return (f"five moves, {client.lines(STEPS)[-1]} and each answer right, {len(client.lines('connected'))} "
                f"connections; downtimes in ms: {downtimes(migrations)}")

@PARTS.part("gates", needs=(needs.two_ranks,))
def gates(lab):
    """two hundred closings of the gates under the load of each way of NCCL"""
    results = []
    with lab.hosts() as two:
        for way in ("cumem", "ipc", "shm", "sockets"):
            program = two.start("a", "app", two_ranks(way, "torch_ddp.py"), 3, STEPS)
            done = subprocess.run([BIN / "bench_gates", str(program.pid), "--pause-ms", "20"], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            print(*done.stdout.splitlines()[-3:], sep="\n", flush=True)
            results.append(f"{way}: {last_line(done.stdout)}")
            program.end()
    return "; ".join(results)

@PARTS.part("nccl-cost", needs=(needs.two_ranks,))
def nccl_cost(lab):
    """what the library costs a loop of all-reduces: with and without it in turns"""
    took = {}
    with lab.hosts() as two:
        for mib in (1, 16) * 3:
            command = two_ranks("cumem", f"torch_allreduce.py --bytes {mib << 20} --count {2400 // (mib + 2)}")
            for side, under in (("without", []), ("with", [two.cli, "run", "--"])):
                printed = two.on("a", *under, *words(command), stdin=subprocess.DEVNULL).splitlines()
                took.setdefault((side, mib), []).extend(float(line[3:]) for line in printed if line.startswith("us="))
    results = []
    for mib in (1, 16):
        for what, figure in (("median", statistics.median), ("quickest", min)):
            without, under = figure(took["without", mib]), figure(took["with", mib])
            results.append(f"{mib} MiB, {what} of {len(took['without', mib])} loops: {without:.2f} us without, {under:.2f} us "
                           f"with the library ({100 * (under / without - 1):+.2f} %)")
    return "; ".join(results)

@PARTS.part("profiler", needs=(needs.torch,))
def profiler(lab):
    """with CUPTI in it a program is refused at once, and goes on"""
    with lab.hosts() as two:
        program = two.start("a", "app", "python3 bin/torch_resnet.py --profiled", 3, STEPS)
        two.refuse("a", "b", program, "profiler]")
        program.wait_for_more(5, STEPS)
        program.end()
    return "refused, and went on"
