"""A machine that exists in files: programs of a build, of a GPU machine and of scripts/, each a few lines of shell or
Python. No root, no GPU, no network. What `gcr-migrate` does here: a program that moves keeps its process; a checkpoint
is the command line and the last step, with which a restore starts it again.
"""

import glob
import json
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
SOURCE = pathlib.Path(__file__).resolve().parents[2]
ROOT = pathlib.Path(tempfile.mkdtemp(prefix="gcr-lab-test-"))
os.environ["GCR_BUILD"] = os.environ["GCR_DEPS_DIR"] = str(ROOT)
os.environ["FAKE"] = str(ROOT)
sys.path.insert(0, str(SOURCE / "python"))

REPORT = {
    "schema": 1, "type": "report", "exit_status": 0, "migrated": True, "code": "", "message": "", "destination_pid": 7,
    "vram_bytes": "1048576", "buffers": "3", "sent_vram_bytes": "300", "sent_image_bytes": "173281", "downtime_ms": 237.28,
    "total_ms": 2018.4, "gate_closed_ms": 1500.5, "verified": True, "processes": 2, "stored_bytes": "50",
    "phases": [{"name": name, "host": host, "start_ms": start, "duration_ms": 1.5, "track": "course"} for name, host, start in
               (("prepare", "source", 10), ("control checkpoint", "source", 20), ("criu restore", "destination", 30))],
    "rounds": [{"start_ms": 400, "sent_bytes": "200"}, {"start_ms": 900, "sent_bytes": "100"}],
    "switchover_reason": "", "image_mode": "",
}

# Prints steps, or for ring and ticker numbers, until it is ended. START is what a restore goes on from.
PROGRAM = r"""#!/bin/sh
n=${START:-0} words=step= more=1 end=' checksum'
case "$*" in *torch_server.py*ask*) echo connected ;; esac
case "$0 $*" in *bin/ring* | *bin/ticker*) words='' ;; *bin/storm*) more=200000 ;; esac
[ -z "$words" ] && end=''
while :; do
  echo "$words$n$end"
  n=$((n + more))
  sleep 0.01
done
"""

GCR_MIGRATE = f"#!{sys.executable}\n" + r'''
import json, os, pathlib, re, subprocess, sys
FAKE, REPORT = pathlib.Path(os.environ["FAKE"]), json.loads("""@REPORT@""")
words = sys.argv[1:]
def report(**more):
    print(json.dumps({**REPORT, **more}))
def refuse(finding):
    report(destination_pid=0, verified=False, exit_status=3, message=f"it is refused [{finding}]")
    print(f"gcr-migrate: it is refused [{finding}]", file=sys.stderr)
    sys.exit(3)
with open(FAKE / "calls", "a") as calls:
    print(*words, file=calls)
if words[0] == "run":
    os.environ["UNDER_LIBRARY"] = "1"
    os.execvp(words[2], words[2:])
elif words[0] in ("suspend", "resume"):
    print(f"process {words[-1]} runs, in all")
    print("         578.7          0.5  process       control checkpoint")
    print(f"{words[0]}ed pid={words[-1]} vram_bytes=1000000000 copy_ms=100.0 standstill_ms=200.0 total_ms=300.0")
elif words[0] == "host":
    count = len(re.findall("(?m)^host ", (FAKE / "calls").read_text()))
    uuid = "GPU-bbbbbbbb-1" if count % 2 else "GPU-aaaaaaaa-1"
    gpus = [{"uuid": uuid, "vram_bytes": 5}, {"uuid": "GPU-cccccccc-1", "vram_bytes": 1}][: 2 if "MANY" in os.environ else 1]
    print(json.dumps({"processes": [{"pid": os.getppid(), "gpus": gpus}, {"pid": 1, "gpus": []}]}))
elif words[0] == "checkpoint":
    pid, folder = words[-2], pathlib.Path(words[-1])
    folder.mkdir(exist_ok=True)
    output = os.readlink(f"/proc/{pid}/fd/1")
    steps = re.findall(r"step=(\d+) ", pathlib.Path(output).read_text())
    command = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    (folder / "state").write_text(json.dumps([output, int(steps[-1]) + 1, command]))
    report(destination_pid=0)
elif words[0] == "restore":
    output, step, command = json.loads((pathlib.Path(words[-1]) / "state").read_text())
    pid = subprocess.run(["sh", "-c", 'START=$1 output=$2; shift 2; export START; setsid "$@" >>"$output" 2>&1 </dev/null & echo $!',
                          "sh", str(step), output, *command], stdout=subprocess.PIPE, text=True).stdout
    report(destination_pid=int(pid))
elif words[0] != "verify":
    pid = words[-1]
    if b"--profiled" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
        refuse("profiler")
    if b"UNDER_LIBRARY" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes() and "--allow-slow" not in words:
        refuse("no-library")
    if "--trace" in words:
        pathlib.Path(words[words.index("--trace") + 1]).write_text("{}")
    report(destination_pid=int(pid))
'''

# One container, whose log is followed until it moves or ends, and from then on by the next follower.
PODMAN = f"#!{sys.executable}\n" + r'''
import os, pathlib, subprocess, sys, time
FAKE = pathlib.Path(os.environ["FAKE"])
PID, LOG, TOLD, MOVES = (FAKE / name for name in ("container-pid", "container-log", "container-told", "moves"))
verb, words = sys.argv[1], sys.argv[2:]
if verb == "run":
    with open(LOG, "wb") as log:
        child = subprocess.Popen(words[words.index("localhost/gcr-lab") + 1:], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 start_new_session=True)
    PID.write_text(str(child.pid))
    TOLD.write_text("0")
    MOVES.write_text("")
elif verb == "inspect":
    print(PID.read_text())
elif verb == "container":
    archive, criu = pathlib.Path(words[-2 if words[0] == "checkpoint" else -1]), os.environ["PATH"].split(":")[0]
    assert os.access(f"{criu}/criu", os.X_OK), criu
    if words[0] == "checkpoint":
        archive.write_bytes(bytes(9000000))
        MOVES.write_text(MOVES.read_text() + "\n")
    else:
        TOLD.write_text("0")  # the log is restored too
    assert archive.stat().st_size == 9000000
elif verb == "logs":
    moves, told, over = MOVES.read_text(), int(TOLD.read_text()), False
    while not over:
        over = MOVES.read_text() != moves or not os.path.exists(f"/proc/{PID.read_text()}/fd/1")
        text = LOG.read_bytes()[told:]
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        told += len(text)
        TOLD.write_text(str(told))
        time.sleep(0.01)
elif verb in ("stop", "rm") and os.path.exists(f"/proc/{PID.read_text()}/fd/1"):
    os.kill(int(PID.read_text()), 15)
'''

HOSTS = r"""#!/bin/sh
echo "$0 $*" >>"$FAKE/hosts-calls"
case $1 in
  up)
    [ -z "$HOSTS_FAIL" ] || { echo "hosts: no room for another" >&2; exit 1; }
    mkdir -p "$2/tls" "$2/a" && echo "an agent" >"$2/a/agent.log"
    env="GCR_FAKE_HOSTS=$2 SOFTGPU_DEVICES=GPU-1:5"
    cat >"$2/env" <<END
IP_A='10.77.0.1'
NS_A='/run/netns/a'
GPU_ENV_A='$env'
STATE_A='$2/a/state'
IP_B='10.77.0.2'
NS_B='/run/netns/b'
GPU_ENV_B='$env'
STATE_B='$2/b/state'
NODE_A='gcr-1-a'
NODE_B='gcr-1-b'
IP_C='10.77.0.3'
NS_C='/run/netns/c'
GPU_ENV_C='$env'
CONTROLLER='c'
SLURM_CONF='$2/slurm.conf'
PREFIX='$FAKE'
GCR_CLI='$FAKE/bin/gcr-migrate'
GCR_TLS='--ca ca --cert cert --key key'
END
    ;;
  down)
    for process in /proc/[0-9]*; do
      grep -qsF "GCR_FAKE_HOSTS=$2" "$process/environ" && kill -KILL "${process##*/}"
    done
    rm -rf "$2" ;;
esac
"""

JSON_LINES = {
    "bench_room": [{"what": "room", "least_kib": 4, "most_kib": 64, "allocations": 5, "asked_bytes": 10, "taken_bytes": 20}],
    "bench_digest": [{"bench": "digest", "name": "gpu", "value": 1.5}],
    "bench_read": [{"bench": "read", "gb_per_s": 8.5, "of_plain": 0.4}],
}
TRANSPORT = {"gb_per_s": 2.0, "tls": False, "lanes": 2, "write_bytes": 65536, "pages": "4k", "populated": True,
             "receiver_copied_per_byte": 0, "sender_copied_per_byte": 0, "sender_user_s_per_gb": 0.1,
             "sender_system_s_per_gb": 0.1, "receiver_user_s_per_gb": 0.1, "receiver_system_s_per_gb": 0.1}
IPERF = {"end": {"sum_received": {"bytes": 1e9, "bits_per_second": 8e9, "seconds": 1}, "cpu_utilization_percent": {
    name: 50 for name in ("host_user", "host_system", "remote_user", "remote_system")}}}
LAUNCH = {"benchmarks": [{"name": f"{name}/min_time:1", "direct_ns": 2, "interposed_ns": 5, "overhead_ns": 3}
                         for name in ("launch", "alloc_async", "alloc")]}


def shell(text):
    return f"#!/bin/sh\n{text}\n"


def printing(*values):
    return shell("\n".join(f"echo '{json.dumps(value)}'" for value in values))


# Folder -> name -> text.
PROGRAMS = {
    "bin": {
        **{name: PROGRAM for name in ("stencil", "storm", "pinned", "ring", "ticker", "scribbler")},
        **{name: printing(*lines) for name, lines in JSON_LINES.items()},
        "gcr-migrate": GCR_MIGRATE.replace("@REPORT@", json.dumps(REPORT)),
        "counter": shell('echo 100 >"$FAKE/count"; echo ready; exec sleep 1000'),
        "allocation_semantics": shell('[ -n "$GCR_PRELOAD_LIBRARY" ]'),
        "bench_launch": shell(f"case $* in *json*) echo '{json.dumps(LAUNCH)}' ;; *) printf 'a\\nb\\nc\\nlaunch 3 ns\\n' ;; esac"),
        "bench_gates": shell("echo 200 closings"),
        "bench_transport": printing(TRANSPORT),
        "output-gap": shell("trap 'echo 12; exit' TERM; echo ready; while :; do sleep 0.01; done"),
        "cuda-checkpoint-tool": shell('echo "$@" >>"$FAKE/driver-tools"; echo ready; while read -r name pid; do echo "$name ok 5"; done'),
        "fault_campaign": shell('echo "$@" >"$FAKE/campaign"; while [ $# != 1 ]; do shift; done; echo 200 moves >"$1"'),
    },
    # Stops the program in place of ending it, so that it has its PID when it is restored.
    "criu": {"criu": shell(r"""action=$1 images=$3 pid=$7
        case $action in
          dump)
            echo "$pid" >"$images/pid"; head -c 9000000 /dev/zero >"$images/pages-1.img"
            case $* in *--leave-running*) ;; *) kill -STOP "$pid" ;; esac ;;
          restore)
            [ "$(stat -c %s "$images/pages-1.img")" = 9000000 ] || exit 1
            kill -CONT "$(cat "$images/pid")" ;;
        esac""")},
    "tools": {
        "nsenter": shell(r"""shift
            case "$*" in
              *asker*) n=$(($(cat "$FAKE/count") + 1)); echo $n >"$FAKE/count"; printf $n; exit ;;
              */proc/net/tcp*) for n in 1 2 3 4 5 6 7 8; do echo "$n: x y 0A"; done; exit ;;
            esac
            exec "$@" """),
        "unshare": shell('while :; do case $1 in --propagation) shift 2 ;; -*) shift ;; *) break ;; esac; done; exec "$@"'),
        "podman": PODMAN,
        "nc": shell(r"""for port; do :; done
            if [ "$1" = -l ]; then rm -f "$FAKE/port-$port"; mkfifo "$FAKE/port-$port"; cat "$FAKE/port-$port"; rm "$FAKE/port-$port"; exit; fi
            until [ -p "$FAKE/port-$port" ]; do sleep 0.01; done
            cat >"$FAKE/port-$port" """),
        "nvidia-smi": shell(r"""case $* in
              *query-gpu=uuid,*) echo GPU-aaaaaaaa-1, 5 ;;
              *query-gpu=uuid*) [ -n "$NO_GPUS" ] || printf 'GPU-aaaaaaaa-1\nGPU-bbbbbbbb-1\n' ;;
              *query-compute*) echo '1, 200' ;;
              *) echo 512 ;;
            esac"""),
        "python3": shell(r"""case "$*" in
              -c*) [ -z "$NO_MODULES" ] ;;
              *--timed*) while read -r line; do echo "${SECONDS_SAID:-0.010}"; done ;;
              *) exec "$FAKE/bin/stencil" "$@" ;;
            esac"""),
        "torchrun": shell(r"""case "$*" in *torch_allreduce*) echo us=12.5 ;; *) exec "$FAKE/bin/stencil" "$@" ;; esac"""),
        "accelerate": shell('exec "$FAKE/bin/stencil" "$@"'),
        "iperf3": shell(rf"""case $* in
              *--version*) echo iperf 3.12 ;; *-s*) echo "Server listening on"; sleep 0.2 ;; *) echo '{json.dumps(IPERF)}' ;;
            esac"""),
        "openssl": shell("echo 'AES-128-GCM  2000000.5k'"),
        **{name: shell("exit 0") for name in ("ip", "mount", "umount", "runc", "sync", "slurmctld", "slurmd", "munged")},
        "squeue": shell("exit 0"),
        "sbatch": shell(r"""echo "$@" >>"$FAKE/sbatch"
            case "$*" in *--wrap*) exit ;; esac
            while [ "$1" != --output ]; do shift; done
            text=$(cat)
            sh -c "$text" >>"$2" 2>&1 </dev/null &
            echo $! >"$FAKE/job"; echo 7"""),
        "scontrol": shell(r"""case "$*" in
              *'job 7') echo 'JobState=COMPLETED Reason=None' ;; *job*) echo 'JobState=RUNNING Reason=None' ;;
              listpids*) echo 'PID JOBID'; echo "$(cat "$FAKE/job") 8" ;;
            esac"""),
        "scancel": shell('kill -KILL "$(cat "$FAKE/job")"'),
    },
    "scripts": {
        "hosts": HOSTS, "slurm-hosts": HOSTS,
        "container": shell("""echo "$@" >>"$FAKE/container-calls"; echo >>"$FAKE/moves"
            echo '{"downtime_ms": 237.28, "total_ms": 2018.4, "verified": true, "destination_pid": 7}'"""),
        "drain": shell("echo moved job=7 to job=8 on node=gcr-1-b with verified=yes"),
        "guest": shell("""for way in ib_write_bw RDMA; do echo "{\\"way\\": \\"$way\\", \\"gb_per_s\\": 0.02}"; done"""),
    },
}


def build():
    """Makes all of it; it is removed when the tests end."""
    for folder, programs in PROGRAMS.items():
        (ROOT / folder).mkdir()
        for name, text in programs.items():
            path = ROOT / folder / name
            path.write_text(text, encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (ROOT / "scripts/lib").symlink_to(SOURCE / "scripts/lib")
    path = mock.patch.dict(os.environ, {"PATH": f"{ROOT}/tools:{os.environ['PATH']}"})
    path.start()


def forget():
    """What was called before."""
    for name in ("calls", "hosts-calls", "driver-tools", "sbatch"):
        (ROOT / name).unlink(missing_ok=True)


def called(name):
    path = ROOT / name
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def left_behind():
    """Processes of these fake hosts that are alive."""
    found = []
    for path in map(pathlib.Path, glob.glob("/proc/[0-9]*/environ")):
        try:
            environment = dict(entry.partition(b"=")[::2] for entry in path.read_bytes().split(b"\0"))
            if environment.get(b"FAKE") == str(ROOT).encode() and b"GCR_FAKE_HOSTS" in environment:
                found.append((path.parent / "cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            pass
    return found


def main():
    """Runs the tests of the program that was started."""
    build()
    try:
        done = unittest.main(exit=False)
    finally:
        shutil.rmtree(ROOT, ignore_errors=True)
    sys.exit(not done.result.wasSuccessful())
