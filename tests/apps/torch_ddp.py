#!/usr/bin/env python3
"""Data-parallel training by PyTorch and NCCL, for torchrun; deterministic.

Rank 0 prints "step=<n> loss=<hex float> checksum=<hex>" every --report steps; an undisturbed run with the same options
and as many ranks prints the same lines on the same GPU model. With --graphs a step, its all-reduces included, is
replayed as a CUDA graph; without, DistributedDataParallel reduces while it computes. SIGTERM ends it.
"""

import argparse
import os
import time
import zlib

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variable must be set before)
import torch.distributed as dist  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=2048, help="width of a layer")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--report", type=int, default=10, help="steps between two lines")
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps (0: never)")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    parser.add_argument("--graphs", action="store_true", help="replay the step as a CUDA graph")
    return parser.parse_args()


def make_model(arguments, device):
    layers = []
    for _ in range(arguments.layers):
        layers += [torch.nn.Linear(arguments.width, arguments.width), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers).to(device)


class Steps:
    """One training step after the other; the loss is that of this rank's batch."""

    def __init__(self, arguments, rank, device):
        torch.manual_seed(0)
        self.model = make_model(arguments, device)
        self.inputs = torch.randn(64, arguments.width, device=device)
        self.loss = torch.zeros((), device=device)
        generator = torch.Generator(device).manual_seed(rank + 1)
        self.noise = torch.randn(64, arguments.width, device=device, generator=generator)
        self.graph = None
        self.optimizer = None
        self.network = self.model
        if arguments.graphs:
            self.capture()
        else:
            self.network = torch.nn.parallel.DistributedDataParallel(self.model)
            self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3)

    def forward_and_backward(self):
        self.inputs.mul_(0.999).add_(self.noise, alpha=0.001)
        loss = (self.network(self.inputs) - self.noise).square().mean()
        loss.backward()
        self.loss.copy_(loss.detach())

    def reduced_step(self):
        """A step without any library's bookkeeping: it can be captured."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        self.forward_and_backward()
        waiting = [dist.all_reduce(p.grad, async_op=True) for p in self.model.parameters()]
        for one in waiting:
            one.wait()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.sub_(parameter.grad, alpha=1e-3)

    def capture(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.reduced_step()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.reduced_step()

    def step(self):
        if self.graph is not None:
            self.graph.replay()
            return
        self.optimizer.zero_grad()
        self.forward_and_backward()
        self.optimizer.step()

    def checksum(self):
        parameters = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return zlib.crc32(parameters.cpu().numpy().tobytes())


def main():
    arguments = parse_arguments()
    torch.use_deterministic_algorithms(True)
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    steps = Steps(arguments, rank, device)
    number = 0
    while arguments.steps == 0 or number < arguments.steps:
        steps.step()
        number += 1
        if number % arguments.report == 0:
            loss = float(steps.loss).hex()
            checksum = steps.checksum()
            time.sleep(arguments.pace)
            if rank == 0:
                print(f"step={number} loss={loss} checksum={checksum:08x}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
