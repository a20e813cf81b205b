#!/usr/bin/env python3
"""How engines call gcr-runtime, what it passes on, which containers it leaves as they are, and how it fails.

The next runtime is a script that records how it was called, so nothing is started.
Usage: engine_test.py [unittest options], as root; GCR_BUILD names the build folder
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from containers import BUILD, RUNTIME, Case, Container  # noqa: E402  # pylint: disable=wrong-import-position

RECORDER = """#!/bin/sh
printf '%s\\n' "$@" >{folder}/words
env >{folder}/environment
ls -l /proc/self/fd/ >{folder}/descriptors
exit 42
"""
HOOK = pathlib.Path(__file__).resolve().parents[2] / "cmake/packaging/containers/gcr-migrate.json"


class Engine(Case):
    def setUp(self):
        super().setUp()
        self.next = self.folder / "next"
        self.next.write_text(RECORDER.format(folder=self.folder), encoding="ascii")
        self.next.chmod(0o755)
        self.configure(runtime=self.next)

    def call(self, *words, **options):
        return subprocess.run([RUNTIME, *words], capture_output=True, text=True, check=False,
                              env=self.environment, **options)  # fmt: skip

    def words(self):
        return (self.folder / "words").read_text(encoding="utf-8").splitlines()

    def saved(self, *words):
        container = Container(self, *words)
        container.save()
        return container


class CommandLines(Engine):
    def test_other_verbs_are_passed_on_as_they_are(self):
        for words in (["--version"], ["state", "x"], ["--root", "create", "kill", "x", "KILL"], ["--odd", "delete", "x"],
                      ["exec", "--process", "file with blanks", "x"], ["features"], []):  # fmt: skip
            done = self.call(*words)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (42, "", ""))
            self.assertEqual([word for word in self.words() if word], words)

    def test_create_is_passed_on_with_the_same_words(self):
        ways = (["--bundle", "{}"], ["--bundle={}"], ["-b", "{}"], ["-bundle={}"])
        for global_options in ([], ["--root", "/r", "--log", "{}/log", "--log-format=json", "--systemd-cgroup"], ["--debug"],
                               ["--cgroup-manager=systemd", "--log-level", "debug"], ["--unheard", "of"]):  # fmt: skip
            for way in ways:
                container = self.saved("exit", "0")
                words = [*global_options, "create", *way, "--pid-file", "run", "--console-socket", "s", container.id]
                words = [word.format(container.bundle) for word in words]
                self.assertEqual(self.call(*words).returncode, 42)
                self.assertEqual(self.words(), words)
                self.assertEqual(container.edited()["process"]["args"][:2], ["/dev/.gcr/init", "run"], words)

    def test_bundle_is_the_current_directory_by_default(self):
        container = self.saved("exit", "0")
        self.assertEqual(self.call("run", container.id, cwd=container.bundle).returncode, 42)
        self.assertEqual(container.edited()["process"]["args"][0], "/dev/.gcr/init")

    def test_environment_and_descriptors_are_passed_on(self):
        container = self.saved("exit", "0")
        self.environment["NAME"] = "value"
        end, other = os.pipe()
        self.call("create", "--bundle", container.bundle, "--preserve-fds", "1", container.id, pass_fds=[other])
        os.close(end)
        os.close(other)
        self.assertIn("NAME=value\n", (self.folder / "environment").read_text(encoding="utf-8"))
        listed = (self.folder / "descriptors").read_text(encoding="utf-8").splitlines()
        fds = [int(line.split(" -> ")[0].split()[-1]) for line in listed if " -> /proc/" not in line and " -> " in line]
        self.assertEqual(sorted({0, 1, 2, other}), sorted(set(fds) - {255}), listed)


class Edits(Engine):
    def edit(self, container):
        container.save()
        self.call("create", "--bundle", container.bundle, container.id)
        return container.edited()

    def expected(self, container):
        """What may change."""
        spec = json.loads(json.dumps(container.spec))
        spec["process"]["args"] = ["/dev/.gcr/init", "run", *spec["process"]["args"]]
        spec["process"]["env"].append("LD_PRELOAD=/dev/.gcr/libgcr-preload.so")
        for source, name in ((BUILD / "bin/gcr-init", "init"), (BUILD / "lib/libgcr-preload.so", "libgcr-preload.so")):
            spec["mounts"].append({"destination": f"/dev/.gcr/{name}", "type": "bind", "source": str(source),
                                   "options": ["bind", "ro", "nosuid", "nodev"]})  # fmt: skip
        return spec

    def test_nothing_else_changes(self):
        container = self.container("exit", "0")
        container.spec["linux"]["resources"]["hugepageLimits"] = [{"pageSize": "2MB", "limit": 2**63}]
        container.spec["linux"]["resources"]["memory"] = {"limit": -1, "swappiness": 60}
        container.annotate("text", "<é>\u2028")
        edited = self.edit(container)
        self.assertEqual(edited, self.expected(container))
        self.assertEqual(list(edited), list(container.spec))

    def test_filter_gets_one_rule_and_stays_otherwise(self):
        container = self.container("exit", "0")
        profile = {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64"],
                   "syscalls": [{"names": ["bdflush", "userfaultfd"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
                                {"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}  # fmt: skip
        container.spec["linux"]["seccomp"] = profile
        expected = self.expected(container)
        rule = {"names": ["userfaultfd"], "action": "SCMP_ACT_ALLOW"}
        expected["linux"]["seccomp"]["syscalls"].insert(0, rule)
        expected["process"]["args"][1] = "run-tracked"
        self.assertEqual(self.edit(container), expected)

    def test_mode_and_owner_of_the_file_are_kept(self):
        container = self.saved("exit", "0")
        os.chown(container.config, 1234, 4321)
        container.config.chmod(0o640)
        self.call("create", "--bundle", container.bundle, container.id)
        facts = container.config.stat()
        self.assertEqual((facts.st_uid, facts.st_gid, facts.st_mode & 0o7777), (1234, 4321, 0o640))
        self.assertEqual(sorted(path.name for path in container.bundle.iterdir()), ["config.json", "rootfs"])


class LeftAlone(Engine):
    def assert_left(self, container, reason):
        container.save()
        before = container.config.read_bytes()
        done = self.call("create", "--bundle", container.bundle, container.id)
        self.assertEqual((done.returncode, done.stderr), (42, ""))
        self.assertEqual(container.config.read_bytes(), before)
        (line,) = [line for line in self.logged().splitlines() if container.id in line]
        self.assertIn(f"container {container.id}: left as it is: {reason}", line)

    def test_sandboxes(self):
        for name in ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"):
            container = self.container("exit", "0")
            container.annotate(name, "sandbox")
            container.annotate("gcr-migrate.receive", "0" * 32)
            self.assert_left(container, "it is the sandbox of a pod")

    def test_containers_that_are_not_to_move(self):
        container = self.container("exit", "0")
        container.annotate("gcr-migrate.off", "true")
        self.assert_left(container, "its annotation gcr-migrate.off is true")

    def test_containers_without_a_pid_namespace_of_their_own(self):
        for replacement in ([], [{"type": "pid", "path": "/proc/1/ns/pid"}]):
            container = self.container("exit", "0")
            namespaces = container.spec["linux"]["namespaces"]
            namespaces.remove({"type": "pid"})
            namespaces += replacement
            self.assert_left(container, "it has no PID namespace of its own")

    def test_containers_with_the_devices_of_the_host(self):
        container = self.container("exit", "0")
        container.spec["mounts"].append({"destination": "/dev/", "type": "bind", "source": "/dev", "options": ["rbind"]})
        self.assert_left(container, "its /dev is not a tmpfs of its own")

    def test_init_systems(self):
        for program in ("/sbin/init", "/init", "/usr/lib/systemd/systemd"):
            container = self.container("exit", "0")
            container.process["args"] = [program]
            self.assert_left(container, "its program is an init system, which must be PID 1")

    def test_configurations_without_a_process(self):
        container = self.container("exit", "0")
        del container.spec["process"]
        self.assert_left(container, "it has no process")

    def test_configurations_that_are_edited_already(self):
        container = self.saved("exit", "0")
        self.call("create", "--bundle", container.bundle, container.id)
        container.spec = container.edited()
        self.assert_left(container, "it has been edited already")

    def test_images_without_the_gnu_c_library(self):
        container = self.container("exit", "0")
        shutil.rmtree(container.root)
        container.root.mkdir()
        self.assert_left(container, "its image has no GNU C library: /lib64/ld-linux-x86-64.so.2: No such file")

    def c_library(self, container):
        return next(container.root.rglob("libc.so.6"))

    def test_images_with_an_old_c_library(self):
        container = self.container("exit", "0")
        shutil.copy(BUILD / "lib/libc-2.27.so", self.c_library(container))
        self.assert_left(container, "its image has the GNU C library 2.27, and the preload library needs 2.28")

    def test_images_with_a_truncated_c_library(self):
        container = self.container("exit", "0")
        os.truncate(self.c_library(container), 1000)
        self.assert_left(container, "the libc.so.6 of its image is not a GNU C library for this machine")

    def test_images_whose_links_lead_out_of_them(self):
        container = self.container("exit", "0")
        library = self.c_library(container)
        real = str(library.relative_to(container.root))
        library.unlink()
        library.symlink_to(f"/../../../../../../../../{real}")  # in the image: to itself
        self.assert_left(container, "its image has no GNU C library: ")


class Failures(Engine):
    def assert_fails(self, container, reason):
        engine_log = self.folder / "engine.log"
        for words in (["--log", engine_log, "--log-format", "json"], [f"--log={engine_log}", "--log-format=json"]):
            engine_log.write_text("", encoding="utf-8")
            done = self.call(*words, "create", "--bundle", container.bundle, container.id)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"^gcr-runtime: .*{reason}.*\n$")
            entry = json.loads(engine_log.read_text(encoding="utf-8"))
            self.assertEqual(set(entry), {"level", "msg", "time"})
            self.assertEqual((entry["level"], entry["msg"]), ("error", done.stderr.rstrip("\n")))
        self.assertFalse((self.folder / "words").exists())

    def test_wrong_json_is_named_in_the_engines_log(self):
        container = self.container("exit", "0")
        container.config.write_text("{", encoding="ascii")
        self.assert_fails(container, f"{container.config}: not JSON: .*column")

    def test_missing_configuration_is_named(self):
        container = self.container("exit", "0")
        container.config.unlink()
        self.assert_fails(container, f"{container.config}: No such file or directory")

    def test_missing_init_is_named(self):
        self.configure(runtime=self.next, init="/absent/init")
        self.assert_fails(self.saved("exit", "0"), "cannot find init: not a file: /absent/init")

    def test_text_format_is_that_of_runc(self):
        container = self.container("exit", "0")
        container.config.write_text("[]", encoding="ascii")
        self.call("--log", self.folder / "engine.log", "create", "--bundle", container.bundle, container.id)
        self.assertRegex((self.folder / "engine.log").read_text(encoding="utf-8"),
                         r'^time="[-0-9:TZ]+" level=error msg="gcr-runtime: .*: not a JSON object"\n$')  # fmt: skip

    def test_wrong_configuration_stops_creates_alone(self):
        (self.folder / "runtime.toml").write_text("wrong = 1\n", encoding="ascii")
        container = self.saved("exit", "0")
        done = self.call("create", "--bundle", container.bundle, container.id)
        self.assertEqual(done.returncode, 1)
        self.assertIn("runtime.toml:1: wrong is not known; known are allow_userfaultfd, init,", done.stderr)
        self.assertEqual(self.call("--version").returncode, 0, "not that of runc")

    def test_gcr_runtime_is_not_its_own_next_runtime(self):
        self.configure(runtime=RUNTIME)
        done = self.call("list")
        self.assertEqual(done.returncode, 1)
        self.assertIn("is gcr-runtime itself", done.stderr)


class Hook(Engine):
    def hook(self, spec):
        return self.call("precreate", input=json.dumps(spec))

    def prepared(self):
        container = self.container("exit", "0")
        container.spec["root"]["path"] = str(container.root)
        return container

    def test_hook_edits_as_the_runtime_does(self):
        container = self.prepared()
        container.save()
        self.call("create", "--bundle", container.bundle, container.id)
        done = self.hook(container.spec)
        self.assertEqual((done.returncode, json.loads(done.stdout)), (0, container.edited()))

    def test_hook_leaves_alone_what_the_runtime_does(self):
        container = self.prepared()
        container.annotate("gcr-migrate.off", "true")
        self.assertEqual(json.loads(self.hook(container.spec).stdout), container.spec)

    def test_hook_refuses_a_container_that_receives(self):
        container = self.prepared()
        container.annotate("gcr-migrate.receive", "0" * 32)
        done = self.hook(container.spec)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("use --runtime gcr-runtime", done.stderr)

    def test_shipped_hook_is_for_containers_with_the_annotation(self):
        hook = json.loads(HOOK.read_text(encoding="utf-8"))
        self.assertEqual(hook["version"], "1.0.0")
        self.assertEqual(hook["hook"], {"path": "/usr/bin/gcr-runtime", "args": ["gcr-runtime", "precreate"]})
        self.assertEqual(hook["when"], {"annotations": {"^gcr-migrate\\.job$": "^true$"}})
        self.assertEqual(hook["stages"], ["precreate"])


if __name__ == "__main__":
    unittest.main()
