"""Sockets with unusual states and options. Usage: sockets_of_all_kinds.py peer | job ADDRESS

The peer prints "ready". Its connections in the queue are accepted when it gets SIGUSR1. The job prints what it sees, as
JSON, once per PERIOD_S.
"""

import json
import selectors
import signal
import socket
import sys
import time

ECHO, FULL, CLOSED = 6001, 6002, 6003
VALUE = 88  # of options
PERIOD_S = 0.1
SIZE = 4096


def peer():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("", ECHO))
    echo, full, closed = (socket.create_server(("", port), backlog=backlog) for port, backlog in ((ECHO, 5), (FULL, 0), (CLOSED, 5)))
    waiting = []
    for _ in range(3):  # more than its queue takes: the others are not answered
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(("127.0.0.1", FULL))
    accepted = []
    signal.signal(signal.SIGUSR1, lambda *_: selector.register(full, selectors.EVENT_READ, "full"))
    selector = selectors.DefaultSelector()
    for each, name in ((udp, "udp"), (echo, "echo"), (closed, "closed")):
        selector.register(each, selectors.EVENT_READ, name)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select(PERIOD_S):
            if key.data == "udp":
                data, sender = udp.recvfrom(SIZE)
                udp.sendto(data, sender)
            elif key.data == "connection":
                data = key.fileobj.recv(SIZE)
                if data:
                    key.fileobj.sendall(data)
                else:
                    selector.unregister(key.fileobj)
            else:
                accepted.append(key.fileobj.accept()[0])
                if key.data != "full":
                    selector.register(accepted[-1], selectors.EVENT_READ, "connection")


def job(address):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.connect((address, ECHO))
    udp.settimeout(PERIOD_S)
    tcp = socket.create_connection((address, ECHO))
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"keep_idle": (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), "tos": (socket.IPPROTO_IP, socket.IP_TOS)}
    options["user_timeout"] = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    for option in options.values():
        tcp.setsockopt(*option, VALUE)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    asking = socket.socket()
    asking.setblocking(False)
    asking.connect_ex((address, FULL))
    seen = {"udp": 0, "tcp": 0}
    while True:
        socket.create_connection((address, CLOSED)).close()  # and leaves one in TIME_WAIT
        message = str(seen["tcp"]).encode()
        udp.send(message)
        try:
            seen["udp"] += udp.recv(SIZE) != b""
        except TimeoutError:
            pass
        tcp.sendall(message)
        if tcp.recv(SIZE) != message:
            sys.exit("the echo is wrong")
        seen["tcp"] += 1
        seen |= {name: tcp.getsockopt(*option) for name, option in options.items()}
        seen["congestion"] = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        seen["asking"] = asking.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        print(json.dumps(seen), flush=True)
        time.sleep(PERIOD_S)


if sys.argv[1] == "peer":
    peer()
else:
    job(sys.argv[2])
