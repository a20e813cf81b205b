"""A program that uses a GPU without any package: it fills memory of the GPU, and prints what it reads there."""
import ctypes
import sys
import time

WORDS = 1 << 20


def call(function, *arguments):
    result = function(*arguments)
    if result != 0:
        sys.exit(f"{function.__name__} answers {result}")


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
    call(cuda.cuInit, 0)
    call(cuda.cuDevicePrimaryCtxRetain, ctypes.byref(context), 0)
    call(cuda.cuCtxSetCurrent, context)
    call(cuda.cuMemAlloc_v2, ctypes.byref(memory), ctypes.c_size_t(4 * WORDS))
    step = 0
    while True:
        # The old content is part of the new one: a lost or repeated step changes all later ones.
        call(cuda.cuMemcpyDtoH_v2, ctypes.byref(word), ctypes.c_uint64(memory.value + 2 * WORDS), ctypes.c_size_t(4))
        step += 1
        value = (word.value * 1664525 + step) % (1 << 32)
        call(cuda.cuMemsetD32_v2, memory, value, ctypes.c_size_t(WORDS))
        print(f"step={step} value={value:08x}", flush=True)
        time.sleep(0.25)


main()
