"""Hosts that have a docker and a containerd each, the programs that scripts/install-deps has unpacked."""

import json
import os
import pathlib
import subprocess

from engine_hosts import IMAGE, EngineHosts
from ticker_hosts import ROOT, wait_for

PROGRAMS = pathlib.Path(os.environ.get("GCR_DEPS_DIR", ROOT / "build/deps")) / "docker"
CONTAINERD = """
version = 2
root = "{folder}/disk/containerd"
state = "{folder}/disk/containerd-run"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/containerd.sock"
"""
# No bridge and no rules: the hosts' networks stay as they are.
OPTIONS = ("--storage-driver", "overlay2", "--default-runtime", "gcr", "--bridge", "none", "--iptables=false",
           "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")  # fmt: skip


class DockerHosts(EngineHosts):
    ENGINE = "docker"
    CHECKED = ("--health-cmd", "cat /dev/null", "--health-interval", "1s", "--health-retries", "1")
    SETTINGS = {}  # of daemon.json

    def __init__(self, *options):
        self._daemons = {host: [] for host in "ab"}
        super().__init__(*options)

    def configure(self, host):
        home = self.home(host)
        (home / "containerd.toml").write_text(CONTAINERD.format(folder=home), encoding="utf-8")
        self._start(host, "containerd", "--config", home / "containerd.toml")
        wait_for("containerd listens", (home / "containerd.sock").exists)
        settings = {"runtimes": {"gcr": {"path": f"{home}/gcr"}}, **self.SETTINGS}
        (home / "daemon.json").write_text(json.dumps(settings), encoding="utf-8")
        self._start(host, "dockerd", "--config-file", home / "daemon.json", "--host", f"unix://{home}/docker.sock",
                    "--containerd", home / "containerd.sock", "--data-root", home / "disk/docker",
                    "--exec-root", home / "disk/docker-run", "--pidfile", home / "docker.pid", *OPTIONS)  # fmt: skip

    def _start(self, host, program, *words):
        with open(self.home(host) / f"{program}.log", "ab") as log:
            command = ["env", *(f"{name}={value}" for name, value in self.environment(host).items()), program]
            self._daemons[host].append(subprocess.Popen(  # pylint: disable=consider-using-with
                self.on(host, *command, *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True))  # fmt: skip

    def end(self, host):
        for daemon in reversed(self._daemons[host]):
            daemon.terminate()
            daemon.wait()

    def kill_engine(self, host):
        """Its engine, without warning; the shims of its containers go on."""
        for daemon in self._daemons[host]:
            daemon.kill()
            daemon.wait()
        self._daemons[host].clear()

    def start_engine(self, host):
        """An engine that was killed."""
        self.configure(host)
        self._wait(host)

    def _wait(self, host):
        wait_for("docker answers", lambda: self.engine(host, "version", check=False).returncode == 0)

    def environment(self, host):
        home = self.home(host)
        path = f"{PROGRAMS}:{os.environ['PATH']}"
        return {"DOCKER_HOST": f"unix://{home}/docker.sock", "DOCKER_CONFIG": home, "PATH": path}

    def take_image(self):
        # An imported one would have the time of its import, and so another digest, at each host.
        kept = self.folder / "docker-image.tar"
        for host in "ab":
            self._wait(host)
        self.engine("a", "import", self.image, IMAGE)
        self.engine("a", "save", "--output", kept, IMAGE)
        self.engine("b", "load", "--input", kept)

    def states(self, host):
        said = self.engine(host, "ps", "--all", "--format", "{{.Names}} {{.State}}").stdout
        return dict(line.split() for line in said.splitlines())

    def is_healthy(self, host, name):
        said = self.engine(host, "inspect", name, "--format", "{{.State.Health.Status}}", check=False).stdout.strip()
        return {"healthy": True, "unhealthy": False}.get(said)


class LiveDockerHosts(DockerHosts):
    """Containers run on without their engine, which finds them again."""

    SETTINGS = {"live-restore": True}
