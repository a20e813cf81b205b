#!/usr/bin/env python3
"""CuPy on the stream-ordered pool: arrays of changing sizes, created and dropped in two streams.

Prints "step=<n> value=<hex>" every so many iterations, the same in each run. SIGTERM ends it.
"""

import argparse
import signal
import time

import cupy

ITERATIONS_PER_LINE = 20
SIZES = (1000, 70_000, 1_000_000, 6_000_000)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="VRAM to hold besides")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    ballast = cupy.arange(int(arguments.gib * 2**30 / 8), dtype=cupy.uint64)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    state = cupy.arange(SIZES[0], dtype=cupy.uint64)
    value, steps = 0, 0
    while not stop:
        for _ in range(ITERATIONS_PER_LINE):
            with streams[steps % 2]:
                size = SIZES[steps % len(SIZES)]
                part = ballast[steps * 1009 % (ballast.size - size) :][:size] * cupy.uint64(steps + 1)
                state = state * cupy.uint64(6364136223846793005) + part.sum()
                done = streams[steps % 2].record()
            steps += 1
            streams[steps % 2].wait_event(done)
        with streams[steps % 2]:
            value ^= int(state.sum().get())
        print(f"step={steps} value={value:x}", flush=True)
        time.sleep(arguments.pace)


if __name__ == "__main__":
    main()
