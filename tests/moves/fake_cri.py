"""containerd's CRI, with pods and containers that exist in memory; it listens on a socket."""

import concurrent.futures
import itertools
import json
import secrets

import grpc

from gcr_moves import cri, cri_client, engines

LIBRARIES = cri_client.Libraries()
MESSAGES = LIBRARIES.messages
HANDLER = "gcr"


def id_of_a_container():
    return secrets.token_hex(32)


class FakeCri(grpc.GenericRpcHandler):
    """Call add_container. `images`: ids by name."""

    _inits = itertools.count(5001)

    def __init__(self, folder, name):
        self.endpoint = f"unix://{folder}/{name}"
        self.pods, self.containers = {}, {}  # by id: Pod-like and Container-like dictionaries
        self.images = {"app": "sha256:" + "1" * 64}
        self.passes_annotations = True
        self.supported = lambda config: config  # what it makes of a ContainerConfig
        self.verbose = lambda said: said  # what it makes of verbose information
        self.asked = []  # the names of methods
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), [self])
        self._server.add_insecure_port(self.endpoint)
        self._server.start()

    def stop(self):
        self._server.stop(None).wait()

    def host(self, name):
        """engines.Host of it."""
        return engines.Host(name, ["env", f"CONTAINER_RUNTIME_ENDPOINT={self.endpoint}", "sh", "-c"])

    def engine(self, name="a"):
        return cri.Cri(self.host(name))

    # ---- gRPC ----

    def service(self, details):
        name = details.method.rpartition("/")[2]
        method = LIBRARIES.methods[name]

        def answer(request, context):
            self.asked.append(name)
            try:
                return getattr(self, name)(request) or getattr(MESSAGES, method.output_type.name)()
            except KeyError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no such thing: {error}")
            except ValueError as error:
                context.abort(grpc.StatusCode.UNKNOWN, str(error))

        return grpc.unary_unary_rpc_method_handler(
            answer, getattr(MESSAGES, method.input_type.name).FromString,
            getattr(MESSAGES, method.output_type.name).SerializeToString)  # fmt: skip

    # ---- the interface: named as there ----  pylint: disable=invalid-name

    def RunPodSandbox(self, request):
        if any(each["config"].metadata == request.config.metadata for each in self.pods.values()):
            raise ValueError("failed to reserve sandbox name")
        pod_id = id_of_a_container()
        self.pods[pod_id] = {"config": request.config, "handler": request.runtime_handler}
        return MESSAGES.RunPodSandboxResponse(pod_sandbox_id=pod_id)

    def RemovePodSandbox(self, request):
        self.remove_containers(request.pod_sandbox_id)
        self.pods.pop(request.pod_sandbox_id, None)

    def PodSandboxStatus(self, request):
        pod = self.pods[request.pod_sandbox_id]
        info = {"config": self.json(pod["config"]), "runtimeHandler": pod["handler"], "netNamespaceClosed": False}
        return MESSAGES.PodSandboxStatusResponse(info={"info": json.dumps(info)})

    def ListPodSandbox(self, _):
        return MESSAGES.ListPodSandboxResponse(items=[
            MESSAGES.PodSandbox(id=key, metadata=pod["config"].metadata, labels=pod["config"].labels,
                                runtime_handler=pod["handler"])
            for key, pod in self.pods.items()])  # fmt: skip

    def CreateContainer(self, request):
        self.pods[request.pod_sandbox_id]  # pylint: disable=pointless-statement
        image = self._image(request.config.image.image)
        made = id_of_a_container()
        self.containers[made] = {"pod": request.pod_sandbox_id, "config": self.supported(request.config),
                                 "image": image, "state": MESSAGES.CONTAINER_CREATED, "pid": 0,
                                 "created": len(self.containers)}  # fmt: skip
        return MESSAGES.CreateContainerResponse(container_id=made)

    def StartContainer(self, request):
        self.containers[request.container_id].update(state=MESSAGES.CONTAINER_RUNNING, pid=next(self._inits))

    def ListContainers(self, _):
        return MESSAGES.ListContainersResponse(containers=[
            MESSAGES.Container(id=key, pod_sandbox_id=its["pod"], metadata=its["config"].metadata, state=its["state"],
                               created_at=its["created"], labels=its["config"].labels)
            for key, its in self.containers.items()])  # fmt: skip

    def ContainerStatus(self, request):
        its = self.containers[request.container_id]
        status = MESSAGES.ContainerStatus(
            id=request.container_id, state=its["state"], image={"image": "app"}, image_ref=its["image"])
        annotations = dict(its["config"].annotations) if self.passes_annotations else {}
        said = {
            "sandboxID": its["pod"], "pid": its["pid"], "snapshotter": "overlayfs",
            "config": self.json(its["config"]),
            "runtimeSpec": {
                "process": {"env": ["PATH=/bin", *(f"{each.key}={each.value}" for each in its["config"].envs)]},
                "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
                "annotations": {**annotations, "io.kubernetes.cri.container-type": "container"},
            },
        }  # fmt: skip
        return MESSAGES.ContainerStatusResponse(status=status, info={"info": json.dumps(self.verbose(said))})

    def ImageStatus(self, request):
        try:
            return MESSAGES.ImageStatusResponse(image={"id": self._image(request.image.image)})
        except ValueError:
            return None

    # ---- for tests ----

    @staticmethod
    def json(message):
        """As Go writes it."""
        return LIBRARIES.json_format.MessageToDict(
            message, preserving_proto_field_name=True, use_integers_for_enums=True)  # fmt: skip

    def _image(self, name):
        if name not in {*self.images, *self.images.values()}:
            raise ValueError(f"failed to resolve image {name}")
        return self.images.get(name, name)

    def remove_containers(self, pod_id):
        for key in [key for key, its in self.containers.items() if its["pod"] == pod_id]:
            del self.containers[key]

    def add_container(self, pod="train", name="main", labels=None, pod_labels=None, **fields):
        """Its id. It runs."""
        config = MESSAGES.PodSandboxConfig(
            metadata={"name": pod, "namespace": "default", "uid": f"{pod}-uid"}, labels=pod_labels,
            log_directory=f"/var/log/pods/{pod}", linux={"cgroup_parent": "/kubepods"})  # fmt: skip
        found = [key for key, its in self.pods.items() if its["config"].metadata == config.metadata]
        pod_id = found[0] if found else self.RunPodSandbox(
            MESSAGES.RunPodSandboxRequest(config=config, runtime_handler=HANDLER)).pod_sandbox_id
        fields.setdefault("linux", {"security_context": {"namespace_options": {"pid": MESSAGES.CONTAINER}}})
        request = MESSAGES.CreateContainerRequest(pod_sandbox_id=pod_id, config={
            "metadata": {"name": name}, "image": {"image": "app"}, "labels": labels,
            "envs": [{"key": "X", "value": "$(reboot)'\""}], "command": ["sleep", "1 \n2"], **fields})  # fmt: skip
        made = self.CreateContainer(request).container_id
        self.containers[made].update(state=MESSAGES.CONTAINER_RUNNING, pid=next(self._inits))
        return made

    def names(self):
        return sorted(f"{self.pods[its['pod']]['config'].metadata.name}/{its['config'].metadata.name}"
                      for its in self.containers.values())  # fmt: skip
