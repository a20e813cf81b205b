"""Starts CUDA, then uses multiprocessing in the way of its argument, and prints which of the driver's device files the
workers hold, and the results of cuInit there."""

import ctypes
import multiprocessing
import os
import sys


def held(_):
    with open("/proc/self/maps") as maps:
        mappings = sum("/dev/nvidia" in line for line in maps)
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    files = [os.readlink(link) for link in links if os.path.islink(link)]
    return mappings, sum(name.startswith("/dev/nvidia") for name in files)


def square(number):
    return number * number


def init(_):
    return ctypes.CDLL("libcuda.so.1").cuInit(0)


if __name__ == "__main__":
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 << 20)) == 0
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print("sum", sum(pool.map(square, range(1000))))
        print("workers", *sorted(set(pool.map(held, range(8)))))
        print("init", *sorted(set(pool.map(init, range(8)))))
        pool.close()
        pool.join()
    print("parent", held(0), cuda.cuMemFree_v2(address))
