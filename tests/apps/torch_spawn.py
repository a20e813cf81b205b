#!/usr/bin/env python3
"""Two ranks that a parent starts by torch.multiprocessing.spawn, after it has counted the GPUs by NVML.

The first rank prints "step=<n> <hex>…" every --report steps; an undisturbed run with the same options
prints the same lines on the same GPU model. --way says what they do:
  offload    FSDP2 whose parameters and gradients are kept in page-locked host memory
  symmetric  memory that each rank maps of the other (without multicast), read and written by kernels
  graphs     steps with NCCL's all-reduce, replayed as CUDA graphs
  queue      a producer whose CUDA tensors go through a queue, of which several are under way
SIGTERM ends the parent.
"""

import argparse
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch  # noqa: E402  (the variables must be set before)
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

RANKS = 2
UNDER_WAY = 6


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=["offload", "symmetric", "graphs", "queue"], required=True)
    parser.add_argument("--width", type=int, default=2048, help="width of a layer")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--report", type=int, default=10, help="steps between two lines")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    parser.add_argument("--port", type=int, default=29517)
    return parser.parse_args()


def offload_steps(arguments, rank, device):
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    torch.manual_seed(0)
    layers = [torch.nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)]
    model = torch.nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, offload_policy=CPUOffloadPolicy())
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    inputs = torch.randn(64, arguments.width, device=device)
    while True:
        for _ in range(arguments.report):
            optimizer.zero_grad()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
        yield [loss.item()]


def symmetric_steps(arguments, rank, device):
    from torch.distributed import _symmetric_memory as symmetric

    words = 1 << 20
    mine = symmetric.empty(words, dtype=torch.int32, device=device)
    shared = symmetric.rendezvous(mine, dist.group.WORLD.group_name)
    other = shared.get_buffer(1 - rank, (words,), torch.int32)
    mine.copy_(torch.arange(words, dtype=torch.int32, device=device) + rank)
    while True:
        for _ in range(arguments.report):
            shared.barrier()
            seen = other * 3 + 1
            shared.barrier()
            mine.mul_(1664525).add_(seen)
        yield [mine.sum().item(), seen.sum().item()]


def graph_steps(arguments, rank, device):
    torch.manual_seed(0)
    weights = torch.randn(arguments.width, arguments.width, device=device) / arguments.width**0.5
    state = torch.randn(64, arguments.width, device=device) + rank

    def step():
        state.copy_(torch.tanh(state @ weights + 0.01 * rank))
        dist.all_reduce(state)
        state.mul_(0.5)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    while True:
        for _ in range(arguments.report):
            graph.replay()
        yield [state.double().sum().item()]


def report(arguments, rank, steps):
    for number, values in enumerate(steps, 1):
        if rank == 0:
            text = " ".join(v.hex() if isinstance(v, float) else f"{v:x}" for v in values)
            print(f"step={number * arguments.report} {text}", flush=True)
        time.sleep(arguments.pace)


def train(rank, arguments):
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{arguments.port}", rank=rank,
                            world_size=RANKS, device_id=device)
    steps = {"offload": offload_steps, "symmetric": symmetric_steps, "graphs": graph_steps}
    report(arguments, rank, steps[arguments.way](arguments, rank, device))


def produce(queue, room):
    """Tensors whose memory is freed and reused as the consumer releases them."""
    number = 0
    while True:
        room.acquire()
        queue.put(torch.full((1 << 19,), number % 1000, dtype=torch.int32, device="cuda"))
        number += 1


def consume(queue, room, arguments):
    while True:
        for _ in range(arguments.report):
            tensor = queue.get()
            total = tensor.sum().item()
            del tensor
            room.release()
        yield [total]


def hand_over(rank, arguments, queue, room):
    if rank == 1:
        produce(queue, room)
    report(arguments, rank, consume(queue, room, arguments))


def main():
    arguments = parse_arguments()
    count = torch.cuda.device_count()
    assert count and not torch.cuda.is_initialized()
    if arguments.way == "queue":
        context = mp.get_context("spawn")
        mp.spawn(hand_over, (arguments, context.Queue(), context.Semaphore(UNDER_WAY)), nprocs=RANKS)
    else:
        mp.spawn(train, (arguments,), nprocs=RANKS)


if __name__ == "__main__":
    main()
