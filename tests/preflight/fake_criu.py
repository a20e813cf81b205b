"""A CRIU that answers as configured, in the protocol of `criu swrk`.

fake_criu.py VERSION CHECK …: VERSION like 3.17.1; CHECK is "good", or the message of a failing check. It can track no
memory and describes no CPU.
"""
import socket
import sys

RPC_FD = 3
CHECK, CPUINFO_DUMP, CPUINFO_CHECK, FEATURE_CHECK, VERSION = 3, 7, 8, 9, 10
KEEP_OPEN = 4


def field(number, kind, content):
    return bytes([number << 3 | kind]) + content


def text(number, content):
    return field(number, 2, bytes([len(content)]) + content)


def numbers(values):
    return b"".join(field(number, 0, bytes([value])) for number, value in values)


def answer(kind, version, check):
    major, minor, sublevel = (int(part) for part in version.split("."))
    if kind == VERSION:
        return numbers([(1, kind), (2, 1)]) + text(10, numbers([(1, major), (2, minor), (4, sublevel)]))
    if kind == CHECK and check == "good":
        return numbers([(1, kind), (2, 1)])
    words = check if kind == CHECK else "cannot do that"
    return numbers([(1, kind), (2, 0)]) + text(9, words.encode())


def main():
    rpc = socket.socket(fileno=RPC_FD)
    keeps_open = True
    while keeps_open:
        request = rpc.recv(65536)
        assert request[0] == 1 << 3, request  # the type comes first
        keeps_open = request.endswith(field(KEEP_OPEN, 0, b"\1"))  # and this last
        assert not (keeps_open and request[1] == CHECK), "as CRIU: nothing follows a check"
        rpc.send(answer(request[1], sys.argv[1], sys.argv[2]))


main()
