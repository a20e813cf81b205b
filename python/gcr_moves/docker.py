"""docker, by its Engine API: it keeps the options of a container, not the command that made it.

The API is reached by `docker system dial-stdio`, as docker's own clients reach it through ssh. It needs no other program
at the host, follows the host's choice of a daemon, and takes requests of any length on its standard input.
"""

import http.client
import json
import socket
import urllib.parse

from gcr_moves import cli as program
from gcr_moves.engines import (
    LABELS,
    NOT_INSTALLED,
    QUESTION_SECONDS,
    RECEIVE,
    Container,
    Engine,
    EngineError,
    NotInstalled,
    addresses_in,
    anonymous_volumes,
    are_within,
    mounted_folders,
    named_volumes,
    own_folder,
    published_ports,
    receiver_labels,
    those_there,
)
from gcr_moves.streams import Joined

RECEIVE_VARIABLE = "GCR_RECEIVE"  # for the annotation, which docker has from API 1.43 on; gcr-runtime removes it
DIAL = ("docker", "system", "dial-stdio")
OF_SWARM = "com.docker.swarm.service.id"
SHORT_ID = 12  # characters: the host name and an alias of a container without others
OWN_NETWORKS = ("bridge", "default", "host", "none")  # have no addresses and aliases to choose
OF_ANOTHER = "container:"
NO_OPTIONS = ("ConsoleSize", "ContainerIDFile")  # of a HostConfig: about the command that made the container
DONE, ABSENT, CONFLICT = (200, 201, 204, 304), 404, 409


class Connection(http.client.HTTPConnection):
    """To a server that reads and writes the standard streams of a command. Begins with connect()."""

    auto_open = 0  # one command alone

    def __init__(self, command):
        super().__init__("docker", timeout=QUESTION_SECONDS)
        self._command = command
        self._joined = None

    def connect(self):
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(self.timeout)
        with theirs:
            self._joined = Joined(self._command, theirs)

    @property
    def status(self):
        """Of the command, once it has ended."""
        return self._joined and self._joined.status

    def end(self):
        """What the command wrote to its standard error."""
        self.close()
        return self._joined.end() if self._joined else ""


# ---- the receiving container ----


def other_networks(its):
    """Those that are not its network mode."""
    mode = its["HostConfig"]["NetworkMode"]
    main = "bridge" if mode == "default" else mode
    return [name for name in its["NetworkSettings"]["Networks"] if name != main]


def endpoint(its, network, with_address=False):
    """What its owner chose, without what docker has made of it. `with_address`: without the address too."""
    made = its["NetworkSettings"]["Networks"].get(network) or {}
    aliases = [alias for alias in made.get("Aliases") or () if alias != its["Id"][:SHORT_ID]]
    chosen = None if with_address else made.get("IPAMConfig")
    return {"IPAMConfig": chosen, "Aliases": aliases, "DriverOpts": made.get("DriverOpts")}


def receiving_request(container, key, with_address=False):
    """A container like this one, which receives its job: the body of /containers/create."""
    its = container.recipe
    config, options = its["Config"], its["HostConfig"]
    request = dict(config)
    request["Env"] = [each for each in config.get("Env") or () if each.partition("=")[0] != RECEIVE_VARIABLE]
    request["Env"].append(f"{RECEIVE_VARIABLE}={key}")
    labels = {name: value for name, value in container.labels.items() if name not in LABELS}
    request["Labels"] = labels | receiver_labels(container, with_address)
    # With none, docker would take the image's, which `--entrypoint ""` has removed; this is how that is said.
    request["Entrypoint"] = config.get("Entrypoint") or [""]
    mode = options["NetworkMode"]
    # docker's choice, from the container's id or the host's name.
    if mode == "host" or config.get("Hostname") == its["Id"][:SHORT_ID]:
        request["Hostname"] = ""
    notes = {name: value for name, value in (options.get("Annotations") or {}).items() if name != RECEIVE}
    request["HostConfig"] = {**options, "Annotations": notes} if "Annotations" in options else options
    if with_address:
        request.pop("MacAddress", None)
    if mode not in OWN_NETWORKS:
        request["NetworkingConfig"] = {"EndpointsConfig": {mode: endpoint(its, mode, with_address)}}
    return request


def lost_options(wanted, made):
    """Of two HostConfigs: what an engine of another release, or a kernel with fewer control groups, has dropped."""
    return [name for name, value in wanted.items() if value and name not in NO_OPTIONS and not made.get(name)]


def networks_of(its):
    return its["NetworkSettings"]["Networks"] or {}


# ---- the engine ----


def obstacles_of(its):
    config, options = its["Config"], its["HostConfig"]
    volumes = anonymous_volumes(its.get("Mounts"))
    modes = {name: options.get(name) or "" for name in ("NetworkMode", "IpcMode", "PidMode")}
    shared = [name for name, mode in modes.items() if mode.startswith(OF_ANOTHER)]
    links = options.get("Links") or any((each or {}).get("Links") for each in networks_of(its).values())
    return those_there((
        (config.get("Tty"), "has a terminal, which cannot move"),
        (OF_SWARM in (config.get("Labels") or {}), "is of a swarm service, which starts another one in its place"),
        (shared, f"shares namespaces with another container ({', '.join(shared)})"),
        (modes["PidMode"] == "host", "has the PIDs of its host, which cannot be kept"),
        (links, "has links to other containers"),
        (options.get("VolumesFrom"), "has the volumes of another container"),
        (volumes, f"has a volume without a name, whose content would not move: {volumes}"),
    ))  # fmt: skip


def container_of(its):
    return Container(
        id=its["Id"],
        name=its["Name"].lstrip("/"),
        image=its["Image"],
        image_name=its["Config"]["Image"],
        status=its["State"]["Status"],
        init=int(its["State"]["Pid"]),
        obstacles=obstacles_of(its),
        labels=its["Config"].get("Labels") or {},
        recipe=its,
        networks=addresses_in(networks_of(its)),
        ports=published_ports(its["HostConfig"].get("PortBindings")),
        volumes=named_volumes(its.get("Mounts")),
        folders=mounted_folders(its.get("Mounts")),
    )


def quoted(name):
    return urllib.parse.quote(name, safe="")


class Docker(Engine):
    """The docker of a host."""

    IMAGE_BY = "docker save, and docker load there,"

    def __init__(self, host):
        super().__init__(host)
        self._version = ""

    def find(self, name):
        status, its = self._ask("GET", f"/containers/{quoted(name)}/json", fine=(ABSENT,))
        return None if status == ABSENT else self.understood(its, container_of)

    def image_named(self, name):
        status, answer = self._ask("GET", f"/images/{quoted(name)}/json", fine=(ABSENT,))
        return "" if status == ABSENT else self.understood(answer, lambda its: its["Id"])

    def has_volume(self, name):
        return self._ask("GET", f"/volumes/{quoted(name)}", fine=(ABSENT,))[0] != ABSENT

    def volume_folder(self, name):
        return self.understood(self._ask("GET", f"/volumes/{quoted(name)}")[1], own_folder)

    def start_receiver(self, container, key, with_address=False):
        request = self.understood(container, lambda its: receiving_request(its, key, with_address))
        _, answer = self._ask("POST", f"/containers/create?name={quoted(container.name)}", request)
        made = self.understood(answer, lambda its: its["Id"])
        try:
            self._complete(made, container.recipe, with_address)
            self._ask("POST", f"/containers/{made}/start")
        except EngineError:
            self._remove(made)
            raise
        return self.find(made)

    def remove(self, container):
        self._remove(container.id)

    def can_give(self, network, addresses):
        if network in OWN_NETWORKS:
            return False
        status, answer = self._ask("GET", f"/networks/{quoted(network)}", fine=(ABSENT,))
        if status == ABSENT:
            return False
        configured = self.understood(answer, lambda its: [(each["Subnet"], "", "") for each in its["IPAM"]["Config"] or ()])
        return are_within(addresses, configured)

    def disconnect(self, container, network):
        self._ask("POST", f"/networks/{quoted(network)}/disconnect", {"Container": container.id})

    def connect(self, container, network, addresses):
        config = {"IPv6Address" if ":" in each else "IPv4Address": each for each in addresses}
        chosen = {**endpoint(container.recipe, network), "IPAMConfig": config}
        joining = {"Container": container.id, "EndpointConfig": chosen}
        self._ask("POST", f"/networks/{quoted(network)}/connect", joining)

    def _complete(self, made, its, with_address):
        """Checks that it has all options, and connects it to further networks."""
        receiver = self.find(made)
        lost = receiver and lost_options(its["HostConfig"], receiver.recipe["HostConfig"])
        if lost:
            raise EngineError(f"{self.host.agent}: its docker or kernel does not support {', '.join(lost)}")
        for network in other_networks(its):
            joining = {"Container": made, "EndpointConfig": endpoint(its, network, with_address)}
            self._ask("POST", f"/networks/{quoted(network)}/connect", joining)

    def _remove(self, container_id):
        # One request, which docker finishes also if this program ends. Its restart policy does not start it again.
        self._ask("DELETE", f"/containers/{container_id}?force=1", fine=(ABSENT, CONFLICT))

    # ---- the Engine API ----

    def _ask(self, method, path, body=None, fine=()):
        """The status and the content of an answer."""
        connection = Connection(self.host.command(*DIAL))
        trouble = None
        try:
            connection.connect()
            if not self._version:
                self._version = self._exchange(connection, "GET", "/_ping")[0].getheader("Api-Version")
            # Without a version it is no docker, and what it says of containers counts for nothing.
            if not self._version:
                raise http.client.HTTPException("not the Engine API of docker")
            response, content = self._exchange(connection, method, f"/v{self._version}{path}", body)
        except (OSError, http.client.HTTPException) as error:
            trouble = str(error) or type(error).__name__
        said = program.last_line(connection.end())
        if trouble is not None:
            kind = NotInstalled if connection.status == NOT_INSTALLED else EngineError
            raise kind(f"{self.host.agent}: {' '.join(DIAL)}: {trouble}{said and ': ' + said}")
        return response.status, self._content(response.status, content, fine)

    @staticmethod
    def _exchange(connection, method, path, body=None):
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        except BrokenPipeError:
            pass  # the command has ended, and may have said why
        response = connection.getresponse()
        return response, response.read()

    def _content(self, status, content, fine):
        try:
            answer = json.loads(content) if content.strip() else {}
        except ValueError:
            answer = {}
        if status not in DONE and status not in fine:
            said = answer.get("message") if isinstance(answer, dict) else ""
            raise EngineError(f"{self.host.agent}: docker: {said or f'status {status}'}")
        return answer
