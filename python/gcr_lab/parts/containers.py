"""Programs in containers of podman, moved by gcr-container."""

from gcr_lab.base import short
from gcr_lab.parts import needs
from gcr_lab.parts.pytorch import two_ranks
from gcr_lab.parts.undisturbed import moved_five_times, moved_once
from gcr_lab.podman import podman_hosts
from gcr_lab.registry import Parts

PARTS = Parts()
NO_HIP = "no AMD GPU is offered to containers here"

@PARTS.part("container", needs=(needs.podman,), not_on_hip=NO_HIP)
def container(lab):
    """a program with VRAM in a container, which is moved into another one"""
    with podman_hosts(lab) as two:
        migration, compared = moved_once(two, f"bin/stencil --mib {lab.vram >> 20}")
    return f"{short(lab.vram)}; {compared}; {migration.times()}"

def five(lab, command, one_each=False):
    gpus = [[gpu] for gpu in needs.first_gpus(lab)] if one_each else ((), ())
    with podman_hosts(lab, gpus=gpus) as two:
        migrations, compared, places = moved_five_times(two, command, "--pace 0.3")
    return f"{len(migrations)} moves, {compared}; rank and GPU: {places}"

def five_between_gpus(lab, command):
    return five(lab, command, one_each=True)

PARTS.command("container-resnet", five, "ResNet-18 in training in a container", "python3 bin/torch_resnet.py", needs.podman,
              needs.torch, not_on_hip=NO_HIP)
PARTS.command("container-generate", five, "a language model in a container", "python3 bin/torch_generate.py --gib {gib}",
              needs.podman, needs.torch, not_on_hip=NO_HIP)
PARTS.command("container-gpus", five_between_gpus, "training in containers that have one GPU each, which differ",
              "python3 bin/torch_resnet.py", needs.podman, needs.torch, needs.two_gpus, not_on_hip=NO_HIP)
PARTS.command("container-ddp", five, "two ranks in one container with two GPUs", two_ranks("cumem", "torch_ddp.py"),
              needs.podman, needs.two_ranks, not_on_hip=NO_HIP)
