"""Programs of PyTorch, CuPy and what is built on PyTorch, that are moved."""

import functools
import statistics
import subprocess

from gcr_lab import base
from gcr_lab.base import Failure, last_line, words
from gcr_lab.hosts import PORT
from gcr_lab.parts import needs
from gcr_lab.parts.undisturbed import STEPS, downtimes, five, once
from gcr_lab.registry import Parts

PARTS = Parts()
TORCH, TWO_GPUS, TWO_RANKS = (needs.torch,), (needs.torch, needs.two_gpus), (needs.two_ranks,)
swapping = functools.partial(five, swap=True)
PARTS.commands(once, TORCH, {
    "pool-torch": ("PyTorch's training in the stream-ordered pool",
                   "env PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync python3 bin/torch_train.py"),
    "torch": ("training", "python3 bin/torch_train.py"),
    "forked": ("training whose data comes from four other processes", "python3 bin/torch_train.py --workers 4"),
    "generate": ("a language model that generates tokens", "python3 bin/torch_generate.py --gib {gib}"),
})  # fmt: skip
PARTS.commands(once, (needs.cupy,), {"pool-cupy": ("CuPy's pool", "python3 bin/cupy_pool.py")}, not_on_hip="CuPy is CUDA's here")
PARTS.commands(five, TORCH, {
    "resnet": ("ResNet-18 in training, whose downtime is that of control state, not of buffers", "python3 bin/torch_resnet.py"),
    "spawned": ("training whose data comes from four processes that are spawned",
                "python3 bin/torch_train.py --workers 4 --start spawn"),
    "compiled": ("training of a model that torch.compile compiled", "python3 bin/torch_train.py --compile"),
})  # fmt: skip
PARTS.commands(five, (needs.trainer,), {
    "trainer": ("the Trainer of Hugging Face", "env CUDA_VISIBLE_DEVICES=0 python3 bin/torch_trainer.py --workers 2"),
})  # fmt: skip
PARTS.commands(swapping, (needs.trainer, needs.two_gpus), {
    "accelerate": ("the same on two GPUs by accelerate",
                   "env NCCL_NVLS_ENABLE=0 accelerate launch --num_processes 2 --num_machines 1 --mixed_precision no "
                   "--dynamo_backend no --main_process_port 29512 bin/torch_trainer.py"),
})  # fmt: skip
PARTS.commands(swapping, TWO_GPUS, {
    "one-process": ("one process with two GPUs", "python3 bin/torch_train.py --devices 2"),
    **{f"spawn-{way}": ("two ranks and a parent that asked NVML; see torch_spawn.py", f"python3 bin/torch_spawn.py --way {way}")
       for way in ("offload", "symmetric", "graphs", "queue")},
})  # fmt: skip
# Where mpi4py is, Lightning starts Open MPI, whose orted asks OpenCL: that is not followed.
PARTS.commands(swapping, (needs.lightning, needs.two_gpus), {
    "lightning": ("Lightning on two GPUs", "env HWLOC_COMPONENTS=-opencl,-gl python3 bin/torch_lightning.py --devices 2"),
})  # fmt: skip


@PARTS.part("server", needs=(needs.server,))
def server(lab):
    """an HTTP server, and a client that connects again"""
    with lab.hosts() as two:
        program = two.start("a", "app", *words("python3 bin/torch_server.py"), "serve", PORT)
        program.wait_for(1)
        addresses = f"{two.ip('a')},{two.ip('b')}"
        client = two.start("b", "client", *words("python3 bin/torch_server.py"), "ask", addresses, PORT, library=False)
        client.wait_for_more(5)
        migrations = two.to_and_fro(program, 5, lambda host: client.wait_for_more(5), "--tcp", "close")
        if client.lines("error:"):
            raise Failure("a wrong answer")
        return (f"five moves, {client.lines(STEPS)[-1]} and each answer right, {len(client.lines('connected'))} "
                f"connections; downtimes in ms: {downtimes(migrations)}")  # fmt: skip


# ---- several processes with a GPU each ----

# The environments that choose NCCL's ways, on one host. NVLink multicast is not used: the driver cannot checkpoint it.
WAYS = {
    "cumem": "", "ipc": "NCCL_CUMEM_ENABLE=0", "shm": "NCCL_P2P_DISABLE=1", "graphs": "",
    "shm-files": "NCCL_P2P_DISABLE=1 NCCL_CUMEM_HOST_ENABLE=0", "sockets": "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
}  # fmt: skip


def two_ranks(way, program):
    return (f"env NCCL_NVLS_ENABLE=0 {WAYS[way]} torchrun --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29511 "
            f"--local-addr=127.0.0.1 --nproc-per-node=2 bin/{program}")  # fmt: skip


for each in WAYS:
    PARTS.commands(swapping, TWO_RANKS, {f"ddp-{each}": (
        "data-parallel training, by a way of NCCL or in CUDA graphs",
        two_ranks(each, "torch_ddp.py --graphs" if each == "graphs" else "torch_ddp.py"),
    )}, not_on_hip="RCCL has no such way" if each == "cumem" else "")  # fmt: skip


@PARTS.part("gates", needs=TWO_RANKS)
def gates(lab):
    """two hundred closings of the gates under the load of each way of NCCL"""
    results = []
    with lab.hosts() as two:
        for way in ("cumem", "ipc", "shm", "sockets"):
            program = two.start("a", "app", *words(two_ranks(way, "torch_ddp.py")))
            program.wait_for(3, STEPS)
            done = subprocess.run([base.BIN / "bench_gates", str(program.pid), "--pause-ms", "20"], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
            print(*done.stdout.splitlines()[-3:], sep="\n", flush=True)
            results.append(f"{way}: {last_line(done.stdout)}")
            program.end()
    return "; ".join(results)


@PARTS.part("nccl-cost", needs=TWO_RANKS)
def nccl_cost(lab):
    """what the library costs a loop of all-reduces: with and without it in turns"""
    took = {}
    with lab.hosts() as two:
        for mib in (1, 16) * 3:
            command = words(two_ranks("cumem", f"torch_allreduce.py --bytes {mib << 20} --count {2400 // (mib + 2)}"))
            for side, under in (("without", []), ("with", [two.cli, "run", "--"])):
                printed = two.on("a", *under, *command, stdin=subprocess.DEVNULL)
                took.setdefault((side, mib), []).extend(
                    float(line[3:]) for line in printed.splitlines() if line.startswith("us="))  # fmt: skip
    results = []
    for mib in (1, 16):
        for what, figure in (("median", statistics.median), ("quickest", min)):
            without, under = figure(took["without", mib]), figure(took["with", mib])
            results.append(f"{mib} MiB, {what} of {len(took['without', mib])} loops: {without:.2f} us without, {under:.2f} us "
                           f"with the library ({100 * (under / without - 1):+.2f} %)")  # fmt: skip
    return "; ".join(results)


@PARTS.part("profiler", needs=TORCH)
def profiler(lab):
    """with CUPTI in it a program is refused at once, and goes on"""
    with lab.hosts() as two:
        program = two.start("a", "app", *words("python3 bin/torch_resnet.py"), "--profiled")
        program.wait_for(3, STEPS)
        two.refuse("a", "b", program, "profiler]")
        program.wait_for_more(5, STEPS)
        program.end()
    return "refused, and went on"
