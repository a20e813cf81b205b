#!/usr/bin/env python3
"""A language model that is trained by the Trainer of Hugging Face's transformers; deterministic.

Prints "step=<n> loss=<hex float> checksum=<hex>" every --report steps, from the first process if `accelerate launch` or
torchrun starts several; an undisturbed run with the same options prints the same lines on the same GPU model. The model
and the texts are random, nothing is read or written. SIGTERM ends it.
"""

import argparse
import os
import time
import zlib

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variable must be set before)
import transformers  # noqa: E402

VOCABULARY, LENGTH = 4096, 128


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=int, default=10, help="steps between two lines")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    parser.add_argument("--workers", type=int, default=0, help="processes that make the data")
    return parser.parse_args()


class Texts(torch.utils.data.Dataset):
    """Text n is the same in every process."""

    def __len__(self):
        return 2**18

    def __getitem__(self, index):
        words = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class Printer(transformers.TrainerCallback):
    """Prints the state of the model after every --report steps."""

    def __init__(self, arguments):
        self.arguments = arguments

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        if not logs or "loss" not in logs:
            return
        if state.is_world_process_zero:
            parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
            checksum = zlib.crc32(parameters.cpu().numpy().tobytes())
            print(f"step={state.global_step} loss={float(logs['loss']).hex()} checksum={checksum:08x}",
                  flush=True)
        time.sleep(self.arguments.pace)


def main():
    arguments = parse_arguments()
    transformers.set_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=512, n_layer=8, n_head=8,
        attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    training = transformers.TrainingArguments(
        output_dir="/nonexistent", report_to=[], save_strategy="no", disable_tqdm=True,
        max_steps=2**24, logging_steps=arguments.report, per_device_train_batch_size=16,
        dataloader_num_workers=arguments.workers, learning_rate=1e-4, seed=0)
    trainer = transformers.Trainer(
        model=model, args=training, train_dataset=Texts(), callbacks=[Printer(arguments)])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    main()
