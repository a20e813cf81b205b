"""Commands that join a connection here with a server elsewhere."""

import subprocess
import tempfile

END_SECONDS = 10  # for a command whose standard input has ended


class Joined:
    """A command whose standard input and output are one socket."""

    def __init__(self, command, theirs):
        """OSError if it cannot begin. The caller closes `theirs`."""
        self._errors = tempfile.TemporaryFile()  # pylint: disable=consider-using-with
        self._process = None
        try:
            self._process = subprocess.Popen(  # pylint: disable=consider-using-with
                command, stdin=theirs, stdout=theirs, stderr=self._errors, start_new_session=True)  # fmt: skip
        except OSError:
            self._errors.close()
            raise

    @property
    def status(self):
        """Once it has ended."""
        return self._process.returncode

    def end(self):
        """Once this side of the socket is closed. What the command wrote to its standard error."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._errors as errors:
            errors.seek(0)
            return errors.read().decode(errors="replace")
