#!/usr/bin/env python3
"""How gcr-container asks containerd's CRI, what it makes of the answers, and what a run that was killed leaves."""

import base64
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

# pylint: disable=wrong-import-position
from fake_cluster import FakeCluster  # noqa: E402
from fake_cri import HANDLER, MESSAGES, FakeCri  # noqa: E402
from gcr_moves import cli, cri, cri_client, engines  # noqa: E402
from gcr_moves.containers import Move, Refused  # noqa: E402

KEY = "0123456789abcdef0123456789abcdef"
NAME = "default/train/main"
CHANGES = ("RunPodSandbox", "CreateContainer", "StartContainer", "RemovePodSandbox")  # of a move


def private(**others):
    """The options of a container with PIDs of its own."""
    return {"security_context": {"namespace_options": {"pid": MESSAGES.CONTAINER, **others}}}


class Fixture(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.here, self.there = (self.start(folder.name, name) for name in ("a", "b"))
        self.engine = self.here.engine()

    def start(self, folder, name):
        fake = FakeCri(folder, name)
        self.addCleanup(fake.stop)
        return fake

    def assert_fails(self, reason, ask):
        with self.assertRaisesRegex(engines.EngineError, reason):
            ask()


class Names(Fixture):
    def test_container_is_found_by_its_names_its_id_or_the_beginning_of_that(self):
        made = self.here.add_container()
        self.here.add_container("other")
        for name in (NAME, made, made[:12]):
            self.assertEqual(self.engine.find(name).id, made)
        self.assertEqual(self.engine.find(made).name, NAME)
        for name in ("default/train/other", "train/main", "0" * 12):
            self.assertIsNone(self.engine.find(name))

    def test_ambiguous_name_is_an_error(self):
        for _ in range(2):
            self.here.add_container()
        self.assert_fails("several containers are default/train/main", lambda: self.engine.find(NAME))
        self.assert_fails("several containers are : give", lambda: self.engine.find(""))

    def test_container_that_runs_has_the_name_of_earlier_ones(self):
        for attempt in range(3):
            made = self.here.add_container(metadata={"name": "main", "attempt": attempt})
            if attempt != 1:
                self.here.containers[made]["state"] = MESSAGES.CONTAINER_EXITED
        self.assertTrue(self.engine.find(NAME).running)

    def test_container_is_found_by_its_first_process(self):
        made = self.here.add_container()
        pid = self.here.containers[made]["pid"]
        for groups, wanted in ((f"0::/system.slice/cri-containerd-{made}.scope", made), ("0::/user.slice", None)):
            host = self.here.host("a")
            run = lambda *words, host=host, groups=groups, **fine: (  # noqa: E731
                (0, groups) if words[0] == "cat" else engines.Host.run(host, *words, **fine))
            with unittest.mock.patch.object(self.engine.host, "run", run):
                found = self.engine.find_by_init(pid)
                self.assertEqual(found and found.id, wanted)
                self.assertIsNone(self.engine.find_by_init(pid + 1))

    def test_image_is_named_by_its_content(self):
        self.assertEqual(self.engine.image_named("app"), self.here.images["app"])
        self.assertEqual(self.engine.image_named("absent"), "")
        self.assertTrue(self.engine.has_image(self.here.images["app"]))


class Shells(unittest.TestCase):
    """What stands between gcr-container and the CRI."""

    def engine(self, *shell):
        return cri.Cri(engines.Host("a", shell))

    def find(self, *shell):
        return self.engine(*shell).find("0" * 64)

    def test_host_without_a_cri_has_no_container_of_it(self):
        shell = ("env", "CONTAINER_RUNTIME_ENDPOINT=/nonexistent", "sh", "-c")
        with self.assertRaisesRegex(cri_client.NotInstalled, "there is no socket /nonexistent"):
            self.find(*shell)
        groups = f'case $0 in cat*) echo "0::/{"0" * 64}";; *) exit 127;; esac'
        self.assertIsNone(self.engine("sh", "-c", groups).find_by_init(1))

    def test_shell_that_fails_is_an_error_with_its_reason(self):
        for reason, shell in (
            ("cannot connect", ("sh", "-c", "echo cannot connect >&2; exit 1")),
            ("a: ListPodSandbox", ("echo", "welcome")),
            ("No such file", ("/nonexistent",)),
        ):
            with self.subTest(reason), self.assertRaisesRegex(engines.EngineError, reason):
                self.find(*shell)


class Obstacles(Fixture):
    def obstacles(self):
        (made, *_) = self.here.containers
        return self.engine.find(made).obstacles

    def test_container_of_the_common_kind_can_move(self):
        self.here.add_container()
        self.assertEqual(self.obstacles(), ())

    def test_container_that_cannot_move_is_refused_with_the_reason(self):
        for words, fields in (
            ("has a terminal", {"tty": True}),
            ("shares the PIDs of its pod", {"linux": private(pid=MESSAGES.POD)}),
            ("has the PIDs of its host", {"linux": private(pid=MESSAGES.NODE)}),
            ("has the PIDs of another container", {"linux": private(pid=MESSAGES.TARGET, target_id="1")}),
            ("has a user namespace", {"linux": private(userns_options={"mode": MESSAGES.POD})}),
            ("is in a pod of a kubelet", {"pod_labels": {cri.POD_OF_KUBELET: "1"}}),
        ):
            with self.subTest(words):
                self.here.pods.clear()
                self.here.containers.clear()
                self.here.add_container(**fields)
                (obstacle,) = self.obstacles()
                self.assertIn(words, obstacle)

    def test_container_with_others_in_its_pod_is_refused(self):
        self.here.add_container()
        self.here.add_container(name="proxy")
        self.assertEqual(self.obstacles(), ("shares its pod with proxy",))

    def test_volume_of_the_image_alone_is_refused(self):
        made = self.here.add_container()
        volume = {"destination": "/data", "type": "bind", "source": f"/var/lib/containers/{made}/volumes/1"}
        self.here.verbose = lambda said: {**said, "runtimeSpec": {**said["runtimeSpec"], "mounts": [volume]}}
        self.assertIn("whose content would not move: /data", self.obstacles()[0])

    def test_option_that_is_not_known_is_refused_and_not_dropped(self):
        self.here.add_container()
        for part in ({"checkpoint": {}}, {"linux": {"security_context": {"landlock": [1]}}}):
            self.here.verbose = lambda said, part=part: {**said, "config": {**said["config"], **part}}
            (obstacle,) = self.obstacles()
            self.assertIn("has options that are not known", obstacle)
            self.assertIn(list(part)[0] if "checkpoint" in part else "landlock", obstacle)

    def test_environment_is_that_of_the_program_in_both_spellings(self):
        def spelled(said):
            coded = [{**each, "value": base64.b64encode(each["value"].encode()).decode()}
                     for each in said["config"]["envs"]]  # fmt: skip
            return {**said, "config": {**said["config"], "envs": coded}}

        made = self.here.add_container()
        wanted = self.engine.find(made).recipe.container
        self.here.verbose = spelled
        self.assertEqual(self.engine.find(made).recipe.container, wanted)
        self.here.verbose = lambda said: {**said, "runtimeSpec": {**said["runtimeSpec"], "process": {"env": ["X=1"]}}}
        self.assertIn("options that are not known", self.obstacles()[0])


class Receivers(Fixture):
    def setUp(self):
        super().setUp()
        mounts = [{"host_path": "/etc", "container_path": "/mnt"}]
        made = self.here.add_container(labels={"a": "b", engines.SOURCE: "earlier"}, mounts=mounts,
                                       annotations={"note": "1", engines.RECEIVE: KEY[::-1]})  # fmt: skip
        self.container = self.engine.find(made)
        self.target = self.there.engine("b")

    def test_receiver_has_all_options_and_values_of_the_container_and_of_its_pod(self):
        receiver = self.target.start_receiver(self.container, KEY)
        self.assertTrue(receiver.running)
        self.assertEqual((receiver.name, receiver.image), (NAME, self.container.image))
        wanted, made = self.container.recipe, receiver.recipe
        self.assertEqual(dict(made.container.labels), {"a": "b", engines.SOURCE: self.container.id})
        self.assertEqual(dict(made.container.annotations), {"note": "1", engines.RECEIVE: KEY})
        self.assertEqual(made.container.image.image, self.container.image)
        self.assertEqual(made.handler, HANDLER)
        for each in (wanted, made):
            for field in ("labels", "annotations", "image"):
                each.container.ClearField(field)
            each.pod.ClearField("labels")
        self.assertEqual((made.pod, made.container), (wanted.pod, wanted.container))

    def test_nothing_starts_where_an_option_or_the_annotation_is_lost(self):
        def without_mounts(config):
            config.ClearField("mounts")
            return config

        self.there.supported = without_mounts
        self.assert_fails("b: its containerd does not support mounts",
                          lambda: self.target.start_receiver(self.container, KEY))
        self.there.supported = lambda config: config
        self.there.passes_annotations = False
        self.assert_fails("does not pass gcr-migrate.receive on: runtime gcr",
                          lambda: self.target.start_receiver(self.container, KEY))
        self.there.images.clear()
        self.assert_fails("CreateContainer: failed to resolve", lambda: self.target.start_receiver(self.container, KEY))
        self.assertEqual((self.there.pods, self.there.asked.count("StartContainer")), ({}, 0))

    def test_host_of_a_kubelet_is_refused(self):
        self.assertEqual(self.target.obstacles_to(self.container), ())
        self.there.add_container("system", pod_labels={cri.POD_OF_KUBELET: "1"})
        (kubelet,) = self.target.obstacles_to(self.container)
        self.assertIn("has a kubelet", kubelet)

    def test_folders_of_its_host_are_known(self):
        self.here.add_container("other", mounts=[{"host_path": "/srv/data", "container_path": "/mnt"}])
        self.assertEqual(self.engine.find("default/other/main").folders, ("/srv/data",))


class CriOfCluster(cri.Cri):
    """Its jobs are in a FakeCluster."""

    cluster = None

    def name_of_init(self, container):
        if self.children_of_init(container):
            return "gcr-init"
        return "gcr-receiving" if engines.RECEIVE in container.recipe.annotations else "gcr-moved"

    def children_of_init(self, container):
        jobs = self.cluster.hosts[self.host.agent]["jobs"]
        return {each["pid"] for each in jobs if each["container_init"] == container.init}


class Killed(BaseException):
    """In the place of SIGKILL: nothing of gcr-container's handles it."""


class Moves(Fixture):
    """Whole ones, of which the kernel's and the agents' part exists in memory."""

    def setUp(self):
        super().setUp()
        self.cluster = CriOfCluster.cluster = FakeCluster()
        for name in "ab":
            self.cluster.add_host(name)
        self.prepare()
        self.changes, self.kill_after = 0, -1  # of pods and containers
        ask = cri_client.Session.ask

        def counted(session, method, **fields):
            answer = ask(session, method, **fields)
            if method in CHANGES:
                self.changes += 1
                if self.changes == self.kill_after:
                    raise Killed
            return answer

        patched = unittest.mock.patch.object(cri_client.Session, "ask", counted)
        patched.start()
        self.addCleanup(patched.stop)

    def prepare(self):
        """One container at a, which has a job; nothing at b."""
        for each in (self.here, self.there):
            each.pods.clear()
            each.containers.clear()
        for each in self.cluster.hosts.values():
            each["jobs"].clear()
        made = self.here.add_container()
        self.cluster.add_job("a", 1, container_init=self.here.containers[made]["pid"])
        return made

    def move(self, name=NAME):
        here, there = (CriOfCluster(each.host(name)) for each, name in ((self.here, "a"), (self.there, "b")))
        return Move(self.cluster, here, there, lambda _: None, 30).run(name)

    def assert_moved(self):
        self.assertEqual((self.here.pods, self.here.containers), ({}, {}))
        self.assertEqual((self.there.names(), len(self.there.pods)), (["train/main"], 1))
        self.assertEqual([len(self.cluster.hosts[each]["jobs"]) for each in "ab"], [0, 1])

    def test_run_that_was_killed_after_any_change_is_finished_by_the_next(self):
        self.assertEqual(self.move().status, cli.DONE)
        self.assert_moved()
        self.assertEqual(self.changes, len(CHANGES))
        for number, method in enumerate(CHANGES, 1):
            with self.subTest(method):
                self.prepare()
                self.changes, self.kill_after = 0, number
                with self.assertRaises(Killed):
                    self.move()
                self.kill_after = -1
                self.assertEqual(self.move().status, cli.DONE)
                self.assert_moved()

    def test_removal_that_was_interrupted_in_containerd_is_finished_by_the_next_run(self):
        def stops_containers(_):
            for each in self.here.containers.values():
                each.update(state=MESSAGES.CONTAINER_EXITED, pid=0)
            raise Killed

        def removes_containers(request):
            self.here.remove_containers(request.pod_sandbox_id)
            raise Killed

        for interrupted in (stops_containers, removes_containers):
            with self.subTest(interrupted.__name__):
                self.prepare()
                self.interrupt_removal(interrupted)
                self.assertEqual(self.move().status, cli.DONE)
                self.assert_moved()

    def interrupt_removal(self, act):
        ask = cri_client.Session.ask

        def interrupted(session, method, **fields):
            if method == "RemovePodSandbox":
                act(MESSAGES.RemovePodSandboxRequest(**fields))
            return ask(session, method, **fields)

        with unittest.mock.patch.object(cri_client.Session, "ask", interrupted), self.assertRaises(Killed):
            self.move()

    def test_pod_that_was_made_for_a_job_that_is_gone_is_refused(self):
        self.prepare()
        self.here.add_container("other")
        container = CriOfCluster(self.here.host("a")).find(NAME)
        pod, _ = cri.receiving_options(cri_client.Libraries(), container, KEY)
        self.there.RunPodSandbox(MESSAGES.RunPodSandboxRequest(config=pod, runtime_handler=HANDLER))
        self.here.RemovePodSandbox(MESSAGES.RemovePodSandboxRequest(pod_sandbox_id=container.recipe.pod_id))
        with self.assertRaisesRegex(Refused, "waits at b for a job that is gone"):
            self.move()


if __name__ == "__main__":
    unittest.main()
