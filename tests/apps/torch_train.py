#!/usr/bin/env python3
"""A small deterministic PyTorch training loop whose state fills some GiB of VRAM.

Prints "step=<n> loss=<hex float> checksum=<hex>" every --report steps; an undisturbed run with the same options prints
the same lines on the same GPU model. --graphs replays the step as a CUDA graph; --compile lets torch.compile generate
its kernels, in separate processes; with --devices the layers are spread over that many GPUs; with --workers the data
comes from that many processes of a DataLoader, another batch for each step. SIGTERM ends it.
"""

import argparse
import itertools
import os
import signal
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variable must be set before)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0, help="VRAM for model and optimiser")
    parser.add_argument("--width", type=int, default=2048, help="width of a layer")
    parser.add_argument("--report", type=int, default=10, help="steps between two lines")
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps (0: never)")
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest after each line")
    parser.add_argument("--devices", type=int, default=1, help="GPUs that the layers are spread over")
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--graphs", action="store_true", help="replay the step as a CUDA graph")
    parser.add_argument("--workers", type=int, default=0, help="processes that make the data")
    parser.add_argument("--start", choices=["fork", "forkserver", "spawn"], default="fork",
                        help="how the workers are started")
    return parser.parse_args()


class Batches(torch.utils.data.Dataset):
    """Batch n is the same in every process."""

    def __init__(self, width):
        self.width = width

    def __len__(self):
        return 2**31

    def __getitem__(self, index):
        return torch.randn(64, self.width, generator=torch.Generator().manual_seed(index))


def batches_of(workers, start, width):
    return iter(torch.utils.data.DataLoader(
        Batches(width), batch_size=None, num_workers=workers, multiprocessing_context=start,
        pin_memory=True, sampler=itertools.count()))


class Residual(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)

    def forward(self, inputs):
        inputs = inputs.to(self.linear.weight.device)
        return inputs + torch.tanh(self.linear(inputs))


def make_model(gib, width, devices):
    """Residual layers; weight, gradient and two moments are 16 bytes per parameter. The last GPU gets half as many as
    each other, so that their memory use differs."""
    layers = max(devices, int(gib * 2**30 / (16 * width * width)))
    return torch.nn.Sequential(*(Residual(width).cuda(i * (2 * devices - 1) // (2 * layers)) for i in range(layers)))


def checksum(model):
    """Over the bits of every parameter, exact and independent of the order of summation."""
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for index, parameter in enumerate(model.parameters()):
        words = parameter.detach().view(torch.int32).to(torch.int64)
        total += words.sum().to(total.device) * (2 * index + 1)
    return total.item() & (2**64 - 1)


class Trainer:
    def __init__(self, model, width, graphs):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=graphs)
        self.data = torch.randn(64, width, device="cuda")
        self.target = torch.randn(64, width, device=list(model.parameters())[-1].device)
        self.loss = None
        self.graph = None
        if graphs:
            self.capture()

    def run_once(self):
        self.optimizer.zero_grad(set_to_none=False)
        self.loss = (self.model(self.data) - self.target).square().mean()
        self.loss.backward()
        self.optimizer.step()

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run_once()
        self.loss = None  # the warm-up's state belongs to the side stream
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.run_once()

    def step(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            self.run_once()


def main():
    arguments = parse_arguments()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = make_model(arguments.gib, arguments.width, arguments.devices)
    if arguments.compile:
        model.compile()
    trainer = Trainer(model, arguments.width, arguments.graphs)
    batches = None
    if arguments.workers:
        batches = batches_of(arguments.workers, arguments.start, arguments.width)
    step = 0
    while not stop and (arguments.steps == 0 or step < arguments.steps):
        if batches is not None:
            trainer.data.copy_(next(batches))
        trainer.step()
        step += 1
        if step % arguments.report == 0:
            loss = trainer.loss.item()
            print(f"step={step} loss={loss.hex()} checksum={checksum(model):016x}", flush=True)
            time.sleep(arguments.pace)


if __name__ == "__main__":
    main()
