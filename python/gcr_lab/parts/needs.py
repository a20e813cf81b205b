"""What parts need: each function returns why they cannot run on this machine, or an empty text."""

import pathlib
import shutil
import subprocess

from gcr_lab.base import python_has


def _needs(statement, reason):
    return lambda lab: "" if python_has(statement) else reason


torch = _needs("import torch", "no PyTorch on this machine")
cupy = _needs("import cupy", "no CuPy on this machine")
trainer = _needs("import accelerate, transformers", "no Trainer here")
server = _needs("import aiohttp, torch, uvloop", "no aiohttp or uvloop here")
lightning = _needs("import lightning", "no Lightning here")


def two_ranks(lab):
    two = python_has("import torch; assert torch.cuda.device_count() >= 2") and shutil.which("torchrun")
    return "" if two else "no PyTorch, or not two GPUs, on this machine"


def two_gpus(lab):
    return "" if first_gpus(lab) else "this machine has not two GPUs"


def first_gpus(lab):
    """The UUIDs of the machine's first two GPUs; empty if it has fewer."""
    if lab.gpu == "hip":
        uuids = [path.read_text(encoding="ascii").strip() for path in
                 sorted(pathlib.Path("/sys/class/drm").glob("renderD*/device/unique_id"))]  # fmt: skip
    elif shutil.which("nvidia-smi"):
        uuids = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], check=False,
                               capture_output=True, text=True).stdout.split()  # fmt: skip
    else:
        uuids = []
    return uuids[:2] if len(uuids) >= 2 else []


def slurm(lab):
    there = all(map(shutil.which, ("slurmctld", "slurmd", "munged")))
    return "" if there else "no Slurm or munge on this machine"


def on_real_gpu(module):
    """Whether scripts/bench measures programs of this Python module here."""
    return lambda lab: lab.gpu == "real" and python_has(f"import {module}")


has_torch, has_transformers, has_jax = map(on_real_gpu, ("torch", "transformers", "jax"))
