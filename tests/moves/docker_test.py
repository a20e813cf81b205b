#!/usr/bin/env python3
"""How gcr-container asks docker, and what it makes of the answers."""

import copy
import pathlib
import select
import signal
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from gcr_moves import docker, engines, streams  # noqa: E402

ID = "af016242f267435cfde342c3940c1740dc3c40d51487f6e42e104d3c8c70da3a"
KEY = "0123456789abcdef0123456789abcdef"
OTHER = ID[::-1]
GROUPS = f"2:memory:/docker/{OTHER}/docker/{ID}\n0::/system.slice/docker-{ID}.scope"
VOLUME = {"Type": "volume", "Name": ID, "Destination": "/data"}
# Of docker 20.10.24, with what matters here.
INSPECTED = {
    "Id": ID,
    "Name": "/train",
    "Image": "sha256:cfa88d8f827aec3bc5679117eb4ce762e5347cdff94ffbc2a5aeece6a7c3b6f6",
    "State": {"Status": "running", "Pid": 20581},
    "HostConfig": {
        "NetworkMode": "lab", "RestartPolicy": {"Name": "always", "MaximumRetryCount": 0}, "Memory": 1 << 30,
        "Links": None, "VolumesFrom": None, "IpcMode": "private", "PidMode": "", "Runtime": "gcr",
        "ConsoleSize": [0, 0],
    },
    "Mounts": [{"Type": "bind", "Source": "/work", "Destination": "/work"},
               {"Type": "volume", "Name": "models", "Destination": "/models"}],
    "Config": {
        "Hostname": ID[:12], "Tty": False, "Env": ["X=$(reboot)'\"", "GCR_RECEIVED=1"], "Cmd": ["sleep", "1 \n2"],
        "Image": "train:1", "Entrypoint": None, "Labels": None,
    },
    "NetworkSettings": {"Networks": {
        "lab": {"IPAMConfig": {"IPv4Address": "10.1.0.5"}, "Aliases": [ID[:12], "trainer"], "DriverOpts": None,
                "NetworkID": "1", "IPAddress": "10.1.0.5", "IPPrefixLen": 16, "MacAddress": "02:42:0a:01:00:05"},
        "bridge": {"IPAMConfig": None, "Aliases": None, "DriverOpts": None, "IPAddress": "172.17.0.2", "IPPrefixLen": 16},
    }},
}  # fmt: skip


def receiving_request(its, *options):
    return docker.receiving_request(docker.container_of(its), *options)


# The shell of a host. There a docker of VERSION answers on the socket that is its standard input.
SERVER = """
VERSION, GROUPS, CONTAINERS = {!r}, {!r}, {!r}
import http.server, json, socket, sys
if sys.argv[1].startswith("cat /proc/"):
    print(GROUPS)
    sys.exit(0 if GROUPS else 1)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log_message = lambda *_: None
    def answer(self, status, content):
        self.send_response(status)
        if VERSION:
            self.send_header("Api-Version", VERSION)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def do_GET(self):
        name = self.path.split("/")[-2]
        if name in CONTAINERS:
            self.answer(200, json.dumps(CONTAINERS[name]).encode())
        elif "absent" in self.path or len(name) == 64:
            self.answer(404, b'{{"message": "No such thing"}}')
        else:
            self.answer(200, b"OK" if self.path == "/_ping" else b'{{"no": "container"}}')
    def do_POST(self):
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.answer(500, json.dumps({{"message": f"{{self.path}} {{len(body['Env'][0])}}"}}).encode())
Handler(socket.socket(fileno=0), ("", 0), None)
"""


def inspected(part=None, **changes):
    """The answer, with other values in one of its parts."""
    its = copy.deepcopy(INSPECTED)
    (its[part] if part else its).update(changes)
    return its


class Requests(unittest.TestCase):
    def test_receiver_has_all_options_and_values_of_the_container(self):
        request = receiving_request(INSPECTED, KEY)
        self.assertEqual(request["HostConfig"], INSPECTED["HostConfig"])
        self.assertEqual(request["Env"], ["X=$(reboot)'\"", "GCR_RECEIVED=1", f"GCR_RECEIVE={KEY}"])
        self.assertEqual(request["Cmd"], ["sleep", "1 \n2"])
        self.assertEqual(request["Image"], "train:1")
        self.assertEqual(request["Labels"], {engines.SOURCE: ID})

    def test_receiver_that_moves_on_has_nothing_of_the_move_before(self):
        its = inspected("Config", Env=[f"GCR_RECEIVE={KEY[::-1]}", "A=b"], Labels={engines.SOURCE: ID[::-1], engines.ADDRESSES: "{}", "a": "b"})
        its["HostConfig"]["Annotations"] = {engines.RECEIVE: KEY[::-1], "note": "1"}
        request = receiving_request(its, KEY)
        self.assertEqual(request["Env"], ["A=b", f"GCR_RECEIVE={KEY}"])
        self.assertEqual(request["Labels"], {engines.SOURCE: ID, "a": "b"})
        self.assertEqual(request["HostConfig"]["Annotations"], {"note": "1"})

    def test_removed_entrypoint_stays_removed(self):
        self.assertEqual(receiving_request(INSPECTED, KEY)["Entrypoint"], [""])
        its = inspected("Config", Entrypoint=["/start", "-c"])
        self.assertEqual(receiving_request(its, KEY)["Entrypoint"], ["/start", "-c"])

    def test_host_name_is_kept_if_its_owner_chose_it(self):
        self.assertEqual(receiving_request(INSPECTED, KEY)["Hostname"], "")
        self.assertEqual(receiving_request(inspected("Config", Hostname="mine"), KEY)["Hostname"], "mine")

    def test_networks_have_what_their_owner_chose(self):
        chosen = {"IPAMConfig": {"IPv4Address": "10.1.0.5"}, "Aliases": ["trainer"], "DriverOpts": None}
        request = receiving_request(INSPECTED, KEY)
        self.assertEqual(request["NetworkingConfig"], {"EndpointsConfig": {"lab": chosen}})
        request = receiving_request(INSPECTED, KEY, True)
        self.assertEqual(request["NetworkingConfig"]["EndpointsConfig"]["lab"], {**chosen, "IPAMConfig": None})
        self.assertEqual(docker.container_of(INSPECTED).networks, {"lab": ("10.1.0.5/16",), "bridge": ("172.17.0.2/16",)})
        self.assertEqual(docker.other_networks(INSPECTED), ["bridge"])
        its = inspected("HostConfig", NetworkMode="default")
        self.assertNotIn("NetworkingConfig", receiving_request(its, KEY))
        self.assertEqual(docker.other_networks(its), ["lab"])

    def test_default_network_gives_no_address_that_is_chosen(self):
        for network in ("bridge", "host", "none"):
            self.assertFalse(docker.Docker(None).can_give(network, ["172.17.0.5"]))

    def test_options_that_the_other_docker_drops_are_noticed(self):
        wanted = INSPECTED["HostConfig"]
        self.assertEqual(docker.lost_options(wanted, {**wanted, "ConsoleSize": None}), [])
        self.assertEqual(docker.lost_options({**wanted, "New": [1]}, {**wanted, "Memory": 0}), ["Memory", "New"])


class Refusals(unittest.TestCase):
    def test_container_of_the_common_kind_can_move(self):
        container = docker.container_of(INSPECTED)
        self.assertEqual((container.name, container.obstacles, container.running), ("train", (), True))
        self.assertEqual((container.volumes, container.folders), (("models",), ("/work",)))
        self.assertFalse(docker.container_of(inspected("State", Status="paused")).running)

    def test_container_that_cannot_move_is_refused_with_the_reason(self):
        linked = {"lab": {"Links": ["store:db"]}}
        for words, its in (
            ("has a terminal", inspected("Config", Tty=True)),
            ("swarm service", inspected("Config", Labels={"com.docker.swarm.service.id": "1"})),
            ("another container (IpcMode)", inspected("HostConfig", IpcMode=f"container:{ID}")),
            ("another container (NetworkMode)", inspected("HostConfig", NetworkMode=f"container:{ID}")),
            ("PIDs of its host", inspected("HostConfig", PidMode="host")),
            ("links", inspected("HostConfig", Links=["/store:/train/store"])),
            ("links", inspected("NetworkSettings", Networks=linked)),
            ("volumes of another container", inspected("HostConfig", VolumesFrom=["store"])),
            ("would not move: /data", inspected(Mounts=[VOLUME])),
        ):
            with self.subTest(words):
                (obstacle,) = docker.container_of(its).obstacles
                self.assertIn(words, obstacle)


CONNECT = docker.Connection.connect


def connect_until_it_ends(connection):
    """The command has ended before it is asked."""
    CONNECT(connection)
    ended = select.poll()
    ended.register(connection.sock, 0)
    ended.poll()


class Questions(unittest.TestCase):
    """Of a docker whose shell runs another program."""

    def docker(self, *command):
        return docker.Docker(engines.Host("b:7443", list(command)))

    def server(self, version="1.41", groups=GROUPS):
        return self.docker(sys.executable, "-c", SERVER.format(version, groups, {ID: INSPECTED}))

    def assert_fails(self, reason, ask):
        with self.assertRaisesRegex(engines.EngineError, reason):
            ask()

    def test_version_of_the_daemon_and_requests_of_any_length_are_used(self):
        its = inspected("Config", Env=["A" * (1 << 20)])
        receiver = docker.container_of(its)
        self.assert_fails(r"docker: /v1\.41/containers/create\?name=train 1048576$",
                          lambda: self.server().start_receiver(receiver, KEY))

    def test_only_a_container_that_the_daemon_does_not_know_is_absent(self):
        server = self.server()
        self.assertIsNone(server.find("absent"))
        self.assertFalse(server.has_image("absent"))
        self.assertEqual((server.has_volume("absent"), server.has_volume("models")), (False, True))
        self.assert_fails("not understood", lambda: server.find("train"))
        self.assert_fails("not the Engine API", lambda: self.server("").find("absent"))
        self.assert_fails("no-docker-here", lambda: self.docker("sh", "-c", "no-docker-here").find("absent"))
        unreachable = self.docker("sh", "-c", "echo cannot connect >&2; exit 1")
        self.assert_fails("cannot connect", lambda: unreachable.find("a"))
        self.assert_fails("welcome", lambda: self.docker("echo", "welcome").find("a"))
        with mock.patch.object(docker.Connection, "connect", connect_until_it_ends):
            self.assert_fails("welcome", lambda: self.docker("echo", "welcome").find("a"))
            self.assert_fails("cannot connect", lambda: unreachable.find("a"))
        self.assert_fails("No such file", lambda: self.docker("/nonexistent").find("a"))

    def test_container_is_found_by_its_first_process(self):
        pid = INSPECTED["State"]["Pid"]
        self.assertEqual(self.server().find_by_init(pid).id, ID)
        self.assertIsNone(self.server().find_by_init(pid + 1))  # another process of it
        self.assertIsNone(self.server(groups="0::/user.slice").find_by_init(pid))
        self.assertIsNone(self.server(groups="").find_by_init(pid))  # there is no such process

    def test_absent_engine_has_none_and_a_failing_one_is_an_error(self):
        def host_whose_docker_ends_with(status):
            return self.docker("sh", "-c", f'case $0 in cat*) echo "{GROUPS}";; *) exit {status};; esac')

        self.assertIsNone(host_whose_docker_ends_with(127).find_by_init(1))
        self.assert_fails("dial-stdio", lambda: host_whose_docker_ends_with(1).find_by_init(1))

    def test_image_is_named_by_its_content(self):
        self.assertEqual(self.server().image_named("absent"), "")
        self.assertEqual(self.server().image_named(ID), ID)

    def test_names_stay_one_part_of_a_path(self):
        self.assertEqual(docker.quoted("a/../b?c #"), "a%2F..%2Fb%3Fc%20%23")

    def test_command_that_does_not_end_is_ended(self):
        connection = docker.Connection(["sleep", "infinity"])
        connection.connect()
        streams.END_SECONDS, kept = 0.1, streams.END_SECONDS
        self.addCleanup(setattr, streams, "END_SECONDS", kept)
        self.assertEqual(connection.end(), "")
        self.assertEqual(connection.status, -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
