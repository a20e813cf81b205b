#!/usr/bin/env python3
"""A language model of Hugging Face's transformers, with random weights, generates without end.

Prints "step=<n> tokens=<id>,..." for each --tokens tokens that generate() adds to the prompt; an
undisturbed run with the same options prints the same lines on the same GPU model. SIGTERM ends it.
"""

import argparse
import os
import signal

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variable must be set before)
import transformers  # noqa: E402

WIDTH, VOCABULARY = 2048, 32000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0, help="VRAM for the weights")
    parser.add_argument("--batch", type=int, default=4, help="texts generated side by side")
    parser.add_argument("--tokens", type=int, default=16, help="tokens between two lines")
    return parser.parse_args()


def make_model(gib):
    """A decoder layer has 16 squares of the width in weights of 2 bytes."""
    layers = max(1, int(gib * 2**30 / (2 * 16 * WIDTH * WIDTH)))
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=layers,
        num_attention_heads=WIDTH // 128, max_position_embeddings=4096)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = make_model(arguments.gib)
    prompt = torch.arange(arguments.batch, device="cuda").view(-1, 1) + 7
    step = 0
    while not stop:
        text = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                              min_new_tokens=arguments.tokens, max_new_tokens=arguments.tokens, pad_token_id=0)
        prompt = text[:, -64:]
        step += 1
        print(f"step={step} tokens={','.join(map(str, text[:, -1].tolist()))}", flush=True)


if __name__ == "__main__":
    main()
