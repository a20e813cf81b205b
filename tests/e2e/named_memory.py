"""A job whose processes share memory by names: for the tests of files in memory and of System V objects. The root asks
its members for the next number, each through another kind of object, and prints one line for all of them; a number that
is lost, repeated or late ends the line with an error."""
import ctypes
import mmap
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing import shared_memory

libc = ctypes.CDLL(None, use_errno=True)
libc.sem_open.restype = ctypes.c_void_p
libc.shmat.restype = ctypes.c_void_p
IPC_CREAT, IPC_EXCL, IPC_RMID = 0o1000, 0o2000, 0
KEY = 0x67637200


def checked(result, bad=-1):
    if result == bad or result is None:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def child(serve):
    if os.fork():
        return
    try:
        serve()
    finally:
        os._exit(1)


kept = []


def start(process):
    process.start()
    kept.append(process)  # and with it the descriptors that it has received


def answer(questions, answers, lock):
    number = 0
    while questions.get():
        with lock:
            number += 1
        answers.put(number)


def by_multiprocessing(method):
    context = multiprocessing.get_context(method)
    questions, answers, lock = context.Queue(), context.Queue(), context.Lock()
    kept.append(lock)
    start(context.Process(target=answer, args=(questions, answers, lock), daemon=True))

    def ask():
        questions.put(True)
        return answers.get()

    return ask


def serve_memory(memory):
    """The first byte is the request, the next four are the answer."""
    number = 0
    while True:
        while memory[0] != 1:
            time.sleep(0.001)
        number += 1
        memory[1:5] = number.to_bytes(4, "little")
        memory[0] = 0


def ask_memory(memory):
    memory[0] = 1
    while memory[0]:
        time.sleep(0.001)
    return int.from_bytes(memory[1:5], "little")


def serve_by_name(name):
    memory = shared_memory.SharedMemory(name=name)
    serve_memory(memory.buf)


def by_shared_memory():
    memory = shared_memory.SharedMemory(create=True, size=8 << 20)
    context = multiprocessing.get_context("spawn")
    start(context.Process(target=serve_by_name, args=(memory.name,), daemon=True))
    return lambda: ask_memory(memory.buf)


def shm_open(path, flags):
    fd = os.open(path, flags, 0o640)
    if flags & os.O_CREAT:
        os.ftruncate(fd, 1 << 20)
    memory = mmap.mmap(fd, 1 << 20)
    os.close(fd)
    return memory


def by_shm_open():
    """Under two names, as a link creates them."""
    path = "/dev/shm/gcr-named-%d" % os.getpid()
    memory = shm_open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.link(path, path + "-too")
    child(lambda: serve_memory(shm_open(path + "-too", os.O_RDWR)))
    return lambda: ask_memory(memory)


def sem_open(name, flags=0):
    return ctypes.c_void_p(checked(libc.sem_open(name, flags, 0o600, 0), 0))


def wait(semaphore):
    while libc.sem_wait(semaphore):
        pass


def by_semaphores():
    names = [b"/gcr-named-%d-%d" % (os.getpid(), i) for i in (1, 2)]
    asked, answered = [sem_open(name, os.O_CREAT | os.O_EXCL) for name in names]
    number = mmap.mmap(-1, 4096)

    def serve():
        theirs, ours = [sem_open(name) for name in names]
        for at in range(1, 1 << 30):
            wait(theirs)
            number[0:4] = at.to_bytes(4, "little")
            libc.sem_post(ours)

    child(serve)

    def ask():
        libc.sem_post(asked)
        wait(answered)
        return int.from_bytes(number[0:4], "little")

    return ask


def by_file(path):
    """A file that the job has open for writing, and has not mapped."""
    output = open(path, "wb", buffering=0)
    count = 0

    def ask():
        nonlocal count
        count += 1
        output.write(b"%d\n" % count)
        with open(path, "rb") as lines:
            return int(lines.read().split()[-1])

    return ask


def attached(segment):
    at = checked(libc.shmat(segment, None, 0), ctypes.c_void_p(-1).value)
    return memoryview((ctypes.c_char * 4096).from_address(at)).cast("B")


def by_system_v():
    segment = checked(libc.shmget(KEY, 4096, 0o600 | IPC_CREAT | IPC_EXCL))
    memory = attached(segment)
    child(lambda: serve_memory(attached(checked(libc.shmget(KEY, 0, 0)))))
    return lambda: ask_memory(memory)


def by_system_v_semaphores():
    """And a message queue: the number waits in it from one request to the next."""
    semaphores = checked(libc.semget(KEY, 2, 0o600 | IPC_CREAT | IPC_EXCL))
    queue = checked(libc.msgget(KEY, 0o600 | IPC_CREAT | IPC_EXCL))

    class Message(ctypes.Structure):
        _fields_ = [("type", ctypes.c_long), ("number", ctypes.c_int)]

    def operate(number, by):
        operation = (ctypes.c_short * 3)(number, by, 0)
        while libc.semop(semaphores, operation, 1):
            pass

    def serve():
        for at in range(1, 1 << 30):
            operate(0, -1)
            message = Message(1, at)
            checked(libc.msgsnd(queue, ctypes.byref(message), 4, 0))
            operate(1, 1)

    child(serve)

    def ask():
        operate(0, 1)
        operate(1, -1)
        message = Message()
        checked(libc.msgrcv(queue, ctypes.byref(message), 4, 0, 0))
        return message.number

    return ask


KINDS = {
    "spawn": lambda: by_multiprocessing("spawn"),
    "forkserver": lambda: by_multiprocessing("forkserver"),
    "fork": lambda: by_multiprocessing("fork"),
    "shared_memory": by_shared_memory,
    "shm_open": by_shm_open,
    "semaphores": by_semaphores,
    "file": lambda: by_file("/dev/shm/gcr-named-%d.out" % os.getpid()),
    "system-v": by_system_v,
    "system-v-others": by_system_v_semaphores,
}


def main():
    gpu_output, kinds, *gpu_program = sys.argv[1:]
    members = {kind: KINDS[kind]() for kind in kinds.split(",")}
    with open(gpu_output, "w") as output:
        gpu = subprocess.Popen(gpu_program, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    number = 0
    while not os.path.exists(gpu_output + ".end"):
        number += 1
        answers = {name: ask() for name, ask in members.items()}
        wrong = {name: answer for name, answer in answers.items() if answer != number}
        if gpu.poll() is not None:
            wrong["gpu"] = gpu.returncode
        print(number, wrong or "all", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
