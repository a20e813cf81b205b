"""scripts/demo --container and --keep: a program in a container of podman, which gcr-container moves to another host."""

import contextlib, pathlib, re, signal, subprocess, tempfile
from gcr_lab import base
from gcr_lab.base import BIN, MIB, Failure
from gcr_lab.parts import needs
from gcr_lab.podman import fixed_addresses, podman_hosts
from gcr_lab.registry import Lab

NAME = "app"
LINES = 3
PORT, CLIENTS = 5000, 1000
KEPT = ("--tcp", "keep")

def show(two, program, host):
    program.wait_for_more(LINES)
    print(two.podmans[host].run("ps", "--format", "podman on host " + host + ": {{.Names}} {{.Status}}").strip())
    print(*(f"  {line}" for line in program.lines()[-LINES:]), sep="\n", flush=True)

def move(two, vram, command, container=(), options=()):
    """The migration of a stencil, which `command` starts among others."""
    stencil = f"{BIN}/stencil --mib {vram // MIB} --report 20"
    program = two.start_container("a", NAME, command.format(stencil=stencil), LINES, "step=", options=container)
    print(f"podman runs {NAME} on host a under gcr-runtime, with {base.short(vram)} of GPU memory; its log:")
    show(two, program, "a")
    with talking(two) if options else contextlib.nullcontext() as clients:
        print(f"gcr-container migrate podman:{NAME} {two.ip('a')} {two.ip('b')} {' '.join(options)}", flush=True)
        migration = two.migrate("a", "b", program, *options)
        print("it continues in a container of host b:")
        show(two, program, "b")
        kept = clients.figures() if clients else ""
    if left := two.podmans["a"].run("ps", "--all", "--quiet"):
        raise Failure(f"host a still has a container: {left}")
    program.end()
    print(f"moved container={NAME} downtime_ms={migration.downtime_ms:.0f} total_ms={migration.total_ms:.0f} verified=yes{kept}")

class Clients:
    """On host c, of the container's server."""
    def __init__(self, process):
        self._process = process

    def figures(self):
        self._process.send_signal(signal.SIGTERM)
        said = self._process.communicate()[0]
        print(f"the clients: {said.strip()}")
        found = dict(re.findall(r"(\w+)=(\d+)", said))
        return f" connections={found['connections']} lost={found['lost']} longest_pause_ms={found['longest_pause_ms']}"

@contextlib.contextmanager
def talking(two):
    address, _ = fixed_addresses(two.ip("a"))
    words = two.words("c", BIN / "chatter", "connect", address, PORT, CLIENTS)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            if (said := process.stdout.readline()) != "connected\n":
                raise Failure(f"clients are not connected: {said}{process.stdout.read()}")
            print(f"{CLIENTS} clients on host c exchange numbered lines with {address}, the container's address", flush=True)
            yield Clients(process)
        finally:
            process.kill()

def main(words):
    parser = base.Arguments(__doc__)
    parser.add_argument("--gpu", choices=("soft", "real"), required=True)
    parser.add_argument("--vram", type=base.size, required=True)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(words)
    base.need_root()
    with tempfile.TemporaryDirectory(prefix="gcr-demo-") as folder:
        lab = Lab("container", options.gpu, pathlib.Path(folder), options.vram)
        if missing := needs.podman(lab):
            raise Failure(missing)
        try:
            with podman_hosts(lab, *(("--hosts", "3") if options.keep else ()), network=options.keep) as two:
                print(f"two hosts: a at {two.ip('a')}, b at {two.ip('b')}, each with a podman", flush=True)
                if options.keep:
                    server = f'sh -c "{BIN}/chatter serve {PORT} & exec {{stencil}}"'
                    address, address_v6 = fixed_addresses(two.ip("a"))
                    move(two, options.vram, server, ("--ip", address, "--ip6", address_v6), KEPT)
                else:
                    move(two, options.vram, "{stencil}")
        except Failure:
            print(base.read(lab.log) if lab.log.exists() else "")
            raise

if __name__ == "__main__":
    base.command(main)
