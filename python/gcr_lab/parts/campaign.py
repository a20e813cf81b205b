"""A fault campaign of programs with one GPU each: not those whose kernels on two GPUs wait for each other, which may have
no company there."""

import os, pathlib, subprocess
from gcr_lab import base
from gcr_lab.parts import needs
from gcr_lab.registry import Parts

PARTS = Parts()
PACED = ("stencil --mib 256", "stencil --pool --mib 128", "stencil --mib 2 --small 500 --small-kib 532", "pinned --mib 512")
TORCH = ("torch_train.py", "torch_train.py --graphs", "torch_train.py --workers 2", "torch_train.py --workers 2 --start spawn",
         "torch_resnet.py", "torch_generate.py --gib 2", "torch_huggingface.py")

def campaign_programs(lab):
    """Lines as fault_campaign reads them: name, pattern, lines to wait for, command."""
    lines = [f"{each.split()[0]} step= 3 {base.BIN}/{each} --period-ms 20 --report 5" for each in PACED]
    if lab.gpu == "real" and not needs.torch(lab):
        scripts = [*TORCH, *(["cupy_pool.py"] if not needs.cupy(lab) else [])]
        executable = pathlib.Path(base.python3()).resolve().name
        lines += [f"{executable} step= 3 {base.python3()} {base.BIN}/{each} --pace 0.1" for each in scripts]
    return "\n".join(lines) + "\n"

@PARTS.part("campaign")
def campaign(lab):
    """MOVES, by default 200, of programs in random order, half of them with a fault"""
    lab.out.mkdir(parents=True, exist_ok=True)
    programs, figures = lab.out / "campaign-programs.txt", lab.out / "campaign-figures.txt"
    programs.write_text(campaign_programs(lab), encoding="utf-8")
    gpus = needs.one_each(needs.first_gpus(lab) if lab.gpu == "real" else [])
    command = [base.BIN / "fault_campaign", "--programs-from", programs, "--spare", "--runs", os.environ.get("MOVES", "200"),
               "--runs-of-one", "10", "--window-ms", "2500", "--pairs", os.environ.get("PAIRS", "4"), "--verbose",
               *(f"--host-option={word}" for word in ("--vram", "2G", *gpus)), "--out", figures]
    status = subprocess.call(command, env={**os.environ, "GCR_ROOT": str(base.ROOT), "GCR_GPU": lab.gpu})
    if status != 0:
        raise base.Failure(f"fault_campaign ended with status {status}")
    return base.last_line(base.read(figures))
