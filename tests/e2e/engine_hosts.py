"""Hosts of scripts/hosts that have a container engine each, which has its storage and its configuration for itself.

Their image has this machine's C library and a few programs. The sample programs are in a volume.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import layer_changes
from ticker_hosts import HANGS_S, ROOT, TICKER, Hosts

sys.path.insert(0, str(ROOT / "python"))

from gcr_lab import podman  # noqa: E402

IMAGE = "localhost/gcr-test"
SHELL = pathlib.Path("/bin/sh")  # of health checks
PROGRAMS = ("sh", "cat", "sleep", "mkdir")
RUNTIME = os.environ.get("GCR_NEXT_RUNTIME", "")  # below gcr-runtime; empty: its own choice


def make_image(path, *of_volume):
    """An archive for an engine's `import`, with the libraries of these programs too."""
    programs = {SHELL, *(pathlib.Path(shutil.which(name)) for name in PROGRAMS)}
    podman.write_image(path, programs | podman.libraries_of(*programs, *of_volume, check=True))
    layer_changes.add_to_image(path)


class EngineHosts(Hosts):
    """`shell` is for gcr-container."""

    ENGINE = ""  # as gcr-container calls it, and its command
    REMOVE = ("rm", "--force")  # at once
    CHECKED = ()  # options of containers whose health is_healthy() tells
    COUNT = 2  # a and b have engines
    NETWORK = "none"  # of containers

    def __init__(self, *options):
        super().__init__(self.COUNT, *options)
        self.prefix = pathlib.Path(self.env["PREFIX"])
        self.program = self.prefix / "bin" / TICKER
        self.image = self.folder / "image.tar"
        make_image(self.image, self.program, *(self.prefix / path for path in (
            "bin/chatter", "lib/libgcr-preload.so", "tests/softgpu/libcuda.so.1")))  # fmt: skip
        for host in "ab":
            self._make_home(host)
            self.configure(host)
        self.take_image()
        self.shell = [str(self._write_shell()), "%h"]

    def close(self):
        for host in "ab":
            for name in self.states(host):
                self.engine(host, *self.REMOVE, name, check=False)
            self.end(host)
            subprocess.run(["umount", "--recursive", "--lazy", self.home(host) / "disk"], check=True)
        super().close()

    # ---- what engines differ in ----

    def configure(self, host):
        """Its engine, with home()/gcr as the runtime of all containers and home()/disk as its storage."""
        raise NotImplementedError

    def end(self, host):
        """Of its engine, which has no containers now."""

    def environment(self, host):
        """For its engine's command."""
        raise NotImplementedError

    def entry(self, host):  # pylint: disable=unused-argument
        """What its engine's command is run by."""
        return []

    def take_image(self):
        """The same one for all engines, as IMAGE."""
        raise NotImplementedError

    def states(self, host):
        """Of all its containers, by name."""
        raise NotImplementedError

    def is_healthy(self, host, name):
        """As its health check says; None if it has not said so yet, or there is no such container."""
        raise NotImplementedError

    def full_name(self, name):
        """As gcr-container calls a container."""
        return name

    # ---- what they have in common ----

    def home(self, host):
        return self.folder / f"{self.ENGINE}-{host}"

    def _make_home(self, host):
        home = self.home(host)
        (home / "disk").mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", home / "disk"], check=True)
        state = self.env[f"STATE_{host.upper()}"]
        settings = f'state = "{state}/received"\nlog = "{home}/runtime.log"\nruntime = "{RUNTIME}"\n'
        (home / "runtime.toml").write_text(settings, encoding="utf-8")
        lines = f'#!/bin/sh\nGCR_RUNTIME_CONFIG={home}/runtime.toml exec {self.prefix}/bin/gcr-runtime "$@"\n'
        (home / "gcr").write_text(lines, encoding="utf-8")
        (home / "gcr").chmod(0o755)

    def _variables(self, host):
        return [f"{name}={value}" for name, value in self.environment(host).items()]

    def _write_shell(self):
        """Runs a command line with the engine of the host that has an address."""
        lines = ["#!/bin/sh", "case $1 in"]
        lines += [f"{self.address(host)}) export {' '.join(self._variables(host))}; by='{' '.join(self.entry(host))}' ;;"
                  for host in "ab"]  # fmt: skip
        lines += ["esac", 'exec $by /bin/sh -c "$2"', ""]
        script = self.folder / "shell"
        script.write_text("\n".join(lines), encoding="utf-8")
        script.chmod(0o755)
        return script

    def engine_command(self, host, *words):
        return [*self.entry(host), "env", *self._variables(host), self.ENGINE, *map(str, words)]

    def engine(self, host, *words, check=True):
        """The finished command."""
        ran = subprocess.run(self.engine_command(host, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             check=False, timeout=HANGS_S)  # fmt: skip
        if check and ran.returncode != 0:
            raise AssertionError(f"{self.ENGINE} {words[0]}: status {ran.returncode}: {ran.stderr}")
        return ran

    def start_container(self, host, name, *options, words=()):
        """A ticker, or these words, in a container under gcr-runtime."""
        environment = [word for pair in self.env[f"GPU_ENV_{host.upper()}"].split() for word in ("--env", pair)]
        self.engine(host, "run", "--detach", "--name", name, "--network", self.NETWORK, "--volume",
                    f"{self.prefix}:{self.prefix}", *environment, *options, IMAGE, *words or [self.program])  # fmt: skip

    def init(self, host, name):
        """The PID of a container's first process."""
        return int(self.engine(host, "inspect", name, "--format", "{{.State.Pid}}").stdout)

    def lines(self, host, name):
        return self.engine(host, "logs", name).stdout.splitlines()

    def container_words(self, name, source, target, shell=None):
        """For gcr-container."""
        return [f"{self.ENGINE}:{self.full_name(name)}", self.address(source), self.address(target), "--json",
                "--shell", " ".join(shell or self.shell), *self.env["GCR_TLS"].split()]  # fmt: skip

    def preflight(self, name, source, target, *words):
        """By `gcr-migrate container`, which finds gcr-container in the path: the finished command, and its answer."""
        wrapper = self.folder / "bin" / "gcr-container"
        if not wrapper.exists():
            wrapper.parent.mkdir()
            wrapper.symlink_to(ROOT / "scripts/container")
        command = self.on("a", f"PATH={wrapper.parent}:{os.environ['PATH']}", self.env["GCR_CLI"], "container",
                          "preflight", *self.container_words(name, source, target), *words)  # fmt: skip
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS_S)
        return ran, json.loads(ran.stdout) if ran.stdout else {}

    def move_command(self, name, source, target, *words, shell=None):
        """gcr-container, on host a."""
        return self.on("a", ROOT / "scripts/container", "migrate", *self.container_words(name, source, target, shell),
                       "--cli", self.env["GCR_CLI"], *words)  # fmt: skip

    def move(self, name, source, target, *words, **options):
        """The finished command, and its report."""
        ran = subprocess.run(self.move_command(name, source, target, *words, **options), capture_output=True, text=True,
                             check=False, timeout=HANGS_S)  # fmt: skip
        return ran, json.loads(ran.stdout) if ran.stdout else {}
