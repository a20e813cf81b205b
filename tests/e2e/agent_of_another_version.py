#!/usr/bin/env python3
"""An agent that speaks version 99 of the control protocol: it accepts one connection, sends its Hello, and nothing
more. Usage: agent_of_another_version.py ADDRESS CA CERTIFICATE KEY"""
import socket
import ssl
import sys

PREFACE_BYTES = 24
PORT = 7411

# An Envelope whose field 1 is a Hello whose field 1 (protocol_version) is 99.
HELLO = bytes([0x0A, 0x02, 0x08, 99])


def main() -> None:
    address, authority, certificate, key = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    with socket.create_server((address, PORT)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
        preface = connection.recv(PREFACE_BYTES, socket.MSG_WAITALL)
        assert len(preface) == PREFACE_BYTES
        with context.wrap_socket(connection, server_side=True) as stream:
            stream.sendall(len(HELLO).to_bytes(4, "big") + HELLO)
            while stream.recv(4096):
                pass


if __name__ == "__main__":
    main()
