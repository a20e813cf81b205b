"""podman, by its commands: it keeps the command that made a container."""

import json

from gcr_moves.engines import (
    LABELS,
    NOT_INSTALLED,
    RECEIVE,
    Container,
    Engine,
    addresses_in,
    anonymous_volumes,
    are_within,
    mounted_folders,
    named_volumes,
    own_folder,
    published_ports,
    receiver_labels,
    those_there,
)

ADDRESS_OPTIONS = ("--ip", "--ip6", "--mac-address")
NETWORK_OPTION, ADDRESS_DETAILS = "--network", ("ip", "ip6", "mac")
STOP_SECONDS = 10  # then podman kills a container that it removes
NO_SUCH = 1  # status of `podman container exists` and others
FAILED = 125  # of any podman


def verb_of(command):
    """Where `run` or `create` is in the command that made a container; None if another command did."""
    return next((at for at, word in enumerate(command) if word in ("run", "create")), None)


def without_details(network):
    """What follows --network, without addresses."""
    name, _, details = network.partition(":")
    kept = [each for each in details.split(",") if each and each.partition("=")[0] not in ADDRESS_DETAILS]
    return ":".join([name, ",".join(kept)]) if kept else name


def without_addresses(words):
    """Options of `run` without those that name an address."""
    left, named = [], False
    for word in words:
        option, _, value = word.partition("=")
        if named or option in ADDRESS_OPTIONS:
            named = not named and not value
            continue
        if left[-1:] == [NETWORK_OPTION]:
            word = without_details(word)
        elif option == NETWORK_OPTION and value:
            word = f"{option}={without_details(value)}"
        left.append(word)
    return left


def receiving_command(container, key, with_address=False):
    """The command that made a container, for one that receives its job. `with_address`: the job brings its own."""
    words, verb = list(container.recipe), verb_of(container.recipe)
    if with_address:
        words = without_addresses(words)
    labels = receiver_labels(container, with_address)
    own = [
        ("--annotation", f"{RECEIVE}={key}"),
        *(("--label", f"{name}={value}") for name, value in labels.items()),
        ("--name", container.name),
    ]
    rest = words[verb + 1 :]
    # A container that has received before has such words already, in this order.
    for option, name in (("--annotation", RECEIVE), *(("--label", each) for each in LABELS), ("--name", container.name)):
        if rest[:1] == [option] and rest[1].partition("=")[0] == name:
            rest = rest[2:]
    rest = rest[1:] if rest[:1] == ["--detach"] else rest
    detach = ["--detach"] if words[verb] == "run" else []
    return ["podman", *words[1 : verb + 1], *(word for pair in own for word in pair), *detach, *rest]


def container_of(answer):
    its = json.loads(answer)[0]
    command = tuple(its["Config"].get("CreateCommand") or ())
    volumes = anonymous_volumes(its.get("Mounts"))
    return Container(
        id=its["Id"],
        name=its["Name"],
        image=its["Image"],
        image_name=its["ImageName"],
        status=its["State"]["Status"],
        init=int(its["State"]["Pid"]),
        obstacles=those_there((
            (its["Config"].get("Tty"), "has a terminal, which cannot move"),
            (its.get("Pod"), "shares the namespaces of a pod"),
            (volumes, f"has a volume without a name, whose content would not move: {volumes}"),
            (verb_of(command) is None, "was not made by podman run or create"),
        )),
        labels=its["Config"].get("Labels") or {},
        recipe=command,
        networks=addresses_in(its["NetworkSettings"].get("Networks")),
        ports=published_ports((its.get("HostConfig") or {}).get("PortBindings")),
        volumes=named_volumes(its.get("Mounts")),
        folders=mounted_folders(its.get("Mounts")),
    )  # fmt: skip


class Podman(Engine):
    """The podman of a host."""

    IMAGE_BY = "podman image scp"

    def find(self, name):
        status, _ = self.host.run("podman", "container", "exists", name, fine=(0, NO_SUCH))
        if status == NO_SUCH:
            return None
        _, answer = self.host.run("podman", "container", "inspect", name)
        return self.understood(answer, container_of)

    def find_by_init(self, pid):
        status, answer = self.host.run("podman", "ps", "--format", "json", fine=(0, NOT_INSTALLED))
        if status == NOT_INSTALLED:
            return None
        its = self.understood(answer, lambda said: [each["Id"] for each in json.loads(said) if each["Pid"] == pid])
        return self.find(its[0]) if its else None

    def has_image(self, image):
        status, _ = self.host.run("podman", "image", "exists", image, fine=(0, NO_SUCH))
        return status == 0

    def image_named(self, name):
        words = ("podman", "image", "inspect", "--format", "{{.Id}}", name)
        _, image = self.host.run(*words, fine=(0, NO_SUCH, FAILED))
        return image.strip()

    def has_volume(self, name):
        status, _ = self.host.run("podman", "volume", "exists", name, fine=(0, NO_SUCH))
        return status == 0

    def volume_folder(self, name):
        _, answer = self.host.run("podman", "volume", "inspect", name)
        return self.understood(answer, lambda said: own_folder(json.loads(said)[0]))

    def start_receiver(self, container, key, with_address=False):
        words = receiving_command(container, key, with_address)
        _, said = self.host.run(*words)
        made = (said.split() or [container.name])[-1]
        if "--detach" not in words:
            self.host.run("podman", "start", made)
        return self.find(made)

    def can_give(self, network, addresses):
        status, answer = self.host.run("podman", "network", "inspect", network, fine=(0, NO_SUCH, FAILED))
        if status != 0:
            return False

        def subnets(said):
            for each in json.loads(said)[0].get("subnets") or ():
                lease = each.get("lease_range") or {}
                yield each["subnet"], lease.get("start_ip"), lease.get("end_ip")

        found = self.understood(answer, lambda said: list(subnets(said)))
        # netavark gives any address of a subnet that is asked for.
        whole = [(subnet, None, None) for subnet, _, _ in found]
        return are_within(addresses, found) or (are_within(addresses, whole) and self._backend() == "netavark")

    def _backend(self):
        return self.host.run("podman", "info", "--format", "{{.Host.NetworkBackend}}")[1].strip()

    def disconnect(self, container, network):
        self.host.run("podman", "network", "disconnect", network, container.id)

    def connect(self, container, network, addresses):
        options = [word for each in addresses for word in ("--ip6" if ":" in each else "--ip", each)]
        command = ("podman", "network", "connect", *options, network, container.id)
        status, _ = self.host.run(*command, fine=(0, NO_SUCH, FAILED))
        if status != 0:
            # What is left of an attempt that failed refuses each other one, and no inspect shows it.
            self.host.run("podman", "network", "disconnect", network, container.id, fine=(0, NO_SUCH, FAILED))
            self.host.run(*command)

    def remove(self, container):
        self.host.run("podman", "rm", "--force", "--ignore", "--time", str(STOP_SECONDS), container.id)
