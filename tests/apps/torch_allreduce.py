#!/usr/bin/env python3
"""The speed of consecutive small all-reduces of NCCL, for torchrun.

Rank 0 prints "us=<time of one, in microseconds>" for each of --loops loops of --count all-reduces of
--bytes bytes.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--loops", type=int, default=20)
    arguments = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    data = torch.ones(arguments.bytes // 4, device=device)
    for loop in range(arguments.loops + 1):
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(arguments.count):
            dist.all_reduce(data, op=dist.ReduceOp.MAX)
        torch.cuda.synchronize()
        if rank == 0 and loop > 0:  # the first one warms up
            print(f"us={(time.perf_counter() - begin) / arguments.count * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
