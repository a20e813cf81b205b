"""containerd, by its CRI: it keeps the options of a container and of its pod, from which the receiving ones are made.

A container is named NAMESPACE/POD/CONTAINER. Its pod is made and removed with it.
"""

import base64
import dataclasses

from gcr_moves.cri_client import Libraries, Session
from gcr_moves.engines import RECEIVE, SOURCE, Container, Engine, EngineError, those_there

POD_OF_KUBELET = "io.kubernetes.pod.uid"  # label
STATES = ("created", "running", "exited", "unknown")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A pod, and what makes another one like it."""

    pod_id: str
    handler: str  # its runtime, by containerd's configuration
    pod: object = None  # PodSandboxConfig
    container: object = None  # ContainerConfig
    annotations: dict = dataclasses.field(default_factory=dict)  # those that the runtime sees


# ---- names ----


def pod_name(pod):
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def name_of(pod, container):
    return f"{pod_name(pod)}/{container.metadata.name}"


def chosen(name, pods, containers):
    """Of containers, by name or by the beginning of an id; None if there is none. `pods`: by id."""
    if "/" not in name:
        those = [each for each in containers if each.id.startswith(name)]
    else:
        those = [each for each in containers if name == name_of(pods[each.pod_sandbox_id], each)]
        # The others are from earlier attempts.
        running = [each for each in those if STATES[each.state] == "running"]
        those = running or sorted(those, key=lambda each: each.created_at)[-1:]
    if len(those) > 1:
        raise EngineError(f"several containers are {name}: give an id")
    return those[0] if those else None


def unfinished(name, pods, containers):
    """A pod without containers that was made for a job; None if there is none."""
    full = {each.pod_sandbox_id for each in containers}
    empty = [each for each in pods.values() if each.id not in full and SOURCE in each.labels]
    return next((each for each in empty if name in (each.id, pod_name(each)) or
                 name.startswith(f"{pod_name(each)}/")), None)  # fmt: skip


# ---- options ----


def plain_environment(variables, spec):
    """The variables of a ContainerConfig in JSON. Newer containerds give values in base64: the runtime's specification
    tells. ValueError if it fits neither."""
    there = set((spec.get("process") or {}).get("env") or ())

    def fits(values):
        return all(f"{key}={value}" in there for key, value in values.items())  # of equal keys, the last

    values = [each.get("value") or "" for each in variables]
    keys = [each.get("key") or "" for each in variables]
    if not fits(dict(zip(keys, values))):
        values = [base64.b64decode(each, validate=True).decode() for each in values]
        if not fits(dict(zip(keys, values))):
            raise ValueError("its environment is not that of its options")
    return [{"key": key, "value": value} for key, value in zip(keys, values)]


def receiving_options(libraries, container, key):
    """The PodSandboxConfig and the ContainerConfig of one that receives its job."""
    pod, config = libraries.messages.PodSandboxConfig(), libraries.messages.ContainerConfig()
    pod.CopyFrom(container.recipe.pod)
    config.CopyFrom(container.recipe.container)
    pod.labels[SOURCE] = config.labels[SOURCE] = container.id
    config.annotations[RECEIVE] = key
    config.image.image = container.image  # a name may have come to mean another one
    return pod, config


def lost_options(wanted, made):
    """Of two messages: the names of fields that differ."""
    names = [field.name for field in wanted.DESCRIPTOR.fields]
    return [name for name in names if getattr(wanted, name) != getattr(made, name)]


# ---- what is in the way ----


def volumes_of_image(container_id, spec):
    """Where containerd has mounted volumes that the image asks for; it made them for this container alone."""
    folder = f"/containers/{container_id}/volumes/"
    return ", ".join(each["destination"] for each in spec.get("mounts") or () if folder in (each.get("source") or ""))


def shared_pids(messages, config):
    modes = {
        messages.POD: "shares the PIDs of its pod, which cannot be kept",
        messages.NODE: "has the PIDs of its host, which cannot be kept",
        messages.TARGET: "has the PIDs of another container, which cannot be kept",
    }
    return modes.get(config.linux.security_context.namespace_options.pid, "")


def has_users(messages, config):
    options = config.linux.security_context.namespace_options
    return options.HasField("userns_options") and options.userns_options.mode != messages.NODE


def obstacles_of_options(messages, pod, config):
    pids = shared_pids(messages, config)
    return those_there((
        (config.tty, "has a terminal, which cannot move"),
        (pids, pids),
        (has_users(messages, pod) or has_users(messages, config), "has a user namespace"),
    ))  # fmt: skip


def obstacles_of_pod(labels, siblings, volumes):
    """`siblings`: the names of other containers in it."""
    return those_there((
        (POD_OF_KUBELET in labels, "is in a pod of a kubelet, which would remove one that it does not know"),
        (siblings, f"shares its pod with {siblings}"),
        (volumes, f"has a volume without a name, whose content would not move: {volumes}"),
    ))  # fmt: skip


# ---- the engine ----


class Cri(Engine):
    """The containerd of a host."""

    IMAGE_BY = "ctr -n k8s.io images export, and import there,"

    def __init__(self, host):
        super().__init__(host)
        self._libraries = None

    def find(self, name):
        with self._session() as cri:
            pods = {each.id: each for each in cri.ask("ListPodSandbox").items}
            # A container whose pod is being removed is as good as gone.
            containers = [each for each in cri.ask("ListContainers").containers if each.pod_sandbox_id in pods]
            found = chosen(name, pods, containers)
            if found is not None:
                return self._described(cri, pods[found.pod_sandbox_id], found, containers)
            pod = unfinished(name, pods, containers)
        return pod and Container(
            id=pod.id, name=pod_name(pod), image="", image_name="", status="created", init=0, obstacles=(),
            labels=dict(pod.labels), recipe=Recipe(pod.id, pod.runtime_handler))  # fmt: skip

    def image_named(self, name):
        with self._session() as cri:
            return self._image(cri, name)

    def obstacles_to(self, container):
        with self._session() as cri:
            kubelet = any(POD_OF_KUBELET in each.labels for each in cri.ask("ListPodSandbox").items)
        return those_there([(kubelet, "has a kubelet, which would remove a pod that it does not know")])

    def start_receiver(self, container, key, with_address=False):
        pod, config = receiving_options(self._libraries_of_it(), container, key)
        pod_id = self._ask("RunPodSandbox", config=pod, runtime_handler=container.recipe.handler).pod_sandbox_id
        try:
            made = self._ask("CreateContainer", pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
            if made is None:
                return None
            self._check(made.container_id, pod, config)
            self._ask("StartContainer", container_id=made.container_id)
        except EngineError:
            self._remove(pod_id)
            raise
        return self.find(made.container_id)

    def remove(self, container):
        self._remove(container.recipe.pod_id)

    def remove_rest(self, container):
        wanted = container.recipe.pod and container.recipe.pod.metadata
        with self._session() as cri:
            full = {each.pod_sandbox_id for each in cri.ask("ListContainers").containers}
            for pod in cri.ask("ListPodSandbox").items:
                if pod.metadata == wanted and pod.id not in full:
                    cri.ask("RemovePodSandbox", pod_sandbox_id=pod.id)

    # ---- its parts ----

    def _described(self, cri, pod, listed, containers):
        """A container of the lists; None if it is gone."""
        answer, its = cri.status("ContainerStatus", container_id=listed.id)
        pod_answer, pods = cri.status("PodSandboxStatus", pod_sandbox_id=pod.id)
        if answer is None or pod_answer is None:
            return None
        siblings = [each.metadata.name for each in containers if each.pod_sandbox_id == pod.id and each.id != listed.id]
        recipe, obstacles = self.understood(its, lambda said: self._recipe(pod, pods, said))
        volumes = self.understood(its, lambda said: volumes_of_image(listed.id, said.get("runtimeSpec") or {}))
        return Container(
            id=listed.id,
            name=name_of(pod, listed),
            image=self._image(cri, answer.status.image_ref) or answer.status.image_ref,
            image_name=answer.status.image.image,
            status=STATES[answer.status.state],
            init=self.understood(its, lambda said: int(said["pid"])),
            obstacles=(*obstacles_of_pod(pod.labels, ", ".join(siblings), volumes), *obstacles),
            labels=dict(listed.labels),
            recipe=recipe,
            folders=tuple(each.host_path for each in recipe.container.mounts if each.host_path) if recipe.container else (),
        )

    def _recipe(self, pod, pod_said, said):
        """With what its options have against a move."""
        libraries = self._libraries_of_it()
        spec, given = said.get("runtimeSpec") or {}, dict(said["config"])
        recipe = Recipe(pod.id, pod.runtime_handler, annotations=spec.get("annotations") or {})
        try:
            given["envs"] = plain_environment(given.get("envs") or (), spec)
            config = libraries.message("ContainerConfig", given)
            pod_config = libraries.message("PodSandboxConfig", pod_said["config"])
        except ValueError as error:
            return recipe, (f"has options that are not known: {error}",)
        recipe = dataclasses.replace(recipe, pod=pod_config, container=config)
        return recipe, obstacles_of_options(libraries.messages, pod_config, config)

    def _check(self, made, pod, config):
        """A container that was made and not started: whether it has all options, and will wait for its job."""
        recipe = self.find(made).recipe
        lost = recipe.pod and lost_options(pod, recipe.pod) + lost_options(config, recipe.container)
        if lost or recipe.pod is None:
            raise EngineError(f"{self.host.agent}: its containerd does not support {', '.join(lost or ('an option',))}")
        if recipe.annotations.get(RECEIVE) != config.annotations[RECEIVE]:
            raise EngineError(f"{self.host.agent}: containerd's configuration does not pass {RECEIVE} on: runtime "
                              f"{recipe.handler} has no such container_annotations")  # fmt: skip

    def _remove(self, pod_id):
        # Its containers too: one request, of which nothing is left that find() does not see.
        self._ask("RemovePodSandbox", pod_sandbox_id=pod_id)

    @staticmethod
    def _image(cri, name):
        found = cri.ask("ImageStatus", image={"image": name})
        return found.image.id if found is not None else ""

    def _libraries_of_it(self):
        self._libraries = self._libraries or Libraries()
        return self._libraries

    def _session(self):
        return Session(self.host, self._libraries_of_it())

    def _ask(self, method, **fields):
        with self._session() as cri:
            return cri.ask(method, **fields)
