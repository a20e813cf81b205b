#!/usr/bin/env python3
"""A compiled JAX step, repeatedly; JAX allocates three quarters of the GPU's memory when it starts.

Prints "step=<n> value=<hex float>" every --report steps; an undisturbed run prints the same lines on
the same GPU model. SIGTERM ends it.
"""

import argparse
import os
import signal

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")

import jax  # noqa: E402  (the variable must be set before)
import jax.numpy as jnp  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=2048, help="width of the matrices")
    parser.add_argument("--report", type=int, default=10, help="steps between two lines")
    return parser.parse_args()


@jax.jit
def advance(state, weights):
    state = jnp.tanh(state @ weights)
    return state + 1e-3 * jnp.sin(state)


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    keys = jax.random.split(jax.random.PRNGKey(0))
    shape = (arguments.width, arguments.width)
    weights = jax.random.normal(keys[0], shape) * arguments.width**-0.5
    state = jax.random.normal(keys[1], shape)
    step = 0
    while not stop:
        state = advance(state, weights)
        step += 1
        if step % arguments.report == 0:
            print(f"step={step} value={float(state.sum()).hex()}", flush=True)


if __name__ == "__main__":
    main()
