"""What parts need: each function returns why they cannot run on this machine, or an empty text."""

import pathlib, shutil, subprocess
from gcr_lab import base

def python_has(statement):
    """Whether this statement, an import as a rule, succeeds in programs' interpreter."""
    return subprocess.run([base.python3(), "-c", statement], capture_output=True, check=False).returncode == 0

def _needs(statement, reason):
    return lambda lab: "" if python_has(statement) else reason

torch = _needs("import torch", "no PyTorch on this machine")
cupy = _needs("import cupy", "no CuPy on this machine")
transformers = _needs("import torch, transformers", "no PyTorch or transformers on this machine")
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
    uuids = []
    if lab.gpu == "hip":
        paths = sorted(pathlib.Path("/sys/class/drm").glob("renderD*/device/unique_id"))
        uuids = [base.read(path).strip() for path in paths]
    elif shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        uuids = subprocess.run(query, check=False, capture_output=True, text=True).stdout.split()
    return uuids[:2] if len(uuids) >= 2 else []

def one_each(gpus):
    """Options of scripts/hosts: each host has one of these two GPUs, if there are any."""
    return ["--gpus-a", gpus[0], "--gpus-b", gpus[1]] if gpus else []

def podman(lab):
    there = all(map(shutil.which, ("podman", "runc")))
    return "" if there else "no podman or runc on this machine"

def slurm(lab):
    there = all(map(shutil.which, ("slurmctld", "slurmd", "munged")))
    return "" if there else "no Slurm or munge on this machine"

def has(lab, module):
    """Whether scripts/bench measures programs of this Python module here."""
    return lab.gpu == "real" and python_has(f"import {module}")
