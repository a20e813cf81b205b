"""Processes that are connected by TCP, around a GPU program.

connected.py tree ADDRESS PORT OUTPUT GPU-PROGRAM…
    The root asks its members for the next number, each over a connection of another kind, and prints
    one line for all of them; a number that is lost, doubled or late ends the line with what was wrong.
    A member serves clients at ADDRESS, PORT; what becomes of them is in OUTPUT.clients.
connected.py client ADDRESS PORT [ADDRESS]
    A client of that member: prints a line for each answer, and what ended its connection. Then it
    connects to the second address, without a time limit, and again each time that connection ends.
"""
import os
import select
import socket
import subprocess
import sys
import time

WORD = 4
SOME = 64 * 1024


def child(serve):
    if os.fork() == 0:
        try:
            serve()
        finally:
            os._exit(1)


def read_all(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def connect_pair(family, address, client_family=None, client_address=None):
    """Both ends of a connection: the connecting one, and the accepting one."""
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        ours = socket.socket(client_family or family)
        ours.connect((client_address or address, listener.getsockname()[1]))
        return ours, listener.accept()[0]


def by_requests(ours, theirs):
    """Answers each request with one more than the last answer."""

    def serve():
        ours.close()
        number = 0
        while read_all(theirs, 1):
            number += 1
            theirs.sendall(number.to_bytes(WORD, "little"))

    child(serve)
    theirs.close()

    def ask():
        ours.sendall(b"?")
        return int.from_bytes(read_all(ours, WORD), "little")

    return ask


def by_full_queues(ours, theirs):
    """The other end writes numbers as fast as it can; both queues are always full."""

    def serve():
        ours.close()
        number = 0
        while True:
            words = [n.to_bytes(WORD, "little") for n in range(number, number + SOME)]
            theirs.sendall(b"".join(words))
            number += SOME

    child(serve)
    theirs.close()
    state = {"next": 0, "answer": 0}

    def ask():
        words = read_all(ours, SOME)
        for at in range(0, SOME, WORD):
            if int.from_bytes(words[at : at + WORD], "little") != state["next"]:
                return -1
            state["next"] += 1
        state["answer"] += 1
        return state["answer"]

    return ask


def by_half_closed(ours, theirs):
    """Our end is closed for writing, and the other end keeps answering."""
    read, write = os.pipe()

    def serve():
        ours.close()
        if theirs.recv(1):
            os._exit(2)
        number = 0
        while os.read(read, 1):
            number += 1
            theirs.sendall(number.to_bytes(WORD, "little"))

    child(serve)
    theirs.close()
    ours.shutdown(socket.SHUT_WR)

    def ask():
        os.write(write, b"?")
        return int.from_bytes(read_all(ours, WORD), "little")

    return ask


def by_datagrams(address):
    theirs = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    theirs.bind((address, 0))
    ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ours.connect(theirs.getsockname())
    ours.settimeout(0.5)

    def serve():
        number = {}
        while True:
            question, whom = theirs.recvfrom(WORD)
            theirs.sendto(question, whom)

    child(serve)
    state = {"number": 0}

    def ask():
        state["number"] += 1
        word = state["number"].to_bytes(WORD, "little")
        while True:  # a datagram may be lost
            ours.send(word)
            try:
                while ours.recv(WORD) != word:
                    pass
                return state["number"]
            except TimeoutError:
                pass

    return ask


def serve_clients(listeners, output):
    """Answers each line of a client with the same line."""
    clients = []
    with open(output, "w", buffering=1) as said:
        while True:
            for one in select.select(listeners + clients, [], [])[0]:
                if one in listeners:
                    clients.append(one.accept()[0])
                    said.write("accepted\n")
                    continue
                try:
                    data = one.recv(SOME)
                    one.sendall(data)
                except ConnectionResetError:
                    data = b""
                    said.write("reset\n")
                if not data:
                    clients.remove(one)
                    one.close()


def listen(address, port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    return listener


def tree(address, port, output, *gpu_program):
    with open(output, "w") as said:
        gpu = subprocess.Popen(gpu_program, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    listeners = [listen(address, int(port)), listen("0.0.0.0", int(port) + 1)]
    child(lambda: serve_clients(listeners, output + ".clients"))
    v4, v6 = socket.AF_INET, socket.AF_INET6
    members = {
        "loopback": by_requests(*connect_pair(v4, "127.0.0.1")),
        "own address": by_requests(*connect_pair(v4, address)),
        "IPv6": by_requests(*connect_pair(v6, "::1")),
        "IPv4 in IPv6": by_requests(*connect_pair(v6, "::", v4, address)),
        "full queues": by_full_queues(*connect_pair(v4, "127.0.0.1")),
        "half closed": by_half_closed(*connect_pair(v4, address)),
        "datagrams": by_datagrams(address),
    }
    number = 0
    while True:
        number += 1
        answers = {name: ask() for name, ask in members.items()}
        wrong = {name: answer for name, answer in answers.items() if answer != number}
        if gpu.poll() is not None:
            wrong["gpu"] = gpu.returncode
        print(number, wrong or "all", flush=True)
        time.sleep(0.02)


def client(address, port, later=None):
    with socket.create_connection((address, int(port))) as connection:
        number = 0
        try:
            while True:
                number += 1
                connection.sendall(b"%d\n" % number)
                answer = connection.recv(SOME)
                if not answer:
                    print("closed", flush=True)
                    break
                print(answer.decode().strip(), flush=True)
                time.sleep(0.02)
        except ConnectionResetError:
            print("reset", flush=True)
        except BrokenPipeError:
            print("closed", flush=True)
    while later:
        try:
            return client(later, port, later)
        except OSError:
            time.sleep(0.02)


if sys.argv[1] == "tree":
    tree(*sys.argv[2:])
else:
    client(*sys.argv[2:])
