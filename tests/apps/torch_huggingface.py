#!/usr/bin/env python3
"""A language model of Hugging Face's transformers, with random weights, generates endlessly.

Prints "step=<n> tokens=<id>,..." for each --tokens tokens that generate() adds to the prompt. With
--context it is a server's loop instead: one key-value cache for so many positions, made beforehand and
filled in place, a line for each token; when it is full, the next texts begin. Without --context an
undisturbed run with the same options prints the same lines on the same GPU model; with it, undisturbed
runs differ after some 70 lines (H200, PyTorch 2.11). SIGTERM ends it.
"""

import argparse
import os
import signal
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variable must be set before)
import transformers  # noqa: E402

WIDTH, VOCABULARY = 2048, 32000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0, help="VRAM for the weights")
    parser.add_argument("--batch", type=int, default=4, help="texts generated side by side")
    parser.add_argument("--tokens", type=int, default=16, help="tokens between two lines")
    parser.add_argument("--context", type=int, default=0, help="positions of a cache that is filled in place")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    return parser.parse_args()


def make_model(gib, queries_per_key):
    """A decoder layer has 14 squares of the width in weights of 2 bytes, and one for keys and one for
    values where each query has its own."""
    layers = max(1, int(gib * 2**30 / (2 * (14 + 2 / queries_per_key) * WIDTH * WIDTH)))
    heads = WIDTH // 128
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // queries_per_key, max_position_embeddings=4096)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


def generate(model, arguments):
    """Yields the last tokens of each text, after so many new ones."""
    prompt = torch.arange(arguments.batch, device="cuda").view(-1, 1) + 7
    while True:
        text = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                              min_new_tokens=arguments.tokens, max_new_tokens=arguments.tokens, pad_token_id=0)
        prompt = text[:, -64:]
        yield text[:, -1]


def fill_cache(model, arguments):
    """Yields the next tokens of each text."""
    cache = transformers.StaticCache(
        config=model.config, max_batch_size=arguments.batch, max_cache_len=arguments.context, device="cuda",
        dtype=torch.bfloat16)
    tokens = torch.arange(arguments.batch, device="cuda") + 7
    while True:
        for _ in range(arguments.context):
            logits = model(tokens.view(-1, 1), past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1].argmax(dim=-1)
            yield tokens
        cache.reset()


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = make_model(arguments.gib, queries_per_key=4 if arguments.context else 1)
    texts = fill_cache if arguments.context else generate
    with torch.inference_mode():
        for step, tokens in enumerate(texts(model, arguments), start=1):
            print(f"step={step} tokens={','.join(map(str, tokens.tolist()))}", flush=True)
            time.sleep(arguments.pace)
            if stop:
                break


if __name__ == "__main__":
    main()
