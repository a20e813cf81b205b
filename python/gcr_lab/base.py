"""Where programs are, sizes, processes, failures; how a command begins and ends. scripts/lib/common.sh in Python."""

import argparse, contextlib, os, pathlib, re, shlex, shutil, signal, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
IS_BUNDLE = not os.environ.get("GCR_BUILD") and os.access(ROOT / "bin/migrate-agent", os.X_OK)
if IS_BUNDLE:
    PREFIX, SOFTGPU, TRIVIAL_DRIVER, CRIU = ROOT, ROOT / "softgpu", ROOT / "trivial-driver", ROOT / "criu/criu"
else:
    PREFIX = pathlib.Path(os.environ.get("GCR_BUILD") or ROOT / "build/release")
    SOFTGPU, TRIVIAL_DRIVER = PREFIX / "tests/softgpu", PREFIX / "tests/bench/trivial_driver"
    CRIU = pathlib.Path(os.environ.get("GCR_DEPS_DIR") or ROOT / "build/deps") / "criu/criu"
BIN = PREFIX / "bin"
MIB, GIB = 1 << 20, 1 << 30
END_SIGNALS = (signal.SIGTERM, signal.SIGINT)

class Failure(Exception):
    """What went wrong, in one line for people."""

class NotRun(Exception):
    """Why a part cannot run on this machine."""

def say(text):
    print(f"{pathlib.Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)

class Arguments(argparse.ArgumentParser):
    """Wrong usage is a Failure, as each other failure is."""
    def __init__(self, text):
        super().__init__(prog=pathlib.Path(sys.argv[0]).name, description=text, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        raise Failure(f"{message} (see --help)")

def command(main):
    """Runs `main` with the words of the command line, and ends this process with what it returns, or 1 after a
    Failure. SIGTERM and SIGINT end it like an exception, so that all blocks are left in order."""
    try:
        if re.search(r"[\s:;\"'\\$#%]", str(ROOT)):
            raise Failure(f"the path «{ROOT}» contains a blank or one of :;\"'\\$#%: "
                          "move the folder to a path without these")
        os.environ["PATH"] += f":{ROOT}/tools" * IS_BUNDLE + ":/usr/local/sbin:/usr/sbin:/sbin"
        for number in END_SIGNALS:
            signal.signal(number, _interrupted)
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        sys.stdout.flush()
        say(failure)
        sys.exit(1)

def _interrupted(*_):
    for number in END_SIGNALS:
        signal.signal(number, lambda *_: None)  # cleaning up is not interrupted
    sys.exit(1)

def need_root():
    if os.geteuid() != 0:
        raise Failure("must run as root, for example by sudo")

def need_programs(*names):
    for name in names:
        if shutil.which(name) is None:
            raise Failure(f"{name} is missing: run scripts/install-deps")

def size(text):
    """ "512M", "8G" in bytes."""
    match = re.fullmatch(r"([0-9]+)([KMG]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"not a size: {text} (use for example 512M or 8G)")
    return int(match[1]) << 10 * " KMG".index(match[2] or " ")

def short(number):
    """Bytes as people write them: "512M"."""
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if number and number % (1 << shift) == 0:
            return f"{number >> shift}{unit}"
    return str(number)

def folder(text):
    path = pathlib.Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path

def number_between(least, most):
    def convert(text):
        if not re.fullmatch("[0-9]+", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"it is {least} to {most}, not {text}")
        return int(text)
    return convert

def last_line(text):
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
def read(path):
    return path.read_text(encoding="utf-8", errors="replace")

def run(*command, **options):
    """What a program prints to standard output. Failure with its last line if it fails."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    done = subprocess.run(list(map(str, command)), text=True, check=False, **pipes)
    if done.returncode != 0:
        print(done.stdout, done.stderr or "", sep="", file=sys.stderr)
        said = last_line(done.stderr or "") or last_line(done.stdout) or f"status {done.returncode}"
        raise Failure(f"{pathlib.Path(command[0]).name}: {said}")
    return done.stdout

def python3():
    """The interpreter that programs of PyTorch and others run in: that of PATH."""
    return shutil.which("python3") or sys.executable

def words(command):
    """Of a command such as "python3 bin/torch_train.py --gib 8", where bin/ is that of the build."""
    found = [python3() if word == "python3" else word for word in shlex.split(command)]
    return [str(BIN / word[4:]) if word.startswith("bin/") else word for word in found]

def is_alive(pid):
    try:
        state = read(pathlib.Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[0]
        # The first of several threads may be dead before the others, which hold the files.
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False

def wait_until(seconds, condition, pause=0.05):
    """Whether `condition` became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
    return True

def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

def end_process(pid, patience=10):
    """By SIGTERM, after `patience` seconds by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(pid, number)
        if wait_until(patience, lambda: not is_alive(pid)):
            return
    say(f"process {pid} does not end")

def descendants(pid):
    """All processes below it; those of a process or thread that ends meanwhile may be missing."""
    found = []
    with contextlib.suppress(OSError):  # it has ended
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, read(path).split()):
                found += [child, *descendants(child)]
    return found
