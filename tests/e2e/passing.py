"""passing.py FILE GO: prints a line every 20 ms. Once GO exists, a child has FILE open for a second."""
import os
import subprocess
import sys
import time

HOLDS = "import sys, time; held = open(sys.argv[1]); print('held', flush=True); time.sleep(1)"

child = None
while True:
    if child is None and os.path.exists(sys.argv[2]):
        child = subprocess.Popen([sys.executable, "-c", HOLDS, sys.argv[1]])
    if child is not None:
        child.poll()
    print("line", flush=True)
    time.sleep(0.02)
