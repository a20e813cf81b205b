"""Calls only the named NVML, forks, and uses NVML and CUDA in the child. Prints their answers there, and how many doors
the child and the parent have."""
import ctypes
import os
import sys


def doors():
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum("memfd:gcr-preload" in os.readlink(link) for link in links if os.path.islink(link))


def in_child(nvml):
    count, context, address = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_uint64()
    print("nvml", nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "doors", doors())
    print("again", nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value)
    cuda = ctypes.CDLL("libcuda.so.1")
    print("cuda", cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
          cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 << 20)))
    print("doors", doors(), flush=True)


def main():
    nvml = ctypes.CDLL(sys.argv[1])
    assert nvml.nvmlInit_v2() == 0
    child = os.fork()
    if child == 0:
        in_child(nvml)
        os._exit(0)
    os.waitpid(child, 0)
    print("parent doors", doors())


main()
