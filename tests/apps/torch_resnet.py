#!/usr/bin/env python3
"""ResNet-18 in training on random images, with PyTorch.

Prints "step=<n> loss=<hex float>" every --report steps; an undisturbed run with the same options prints the same lines
on the same GPU model. With --host-gib the process also holds that much ordinary memory, of which it writes a page with
each line. With --threads that many further threads wait. With --profiled PyTorch's profiler runs. With --timed it
trains so many steps for each line of its input, and prints how many seconds they took. The network is that of He and
others, "Deep Residual Learning for Image Recognition" (2015), figure 3 and table 1. SIGTERM ends it.
"""

import argparse
import os
import signal
import sys
import threading
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variable must be set before)
from torch import nn  # noqa: E402

WORDS_PER_PAGE = 512


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="images of a step")
    parser.add_argument("--host-gib", type=float, default=0, help="ordinary memory, rarely written")
    parser.add_argument("--report", type=int, default=10, help="steps between two lines")
    parser.add_argument("--threads", type=int, default=0, help="additional waiting threads")
    parser.add_argument("--timed", action="store_true", help="print seconds, for each line of input")
    parser.add_argument("--profiled", action="store_true", help="under PyTorch's profiler")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.changes = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.carries = nn.Identity() if before == after else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, inputs):
        return torch.relu(self.carries(inputs) + self.changes(inputs))


def make_network():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for before, after in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Block(before, after, 1 if before == after else 2), Block(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).cuda()


class OrdinaryMemory:
    """Pages with different contents, of which one is written at a time."""

    def __init__(self, gib):
        self.words = torch.arange(int(gib * 2**27), dtype=torch.int64)
        self.written = 0

    def write_a_page(self):
        if len(self.words):
            self.words[self.written * WORDS_PER_PAGE % len(self.words)] += 1
            self.written += 4099  # a prime: consecutive pages lie apart

    def check(self):
        if len(self.words):
            changed = (self.words - torch.arange(len(self.words))).sum().item()
            assert changed == self.written // 4099, "ordinary memory is not what was written"


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    never = threading.Event()
    for _ in range(arguments.threads):
        threading.Thread(target=never.wait, daemon=True).start()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(arguments.batch, 3, 224, 224, device="cuda")
    labels = torch.arange(arguments.batch, device="cuda")
    memory = OrdinaryMemory(arguments.host_gib)

    def train():
        for _ in range(arguments.report):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
        return loss.item()

    if arguments.timed:
        for _ in sys.stdin:
            begun = time.perf_counter()
            train()
            print(time.perf_counter() - begun, flush=True)
        return
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    if arguments.profiled:
        profiler.start()
    step = 0
    while not stop:
        loss = train()
        step += arguments.report
        memory.write_a_page()
        print(f"step={step} loss={loss.hex()}", flush=True)
        time.sleep(arguments.pace)
    memory.check()


if __name__ == "__main__":
    main()
