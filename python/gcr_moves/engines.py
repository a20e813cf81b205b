"""Containers as their engines tell them: what gcr-container asks podman, through a shell of its host."""

import dataclasses
import json
import shlex
import subprocess

from gcr_moves import cli as program

RECEIVE = "gcr-migrate.receive"  # annotation: the key of the migration that the container receives
SOURCE = "gcr-migrate.source"  # label: the container that its job comes from

QUESTION_SECONDS = 120
STOP_SECONDS = 10  # then podman kills a container that it removes
NO_SUCH = 1  # status of `podman container exists`
FAILED = 125  # of any podman
NOT_INSTALLED = 127  # of a shell


class EngineError(Exception):
    """An engine or a shell that did not do what it was asked for."""


class Host:
    """The shell of a host."""

    def __init__(self, agent, shell):
        """`shell`: words, %h among them for the name of the host; a command line is appended."""
        address, _, port = agent.rpartition(":")
        name = (address if address and port.isdigit() else agent).strip("[]")
        self.agent = agent
        self._shell = [word.replace("%h", name) for word in shell]

    def run(self, *words, fine=(0,)):
        """The status and the standard output of a command."""
        try:
            ran = program.run_to_end([*self._shell, shlex.join(words)], QUESTION_SECONDS)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self.agent}: {words[0]} does not end") from None
        except OSError as error:
            raise EngineError(f"{self.agent}: cannot run {self._shell[0]}: {error.strerror}") from None
        if ran.returncode not in fine:
            said = program.last_line(ran.stderr) or f"status {ran.returncode}"
            raise EngineError(f"{self.agent}: {' '.join(words[:3])}: {said}")
        return ran.returncode, ran.stdout


@dataclasses.dataclass(frozen=True)
class Container:
    """A container, as it was when its engine was asked."""

    id: str
    name: str
    image: str  # by its content
    image_name: str
    status: str  # "running", "paused", "exited"
    init: int  # PID of its first process on its host; 0 if it does not run
    terminal: bool
    pod: str
    command: tuple  # that made it
    labels: dict

    @property
    def running(self):
        return self.status == "running" and self.init > 0


def receiving_command(container, key):
    """The command that made a container, for one that receives its job."""
    words = list(container.command)
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


class Podman:
    """The podman of a host, as root."""

    def __init__(self, host):
        self.host = host

    def find(self, name):
        """The container with this name or id; None if there is none."""
        status, _ = self.host.run("podman", "container", "exists", name, fine=(0, NO_SUCH))
        if status == NO_SUCH:
            return None
        _, answer = self.host.run("podman", "container", "inspect", name)
        try:
            its = json.loads(answer)[0]
            return Container(
                id=its["Id"],
                name=its["Name"],
                image=its["Image"],
                image_name=its["ImageName"],
                status=its["State"]["Status"],
                init=int(its["State"]["Pid"]),
                terminal=bool(its["Config"].get("Tty")),
                pod=its.get("Pod") or "",
                command=tuple(its["Config"].get("CreateCommand") or ()),
                labels=its["Config"].get("Labels") or {},
            )
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"{self.host.agent}: podman's answer is not understood: {error}") from None

    def find_by_init(self, pid):
        """The running container whose first process has this PID; None if there is none, or no podman."""
        status, answer = self.host.run("podman", "ps", "--format", "json", fine=(0, NOT_INSTALLED))
        try:
            running = json.loads(answer) if status == 0 else []
            its = [each["Id"] for each in running if each["Pid"] == pid]
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"{self.host.agent}: podman's answer is not understood: {error}") from None
        return self.find(its[0]) if its else None

    def has_image(self, image):
        status, _ = self.host.run("podman", "image", "exists", image, fine=(0, NO_SUCH))
        return status == 0

    def image_named(self, name):
        """What a new container would get under this name, by its content; empty if that is not here."""
        words = ("podman", "image", "inspect", "--format", "{{.Id}}", name)
        _, image = self.host.run(*words, fine=(0, NO_SUCH, FAILED))
        return image.strip()

    @staticmethod
    def obstacle(container):
        """Why no other podman could make such a container; empty if one can."""
        try:
            receiving_command(container, "")
        except EngineError as error:
            return str(error)
        return ""

    def start_receiver(self, container, key):
        """Makes and starts a container that receives the job of this one; returns it."""
        words = receiving_command(container, key)
        _, said = self.host.run(*words)
        made = (said.split() or [container.name])[-1]
        if "--detach" not in words:
            self.host.run("podman", "start", made)
        return self.find(made)

    def remove(self, container):
        """Stops and removes it; it may be gone."""
        self.host.run("podman", "rm", "--force", "--ignore", "--time", str(STOP_SECONDS), container.id)

    def name_of_init(self, container):
        """What its gcr-init calls itself (container/messages.h); empty if it has ended."""
        _, name = self.host.run("cat", f"/proc/{container.init}/comm", fine=(0, 1))
        return name.strip()
