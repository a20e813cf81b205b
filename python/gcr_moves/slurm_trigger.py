"""Slurm's trigger that wakes the service.

slurmctld runs `scripts/slurm wake SOCKET`, as SlurmUser and on its own machine, within its period of 15 s
after the state of a node has changed: by an administrator's drain, among others. What it says is ignored;
the service then asks Slurm. The program does nothing if no service listens.
"""

import os
import pathlib
import socket
import threading

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "slurm"


def wake(path):
    """What the trigger runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(b"", path)
        except OSError:
            pass  # no service listens, or it is to be woken anyway


class Listener:
    """The socket that wakes us."""

    def __init__(self, path, on_wake):
        """Calls `on_wake` in a thread of its own. OSError if the socket cannot be there."""
        self.path = pathlib.Path(path).absolute()
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._take_path()
        os.chmod(self.path, 0o660)  # by its group the next service connects, once admit() has changed the owner
        threading.Thread(target=self._listen, args=(on_wake,), daemon=True).start()

    def _take_path(self):
        """What an earlier service has left there is removed."""
        try:
            self._socket.connect(str(self.path))
        except ConnectionRefusedError:
            if self.path.is_socket():  # a plain file refuses too
                self.path.unlink()
        except FileNotFoundError:
            pass
        else:
            raise OSError(None, "another service listens there")
        self._socket.bind(str(self.path))

    def _listen(self, on_wake):
        while True:
            self._socket.recv(1)
            on_wake()

    def admit(self, user_id):
        """This user may wake us, besides ourselves."""
        os.chown(self.path, user_id, -1)

    def close(self):
        self.path.unlink(missing_ok=True)


class Trigger:
    """Keeps one registered."""

    def __init__(self, slurm, listener):
        self._slurm = slurm
        self._listener = listener
        self._program = f"{SCRIPT} wake {listener.path}"
        self._user = None  # SlurmUser, once it is known
        self.registered = False

    def keep(self):
        """Registers it unless Slurm has it; SlurmError if Slurm refuses."""
        self.registered = False
        if self._user is None:
            user = self._slurm.user()
            self._listener.admit(user.pw_uid)
            self._user = user
        if not self._slurm.triggers(self._program):
            self._slurm.set_trigger(self._program, self._user)
        self.registered = True

    def remove(self):
        """What was registered, by an earlier service too."""
        for number in self._slurm.triggers(self._program):
            self._slurm.clear_trigger(number)
        self.registered = False
