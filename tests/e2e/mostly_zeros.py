"""A program with 256 MiB of memory that it shares with its child, nearly all of it zeros. Both read all of it
repeatedly; the root prints a line for every pass that found the written data."""
import mmap
import os
import time

BYTES, STRIDE = 256 << 20, 1 << 20
memory = mmap.mmap(-1, BYTES)
expected = bytearray(STRIDE)
expected[4095] = 7
for at in range(0, BYTES, STRIDE):
    memory[at : at + STRIDE] = expected


def is_whole():
    return all(memory[at : at + STRIDE] == expected for at in range(0, BYTES, STRIDE))


read, write = os.pipe()
if os.fork() == 0:
    while is_whole():
        os.write(write, b".")
        time.sleep(0.1)
    os._exit(1)
number = 0
while is_whole() and os.read(read, 1):
    number += 1
    print("look", number, flush=True)
print("wrong", flush=True)
