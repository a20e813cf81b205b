"""Jobs that have a network of their own and the files of their host: started, listed and ended at that host.

A job is below gcr-init (container/init_main.cc) in new namespaces of processes, mounts, IPC and network. For agents it is
in a container. Its interface is made upon one of the host's, and ends with the namespace. A record tells of each job, also
of one that has ended, until it is removed.
"""

import dataclasses
import fcntl
import functools
import ipaddress
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time

from gcr_moves import cli as program

FOLDER_VARIABLE, DEFAULT_FOLDER = "GCR_JOBS", "/run/gcr-migrate/jobs"  # of the records
INTERFACE = "eth0"  # in the job's network
VETH_PREFIX = "gcr-"  # of the end at a bridge
STOP_SECONDS = 10  # then a job that is removed is killed
LOOK_SECONDS = 0.05
# What is made upon an interface of the host, with its options; a bridge gets a port.
KINDS = {"macvlan": ("mode", "bridge"), "ipvlan": ("mode", "l2"), "bridge": ()}
# Becomes the first process of the namespaces. Says its PID, and waits for a line: its network is there.
BEGIN = """
set -e
read -r pid rest </proc/self/stat
init=$1 library=$2 output=$3 last_pid=$4
shift 4
mkdir -p /dev/.gcr
mount -t tmpfs -o mode=0755 gcr /dev/.gcr
: >/dev/.gcr/init
: >/dev/.gcr/libgcr-preload.so
mount --bind "$init" /dev/.gcr/init
mount --bind "$library" /dev/.gcr/libgcr-preload.so
mount -t proc proc /proc
[ -z "$last_pid" ] || echo "$last_pid" >/proc/sys/kernel/ns_last_pid
echo "$pid"
read -r begin
exec </dev/null >>"$output" 2>&1
exec setsid env LD_PRELOAD="/dev/.gcr/libgcr-preload.so${LD_PRELOAD:+:$LD_PRELOAD}" /dev/.gcr/init "$@"
"""
# Around it. Keeps its exit status, for as long as its record is kept.
KEEP_STATUS = """
unshare --mount --net --ipc --pid --fork --propagation slave sh -c "$@"
status=$?
[ ! -e "$0.json" ] || echo $status >"$0.status"
exit $status
"""


def find_programs():
    """gcr-init and the preload library, where this gcr-migrate's package or build has them."""
    libraries = pathlib.Path(program.find_program()).resolve().parents[1] / "lib"
    own, installed = (folder / "libgcr-preload.so" for folder in (libraries, libraries / "gcr-migrate"))
    found = program.find_installed("gcr-init"), str(own if own.exists() else installed)
    for each in found:
        if not os.path.exists(each):
            raise JobError(f"there is no {each}")
    return found


class JobError(Exception):
    """A job that was not started, or of which nothing is known."""


@dataclasses.dataclass(frozen=True)
class Network:
    """As `run --network` describes it: KIND:INTERFACE,address=ADDRESS/LENGTH[,address=…][,gateway=ADDRESS]…"""

    kind: str
    parent: str  # the interface of the host that it is made upon
    addresses: tuple  # with the lengths of their prefixes
    gateways: tuple  # of default routes

    @classmethod
    def parse(cls, text):
        """ValueError, with the reason, if it cannot be one."""
        first, *rest = text.split(",")
        kind, _, parent = first.partition(":")
        if kind not in KINDS or not parent:
            raise ValueError(f"must begin with {', '.join(f'{each}:INTERFACE' for each in KINDS)}: {text}")
        options = {"address": [], "gateway": []}
        for each in rest:
            name, _, value = each.partition("=")
            if name not in options:
                raise ValueError(f"knows address=ADDRESS/LENGTH and gateway=ADDRESS, not {each}")
            options[name].append(value)
        addresses = [ipaddress.ip_interface(each) for each in options["address"]]
        gateways = [ipaddress.ip_address(each) for each in options["gateway"]]
        if not addresses or any("/" not in each for each in options["address"]):
            raise ValueError("needs an address, with the length of its prefix: address=192.0.2.10/24")
        for each in gateways:
            if not any(each in address.network for address in addresses):
                raise ValueError(f"gateway {each} is in the subnet of no address")
        if len({each.version for each in gateways}) < len(gateways):
            raise ValueError("can have one gateway of each family")
        return cls(kind, parent, tuple(map(str, addresses)), tuple(map(str, gateways)))

    def __str__(self):
        options = [*(f"address={each}" for each in self.addresses), *(f"gateway={each}" for each in self.gateways)]
        return ",".join([f"{self.kind}:{self.parent}", *options])


def make_output(path):
    """The job's first process opens it again, when it can report nothing any more."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))
    except OSError as error:
        raise JobError(f"cannot open {path}: {error.strerror}") from None


def ip(*words, inside=()):
    """`inside`: words that run it in another network."""
    ran = subprocess.run([*inside, "ip", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         check=False)  # fmt: skip
    if ran.returncode != 0:
        raise JobError(f"ip {' '.join(map(str, words))}: {ran.stderr.strip()}")


def make_interface(network, pid, identity):
    """In the network namespace of a process."""
    if network.kind == "bridge":
        end = VETH_PREFIX + identity[:8]
        ip("link", "add", end, "type", "veth", "peer", "name", INTERFACE, "netns", pid)
        ip("link", "set", end, "master", network.parent, "up")
    else:
        ip("link", "add", "link", network.parent, "name", INTERFACE, "netns", pid, "type", network.kind, *KINDS[network.kind])


def configure_interface(network, pid, with_address):
    """Without an address it waits for a job that brings it."""
    there = functools.partial(ip, inside=("nsenter", f"--net=/proc/{pid}/ns/net"))
    there("link", "set", "lo", "up")
    if not with_address:
        there("link", "set", INTERFACE, "addrgenmode", "none")
        there("link", "set", INTERFACE, "up")
        return
    for each in network.addresses:
        there("address", "add", each, "dev", INTERFACE, *(("nodad",) if ":" in each else ("broadcast", "+")))
    there("link", "set", INTERFACE, "up")
    for each in network.gateways:
        there("-6" if ":" in each else "-4", "route", "add", "default", "via", each, "dev", INTERFACE)


def start_time(pid):
    """As the kernel counts it; None if there is no such process."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


class Records:
    """Those of this host, in a folder of root's. Locked while it is open."""

    def __init__(self):
        self.folder = pathlib.Path(os.environ.get(FOLDER_VARIABLE, DEFAULT_FOLDER))

    def __enter__(self):
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise JobError(f"cannot open {self.folder}: {error.strerror}") from None
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_):
        os.close(self._lock)

    def all(self):
        """Each with "status": "running" or "exited", then with "exit_status", None if that is not known."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            runs = start_time(record["init"]) == record["start_time"]
            record["status"] = "running" if runs else "exited"
            if not runs:
                said = path.with_suffix(".status")
                text = said.read_text(encoding="ascii").strip() if said.exists() else ""
                record["exit_status"] = int(text) if text else None
            found.append(record)
        return found

    def add(self, record):
        new = self.folder / f"{record['id']}.new"
        new.write_text(json.dumps(record), encoding="utf-8")
        new.rename(new.with_suffix(".json"))

    def drop(self, identity):
        for suffix in ("json", "status"):
            (self.folder / f"{identity}.{suffix}").unlink(missing_ok=True)


def signal_init(record, number):
    """False if it has ended."""
    try:
        descriptor = os.pidfd_open(record["init"])
    except ProcessLookupError:
        return False
    try:
        if start_time(record["init"]) != record["start_time"]:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def high_pid():
    """For processes in a namespace that receives a job, whose PIDs are low, or from such a place (container/last_pid.h)."""
    limit = int(pathlib.Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    return limit // 2 + secrets.randbelow(limit // 8 * 3)


def first_words(key):
    """Of the command line of gcr-init."""
    return ("receive", key) if key else ("run-tracked",)


class Start:
    """A start of a job."""

    def __init__(self, network, output, command, key=""):
        """`key`: of the migration that it waits for."""
        self._programs = find_programs()
        self._network, self._output, self._command, self._key = network, output, command, key
        self._identity = secrets.token_hex(32)
        self._process = None

    def run(self, name, labels):
        """Its record. JobError: nothing is left of it."""
        make_output(self._output)
        with Records() as records:
            for each in records.all():
                if each["name"] != name:
                    continue
                if each["status"] == "running":
                    raise JobError(f"there is a job {name} already")
                records.drop(each["id"])
            words = ["sh", "-c", KEEP_STATUS, records.folder / self._identity, BEGIN, "sh", *self._programs, self._output,
                     high_pid() if self._key else "", *first_words(self._key), *self._command]  # fmt: skip
            self._process = subprocess.Popen(  # pylint: disable=consider-using-with
                list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                start_new_session=True)  # fmt: skip
            try:
                record = self._set_up(name, labels)
                records.add(record)
                self._process.stdin.write("\n")
                return record
            finally:
                self._process.stdin.close()  # without the line, it ends
                self._process.stdout.close()
                self._process.stderr.close()

    def _set_up(self, name, labels):
        line = self._process.stdout.readline()
        if not line:
            raise JobError(f"cannot make its namespaces: {self._process.stderr.read().strip()}")
        pid = int(line)
        make_interface(self._network, pid, self._identity)
        configure_interface(self._network, pid, not self._key)
        return {"id": self._identity, "name": name, "init": pid, "start_time": start_time(pid),
                "network": str(self._network), "output": str(self._output), "command": self._command,
                "labels": labels}  # fmt: skip

    def wait(self, record, passed_on):
        """Until its end at this host, passing signals on to it; forgets it, and gives its exit status."""
        for number in passed_on:
            signal.signal(number, lambda number, _: signal_init(record, number))
        status = self._process.wait()
        with Records() as records:
            records.drop(record["id"])
        return status


def remove(name):
    """Ends a job, of this name or id, and forgets it. Nothing to do if there is none."""
    with Records() as records:
        record = next((each for each in records.all() if name in (each["id"], each["name"])), None)
    if record is None:
        return
    end = time.monotonic() + STOP_SECONDS
    number = signal.SIGTERM
    while signal_init(record, number):
        number = 0 if time.monotonic() < end else signal.SIGKILL
        time.sleep(LOOK_SECONDS)
    with Records() as records:
        records.drop(record["id"])


def print_all():
    with Records() as records:
        json.dump(records.all(), sys.stdout)
