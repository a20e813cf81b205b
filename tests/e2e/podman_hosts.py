"""Hosts of scripts/hosts that have a podman each, with a storage, a /run and a configuration of its own.

Their image has this machine's C library and a few programs. The sample programs are in a volume.
"""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import tarfile

from ticker_hosts import HANGS_S, ROOT, TICKER, Hosts

IMAGE = "localhost/gcr-test"
PROGRAMS = ("sh", "cat", "sleep", "mkdir")
FOLDERS = ("dev", "etc", "mnt", "proc", "run", "srv", "sys", "tmp")
STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/disk/storage"
runroot = "{folder}/disk/run"
"""
# CONTAINERS_CONF is its file alone.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=1000:1000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
static_dir = "{folder}/disk/static"
tmp_dir = "{folder}/disk/tmp"
volume_path = "{folder}/disk/volumes"
runtime = "gcr"
[engine.runtimes]
gcr = ["{folder}/gcr"]
"""


def libraries_of(program):
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return {pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


def make_image(path, *of_volume):
    """An archive for `podman import`, with the libraries of these programs too."""
    programs = {pathlib.Path(shutil.which(name)) for name in PROGRAMS}
    files = programs.union(*map(libraries_of, [*programs, *of_volume]))
    with tarfile.open(path, "w") as image:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            image.addfile(folder)
        for file in sorted(files):
            image.add(file.resolve(), str(file).lstrip("/"))


class PodmanHosts(Hosts):
    """`shell` is for gcr-container."""

    def __init__(self, *options):
        super().__init__(2, *options)
        self.prefix = pathlib.Path(self.env["PREFIX"])
        self.program = self.prefix / "bin" / TICKER
        make_image(self.folder / "image.tar", self.program,
                   *(self.prefix / path for path in ("lib/libgcr-preload.so", "tests/softgpu/libcuda.so.1")))
        for host in "ab":
            self._configure(host)
            self.podman(host, "import", "--quiet", self.folder / "image.tar", IMAGE)
        self.shell = [str(self._write_shell()), "%h"]

    def close(self):
        for host in "ab":
            self.podman(host, "rm", "--all", "--force", "--time", "0", check=False)
            subprocess.run(["umount", "--recursive", "--lazy", self._home(host) / "disk"], check=True)
        super().close()

    def _home(self, host):
        return self.folder / f"podman-{host}"

    def _configure(self, host):
        home = self._home(host)
        (home / "disk").mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", home / "disk"], check=True)
        state = self.env[f"STATE_{host.upper()}"]
        texts = {
            "containers.conf": CONFIGURATION.format(folder=home, files=resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            "storage.conf": STORAGE.format(folder=home),
            "runtime.toml": f'state = "{state}/received"\nlog = "{home}/runtime.log"\n',
            "gcr": f'#!/bin/sh\nGCR_RUNTIME_CONFIG={home}/runtime.toml exec {self.prefix}/bin/gcr-runtime "$@"\n',
        }
        for name, text in texts.items():
            (home / name).write_text(text, encoding="utf-8")
        (home / "gcr").chmod(0o755)

    def _write_shell(self):
        """Runs a command line with the podman of the host that has an address."""
        lines = ["#!/bin/sh", "case $1 in"]
        lines += [f"{self.address(host)}) home={self._home(host)} ;;" for host in "ab"]
        lines += ["esac", "export CONTAINERS_CONF=$home/containers.conf CONTAINERS_STORAGE_CONF=$home/storage.conf",
                  'exec /bin/sh -c "$2"', ""]  # fmt: skip
        script = self.folder / "shell"
        script.write_text("\n".join(lines), encoding="utf-8")
        script.chmod(0o755)
        return script

    def podman_command(self, host, *words):
        home = self._home(host)
        return ["env", f"CONTAINERS_CONF={home}/containers.conf", f"CONTAINERS_STORAGE_CONF={home}/storage.conf",
                "podman", *map(str, words)]  # fmt: skip

    def podman(self, host, *words, check=True):
        """The finished command."""
        ran = subprocess.run(self.podman_command(host, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             check=False, timeout=HANGS_S)  # fmt: skip
        if check and ran.returncode != 0:
            raise AssertionError(f"podman {words[0]}: status {ran.returncode}: {ran.stderr}")
        return ran

    def start_container(self, host, name, *options):
        """A ticker, in a container under gcr-runtime."""
        environment = [word for pair in self.env[f"GPU_ENV_{host.upper()}"].split() for word in ("--env", pair)]
        self.podman(host, "run", "--detach", "--name", name, "--network", "none", "--volume",
                    f"{self.prefix}:{self.prefix}", *environment, *options, IMAGE, self.program)  # fmt: skip

    def lines(self, host, name):
        return self.podman(host, "logs", name).stdout.splitlines()

    def states(self, host):
        """Of all its containers, by name."""
        said = self.podman(host, "ps", "--all", "--format", "json").stdout
        return {each["Names"][0]: each["State"] for each in json.loads(said)}

    def container_words(self, name, source, target, shell=None):
        """For gcr-container."""
        return [f"podman:{name}", self.address(source), self.address(target), "--json",
                "--shell", " ".join(shell or self.shell), *self.env["GCR_TLS"].split()]  # fmt: skip

    def preflight(self, name, source, target):
        """By `gcr-migrate container`, which finds gcr-container in the path: the finished command, and its answer."""
        wrapper = self.folder / "bin" / "gcr-container"
        if not wrapper.exists():
            wrapper.parent.mkdir()
            wrapper.symlink_to(ROOT / "scripts/container")
        command = self.on("a", f"PATH={wrapper.parent}:{os.environ['PATH']}", self.env["GCR_CLI"], "container",
                          "preflight", *self.container_words(name, source, target))  # fmt: skip
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS_S)
        return ran, json.loads(ran.stdout) if ran.stdout else {}

    def move_command(self, name, source, target, *words, shell=None):
        """gcr-container, on host a."""
        return self.on("a", ROOT / "scripts/container", "migrate", *self.container_words(name, source, target, shell),
                       "--cli", self.env["GCR_CLI"], *words)  # fmt: skip

    def move(self, name, source, target, **options):
        """The finished command, and its report."""
        ran = subprocess.run(self.move_command(name, source, target, **options), capture_output=True, text=True,
                             check=False, timeout=HANGS_S)  # fmt: skip
        return ran, json.loads(ran.stdout) if ran.stdout else {}
