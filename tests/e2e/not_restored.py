"""Enters a state that the driver cannot checkpoint, or cannot restore, and prints a line every 20 ms: exported-pool,
imported-pool, host-pool or profiler."""
import ctypes
import os
import sys
import time

CUDA = ctypes.CDLL("libcuda.so.1")
FILE_DESCRIPTOR = 1
DEVICE, HOST_NUMA = 1, 3
STREAM = ctypes.c_void_p()


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("security", ctypes.c_void_p), ("most", ctypes.c_size_t), ("usage", ctypes.c_ushort),
                ("reserved", ctypes.c_ubyte * 54)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def check(name, *arguments):
    answer = getattr(CUDA, name)(*arguments)
    if answer != 0:
        sys.exit(f"{name}: {answer}")


def make_pool(location, handles):
    pool = ctypes.c_void_p()
    properties = PoolProperties(type=1, handles=handles, location=Location(location, 0))
    check("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
    access = Access(Location(DEVICE, 0), 3)
    check("cuMemPoolSetAccess", pool, ctypes.byref(access), ctypes.c_size_t(1))
    memory = ctypes.c_uint64()
    check("cuMemAllocFromPoolAsync", ctypes.byref(memory), ctypes.c_size_t(4 << 20), pool, STREAM)
    check("cuCtxSynchronize")
    return pool


def exported_pool():
    file = ctypes.c_int()
    check("cuMemPoolExportToShareableHandle", ctypes.byref(file), make_pool(DEVICE, FILE_DESCRIPTOR),
          FILE_DESCRIPTOR, ctypes.c_ulonglong(0))


def imported_pool():
    pool = ctypes.c_void_p()
    file = os.memfd_create("pool")  # the software GPU takes any descriptor for another process's
    check("cuMemPoolImportFromShareableHandle", ctypes.byref(pool), ctypes.c_void_p(file),
          FILE_DESCRIPTOR, ctypes.c_ulonglong(0))


def host_pool():
    make_pool(HOST_NUMA, 0)


def profiler():
    table = ctypes.c_void_p()
    check("cuGetExportTable", ctypes.byref(table),
          bytes.fromhex("2c8e0ad80710ab4e90dd54719fe5f74b"))


def begin():
    context = ctypes.c_void_p()
    check("cuInit", 0)
    check("cuCtxCreate_v2", ctypes.byref(context), 0, 0)


def main():
    begin()
    {"exported-pool": exported_pool, "imported-pool": imported_pool, "host-pool": host_pool,
     "profiler": profiler}[sys.argv[1]]()
    number = 0
    while True:
        number += 1
        print(number, flush=True)
        time.sleep(0.02)


main()
