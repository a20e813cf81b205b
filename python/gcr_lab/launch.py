"""What the preload library costs a kernel launch, and how long an allocation takes: its shims against the driver's own
functions, on a driver whose functions only return (so only the library's own instructions count), and on the software
GPU or a real one.
"""

import contextlib, json, tempfile
from gcr_lab import base

TRIVIAL = [f"LD_LIBRARY_PATH={base.TRIVIAL_DRIVER}"]

@contextlib.contextmanager
def gpu_environment(gpu):
    """Words for env, for a program that is on no host."""
    with tempfile.TemporaryDirectory(prefix="gcr-lab-") as work:
        yield [] if gpu == "real" else [f"LD_LIBRARY_PATH={base.SOFTGPU}", f"SOFTGPU_STORE={work}"]

def on_gpu(environment, *words, **options):
    """What a program prints. The software GPU keeps its memory in a mount."""
    mounting = ["unshare", "--mount"] if any(word.startswith("SOFTGPU_STORE=") for word in environment) else []
    return base.run("env", *environment, *mounting, *words, **options)

def record_launches(record, driver, environment):
    for one in json.loads(on_gpu(environment, base.BIN / "bench_launch", "--benchmark_format=json"))["benchmarks"]:
        figures = {name: one[name] for name in ("direct_ns", "interposed_ns", "overhead_ns")}
        record.add(what=one["name"].split("/")[0], driver=driver, **figures)

def measure(gpu):
    own = "this machine's GPU" if gpu == "real" else "the software GPU"
    with gpu_environment(gpu) as environment:
        for title, words in (("a driver whose functions only return", TRIVIAL), (own, environment)):
            text = on_gpu(words, base.BIN / "bench_launch", "--benchmark_color=false")
            print(f"{title}:", *text.splitlines()[3:], sep="\n", flush=True)

def main(words):
    parser = base.Arguments(__doc__)
    parser.add_argument("--gpu", choices=("soft", "real"), default="soft", help="default: soft")
    measure(parser.parse_args(words).gpu)
