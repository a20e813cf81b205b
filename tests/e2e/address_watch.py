"""Asks by ARP, every 10 ms, who has an address, until SIGTERM.

Usage: address_watch.py INTERFACE ADDRESS. At the end it prints "asked=N answered=N twice=N longest_silence_ms=N": how
often it has asked, how many of these had an answer, how many had one of two hosts. The questions of half a second name
different senders, which their answers name, so late answers count for their own question.
"""

import collections
import signal
import socket
import struct
import sys
import time

EVERY_S = 0.01
SENDERS = 50  # each becomes a neighbour of who answers, and the kernel has room for a thousand
ETH_P_ARP, ETH_P_IP = 0x0806, 0x0800
REQUEST, REPLY = 1, 2
ARP = struct.Struct("!HHBBH6s4s6s4s")


def main(interface, address):
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))
    port = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ARP))
    port.bind((interface, ETH_P_ARP))
    own, wanted = port.getsockname()[4], socket.inet_aton(address)
    answers = collections.Counter()
    asked, silence, heard = 0, 0.0, time.monotonic()
    while not over:
        # Of a network for documentation (RFC 5737).
        sender = bytes((198, 51, 100, asked % SENDERS))
        question = ARP.pack(1, ETH_P_IP, 6, 4, REQUEST, own, sender, bytes(6), wanted)
        port.sendto(question, (interface, ETH_P_ARP, 0, 0, b"\xff" * 6))
        asked += 1
        end = time.monotonic() + EVERY_S
        while (left := end - time.monotonic()) > 0:
            port.settimeout(left)
            try:
                packet = port.recv(64)
            except TimeoutError:
                break
            if len(packet) < ARP.size:
                continue
            *_, operation, _, its, _, to = ARP.unpack_from(packet)
            if operation != REPLY or its != wanted or to[:3] != sender[:3]:
                continue
            answers[asked - 1 - (asked - 1 - to[3]) % SENDERS] += 1
            now = time.monotonic()
            silence, heard = max(silence, now - heard), now
    silence = max(silence, time.monotonic() - heard)
    twice = sum(count > 1 for count in answers.values())
    print(f"asked={asked} answered={len(answers)} twice={twice} longest_silence_ms={silence * 1000:.0f}")


main(*sys.argv[1:])
