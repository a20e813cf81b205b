"""Hosts of scripts/hosts with a podman each, whose programs run in containers that gcr-container moves.

Each podman has a storage of its own, and GPUs of its own that CDI offers it.
"""

import contextlib, ctypes, hashlib, json, os, pathlib, re, resource, shlex, shutil, subprocess, tarfile
from gcr_lab import base
from gcr_lab.base import BIN, PREFIX, Failure
from gcr_lab.figures import Migration
from gcr_lab.hosts import Hosts, Program

IMAGE = "localhost/gcr-lab"
GPU = "gcr.lab/gpu"
LEFT_ALONE = ("--annotation", "gcr-migrate.off=true")  # options of a container that gcr-runtime does not edit
CDI = "/run/cdi"
PROGRAMS = ("sh", "cat", "env", "sleep")
FOLDERS = ("dev", "etc", "mnt", "proc", "root", "run", "srv", "sys", "tmp", "var")
DRIVER_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
PASSED_ON = "PATH$|CUDA_|HF_|NCCL_|NVSHMEM_|PYTORCH_|TORCH_"  # environment variables of programs, by their beginnings
PROCESSES = 4096  # of a container
# static_dir: as without the option, because what podman runs when a container ends has other options in its place.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
static_dir = "{home}/disk/storage/libpod"
tmp_dir = "{home}/disk/tmp"
volume_path = "{home}/disk/volumes"
runtime = "gcr"
[engine.runtimes]
gcr = ["{home}/gcr"]
"""
STORAGE = """
[storage]
driver = "overlay"
graphroot = "{home}/disk/storage"
runroot = "{home}/disk/run"
[storage.options.overlay]
skip_mount_home = "true"
"""
# Addresses for containers: those of a network of the host, by macvlan. Each host gives addresses of a range of its own,
# unless one is asked for (from FIXED on).
NETWORK, NETWORK_V6, FIXED, ADDRESSES = "lan", "fd77::", 50, 40
FIRST = {"a": 100, "b": 150}  # of the ranges
NETWORK_CONFIGURATION = """
[network]
network_backend = "{backend}"
network_config_dir = "{home}/networks"
default_network = "none"
"""
NETAVARK = pathlib.Path("/usr/lib/podman/netavark")  # makes the networks of podman 5, CNI those of podman 4
OWN_GPUS = 'mount --bind "$0" "$1" && shift && exec "$@"'
_ASK_PYTHON = """
import json, os, sys, sysconfig
own = [sys.prefix] if sys.prefix != sys.base_prefix else []
print(json.dumps([os.path.realpath(sys.executable), sysconfig.get_path("stdlib"), *sys.path, *own]))
"""

def python_paths():
    """The files and folders that programs' interpreter loads from."""
    found = {pathlib.Path(path) for path in json.loads(base.run(base.python3(), "-c", _ASK_PYTHON)) if os.path.exists(path)}
    return sorted(path for path in found if not found & set(path.parents))

def libraries_of(*files, check=False):
    """The shared libraries that these files load. `check`: each of them must load some."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=check).stdout
    # Paths relative to the program have dots.
    return {pathlib.Path(os.path.normpath(path)) for path in re.findall(r"(/\S+) \(0x", said)}

def write_image(path, files):
    """A root file system with these files, and with folders for what engines mount."""
    with tarfile.open(path, "w") as image:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            image.addfile(folder)
        for file in sorted(files):
            # The image has no cache that would tell the loader of libraries there.
            place = f"/usr/lib/{file.name}" if file.parent == pathlib.Path("/usr/local/lib") else str(file)
            image.add(file.resolve(), place.lstrip("/"))

def write_configuration(home, processes):
    """Of a podman that has everything in the folders `home` and home/disk; its runtime is the file home/gcr."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # not every root may raise its limits
    for name, text in (("containers.conf", CONFIGURATION), ("storage.conf", STORAGE)):
        (home / name).write_text(text.format(home=home, files=files, processes=processes), encoding="utf-8")

def write_network(home, host, address):
    """To the configuration of a podman that runs in the network of a host with this address."""
    net = address.rpartition(".")[0]
    subnets = ((f"{net}.0/24", f"{net}."), (f"{NETWORK_V6}/64", NETWORK_V6))
    backend, name, content = ("netavark", f"{NETWORK}.json", netavark_network) if NETAVARK.exists() else (
        "cni", f"{NETWORK}.conflist", cni_network)  # fmt: skip
    with open(home / "containers.conf", "a", encoding="utf-8") as configuration:
        configuration.write(NETWORK_CONFIGURATION.format(home=home, backend=backend))
    (home / "networks").mkdir()
    (home / "networks" / name).write_text(json.dumps(content(home, host, subnets)), encoding="utf-8")

def cni_network(home, host, subnets):
    ranges = [[{"subnet": subnet, "rangeStart": f"{before}{start}", "rangeEnd": f"{before}{start + ADDRESSES}"}
               for start in (FIRST[host], FIXED)] for subnet, before in subnets]  # fmt: skip
    plugin = {"type": "macvlan", "master": "veth0", "mode": "bridge", "capabilities": {"ips": True, "mac": True},
              "ipam": {"type": "host-local", "dataDir": str(home / "addresses"), "ranges": ranges,
                       "routes": [{"dst": "0.0.0.0/0", "gw": f"{subnets[0][1]}1"}]}}
    return {"cniVersion": "0.4.0", "name": NETWORK, "plugins": [plugin]}

def netavark_network(_home, host, subnets):
    first = FIRST[host]
    return {"name": NETWORK, "id": hashlib.sha256(NETWORK.encode()).hexdigest(), "driver": "macvlan",
            "network_interface": "veth0", "created": "2026-01-01T00:00:00Z", "ipv6_enabled": True, "internal": False,
            "dns_enabled": False, "ipam_options": {"driver": "host-local"}, "subnets": [
                {"subnet": subnet, "gateway": f"{before}1",
                 "lease_range": {"start_ip": f"{before}{first}", "end_ip": f"{before}{first + ADDRESSES}"}}
                for subnet, before in subnets]}  # fmt: skip

def fixed_addresses(address):
    """Those that either podman gives when it is asked, in the network of a host with this address: of both families."""
    return f"{address.rpartition('.')[0]}.{FIXED}", f"{NETWORK_V6}{FIXED}"

def configuration_of(home):
    """The environment variables that name it. CONTAINERS_CONF is podman's only file then."""
    return {"CONTAINERS_CONF": home / "containers.conf", "CONTAINERS_STORAGE_CONF": home / "storage.conf"}

def make_image(path, volumes):
    """A root file system for `podman import`: this machine's C library and what the programs load besides `volumes`."""
    programs = {pathlib.Path(shutil.which(name)) for name in PROGRAMS}
    extensions = [file for volume in volumes for name in ("lib-dynload/*.so", "**/torch/lib/libtorch_python.so")
                  for file in volume.glob(name)]
    loaded = libraries_of(*programs, *(path for path in volumes if path.is_file()), *extensions,
                          *BIN.glob("[a-z]*[a-z]"), *(PREFIX / "lib").glob("*.so"), *base.SOFTGPU.glob("*.so.1"))
    write_image(path, {file for file in programs | loaded if not set(volumes) & set(file.parents)})

def driver_files():
    """The libraries of this machine's NVIDIA driver."""
    ctypes.CDLL("libcuda.so.1")
    library = re.search(r"/\S*/libcuda\.so\S*", base.read(pathlib.Path("/proc/self/maps")))[0]
    folder = pathlib.Path(library).parent
    return sorted(path for name in ("libcuda", "libnvidia-") for path in folder.glob(f"{name}*.so*"))

def gpu_nodes():
    """The device node of each NVIDIA GPU, by UUID."""
    nodes = {}
    for path in pathlib.Path("/proc/driver/nvidia/gpus").glob("*/information"):
        fields = dict(re.findall(r"(?m)^([^:]+):\s*(.*)$", base.read(path)))
        nodes[fields["GPU UUID"]] = f"/dev/nvidia{fields['Device Minor']}"
    return nodes

def cdi(gpus):
    """What the Container Device Interface offers: this machine's GPUs, or those with these UUIDs, as one device."""
    files = driver_files()
    folders = sorted({str(file.parent) for file in files})
    nodes = [node for uuid, node in gpu_nodes().items() if not gpus or uuid in gpus]
    common = [f"/dev/{name}" for name in DRIVER_NODES if os.path.exists(f"/dev/{name}")]
    mounts = [{"hostPath": str(file), "containerPath": str(file), "options": ["ro", "nosuid", "nodev", "bind"]} for file in files]
    return {
        "cdiVersion": "0.5.0", "kind": GPU,
        "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}],
        "containerEdits": {"deviceNodes": [{"path": node} for node in common], "mounts": mounts,
                           "env": [f"LD_LIBRARY_PATH={':'.join(folders)}"]},
    }

class Podman:
    """The podman of one host. All its containers are removed at the end."""
    def __init__(self, home, state, devices, image, network=()):
        """`network`: the path of a network namespace, the host's letter and its address, if containers have addresses."""
        self.home, self._disk = home, home / "disk"
        self._disk.mkdir(parents=True)
        (home / "cdi").mkdir()
        write_configuration(home, PROCESSES)
        self._entry = ["nsenter", f"--net={network[0]}"] if network else []
        if network:
            write_network(home, *network[1:])
        texts = {
            "runtime.toml": f'state = "{state}/received"\nlog = "{home}/runtime.log"\n'
                            f'library = "{PREFIX}/lib/libgcr-preload.so"\n',
            "gcr": f'#!/bin/sh\nGCR_RUNTIME_CONFIG={home}/runtime.toml exec {BIN}/gcr-runtime "$@"\n',
            "cdi/gcr-lab.json": json.dumps(devices),
        }
        for name, text in texts.items():
            (home / name).write_text(text, encoding="utf-8")
        (home / "gcr").chmod(0o755)
        self._own_gpus = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", OWN_GPUS, home / "cdi", CDI] if devices else []
        base.run("mount", "-t", "tmpfs", "tmpfs", self._disk)
        base.run("mount", "--make-shared", self._disk)  # agents look for what is mounted in it
        self.run("import", "--quiet", image, IMAGE)

    def words(self, *command):
        """A command line that runs `command` with the configuration of this podman."""
        environment = [f"{name}={value}" for name, value in configuration_of(self.home).items()]
        return list(map(str, [*self._entry, *self._own_gpus, "env", *environment, *command]))

    def run(self, *words):
        return base.run(*self.words("podman", *words), stdin=subprocess.DEVNULL)

    def with_criu(self, *words):
        """podman and its runtime find CRIU in the path."""
        path = f"PATH={base.CRIU.parent}:{os.environ['PATH']}"
        try:
            base.run(*self.words("env", path, "podman", "container", *words), stdin=subprocess.DEVNULL)
        except Failure as error:
            logs = self._disk.glob("storage/overlay-containers/*/userdata/*.log")
            errors = [line for log in logs for line in base.read(log).splitlines() if "Error" in line]
            raise Failure(f"{error}: {'; '.join(errors[:5])}") from None

    def close(self):
        with contextlib.suppress(Failure):
            self.run("rm", "--all", "--force", "--time", "0")
        subprocess.call(["umount", "--recursive", "--lazy", self._disk])

class Contained(Program):
    """A program in a container. `output` continues in the log of the container that it is moved into."""
    def __init__(self, output, name, podman):  # pylint: disable=super-init-not-called
        self.output, self.name = output, name
        self._follow(podman)

    def _follow(self, podman, known=0):
        """Without the first lines that are known already."""
        self._podman = podman
        self.pid = int(podman.run("inspect", self.name, "--format", "{{.State.Pid}}"))
        with open(self.output, "ab") as file:
            log = shlex.join(podman.words("podman", "logs", "--follow", self.name))
            self._follower = subprocess.Popen(["sh", "-c", f"{log} 2>&1 | tail -n +{known + 1}" if known else f"exec {log}"],
                                              stdout=file, stderr=file)

    def moved_to(self, podman):
        self._follower.wait(60)  # the whole log of the container that was removed
        self._follow(podman)

    def restored_by(self, podman):
        """podman restores a container with its log, and goes on to wait for more in the log of the one that it has
        checkpointed."""
        self._follower.terminate()
        self._follower.wait()
        self._follow(podman, known=len(self.lines()))

    def end(self):
        self._podman.run("stop", "--time", "60", self.name)
        self._follower.wait(60)
        self._podman.run("rm", "--force", self.name)

class ContainerHosts(Hosts):
    """Programs under the library start in containers with this host's GPUs."""
    def __init__(self, two, podmans, options):
        super().__init__(two.work, two.folder)
        self.podmans, self._options = podmans, options
        lines = ["#!/bin/sh", "case $1 in"]
        lines += [f"{self.ip(host)}) exec {shlex.join(podman.words('sh', '-c'))} \"$2\" ;;" for host, podman in podmans.items()]
        self._shell = self.work / "shell"
        self._shell.write_text("\n".join([*lines, "esac", ""]), encoding="utf-8")
        self._shell.chmod(0o755)

    def start(self, host, name, command, lines=0, pattern="", library=True, **waiting):
        if not library:
            return super().start(host, name, command, lines, pattern, library, **waiting)
        return self.start_container(host, name, command, lines, pattern, **waiting)

    def start_container(self, host, name, command, lines=0, pattern="", options=(), **waiting):
        passed = [f"{variable}={value}" for variable, value in os.environ.items() if re.match(PASSED_ON, variable)]
        environment = [word for pair in [*passed, *self.gpu_env(host)] for word in ("--env", pair)]
        output = self.work / f"{name}.out"
        output.write_bytes(b"")
        podman = self.podmans[host]
        podman.run("run", "--detach", "--name", name, *self._options, *options, *environment, IMAGE, *base.words(command))
        program = Contained(output, name, podman)
        program.wait_for(lines, pattern, **waiting)
        return program

    def migrate(self, source, target, program, *options):
        more = [f"--migrate-option={option}" for option in options]
        words = [base.SCRIPTS / "container", "migrate", "podman:app", self.ip(source), self.ip(target), "--json",
                 "--shell", f"{self._shell} %h", *self.tls, "--cli", self.cli, *more]
        migration = Migration(json.dumps({"vram_bytes": 0, **json.loads(self.on("a", *words, stderr=None))}))
        print(migration.text(), flush=True)
        if not migration.verified:
            raise Failure(f"not verified: {json.dumps(migration.report)}")
        program.moved_to(self.podmans[target])
        return migration

@contextlib.contextmanager
def private_cdi():
    """What is mounted on CDI's folder meanwhile is seen in the mount namespace of the caller alone."""
    base.run("mkdir", "-p", CDI)
    base.run("mount", "--bind", CDI, CDI)
    try:
        base.run("mount", "--make-private", CDI)
        yield
    finally:
        subprocess.call(["umount", CDI])

@contextlib.contextmanager
def podman_hosts(lab, *options, gpus=((), ()), network=False):
    """Hosts a and b, whose containers have the GPUs with these UUIDs: all of the machine's if there are none. The
    image is the archive of a root file system that $IMAGE names, else it is made of this machine's files. `network`:
    containers have addresses; it needs a third host, so that there is a switch."""
    volumes = [*python_paths(), PREFIX]
    with lab.hosts(*options) as two, contextlib.ExitStack() as stack:
        if lab.gpu == "real":
            stack.enter_context(private_cdi())
        image = os.environ.get("IMAGE")
        if not image:
            image = two.work / "image.tar"
            make_image(image, volumes)
        podmans = {}
        for host, own in zip("ab", gpus):
            devices = cdi(own) if lab.gpu == "real" else {}
            place = (two.env[f"NS_{host.upper()}"], host, two.ip(host)) if network else ()
            podmans[host] = stack.enter_context(contextlib.closing(
                Podman(two.work / f"podman-{host}", two.env[f"STATE_{host.upper()}"], devices, image, place)))
        own_options = ["--network", NETWORK if network else "none", "--shm-size", "8g", "--pids-limit", "-1"]
        if lab.gpu == "real":
            # Without that capability programs do not make the nodes of GPUs that the container does not have.
            own_options += ["--device", f"{GPU}=all", "--cap-drop", "MKNOD"]
        elif (two.folder / "store").exists():  # of software GPUs
            store = base.read(two.folder / "store").strip()
            own_options.append(f"--volume={store}:{store}")
        yield ContainerHosts(two, podmans, own_options + [f"--volume={path}:{path}:ro" for path in volumes])
