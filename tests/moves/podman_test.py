#!/usr/bin/env python3
"""How gcr-container asks podman, and what it makes of the answers."""

import dataclasses
import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from gcr_moves import engines, podman  # noqa: E402

INSPECTED = {"Id": "abc", "Name": "train", "Image": "1", "ImageName": "app", "State": {"Status": "running", "Pid": 12},
             "Config": {"CreateCommand": ["podman", "run", "app"]}, "NetworkSettings": {}}  # fmt: skip


class FakeShell:
    """A host whose shell gives the same answers."""

    agent = "src"

    def __init__(self, answers):
        self.answers = answers  # by the second word, or the second and third

    def run(self, *words, fine=(0,)):
        status, said = self.answers.get(words[1]) or self.answers[" ".join(words[1:3])]
        if status not in fine:
            raise engines.EngineError(f"status {status}")
        return status, said


class Obstacles(unittest.TestCase):
    def test_container_of_the_common_kind_can_move(self):
        container = podman.container_of(json.dumps([INSPECTED]))
        self.assertEqual((container.name, container.obstacles, container.running), ("train", (), True))

    def test_all_reasons_why_it_cannot_move_are_told(self):
        volume = {"Type": "volume", "Name": "f" * 64, "Destination": "/data"}
        its = {**INSPECTED, "Config": {"Tty": True}, "Pod": "p", "Mounts": [volume]}
        obstacles = podman.container_of(json.dumps([its])).obstacles
        self.assertEqual(len(obstacles), 4)
        for words, obstacle in zip(("a terminal", "a pod", "would not move: /data", "not made by podman"), obstacles):
            self.assertIn(words, obstacle)


class Addresses(unittest.TestCase):
    def test_receiver_of_an_address_is_made_without_one(self):
        for options, left in (
            (["--ip", "10.0.0.5", "--network", "lan"], ["--network", "lan"]),
            (["--ip=10.0.0.5", "--ip6=fd00::5", "--mac-address", "02:00:00:00:00:01"], []),
            (["--network", "lan:ip=10.0.0.5,alias=db", "-v", "/a:/b"], ["--network", "lan:alias=db", "-v", "/a:/b"]),
            (["--network=lan:ip=10.0.0.5,mac=02:00:00:00:00:01"], ["--network=lan"]),
            (["--network", "host"], ["--network", "host"]),
        ):
            made = {**INSPECTED, "Config": {"CreateCommand": ["podman", "run", *options, "app"]}}
            container = podman.container_of(json.dumps([made]))
            command = podman.receiving_command(container, "k", with_address=True)
            self.assertEqual(command[-len(left) - 1 :], [*left, "app"])
            self.assertEqual(podman.receiving_command(container, "k")[-len(options) - 1 :], [*options, "app"])

    def test_addresses_of_networks_are_those_that_the_engine_knows(self):
        networks = {"lan": {"IPAddress": "10.0.0.5", "IPPrefixLen": 24, "GlobalIPv6Address": "fd00::5",
                            "GlobalIPv6PrefixLen": 64}, "off": {"IPAddress": "", "IPPrefixLen": 0}}  # fmt: skip
        its = {**INSPECTED, "NetworkSettings": {"Networks": networks}}
        self.assertEqual(podman.container_of(json.dumps([its])).networks, {"lan": ("10.0.0.5/24", "fd00::5/64"), "off": ()})

    def test_published_ports_are_those_of_the_host(self):
        bindings = {"80/tcp": [{"HostIp": "", "HostPort": "8080"}, {"HostIp": "::1", "HostPort": "8081"}], "81/udp": None}
        its = {**INSPECTED, "HostConfig": {"PortBindings": bindings}}
        self.assertEqual(podman.container_of(json.dumps([its])).ports, ("8080", "::1:8081"))

    def test_engine_gives_addresses_of_the_ranges_of_a_network(self):
        subnets = [{"subnet": "10.0.0.0/24", "lease_range": {"start_ip": "10.0.0.100", "end_ip": "10.0.0.140"}},
                   {"subnet": "10.0.0.0/24", "lease_range": {"start_ip": "10.0.0.5", "end_ip": "10.0.0.9"}},
                   {"subnet": "fd00::/64"}]  # fmt: skip
        answers = {"network inspect": (0, json.dumps([{"subnets": subnets}])), "info": (0, "cni\n")}
        asked = podman.Podman(FakeShell(answers))
        for addresses, given in ((["10.0.0.5", "fd00::5"], True), (["10.0.0.4"], False), (["10.0.0.9/24"], True),
                                 (["10.0.0.10"], False), (["10.0.0.100", "fd01::5"], False), ([], True)):  # fmt: skip
            self.assertEqual(asked.can_give("lan", addresses), given, addresses)
        answers["info"] = (0, "netavark\n")
        self.assertTrue(asked.can_give("lan", ["10.0.0.4"]))
        self.assertFalse(asked.can_give("lan", ["10.0.1.4"]))
        self.assertFalse(podman.Podman(FakeShell({"network inspect": (1, "")})).can_give("lan", ["10.0.0.5"]))


class Connecting(unittest.TestCase):
    def test_rest_of_a_failed_connect_is_removed(self):
        """As podman 5 has it: connected for its database alone."""
        commands, statuses = [], {"connect": [125, 0], "disconnect": [125]}

        class Shell:
            agent = "src"

            def run(self, *words, fine=(0,)):
                commands.append(words[2])
                status = statuses[words[2]].pop(0)
                if status not in fine:
                    raise engines.EngineError(f"status {status}")
                return status, ""

        podman.Podman(Shell()).connect(podman.container_of(json.dumps([INSPECTED])), "lan", ["10.0.0.5", "fd00::5"])
        self.assertEqual(commands, ["connect", "disconnect", "connect"])


class LossyEngine(engines.Engine):
    """Of a container that a job has brought addresses to. Its first attempts to give them fail."""

    def __init__(self, container, failures):
        super().__init__(self)
        self.container, self.failures, self.asked = container, failures, []

    def run(self, *words, fine=(0,)):
        """As a host's: of the addresses that are held meanwhile."""
        assert words[:2] == ("nsenter", "--net=/proc/12/ns/net") and {0, 1, 127} <= set(fine)
        self.asked.append("release" if words[2:] == ("ip", "link", "delete", engines.HOLD) else "hold")
        return 1, ""

    def can_give(self, network, addresses):
        return network != "foreign"

    def disconnect(self, container, network):
        self.asked.append("disconnect")
        left = {name: each for name, each in self.container.networks.items() if name != network}
        self.container = dataclasses.replace(self.container, networks=left)

    def connect(self, container, network, addresses):
        self.asked.append("connect")
        if self.failures:
            self.failures -= 1
            raise engines.EngineError("no")
        known = tuple(f"{each}/{64 if ':' in each else 24}" for each in addresses)
        self.container = dataclasses.replace(self.container, networks={**self.container.networks, network: known})


class BroughtAddresses(unittest.TestCase):
    BROUGHT = {"lan": ("10.0.0.5/24", "fd00::5/64"), "same": ("10.9.0.2/16",), "foreign": ("10.7.0.5/24",)}
    GIVEN = {"lan": ("10.0.0.100/24", "fd00::100/64"), "same": ("10.9.0.2/16",), "foreign": ("10.7.0.1/24",)}

    def receiver(self, with_address=True):
        source = dataclasses.replace(podman.container_of(json.dumps([INSPECTED])), networks=self.BROUGHT)
        return dataclasses.replace(source, networks=self.GIVEN, labels=engines.receiver_labels(source, with_address))

    def test_engine_is_told_of_them_once(self):
        engine = LossyEngine(self.receiver(), failures=0)
        for _ in range(2):
            engine.note_addresses(engine.container)
        self.assertEqual(engine.asked, ["hold", "disconnect", "connect", "release", "release"])
        self.assertEqual(engine.container.networks, {**self.GIVEN, "lan": self.BROUGHT["lan"]})

    def test_engine_is_asked_until_the_job_has_its_interface_again(self):
        engine = LossyEngine(self.receiver(), failures=2)
        for _ in range(2):
            with self.assertRaises(engines.EngineError):
                engine.note_addresses(engine.container)
        self.assertNotIn("lan", engine.container.networks)
        engine.note_addresses(engine.container)
        self.assertEqual(engine.asked, ["hold", "disconnect", "connect", "hold", "connect", "hold", "connect", "release"])
        self.assertEqual(engine.container.networks["lan"], self.BROUGHT["lan"])

    def test_addresses_that_did_not_come_with_a_job_stay(self):
        for labels in (self.receiver(with_address=False).labels, {engines.ADDRESSES: "[1"}, {engines.ADDRESSES: "[1]"},
                       {engines.ADDRESSES: '{"lan": 1}'}):  # fmt: skip
            engine = LossyEngine(dataclasses.replace(self.receiver(), labels=labels), failures=0)
            engine.note_addresses(engine.container)
            self.assertEqual(engine.asked, [])

    def test_label_is_that_of_the_last_move(self):
        made = podman.container_of(json.dumps([INSPECTED]))
        for with_address in (True, False, True):
            source = dataclasses.replace(made, networks=self.BROUGHT)
            command = podman.receiving_command(source, "k", with_address)
            made = dataclasses.replace(made, recipe=tuple(command))
            labels = [word.partition("=")[0] for word in command if word.startswith("gcr-migrate.") and "k" != word[-1]]
            self.assertEqual(labels, [engines.SOURCE] + with_address * [engines.ADDRESSES])


class Volumes(unittest.TestCase):
    def test_names_of_volumes_and_folders_of_the_host_are_told_apart(self):
        mounts = [{"Type": "volume", "Name": "models", "Source": "/var/models", "Destination": "/models"},
                  {"Type": "volume", "Name": "models", "Source": "/var/models", "Destination": "/again"},
                  {"Type": "volume", "Name": "f" * 64, "Source": "/var/f", "Destination": "/data"},
                  {"Type": "bind", "Source": "/work", "Destination": "/work"}, {"Type": "tmpfs"}]  # fmt: skip
        container = podman.container_of(json.dumps([{**INSPECTED, "Mounts": mounts}]))
        self.assertEqual((container.volumes, container.folders), (("models",), ("/work",)))

    def test_folder_of_a_volume_is_its_own_or_unknown(self):
        for fields, folder in (({}, "/var/models"), ({"Driver": "nfs"}, ""), ({"Options": {"type": "nfs"}}, "")):
            said = json.dumps([{"Driver": "local", "Mountpoint": "/var/models", "Options": {}, **fields}])
            self.assertEqual(podman.Podman(FakeShell({"volume inspect": (0, said)})).volume_folder("models"), folder)

    def test_absent_volume_is_not_an_error(self):
        for status, there in ((0, True), (1, False)):
            asked = podman.Podman(FakeShell({"volume exists": (status, "")}))
            self.assertEqual(asked.has_volume("models"), there)
        with self.assertRaises(engines.EngineError):
            podman.Podman(FakeShell({"volume exists": (125, "")})).has_volume("models")

    def test_absent_folders_are_asked_of_a_shell(self):
        here = podman.Podman(engines.Host("here", ["sh", "-c"]))
        self.assertEqual(here.absent(("/proc/self", "/nonexistent/$a 'b\"", "/dev/null")), ["/nonexistent/$a 'b\""])
        self.assertEqual(podman.Podman(None).absent(()), [])


class Questions(unittest.TestCase):
    def find(self, pid, **answers):
        answers = {"container exists": (0, ""), "container inspect": (0, json.dumps([INSPECTED])), **answers}
        return podman.Podman(FakeShell(answers)).find_by_init(pid)

    def test_container_is_found_by_its_first_process(self):
        running = json.dumps([{"Id": "other", "Pid": 7}, {"Id": "abc", "Pid": 12}])
        self.assertEqual(self.find(12, ps=(0, running)).id, "abc")
        self.assertIsNone(self.find(13, ps=(0, running)))

    def test_absent_engine_has_none_and_a_failing_one_is_an_error(self):
        self.assertIsNone(self.find(12, ps=(127, "")))
        with self.assertRaises(engines.EngineError):
            self.find(12, ps=(125, ""))
        with self.assertRaisesRegex(engines.EngineError, "not understood"):
            self.find(12, ps=(0, "[{}]"))


if __name__ == "__main__":
    unittest.main()
