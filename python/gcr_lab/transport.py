"""The TCP transport and iperf3 between two network namespaces, the RDMA transport and ib_write_bw in a virtual machine.

Rates over numbers of connections, of this transport and of iperf3 in turns; what AES-128-GCM costs here; kinds of
memory; what the receiver copies; rates over sizes of writes. docs/benchmarks.md says what it means.
"""

import collections, contextlib, itertools, json, os, pathlib, re, subprocess
from gcr_lab import base
from gcr_lab.base import MIB, Failure, run

ADDRESS = "10.79.0.2"
COSTS = ("sender_user_s_per_gb", "sender_system_s_per_gb", "receiver_user_s_per_gb", "receiver_system_s_per_gb")
WAYS = (("plain", ()), ("TLS", ("--tls",)))
# How much is done. `seconds` and `warmup` are of one measurement; iperf3 takes whole seconds.
Scale = collections.namedtuple("Scale", "connections writes_kib repetitions other_repetitions seconds warmup region_mib "
                               "rdma_repetitions")
SCALES = {
    "full": Scale((1, 2, 4, 8, 16), (64, 128, 256, 512, 1024, 2048, 4096), 5, 3, 1.0, 0.3, 1024, 5),
    "quick": Scale((1, 4, 16), (64, 512, 4096), 2, 1, 0.5, 0.1, 256, 2),
    "smoke": Scale((2,), (64, 4096), 1, 1, 0.1, 0.05, 64, 0),
}

@contextlib.contextmanager
def namespaces():
    """The names of two network namespaces with a veth pair between them."""
    names = [f"gcr-transport-{os.getpid()}-{host}" for host in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            run("ip", "-n", name, "addr", "add", f"10.79.0.{number}/24", "dev", "veth0")
            for link in ("lo", "veth0"):
                run("ip", "-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.call(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

def measure(record, scale):
    base.need_programs("ip", "iperf3", "nsenter", "openssl")
    scale = SCALES[scale]
    with namespaces() as names:
        bench = Bench(record, scale, names)
        for _ in range(scale.repetitions):
            bench.rates()
        for _ in range(scale.other_repetitions):
            bench.others()
    if scale.rdma_repetitions:
        rdma(record, scale.rdma_repetitions)

class Bench:
    def __init__(self, record, scale, names):
        self.record, self.scale, self.names = record, scale, names

    def transport(self, *options):
        sender, receiver = (f"/run/netns/{name}" for name in self.names)
        return json.loads(run(
            base.BIN / "bench_transport", "--sender-namespace", sender, "--receiver-namespace", receiver,
            "--address", ADDRESS, "--region", self.scale.region_mib * MIB,
            "--seconds", self.scale.seconds, "--warmup", self.scale.warmup, *options))

    def rates(self):
        version = run("iperf3", "--version").split()[1]
        self.record.add(what="aes", **aes())
        for n in self.scale.connections:
            self.record.add(what="rate", way="iperf3 -P n", n=n, version=version, **self.iperf(1, n))
            if n > 1:  # before 3.16, one thread serves all streams
                self.record.add(what="rate", way="n iperf3", n=n, version=version, **self.iperf(n, 1))
            for way, options in WAYS:
                self.record.add(what="rate", way=way, n=n, **self.transport("--lanes", n, *options))

    def iperf(self, processes, streams):
        """iperf3 with so many processes, each with so many streams; rates and costs added up."""
        ports = range(5201, 5201 + processes)
        servers = [self.iperf_server(port) for port in ports]
        clients = [self.start(0, "-c", ADDRESS, "-p", port, "-J", "-P", streams, "-t", 1) for port in ports]
        ends = [json.loads(client.communicate(timeout=60)[0])["end"] for client in clients]
        for server in servers:
            server.communicate(timeout=60)
        received = sum(end["sum_received"]["bytes"] / 1e9 for end in ends)
        figures = {"gb_per_s": sum(end["sum_received"]["bits_per_second"] / 8e9 for end in ends)}
        for cost, name in zip(COSTS, ("host_user", "host_system", "remote_user", "remote_system")):
            used = sum(end["cpu_utilization_percent"][name] / 100 * end["sum_received"]["seconds"] for end in ends)
            figures[cost] = used / received
        return figures

    def iperf_server(self, port):
        server = self.start(1, "-s", "-1", "-p", port, "--forceflush")
        for line in server.stdout:
            if line.startswith("Server listening"):
                return server
        raise Failure("iperf3 does not listen")

    def start(self, host, *words):
        command = ["nsenter", f"--net=/run/netns/{self.names[host]}", "iperf3", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def others(self):
        """Memory: a region once, whose pages exist before or come as it is written to. What is copied. Sizes of writes."""
        product, total = itertools.product, self.scale.region_mib * MIB
        for pages, options in product(("hugetlb", "ordinary", "4k"), ((), ("--unpopulated",))):
            self.record.add(what="memory", **self.transport("--lanes", 4, "--pages", pages, "--total", total, *options))
        for (way, options), (more, copying) in product(WAYS, (("", ()), (", copied once more", ("--copy",)))):
            figures = self.transport("--lanes", 4, "--count-copies", *options, *copying)
            self.record.add(what="copies", way=f"{way}{more}", **figures)
        for n, kib, (_, options) in product(self.scale.connections, self.scale.writes_kib, WAYS):
            self.record.add(what="sizes", **self.transport("--lanes", n, "--write", kib << 10, *options))

def aes():
    """Bytes per second of CPU time on all cores at once, in both directions."""
    rates = {"cores": len(os.sched_getaffinity(0))}
    for name, options in (("encrypt", ()), ("decrypt", ("-decrypt",))):
        command = ["openssl", "speed", "-evp", "aes-128-gcm", *options, "-bytes", "16384", "-seconds", "1"]
        each = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                for _ in range(rates["cores"])]
        said = [process.communicate(timeout=60)[0] for process in each]
        found = [re.search(r"(?m)^AES-128-GCM +([0-9.]+)k$", text) for text in said]
        rates[f"{name}_gb_per_cpu_s"] = sum(float(match[1]) for match in found) / 1e6 / rates["cores"]
    return rates

def rdma(record, repetitions):
    """Over two soft devices in a virtual machine, next to ib_write_bw."""
    guest = base.SCRIPTS / "guest"
    if not guest.exists():
        base.say("RDMA is not measured: scripts/guest is not here")
        return
    record.collect(run(guest, "--timeout", 600, "--", base.SCRIPTS / "lib/guest-rdma-pair", "python3",
                       pathlib.Path(__file__).with_name("rdma.py"), base.BIN / "bench_transport", repetitions), what="rdma")
