"""A program on a host: what it prints, its PID wherever it has moved to, its end."""

import os
import re
import signal
import threading
import time

from gcr_lab import base
from gcr_lab.base import Failure

# A program that prints nothing for so long hangs: the longest silence is that of a first start.
PATIENCE_S = 180


class Program:
    """Started with `child`, which writes to the file `output`. Its lines are counted from 0 on, complete ones alone."""

    def __init__(self, output, child):
        self.output, self.pid = output, child.pid
        threading.Thread(target=child.wait, daemon=True).start()  # reaped as soon as it ends

    def lines(self, pattern=""):
        return [line for line in base.read(self.output).split("\n")[:-1] if re.search(pattern, line)]

    def tail(self):
        return " ".join(self.lines()[-3:])

    def wait(self, condition, patience=PATIENCE_S):
        """Until `condition`, however long that takes, while the output grows and the program has not ended."""
        seen, end = None, 0
        while True:
            alive = base.is_alive(self.pid)  # asked first: its last lines count
            if condition():
                return
            length = os.stat(self.output).st_size
            if length != seen:
                seen, end = length, time.monotonic() + patience
            elif not alive:
                raise Failure(f"it has ended: {self.tail()}")
            elif time.monotonic() >= end:
                raise Failure(f"no more output for {patience} s: {self.tail()}")
            time.sleep(0.05)

    def wait_for(self, count, pattern="", **options):
        self.wait(lambda: len(self.lines(pattern)) >= count, **options)
        return count

    def wait_for_more(self, count, pattern="", **options):
        """Until it has `count` lines more than now; how many these are in all."""
        return self.wait_for(len(self.lines(pattern)) + count, pattern, **options)

    def end(self):
        """It ends what it has started; what is left is ended too."""
        below = base.descendants(self.pid)
        base.end_process(self.pid, patience=60)
        for pid in below:
            base.end_process(pid)

    def kill(self):
        """Its PID is free afterwards."""
        base.send(self.pid, signal.SIGKILL)
        if not base.wait_until(60, lambda: not os.path.exists(f"/proc/{self.pid}")):
            raise Failure(f"process {self.pid} does not end")
