"""Engines of hosts that exist in memory, in the place of gcr_moves.container_jobs.ENGINES."""

import itertools

from gcr_moves import engines

IMAGE = "1" * 64


class FakeEngines:
    """Has the containers of all hosts, and may be called as an engine's class."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.containers = {name: [] for name in cluster.hosts}
        self.images = {name: {"app": IMAGE} for name in cluster.hosts}  # by name: the content
        self.volumes = {name: set() for name in cluster.hosts}
        self.files = {}  # what files_in() says, by host and path
        self.silent = set()  # hosts whose shells do not answer
        self.asked = set()
        self.started = []  # (host, name) of every receiving container
        self._inits = itertools.count(5001)

    def __call__(self, host):
        return FakeEngine(self, host)

    def add_container(self, host, name, size_gib, labels=None, **fields):
        """With a job; the job's PID."""
        container = self.make(host, name, labels or {}, **fields)
        return self.cluster.add_job(host, size_gib, container_init=container.init)

    def make(self, host, name, labels, **fields):
        init = next(self._inits)
        made = engines.Container(**{
            "id": f"{host}-{init}", "name": name, "image": self.images[host]["app"], "image_name": "app",
            "status": "running", "init": init, "obstacles": (), "labels": labels, "recipe": None, **fields,
        })  # fmt: skip
        self.containers[host].append(made)
        return made

    def names(self, host):
        return [each.name for each in self.containers[host]]


class FakeEngine(engines.Engine):
    IMAGE_BY = "a courier"

    def __init__(self, all_of_them, host):
        super().__init__(host)
        self._all = all_of_them

    def _mine(self):
        self._all.asked.add(self.host.agent)
        if self.host.agent in self._all.silent:
            raise engines.EngineError(f"{self.host.agent}: the shell does not answer")
        return self._all.containers[self.host.agent]

    def find(self, name):
        return next((each for each in self._mine() if name in (each.name, each.id)), None)

    def find_by_init(self, pid):
        return next((each for each in self._mine() if each.init == pid), None)

    def has_image(self, image):
        return image in self._all.images[self.host.agent].values()

    def image_named(self, name):
        return self._all.images[self.host.agent].get(name, "")

    def has_volume(self, name):
        return name in self._all.volumes[self.host.agent]

    def volume_folder(self, name):
        return f"/volumes/{name}"

    def files_in(self, path):
        return self._all.files[self.host.agent, path]

    def absent(self, paths):
        return [path for path in paths if path not in self._all.volumes[self.host.agent]]

    def start_receiver(self, container, key, with_address=False):
        self._all.started.append((self.host.agent, container.name))
        self._all.with_address = with_address
        return self._all.make(self.host.agent, container.name, {engines.SOURCE: container.id, engines.RECEIVE: key})

    def remove(self, container):
        mine = self._mine()
        mine[:] = [each for each in mine if each.id != container.id]

    def name_of_init(self, container):
        if self.children_of_init(container):
            return "gcr-init"
        return "gcr-receiving" if engines.RECEIVE in container.labels else "gcr-moved"

    def children_of_init(self, container):
        jobs = self._all.cluster.hosts[self.host.agent]["jobs"]
        return {each["pid"] for each in jobs if each["container_init"] == container.init}
