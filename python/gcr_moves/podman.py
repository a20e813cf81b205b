"""podman, by its commands: it keeps the command that made a container."""

import json

from gcr_moves.engines import RECEIVE, SOURCE, Container, Engine, EngineError, anonymous_volumes, first_obstacle

STOP_SECONDS = 10  # then podman kills a container that it removes
NO_SUCH = 1  # status of `podman container exists`


def receiving_command(container, key):
    """The command that made a container, for one that receives its job."""
    words = list(container.recipe)
    verb = next((at for at, word in enumerate(words) if word in ("run", "create")), None)
    if verb is None:
        raise EngineError(f"{container.name} was not made by podman run or create")
    own = [
        ["--annotation", f"{RECEIVE}={key}"],
        ["--label", f"{SOURCE}={container.id}"],
        ["--name", container.name],
    ]
    rest = words[verb + 1 :]
    # A container that has received before has such words already, in this order.
    for option, value in own:
        if rest[:1] == [option] and rest[1].partition("=")[0] == value.partition("=")[0]:
            rest = rest[2:]
    rest = rest[1:] if rest[:1] == ["--detach"] else rest
    detach = ["--detach"] if words[verb] == "run" else []
    return ["podman", *words[1 : verb + 1], *(word for pair in own for word in pair), *detach, *rest]


def container_of(answer):
    its = json.loads(answer)[0]
    volumes = anonymous_volumes(its.get("Mounts"))
    return Container(
        id=its["Id"],
        name=its["Name"],
        image=its["Image"],
        image_name=its["ImageName"],
        status=its["State"]["Status"],
        init=int(its["State"]["Pid"]),
        obstacle=first_obstacle((
            (its["Config"].get("Tty"), "has a terminal, which cannot move"),
            (its.get("Pod"), "shares the namespaces of a pod"),
            (volumes, f"has a volume without a name, whose content would not move: {volumes}"),
        )),
        labels=its["Config"].get("Labels") or {},
        recipe=tuple(its["Config"].get("CreateCommand") or ()),
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

    def has_image(self, image):
        status, _ = self.host.run("podman", "image", "exists", image, fine=(0, NO_SUCH))
        return status == 0

    def start_receiver(self, container, key):
        words = receiving_command(container, key)
        _, said = self.host.run(*words)
        made = (said.split() or [container.name])[-1]
        if "--detach" not in words:
            self.host.run("podman", "start", made)
        return self.find(made)

    def remove(self, container):
        self.host.run("podman", "rm", "--force", "--ignore", "--time", str(STOP_SECONDS), container.id)
