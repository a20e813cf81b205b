"""A tree of processes around a GPU program, for the tests of jobs. The root asks its members for the next number, each
through another kind of object that they share, and prints one line for all of them; a number that is lost, repeated or
late ends the line with an error."""
import asyncio
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time


def child(serve):
    pid = os.fork()
    if pid:
        return pid
    try:
        serve()
    finally:
        os._exit(1)


def count(read, write):
    """Answers each request with one more than the last answer."""
    number = 0
    while read():
        number += 1
        write(number.to_bytes(4, "little"))


def by_pipes():
    to, of = os.pipe(), os.pipe()
    child(lambda: count(lambda: os.read(to[0], 1), lambda b: os.write(of[1], b)))
    return lambda: os.write(to[1], b"?") and os.read(of[0], 4)


def by_socket_pair():
    ours, theirs = socket.socketpair()

    def serve():
        os.setsid()  # a session of its own
        count(lambda: theirs.recv(1), theirs.send)

    child(serve)
    return lambda: ours.send(b"?") and ours.recv(4)


def by_abstract_socket():
    name = "\0gcr-tree-%d" % os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen()

    def serve():
        os.setpgid(0, 0)  # a process group of its own
        connection = listener.accept()[0]
        count(lambda: connection.recv(1), connection.send)

    child(serve)
    ours = socket.socket(socket.AF_UNIX)
    ours.connect(name)
    return lambda: ours.send(b"?") and ours.recv(4)


def by_memory(memory):
    """The first byte is the request, the next four are the answer."""

    def serve():
        number = 0
        while True:
            while memory[0] != 1:
                time.sleep(0.001)
            number += 1
            memory[1:5] = number.to_bytes(4, "little")
            memory[0] = 0

    child(serve)

    def ask():
        memory[0] = 1
        while memory[0]:
            time.sleep(0.001)
        return memory[1:5]

    return ask


def anonymous_memory():
    return mmap.mmap(-1, 4096)


def memfd():
    fd = os.memfd_create("tree")
    os.ftruncate(fd, 4096)
    return mmap.mmap(fd, 4096)


def removed_file(directory):
    path = "%s/gcr-tree-%d" % (directory, os.getpid())
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    os.ftruncate(fd, 4096)
    return mmap.mmap(fd, 4096)


def by_grandchild():
    to, of = os.pipe(), os.pipe()

    def serve():
        child(lambda: count(lambda: os.read(to[0], 1), lambda b: os.write(of[1], b)))
        while True:
            signal.pause()

    child(serve)
    return lambda: os.write(to[1], b"?") and os.read(of[0], 4)


def clocks():
    return [time.clock_gettime(clock) for clock in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)]


def by_timeouts():
    """Sleeps by a monotonic clock between the requests, and ends if a clock does not advance."""
    ours, theirs = socket.socketpair()

    async def serve():
        theirs.setblocking(False)
        number, before = 0, clocks()
        while True:
            await asyncio.sleep(0.001)
            now = clocks()
            assert all(0 <= new - old < 100000 for new, old in zip(now, before)), (before, now)
            before = now
            with contextlib.suppress(BlockingIOError):
                if theirs.recv(1):
                    number += 1
                    theirs.send(number.to_bytes(4, "little"))

    child(lambda: asyncio.run(serve()))
    return lambda: ours.send(b"?") and ours.recv(4)


def zombie():
    pid = child(lambda: os._exit(7))
    while open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.001)
    return pid


def main():
    gpu_output, *gpu_program = sys.argv[1:]
    with open(gpu_output, "w") as output:
        gpu = subprocess.Popen(gpu_program, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    members = {
        "pipes": by_pipes(),
        "socket pair": by_socket_pair(),
        "abstract socket": by_abstract_socket(),
        "anonymous memory": by_memory(anonymous_memory()),
        "memfd": by_memory(memfd()),
        "removed file": by_memory(removed_file("/tmp")),
        "removed file in memory": by_memory(removed_file("/dev/shm")),
        "grandchild": by_grandchild(),
        "timeouts": by_timeouts(),
    }
    dead = zombie()
    number = 0
    while not os.path.exists(gpu_output + ".reap"):
        number += 1
        answers = {name: int.from_bytes(ask(), "little") for name, ask in members.items()}
        wrong = {name: answer for name, answer in answers.items() if answer != number}
        if gpu.poll() is not None:
            wrong["gpu"] = gpu.returncode
        print(number, wrong or "all", flush=True)
        time.sleep(0.02)
    print("zombie", os.waitstatus_to_exitcode(os.waitpid(dead, 0)[1]), flush=True)


main()
