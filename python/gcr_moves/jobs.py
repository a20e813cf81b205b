"""Jobs with a network of their own, by gcr-container itself: it lists, starts and ends them at their host."""

import json
import pathlib

from gcr_moves.engines import NOT_INSTALLED, SOURCE, Container, Engine, EngineError, NotInstalled
from gcr_moves.own_network import Network

PROGRAM = "gcr-container"
NO_SUCH = 1  # status of `ip link show`


def container_of(record):
    network = Network.parse(record["network"])
    return Container(
        id=record["id"],
        name=record["name"],
        image="",
        image_name="",
        status=record["status"],
        init=record["init"],
        obstacles=(),
        labels=record["labels"],
        recipe=record,
        networks={f"{network.kind}:{network.parent}": network.addresses},
    )


class Jobs(Engine):
    """Of a host. A job keeps its addresses wherever it is."""

    KEEPS_ADDRESSES = True

    def _all(self):
        status, said = self.host.run(PROGRAM, "jobs", fine=(0, NOT_INSTALLED))
        if status == NOT_INSTALLED:
            raise NotInstalled(f"{self.host.agent}: {PROGRAM} is not installed")
        return self.understood(said, lambda text: [container_of(each) for each in json.loads(text)])

    def find(self, name):
        return next((each for each in self._all() if name in (each.id, each.name)), None)

    def find_by_init(self, pid):
        try:
            return next((each for each in self._all() if each.running and each.init == pid), None)
        except NotInstalled:
            return None

    def has_image(self, image):
        return True  # its files are those of its host

    def image_named(self, name):
        return ""

    def start_receiver(self, container, key, with_address=False):
        its = container.recipe
        self.host.run(PROGRAM, "run", "--name", its["name"], "--network", its["network"], "--output", its["output"],
                      "--receive", key, "--from", container.id, "--detach", "--", *its["command"])  # fmt: skip
        made = self.find(its["name"])
        if made is None or made.labels.get(SOURCE) != container.id:
            raise EngineError(f"{self.host.agent}: {its['name']} is gone already")
        return made

    def obstacles_to(self, container):
        for folder in self.absent([str(pathlib.PurePath(container.recipe["output"]).parent)]):
            yield f"has no {folder}, where {container.name} writes its output"

    def can_give(self, network, addresses):
        status, _ = self.host.run("ip", "link", "show", "dev", network.partition(":")[2], fine=(0, NO_SUCH))
        return status == 0

    def remove(self, container):
        self.host.run(PROGRAM, "remove", container.id)
