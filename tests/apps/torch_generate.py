#!/usr/bin/env python3
"""A small language model with random weights and a key-value cache, generating endlessly.

Prints "step=<n> tokens=<id>,... logits=<hex float>" for every position generated: the greedy choice
of each sequence, and the largest logit of all, to the bit. An undisturbed run with the same options
prints the same lines on the same GPU model. Most of its VRAM is weights and cache, of which a step
changes one row per layer and sequence. SIGTERM ends it.
"""

import argparse
import os
import signal
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variable must be set before)
import torch.nn.functional as F  # noqa: E402

HEAD = 128  # width of a head
VOCABULARY = 32000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0, help="VRAM: three quarters weights, a quarter cache")
    parser.add_argument("--width", type=int, default=4096, help="width of the model, a multiple of 128")
    parser.add_argument("--batch", type=int, default=4, help="sequences generated side by side")
    parser.add_argument("--filled", type=float, default=0.5, help="share of the cache in use at the start")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=0, help="end after so many positions (0: never)")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    return parser.parse_args()


class Layer:
    """Weights, and its part of the cache: a row of all heads per position, as servers lay it out."""

    def __init__(self, width, batch, context, options):
        def weight(rows, columns):
            return torch.randn(rows, columns, **options).mul_(columns**-0.5)

        self.heads = width // HEAD
        self.qkv = weight(3 * width, width)
        self.out = weight(width, width)
        self.up = weight(4 * width, width)
        self.down = weight(width, 4 * width)
        self.keys = torch.zeros(batch, context, self.heads, HEAD, **options)
        self.values = torch.zeros(batch, context, self.heads, HEAD, **options)

    def fill(self, positions):
        self.keys[:, :positions].normal_()
        self.values[:, :positions].normal_()

    def __call__(self, inputs, row, mask):
        batch, width = inputs.shape
        normal = F.layer_norm(inputs, (width,))
        query, key, value = F.linear(normal, self.qkv).view(batch, 3, self.heads, HEAD).unbind(1)
        self.keys[:, row].copy_(key)
        self.values[:, row].copy_(value)
        seen = F.scaled_dot_product_attention(
            query.unsqueeze(2), self.keys.transpose(1, 2), self.values.transpose(1, 2), attn_mask=mask
        )
        inputs = inputs + F.linear(seen.reshape(batch, width), self.out)
        return inputs + F.linear(F.gelu(F.linear(F.layer_norm(inputs, (width,)), self.up)), self.down)


class Model:
    def __init__(self, arguments):
        width, batch = arguments.width, arguments.batch
        self.options = {"device": "cuda", "dtype": getattr(torch, arguments.dtype)}
        total = arguments.gib * 2**30
        layers = max(1, int(total * 0.75 / (12 * width * width * 2)))
        context = max(64, int(total * 0.25 / (layers * 2 * batch * width * 2)) // 64 * 64)
        self.context = context
        self.embedding = torch.randn(VOCABULARY, width, **self.options)
        self.head = torch.randn(VOCABULARY, width, **self.options) * width**-0.5
        self.places = torch.randn(context, width, **self.options)
        self.layers = [Layer(width, batch, context, self.options) for _ in range(layers)]
        self.position = int(context * arguments.filled)
        for layer in self.layers:
            layer.fill(self.position)
        self.rows = torch.arange(context, device="cuda")

    def step(self, tokens):
        """The logits after `tokens`. The cache is a ring."""
        row = self.position % self.context
        mask = (self.rows <= self.position).view(1, 1, 1, -1)
        state = self.embedding[tokens] + self.places[row]
        for layer in self.layers:
            state = layer(state, row, mask)
        self.position += 1
        return F.linear(F.layer_norm(state, (state.shape[1],)), self.head).float()


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    with torch.inference_mode():
        model = Model(arguments)
        tokens = torch.arange(arguments.batch, device="cuda")
        step = 0
        while not stop and (arguments.steps == 0 or step < arguments.steps):
            logits = model.step(tokens)
            tokens = logits.argmax(dim=-1)
            step += 1
            words = ",".join(map(str, tokens.tolist()))
            print(f"step={step} tokens={words} logits={logits.max().item().hex()}", flush=True)
            time.sleep(arguments.pace)


if __name__ == "__main__":
    main()
