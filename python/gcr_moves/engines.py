"""Containers as their engines tell them: what gcr-container asks of each engine, through a shell of its host.

One module for each engine: podman.py, docker.py, cri.py; jobs.py for jobs without an engine.
"""

import dataclasses
import ipaddress
import json
import re
import shlex
import subprocess

from gcr_moves import cli as program

RECEIVE = "gcr-migrate.receive"  # annotation: the key of the migration that the container receives
SOURCE = "gcr-migrate.source"  # label: the container that its job comes from
ADDRESSES = "gcr-migrate.addresses"  # label: those that its job brings, as JSON of Container.networks
LABELS = (SOURCE, ADDRESSES)  # of receiving containers alone

QUESTION_SECONDS = 120
# While an engine takes a job's interface away and gives it another one, this interface has the job's addresses ("$@"). What
# is sent through it is lost, and sent again, instead of an error that ends programs. Its other end is in the same
# namespace, and drops what comes: nothing there has its hardware address.
HOLD = "gcr-hold"
HOLD_ADDRESSES = f"""
set -e
ip link show {HOLD} >/dev/null 2>&1 || ip link add {HOLD} arp off type veth peer name {HOLD}-end
ip link set {HOLD}-end up
ip link set {HOLD} up
for each; do
  case $each in *:*) family=-6 ;; *) family=-4 ;; esac
  ip address replace "$each" dev {HOLD} noprefixroute
  ip $family route replace default dev {HOLD} metric 4294967295
done
"""
LIST_SECONDS = 20
# The kind of file system of a file or folder; whether all that is in it was listed; and a digest of that list, which has
# what tells files apart without reading them.
TELL_FILES = f"""
stat --file-system --format %T -- "$1" || exit
{{ {{ timeout {LIST_SECONDS} find "$1" \\( -type f -printf '%P\\0%s:%m:%U:%G\\n' -o -printf '%P\\0%y:%m:%U:%G:%l\\n' \\)
  echo $? >&3
}} | LC_ALL=C sort | sha256sum; }} 3>&1
"""
TELL_ABSENT = 'for each; do [ -e "$each" ] || printf "%s\\n" "$each"; done'
NOT_INSTALLED = 127  # status of a shell
ID = re.compile("[0-9a-f]{64}")  # of a container, which names its control groups; of a volume without a name


class EngineError(Exception):
    """An engine or a shell that did not do what it was asked for."""


class NotInstalled(EngineError):
    """There is no such engine on the host."""


class Host:
    """The shell of a host."""

    def __init__(self, agent, shell):
        """`shell`: words, %h among them for the name of the host; a command line is appended."""
        address, _, port = agent.rpartition(":")
        name = (address if address and port.isdigit() else agent).strip("[]")
        self.agent = agent
        self._shell = [word.replace("%h", name) for word in shell]

    def command(self, *words):
        """The command here that runs a command there."""
        return [*self._shell, shlex.join(words)]

    def run(self, *words, fine=(0,)):
        """The status and the standard output of a command."""
        try:
            ran = program.run_to_end(self.command(*words), QUESTION_SECONDS)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self.agent}: {words[0]} does not end") from None
        except OSError as error:
            raise EngineError(f"{self.agent}: cannot run {self._shell[0]}: {error.strerror}") from None
        if ran.returncode not in fine:
            said = program.last_line(ran.stderr) or f"status {ran.returncode}"
            raise EngineError(f"{self.agent}: {' '.join(words[:3])}: {said}")
        return ran.returncode, ran.stdout


@dataclasses.dataclass(frozen=True)
class Container:
    """A container, as it was when its engine was asked."""

    id: str
    name: str
    image: str  # by its content
    image_name: str
    status: str  # "running", "paused", "exited"
    init: int  # PID of its first process on its host; 0 if it does not run
    obstacles: tuple  # why it cannot move, after its name; empty if its engine knows no reason
    labels: dict
    recipe: object  # what its engine makes another one from
    networks: dict = dataclasses.field(default_factory=dict)  # its addresses in each, such as "10.0.0.2/24"
    ports: tuple = ()  # of its host, through which its host reaches it: "8080", "127.0.0.1:8080"
    volumes: tuple = ()  # names of its volumes, whose content stays at its host
    folders: tuple = ()  # files and folders of its host that it has too

    @property
    def running(self):
        return self.status == "running" and self.init > 0


def those_there(obstacles):
    """Of (whether it is there, its text)."""
    return tuple(text for there, text in obstacles if there)


def anonymous_volumes(mounts):
    """Where they are mounted, by the answer of an engine's `inspect`. Their content is at one host only."""
    volumes = [each for each in mounts or () if each.get("Type") == "volume"]
    return ", ".join(each["Destination"] for each in volumes if ID.fullmatch(each.get("Name", "")))


def named_volumes(mounts):
    """The names of the others, whose owner gives their content to each host."""
    volumes = [each.get("Name", "") for each in mounts or () if each.get("Type") == "volume"]
    return tuple(dict.fromkeys(name for name in volumes if name and not ID.fullmatch(name)))


def own_folder(volume):
    """Of the answer of an engine's `volume inspect`; empty if a driver mounts something there."""
    return "" if volume["Driver"] != "local" or volume.get("Options") else volume["Mountpoint"]


def mounted_folders(mounts):
    """Of the host, by the answer of an engine's `inspect`."""
    return tuple(dict.fromkeys(each["Source"] for each in mounts or () if each.get("Type") == "bind"))


def published_ports(bindings):
    """By the PortBindings in the answer of an engine's `inspect`."""
    all_of = [each for one in (bindings or {}).values() for each in one or ()]
    return tuple(":".join(filter(None, (each.get("HostIp"), each.get("HostPort")))) for each in all_of)


def addresses_in(networks):
    """By name, of the networks in the answer of an engine's `inspect`."""
    found = {}
    for name, each in (networks or {}).items():
        pairs = (("IPAddress", "IPPrefixLen"), ("GlobalIPv6Address", "GlobalIPv6PrefixLen"))
        found[name] = tuple(f"{each[address]}/{each[length]}" for address, length in pairs if each.get(address))
    return found


def brought_addresses(labels):
    """Those that a receiving container's job brings, by network."""
    try:
        return {name: tuple(map(str, each)) for name, each in json.loads(labels.get(ADDRESSES, "{}")).items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # another program's label


def receiver_labels(container, with_address):
    """Those of LABELS that a container has which receives the job of this one."""
    return {SOURCE: container.id} | ({ADDRESSES: json.dumps(container.networks)} if with_address else {})


def are_within(addresses, ranges):
    """Whether each address is in a range: a subnet, with the first and the last address if not all of it counts."""

    def is_within(address, subnet, first, last):
        if address not in ipaddress.ip_network(subnet, strict=False):
            return False
        return (not first or address >= ipaddress.ip_address(first)) and (not last or address <= ipaddress.ip_address(last))

    return all(any(is_within(ipaddress.ip_interface(each).ip, *one) for one in ranges) for each in addresses)


class Engine:
    """The engine of a host, as root."""

    IMAGE_BY = ""  # what brings an image to another host
    KEEPS_ADDRESSES = False  # whether its containers never move without theirs

    def __init__(self, host):
        self.host = host

    def find(self, name):
        """The container with this name or id; None if there is none."""
        raise NotImplementedError

    def find_by_init(self, pid):
        """The container whose first process has this PID; None if there is none, or no such engine. By the id of a
        container in the names of the process's control groups: not every engine lists PIDs."""
        _, groups = self.host.run("cat", f"/proc/{pid}/cgroup", fine=(0, 1))
        try:
            named = [self.find(each) for each in sorted(set(ID.findall(groups)))]
        except NotInstalled:
            return None
        return next((each for each in named if each is not None and each.init == pid), None)

    def has_image(self, image):
        return self.image_named(image) != ""

    def image_named(self, name):
        """What a new container would get under this name, by its content; empty if that is not here."""
        raise NotImplementedError

    def has_volume(self, name):
        raise NotImplementedError

    def volume_folder(self, name):
        """Of the host; empty if the volume is none of the engine's own folders."""
        raise NotImplementedError

    def files_in(self, path):
        """The kind of its file system, and a digest of its files without their content; empty if it has too many."""
        _, said = self.host.run("sh", "-c", TELL_FILES, "sh", path)
        kind, status, digest = said.splitlines()
        return kind, digest.split()[0] if status == "0" else ""

    def absent(self, paths):
        """Those of the paths that the host does not have. docker would make empty folders of them."""
        if not paths:
            return []
        _, said = self.host.run("sh", "-c", TELL_ABSENT, "sh", *paths)
        return said.splitlines()

    def obstacles_to(self, container):
        """Why it cannot make a container like this one, besides the image."""
        return ()

    def start_receiver(self, container, key, with_address=False):
        """Makes and starts a container that receives the job of this one; returns it, or None if it is gone already.
        `with_address`: the job brings the address, so the engine gives it another one until then."""
        raise NotImplementedError

    def can_give(self, network, addresses):  # pylint: disable=unused-argument
        """Whether connect() may succeed, as far as the engine's description of the network tells."""
        return True

    def disconnect(self, container, network):
        """Takes a running container out of a network."""
        raise NotImplementedError

    def connect(self, container, network, addresses):
        """Takes it into a network in which it is not, with these addresses, at most one of each family."""
        raise NotImplementedError

    def note_addresses(self, container):
        """Tells the engine of addresses that came with the job of a running container. To be repeated if it fails: the
        job may have no interface until then."""
        brought = brought_addresses(container.labels)
        for network, addresses in brought.items():
            known = container.networks.get(network)
            if set(addresses) == set(known or ()):
                continue
            plain = [each.partition("/")[0] for each in addresses]
            if known is not None and not self.can_give(network, plain):
                continue
            self._in_network_of(container, "sh", "-c", HOLD_ADDRESSES, "sh", *addresses)
            if known is not None:
                self.disconnect(container, network)
            self.connect(container, network, plain)
        if brought:
            self._in_network_of(container, "ip", "link", "delete", HOLD)

    def _in_network_of(self, container, *words):
        """Runs a command, of the host, which may fail."""
        self.host.run("nsenter", f"--net=/proc/{container.init}/ns/net", *words, fine=range(256))

    def remove(self, container):
        """Ends and removes it, for good; it may be gone."""
        raise NotImplementedError

    def remove_rest(self, container):
        """Removes what an interrupted remove() has left of the container whose job this one, of another host, has."""

    def name_of_init(self, container):
        """What its gcr-init calls itself (container/messages.h); empty if it has ended."""
        _, name = self.host.run("cat", f"/proc/{container.init}/comm", fine=(0, 1))
        return name.strip()

    def children_of_init(self, container):
        """PIDs: of its job's root, and of programs that left their parents. None if it has ended."""
        path = f"/proc/{container.init}/task/{container.init}/children"
        _, children = self.host.run("cat", path, fine=(0, 1))
        return {int(each) for each in children.split()}

    def understood(self, answer, read):
        """read(answer), of an answer of the engine."""
        try:
            return read(answer)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EngineError(f"{self.host.agent}: the engine's answer is not understood: {error}") from None
