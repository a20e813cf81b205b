#!/usr/bin/env python3
"""A matrix product and many small kernels, repeatedly, with PyTorch.

Prints "step=<n> value=<hex float>" every so many iterations. SIGTERM ends it.
"""

import argparse
import signal

import torch

SMALL_KERNELS = 16
ITERATIONS_PER_WAIT = 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=0.0, help="VRAM to hold besides, untouched")
    parser.add_argument("--width", type=int, default=1024, help="of the matrices")
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
        """Runs some iterations, and waits for them."""
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
    while not stop:
        loop.advance()
        print(f"step={loop.steps} value={loop.state[0, 0].item().hex()}", flush=True)


if __name__ == "__main__":
    main()
