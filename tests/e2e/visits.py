"""Health checks and commands in the containers of both hosts, once per second."""

import threading
import time

PAUSE_S = 1
REMOVED_WITHIN_S = 10


class Visits:
    """In the containers with this name, as long as the block runs. `health` and `said` have what each host's gave: whether
    the container is healthy, and the words of a command in it."""

    def __init__(self, hosts, name):
        self.health, self.said = {"a": [], "b": []}, {"a": [], "b": []}
        self._hosts, self._name = hosts, name
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._visit, args=(host,)) for host in "ab"]

    def __enter__(self):
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for each in self._threads:
            each.join()

    def _visit(self, host):
        while not self._over.wait(PAUSE_S):
            healthy = self._hosts.is_healthy(host, self._name)
            if healthy is False and self._is_removed(host):
                continue
            if healthy is not None:
                self.health[host].append(healthy)
            ran = self._hosts.engine(host, "exec", self._name, "sh", "-c", "cat /proc/self/comm", check=False)
            if ran.returncode == 0 and (ran.stdout or not self._is_removed(host)):
                self.said[host].append(ran.stdout)

    def _is_removed(self, host):
        """Whether the container is ending: its engine kills a check with it, and calls it unhealthy for that. What a command
        has said may be lost then."""
        identity = self._hosts.engine(host, "inspect", self._name, "--format", "{{.Id}}", check=False).stdout.strip()
        end = time.monotonic() + REMOVED_WITHIN_S
        while identity and time.monotonic() < end:
            running = self._hosts.engine(host, "inspect", identity, "--format", "{{.State.Running}}", check=False)
            if running.stdout.strip() != "true":
                return True
            time.sleep(PAUSE_S)
        return not identity
