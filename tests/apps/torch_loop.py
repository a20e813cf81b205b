#!/usr/bin/env python3
"""How many iterations per second a PyTorch loop does: a matrix product and many small kernels.

Prints "window=<n> iterations_per_s=<x>" per window, and "median iterations_per_s=<x>" after the last.
With --lines it prints "step=<n> value=<hex float>" instead, every so many iterations. SIGTERM ends it.
"""

import argparse
import signal
import statistics
import time

import torch

SMALL_KERNELS = 16
ITERATIONS_PER_WAIT = 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=0.0, help="VRAM to hold besides, untouched")
    parser.add_argument("--width", type=int, default=1024, help="of the matrices")
    parser.add_argument("--windows", type=int, default=0, help="end after so many (0: never)")
    parser.add_argument("--window-s", type=float, default=2.0, help="length of a window")
    parser.add_argument("--lines", action="store_true", help="print values, not rates")
    return parser.parse_args()


class Loop:
    def __init__(self, arguments):
        torch.manual_seed(0)
        pieces = int(arguments.gib * 2**30 / 2**28)
        self.ballast = [torch.randn(2**26, device="cuda") for _ in range(pieces)]
        self.weight = torch.randn(arguments.width, arguments.width, device="cuda")
        self.weight /= arguments.width**0.5
        self.state = torch.randn(arguments.width, arguments.width, device="cuda")
        self.steps = 0

    def advance(self):
        """Some iterations, until they are done."""
        for _ in range(ITERATIONS_PER_WAIT):
            self.state = torch.matmul(self.state, self.weight)
            row = self.state[0]
            for _ in range(SMALL_KERNELS):
                row.mul_(0.999).add_(0.001)
            self.state.tanh_()
        self.steps += ITERATIONS_PER_WAIT
        torch.cuda.synchronize()


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    loop = Loop(arguments)
    for _ in range(20):
        loop.advance()
    rates = []
    while not stop and (arguments.windows == 0 or len(rates) < arguments.windows):
        if arguments.lines:
            loop.advance()
            print(f"step={loop.steps} value={loop.state[0, 0].item().hex()}", flush=True)
            continue
        begun, first = time.perf_counter(), loop.steps
        while time.perf_counter() - begun < arguments.window_s:
            loop.advance()
        rates.append((loop.steps - first) / (time.perf_counter() - begun))
        print(f"window={len(rates)} iterations_per_s={rates[-1]:.3f}", flush=True)
    if rates:
        print(f"median iterations_per_s={statistics.median(rates):.3f}", flush=True)


if __name__ == "__main__":
    main()
