"""The RDMA transport and ib_write_bw in turns, at the same size of messages.

Usage: scripts/guest … -- scripts/lib/guest-rdma-pair python3 rdma.py BENCH_TRANSPORT REPETITIONS

Runs in the virtual machine by itself. Prints a line of JSON for each measurement.
"""

import json
import re
import subprocess
import sys

ADDRESS = "10.9.0.2"
MESSAGE_BYTES = 1 << 20
SECONDS = 4


def ib_write_bw():
    """The average rate in GB/s, as the sender says."""
    command = ["ib_write_bw", "-R", "-s", str(MESSAGE_BYTES), "-D", str(SECONDS)]
    server = subprocess.Popen([*command, "-d", "rxe-b"], stdout=subprocess.DEVNULL)
    for _ in range(20):  # until the server listens
        client = subprocess.run([*command, "-d", "rxe-a", ADDRESS], capture_output=True, text=True,
                                timeout=60, check=False)  # fmt: skip
        if client.returncode == 0:
            break
    server.wait(timeout=60)
    found = re.search(rf"(?m)^ *{MESSAGE_BYTES} +[0-9]+ +[0-9.]+ +([0-9.]+) ", client.stdout)
    if not found:
        raise RuntimeError(f"ib_write_bw: {client.stdout[-300:]}{client.stderr[-300:]}")
    return float(found.group(1)) * (1 << 20) / 1e9


def transport(program, *options):
    done = subprocess.run(
        [program, "--rdma", "--address", ADDRESS, "--lanes", "1", "--write", str(MESSAGE_BYTES),
         "--ring", str(16 * MESSAGE_BYTES), "--region", str(64 * MESSAGE_BYTES), "--pages", "ordinary",
         "--warmup", "0.5", "--seconds", str(SECONDS), *options],
        capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)["gb_per_s"]


def main(program, repetitions):
    for _ in range(int(repetitions)):
        for way, rate in (("ib_write_bw", ib_write_bw), ("RDMA", lambda: transport(program)),
                          ("RDMA, not registered", lambda: transport(program, "--unregistered"))):
            print(json.dumps({"way": way, "gb_per_s": rate()}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
