"""The RDMA transport and ib_write_bw in turns, at the same size of messages.

Usage: scripts/guest … -- scripts/lib/guest-rdma-pair python3 rdma.py BENCH_TRANSPORT REPETITIONS

Runs in the virtual machine by itself. Prints a line of JSON for each measurement.
"""

import json, re, subprocess, sys

ADDRESS = "10.9.0.2"
MESSAGE_BYTES = 1 << 20
SECONDS = "4"

def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)

def ib_write_bw():
    """The average rate in GB/s, as the sender says."""
    command = ["ib_write_bw", "-R", "-s", str(MESSAGE_BYTES), "-D", SECONDS]
    server = subprocess.Popen([*command, "-d", "rxe-b"], stdout=subprocess.DEVNULL)
    for _ in range(20):  # until the server listens
        client = run(*command, "-d", "rxe-a", ADDRESS)
        if client.returncode == 0:
            break
    server.wait(timeout=60)
    found = re.search(rf"(?m)^ *{MESSAGE_BYTES} +[0-9]+ +[0-9.]+ +([0-9.]+) ", client.stdout)
    if not found:
        raise RuntimeError(f"ib_write_bw: {client.stdout[-300:]}{client.stderr[-300:]}")
    return float(found.group(1)) * (1 << 20) / 1e9

def transport(program, *options):
    done = run(program, "--rdma", "--address", ADDRESS, "--lanes", 1, "--write", MESSAGE_BYTES, "--ring", 16 * MESSAGE_BYTES,
               "--region", 64 * MESSAGE_BYTES, "--pages", "ordinary", "--warmup", 0.5, "--seconds", SECONDS, *options)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)["gb_per_s"]

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for _ in range(int(sys.argv[2])):
        for way, rate in (("ib_write_bw", ib_write_bw), ("RDMA", lambda: transport(sys.argv[1])),
                          ("RDMA, not registered", lambda: transport(sys.argv[1], "--unregistered"))):
            print(json.dumps({"way": way, "gb_per_s": rate()}), flush=True)
