"""Trains a small model with one rank per host, by torchrun. Rank 0 prints each step's loss, exactly, and when it was
known. Usage: train_two_ranks.py LAST FILE: ends after step LAST, or soon after FILE exists."""

import pathlib
import sys
import time

import torch
import torch.distributed

LAST, ENOUGH = int(sys.argv[1]), pathlib.Path(sys.argv[2])
PAUSE_S = 0.02

torch.distributed.init_process_group("gloo")
RANK = torch.distributed.get_rank()
torch.set_num_threads(1)
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
random = torch.Generator().manual_seed(100 + RANK)
for step in range(1, LAST + 1):
    samples = torch.randn(32, 64, generator=random)
    loss = torch.nn.functional.mse_loss(model(samples), samples.prod(1, keepdim=True) + samples.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # The other rank's loss too, and whether it is enough.
    shared = torch.tensor([loss.item(), float(RANK == 0 and ENOUGH.exists())], dtype=torch.float64)
    torch.distributed.all_reduce(shared)
    if RANK == 0:
        print(step, shared[0].item().hex(), time.monotonic(), flush=True)
    if shared[1] != 0:
        break
    time.sleep(PAUSE_S)
