"""Programs in containers of podman, moved by gcr-container."""

import contextlib
from gcr_lab.base import GIB, MIB, need_programs, short
from gcr_lab.compare_by_hand import receivers
from gcr_lab.driver import Stopwatch, driver_tools, silence
from gcr_lab.hosts import tmpfs
from gcr_lab.parts import needs
from gcr_lab.parts.pytorch import two_ranks
from gcr_lab.parts.undisturbed import STEPS, as_undisturbed, moved_five_times, moved_once
from gcr_lab.podman import LEFT_ALONE, podman_hosts
from gcr_lab.registry import Parts

PARTS = Parts()
NO_HIP = "no AMD GPU is offered to containers here"
EXPORT = "container.tar"
STREAMS = 4

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
PARTS.command("container-huggingface", five, "a language model of Hugging Face's transformers in a container",
              "python3 bin/torch_huggingface.py --gib {gib}", needs.podman, needs.transformers, not_on_hip=NO_HIP)
PARTS.command("container-gpus", five_between_gpus, "training in containers that have one GPU each, which differ",
              "python3 bin/torch_resnet.py", needs.podman, needs.torch, needs.two_gpus, not_on_hip=NO_HIP)
PARTS.command("container-ddp", five, "two ranks in one container with two GPUs", two_ranks("cumem", "torch_ddp.py"),
              needs.podman, needs.two_ranks, not_on_hip=NO_HIP)

def configure_criu(two, *lines):
    """Returns the file. podman has no options for these."""
    configuration = two.work / "criu.conf"
    configuration.write_text("\n".join([*lines, ""]), encoding="ascii")
    return configuration

def by_hand_options(two):
    """Of a container that podman can checkpoint. It has no connections to keep, and its program is PID 1, which SIGTERM
    would not end."""
    configuration = configure_criu(two, "network-lock skip")
    return (*LEFT_ALONE, "--annotation", f"org.criu.config={configuration}", "--stop-signal", "KILL")

def moved_by_hand(lab, two, program):
    """From host a to b: the driver's checkpoint, podman's, a copy, podman's restore, the driver's. Its steps in ms."""
    folders = there, here = [two.work / f"export-{host}" for host in "ab"]
    with contextlib.ExitStack() as stack:
        for folder in folders:
            stack.enter_context(tmpfs(folder, lab.vram + 16 * GIB))
        source, target = stack.enter_context(driver_tools(two, "ab", lab.gpu))
        copy = stack.enter_context(receivers(two, here, STREAMS, EXPORT))
        watch = Stopwatch()
        source.steps(program.pid, watch, "lock", "checkpoint")
        with watch.phase("podman_checkpoint"):
            two.podmans["a"].with_criu("checkpoint", "--compress", "none", "--export", there / EXPORT, program.name)
        with watch.phase("copy"):
            copy(there)
        # With the other mount engine CRIU 4.2 does not restore CDI's mounts of single files.
        configure_criu(two, "network-lock skip", "mntns-compat-mode")
        with watch.phase("podman_restore"):
            two.podmans["b"].with_criu("restore", "--import", here / EXPORT)
        program.restored_by(two.podmans["b"])
        target.steps(program.pid, watch, "restore", "unlock")
        return watch.ms(), watch.figures

@PARTS.part("container-by-hand", needs=(needs.podman,), not_on_hip=NO_HIP)
def by_hand(lab):
    """containers moved by gcr-container, and by podman's checkpoint with the driver's around it"""
    need_programs("nc", "tar", "dd")
    command = f"bin/stencil --mib {lab.vram // MIB} --report 5"
    with podman_hosts(lab) as two:
        program = two.start("a", "app", command, 5, STEPS)
        with silence(program) as ours:
            migration = two.migrate("a", "b", program)
        program.end()
        program = two.start_container("a", "app", command, 5, STEPS, by_hand_options(two))
        with silence(program) as theirs:
            downtime_ms, steps = moved_by_hand(lab, two, program)
        compared = as_undisturbed(two, program, command, len(program.lines(STEPS)))
    figures = ", ".join(f"{name.removesuffix('_ms')} {ms:g}" for name, ms in steps.items())
    return (f"{short(lab.vram)}; {migration.times()}, silent for {ours[0]:g} ms; by hand {downtime_ms:g} ms ({figures}), "
            f"silent for {theirs[0]:g} ms, {compared}")
