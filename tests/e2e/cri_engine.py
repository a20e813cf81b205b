#!/usr/bin/env python3
"""A client of containerd's CRI that takes words like docker's, and a pod for each container, as crictl does.

Usage: cri_engine.py run|logs|inspect|exec|stop|rm|ps OPTION… NAME …
Environment: CONTAINER_RUNTIME_ENDPOINT as for crictl; CRI_LOG_DIRECTORY, as pods name the folder of their logs; CRI_LOGS,
where the host has it
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

# pylint: disable=wrong-import-position
from gcr_moves import cri, cri_client, engines  # noqa: E402

NAMESPACE, CONTAINER, HANDLER = "default", "main", "gcr"
LOOK_SECONDS = 0.2
HOST = engines.Host("here", ["sh", "-c"])
LIBRARIES = cri_client.Libraries()
MESSAGES = LIBRARIES.messages


def full_name(name):
    return f"{NAMESPACE}/{name}/{CONTAINER}"


def container_of(name):
    found = cri.Cri(HOST).find(full_name(name))
    if found is None:
        sys.exit(f"there is no container {name}")
    return found


def log_of(name):
    return pathlib.Path(os.environ["CRI_LOGS"]) / name


# ---- run ----


def pod_config(options):
    here = {"network": MESSAGES.NODE, "pid": MESSAGES.CONTAINER}
    return MESSAGES.PodSandboxConfig(
        metadata={"name": options.name, "namespace": NAMESPACE, "uid": f"{options.name}-uid"},
        log_directory=os.environ["CRI_LOG_DIRECTORY"],
        labels={"app": options.name},
        linux={"security_context": {"namespace_options": here}},
    )


def container_config(options):
    profile = {"profile_type": MESSAGES.SecurityProfile.RuntimeDefault}
    own = {"network": MESSAGES.NODE, "pid": MESSAGES.CONTAINER}
    volumes = [volume.split(":") for volume in options.volume]
    return MESSAGES.ContainerConfig(
        metadata={"name": CONTAINER},
        image={"image": options.words[0]},
        command=options.words[1:],
        envs=[dict(zip(("key", "value"), pair.split("=", 1))) for pair in options.env],
        mounts=[{"host_path": host, "container_path": inside} for host, inside in volumes],
        log_path=options.name,
        linux={"resources": {"memory_limit_in_bytes": options.memory},
               "security_context": {"namespace_options": own, "seccomp": profile}},
    )  # fmt: skip


def run(options):
    pod, config = pod_config(options), container_config(options)
    with cri_client.Session(HOST, LIBRARIES) as session:
        pod_id = session.ask("RunPodSandbox", config=pod, runtime_handler=HANDLER).pod_sandbox_id
        made = session.ask("CreateContainer", pod_sandbox_id=pod_id, config=config, sandbox_config=pod).container_id
        session.ask("StartContainer", container_id=made)


# ---- the others ----


def lines_of(log):
    """Without time, stream and tag; a long line is in several parts."""
    text = ""
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        _, _, tag, rest = line.split(" ", 3)
        text += rest.rstrip("\n") if tag == "P" else rest
    return text


def logs(options):
    """The log of a container that was removed is removed too, as a kubelet does, once it was followed."""
    name, = options.words  # fmt: skip
    log = log_of(name)
    if options.follow:
        with cri_client.Session(HOST, LIBRARIES) as session:
            while any(pod.metadata.name == name for pod in session.ask("ListPodSandbox").items):
                time.sleep(LOOK_SECONDS)
    print(lines_of(log), end="")
    if options.follow:
        log.unlink()


def inspect(options):
    name, _, wanted = options.words
    container = container_of(name)
    if wanted == "{{.State.Pid}}":
        print(container.init)
        return
    with cri_client.Session(HOST, LIBRARIES) as session:
        print(session.ask("ContainerStatus", container_id=container.id).status.exit_code)


def execute(options):
    name, *command = options.words
    endpoint = os.environ["CONTAINER_RUNTIME_ENDPOINT"].removeprefix("unix://")
    words = ["ctr", "--address", endpoint, "--namespace", "k8s.io", "tasks", "exec", "--exec-id", f"exec-{os.getpid()}"]
    sys.exit(subprocess.run([*words, container_of(name).id, *command], check=False).returncode)


def stop(options):
    with cri_client.Session(HOST, LIBRARIES) as session:
        session.ask("StopContainer", container_id=container_of(options.words[0]).id, timeout=options.time)


def remove(options):
    with cri_client.Session(HOST, LIBRARIES) as session:
        for pod in session.ask("ListPodSandbox").items:
            if pod.metadata.name == options.words[0]:
                session.ask("RemovePodSandbox", pod_sandbox_id=pod.id)


def list_them(_):
    """A line for each pod: its name, and the state of its container if it has one."""
    with cri_client.Session(HOST, LIBRARIES) as session:
        states = {each.pod_sandbox_id: cri.STATES[each.state] for each in session.ask("ListContainers").containers}
        for pod in session.ask("ListPodSandbox").items:
            print(pod.metadata.name, states.get(pod.id, "empty"))


VERBS = {"run": run, "logs": logs, "inspect": inspect, "exec": execute, "stop": stop, "rm": remove, "ps": list_them}


def parse(words):
    parser = argparse.ArgumentParser()
    for name in ("--detach", "--follow", "--force"):
        parser.add_argument(name, action="store_true")
    # A CRI restarts nothing, and has no tmpfs mounts of its own; the pod has its host's network.
    for name in ("--name", "--network", "--restart", "--tmpfs"):
        parser.add_argument(name)
    for name in ("--env", "--volume"):
        parser.add_argument(name, action="append", default=[])
    for name in ("--memory", "--time"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


if __name__ == "__main__":
    VERBS[sys.argv[1]](parse(sys.argv[2:]))
