#!/usr/bin/env python3
"""Training by Lightning, whose launcher counts the GPUs before it starts the ranks.

Prints "step=<n> loss=<hex float>" every --report steps; an undisturbed run with the same options
prints the same lines on the same GPU model. SIGTERM ends it.
"""

import argparse
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import lightning  # noqa: E402  (the variables must be set before)
import torch  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--report", type=int, default=10, help="steps between two lines")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    return parser.parse_args()


class Model(lightning.LightningModule):
    def __init__(self, arguments):
        super().__init__()
        self.arguments = arguments
        width = arguments.width
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width))

    def training_step(self, batch, number):
        loss = (self.layers(batch) - batch).square().mean()
        if number % self.arguments.report == 0:
            value = loss.item()
            if self.global_rank == 0:
                print(f"step={self.global_step} loss={value.hex()}", flush=True)
            time.sleep(self.arguments.pace)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


class Endless(torch.utils.data.IterableDataset):
    def __init__(self, width):
        self.width = width

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randn(self.width, generator=generator)


def main():
    arguments = parse_arguments()
    lightning.seed_everything(0)
    batches = torch.utils.data.DataLoader(Endless(arguments.width), batch_size=32)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=arguments.devices, strategy="ddp" if arguments.devices > 1 else "auto",
        max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, deterministic=True, use_distributed_sampler=False)
    trainer.fit(Model(arguments), batches)


if __name__ == "__main__":
    main()
