"""Hosts that have a containerd with its CRI each, the programs that scripts/install-deps has unpacked."""

import hashlib
import io
import json
import os
import pathlib
import platform
import subprocess
import tarfile

import docker_hosts
from cri_engine import lines_of
from engine_hosts import IMAGE, EngineHosts
from ticker_hosts import wait_for

PYTHON = "/usr/bin/python3"  # Debian's, which has Debian's grpc
CLIENT = pathlib.Path(__file__).resolve().parent / "cri_engine.py"
PAUSE = "localhost/gcr-pause:latest"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Pods have their host's network, so there is no CNI. Not every root may lower the score of a process.
CONTAINERD = """
version = 2
root = "{home}/disk/containerd"
state = "{home}/disk/containerd-run"
[grpc]
  address = "{home}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/disk/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{home}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "gcr"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gcr]
    runtime_type = "io.containerd.runc.v2"
    container_annotations = ["gcr-migrate.*"]
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gcr.options]
      BinaryName = "{home}/gcr"
"""
# Runs a command that has another folder for logs than all others.
OWN_LOGS = 'mount --make-private "$(findmnt -n -o TARGET -T {logs})" && mount --bind {own} {logs} && exec "$@"'


def make_archive(path, layer, name, **config):
    """An image of one layer, in the layout of the Open Container Initiative."""
    kind = "application/vnd.oci.image"
    with tarfile.open(path, "w") as archive:

        def add(name, content):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))

        def blob(media_type, content):
            digest = hashlib.sha256(content).hexdigest()
            add(f"blobs/sha256/{digest}", content)
            return {"mediaType": f"{kind}.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

        rootfs = blob("layer.v1.tar", layer)
        options = blob("config.v1+json", json.dumps({
            "architecture": ARCHITECTURES[platform.machine()], "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [rootfs["digest"]]}}).encode())  # fmt: skip
        manifest = blob("manifest.v1+json", json.dumps({
            "schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json", "config": options,
            "layers": [rootfs]}).encode())  # fmt: skip
        manifest["annotations"] = {"io.containerd.image.name": name}
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
        add("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


class CriHosts(EngineHosts):
    ENGINE = "cri"

    def __init__(self, *options):
        self._daemons = {}
        # For gcr-container, and for containerd's shim and ctr.
        os.environ["PATH"] = f"{pathlib.Path(PYTHON).parent}:{docker_hosts.PROGRAMS}:{os.environ['PATH']}"
        super().__init__(*options)

    @property
    def log_directory(self):
        """Of pods on both hosts, where each has a folder of its own."""
        return self.folder / "pods"

    def configure(self, host):
        home = self.home(host)
        for folder in (self.log_directory, home / "logs"):
            folder.mkdir(exist_ok=True)
        (home / "containerd.toml").write_text(CONTAINERD.format(home=home, pause=PAUSE), encoding="utf-8")
        # Agents must see the mounts of its containers.
        subprocess.run(["mount", "--make-shared", home / "disk"], check=True)
        command = OWN_LOGS.format(logs=self.log_directory, own=home / "logs")
        with open(home / "containerd.log", "wb") as log:
            self._daemons[host] = subprocess.Popen(  # pylint: disable=consider-using-with
                self.on(host, "unshare", "--mount", "--propagation", "unchanged", "sh", "-c", command, "sh",
                        "containerd", "--config", home / "containerd.toml"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)  # fmt: skip

    def end(self, host):
        self._daemons[host].terminate()
        self._daemons[host].wait()

    def environment(self, host):
        home = self.home(host)
        return {"CONTAINER_RUNTIME_ENDPOINT": f"unix://{home}/containerd.sock", "CRI_LOGS": home / "logs",
                "CRI_LOG_DIRECTORY": self.log_directory}  # fmt: skip

    def take_image(self):
        layer = self.image.read_bytes()
        for name, archive, config in ((f"{IMAGE}:latest", "app.tar", {}),
                                      (PAUSE, "pause.tar", {"Entrypoint": ["sleep", "infinity"]})):  # fmt: skip
            make_archive(self.folder / archive, layer, name, Env=["PATH=/usr/bin:/bin"], **config)
            for host in "ab":
                wait_for("containerd answers", lambda host=host: self.engine(host, "ps", check=False).returncode == 0)
                subprocess.run(["ctr", "--address", self.home(host) / "containerd.sock", "--namespace", "k8s.io",
                                "images", "import", self.folder / archive],
                               check=True, capture_output=True)  # fmt: skip

    def engine_command(self, host, *words):
        return ["env", *self._variables(host), PYTHON, CLIENT, *map(str, words)]

    def is_healthy(self, host, name):
        """By a command in it, as a kubelet's probes are."""
        return True if self.engine(host, "exec", name, "cat", "/dev/null", check=False).returncode == 0 else None

    def full_name(self, name):
        return f"default/{name}/main"

    def lines(self, host, name):
        return lines_of(self.home(host) / "logs" / name).splitlines()

    def states(self, host):
        return dict(line.split() for line in self.engine(host, "ps").stdout.splitlines())
