"""scripts/demo --container: a program in a container of podman, which gcr-container moves to another host."""

import pathlib, tempfile
from gcr_lab import base
from gcr_lab.base import MIB, Failure
from gcr_lab.parts import needs
from gcr_lab.podman import podman_hosts
from gcr_lab.registry import Lab

NAME = "app"
LINES = 3

def show(two, program, host):
    program.wait_for_more(LINES)
    print(two.podmans[host].run("ps", "--format", "podman on host " + host + ": {{.Names}} {{.Status}}").strip())
    print(*(f"  {line}" for line in program.lines()[-LINES:]), sep="\n", flush=True)

def move(two, vram):
    program = two.start("a", NAME, f"bin/stencil --mib {vram // MIB} --report 20", LINES)
    print(f"podman runs {NAME} on host a under gcr-runtime, with {base.short(vram)} of GPU memory; its log:")
    show(two, program, "a")
    print(f"gcr-container migrate podman:{NAME} {two.ip('a')} {two.ip('b')}", flush=True)
    migration = two.migrate("a", "b", program)
    print("it continues in a container of host b:")
    show(two, program, "b")
    if left := two.podmans["a"].run("ps", "--all", "--quiet"):
        raise Failure(f"host a still has a container: {left}")
    program.end()
    print(f"moved container={NAME} downtime_ms={migration.downtime_ms:.0f} total_ms={migration.total_ms:.0f} verified=yes")

def main(words):
    parser = base.Arguments(__doc__)
    parser.add_argument("--gpu", choices=("soft", "real"), required=True)
    parser.add_argument("--vram", type=base.size, required=True)
    options = parser.parse_args(words)
    base.need_root()
    with tempfile.TemporaryDirectory(prefix="gcr-demo-") as folder:
        lab = Lab("container", options.gpu, pathlib.Path(folder), options.vram)
        if missing := needs.podman(lab):
            raise Failure(missing)
        try:
            with podman_hosts(lab) as two:
                print(f"two hosts: a at {two.ip('a')}, b at {two.ip('b')}, each with a podman", flush=True)
                move(two, options.vram)
        except Failure:
            print(base.read(lab.log) if lab.log.exists() else "")
            raise

if __name__ == "__main__":
    base.command(main)
