"""nvml_parent.py NVML COMMAND…: counts GPUs with that NVML, as launchers do before they start their ranks, starts the
command as its child, and prints in each line NVML's answer about the first GPU."""
import ctypes
import os
import sys
import time

NVML = ctypes.CDLL(sys.argv[1])


def initialise():
    answer = NVML.nvmlInit_v2()
    if answer != 0:
        sys.exit(f"nvmlInit_v2: {answer}")
    handle = ctypes.c_void_p()
    if NVML.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) != 0:
        sys.exit("no GPU")
    return handle


def name_of(handle):
    count = ctypes.c_uint()
    text = ctypes.create_string_buffer(96)
    answers = (NVML.nvmlDeviceGetCount_v2(ctypes.byref(count)),
               NVML.nvmlDeviceGetUUID(handle, text, len(text)))
    return f"{answers} {count.value} {text.value.decode()}"


def main():
    handle = initialise()
    if os.fork() == 0:
        os.execvp(sys.argv[2], sys.argv[2:])
    number = 0
    while True:
        number += 1
        print(number, name_of(handle), flush=True)
        time.sleep(0.02)


main()
