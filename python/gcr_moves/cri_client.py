"""The Container Runtime Interface of a host, by gRPC through its shell.

A command there joins its standard streams with the socket of the CRI. gRPC connects to sockets only, so it gets one
here, in a folder that no other user can enter, and the command gets that connection.
"""

import importlib
import json
import os
import pathlib
import socket
import tempfile

import gcr_moves
from gcr_moves import cli as program
from gcr_moves.engines import NOT_INSTALLED, QUESTION_SECONDS, EngineError, NotInstalled
from gcr_moves.streams import Joined

# The variable is crictl's. The status of a host without a CRI is that of a shell without the command.
DIAL = ("sh", "-c", """
socket=${CONTAINER_RUNTIME_ENDPOINT:-/run/containerd/containerd.sock}
socket=${socket#unix://}
[ -S "$socket" ] || { echo "there is no socket $socket" >&2; exit 127; }
command -v socat >/dev/null || { echo "socat is not installed" >&2; exit 1; }
exec socat -t 0 - "UNIX-CONNECT:$socket"
""")  # fmt: skip
LONGEST_ANSWER_BYTES = 16 << 20  # containerd's own limit
OPTIONS = (
    ("grpc.max_receive_message_length", LONGEST_ANSWER_BYTES),
    ("grpc.min_reconnect_backoff_ms", QUESTION_SECONDS * 1000),  # also the time for a connection
    ("grpc.use_local_subchannel_pool", 1),
)


def _folder_of_messages():
    """Where the build has put cri_pb2, made of proto/cri.proto; installed, it is next to this module."""
    root = pathlib.Path(__file__).resolve().parents[2]
    return pathlib.Path(os.environ.get("GCR_BUILD", root / "build" / "release")) / "python" / "gcr_moves"


class Libraries:
    """Of Debian, and the messages; loaded when the first container of a CRI is asked for."""

    def __init__(self):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its log would be on standard error
        built = str(_folder_of_messages())
        if built not in gcr_moves.__path__:
            gcr_moves.__path__.append(built)
        try:
            self.grpc = importlib.import_module("grpc")
            self.json_format = importlib.import_module("google.protobuf.json_format")
            self.messages = importlib.import_module("gcr_moves.cri_pb2")
        except ImportError as error:
            raise EngineError(f"containers of a CRI need Python's grpc and protobuf (Debian: python3-grpcio, "
                              f"python3-protobuf): {error}") from None  # fmt: skip
        services = self.messages.DESCRIPTOR.services_by_name.values()
        self.methods = {method.name: method for service in services for method in service.methods}

    def message(self, kind, content):
        """From its JSON, as a dictionary. ValueError if it has a field that is not in proto/cri.proto."""
        try:
            return self.json_format.ParseDict(content, getattr(self.messages, kind)())
        except self.json_format.ParseError as error:
            raise ValueError(str(error).splitlines()[0]) from None

    def content(self, message):
        """Its JSON, as a dictionary."""
        return self.json_format.MessageToDict(message, preserving_proto_field_name=True)


class Session:
    """A connection to the CRI of a host: a context manager. EngineError if it fails."""

    def __init__(self, host, libraries):
        self._host, self._libraries = host, libraries
        self._folder = self._listener = self._channel = self._joined = None

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="gcr-cri-")  # pylint: disable=consider-using-with
        path = f"{self._folder.name}/socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._channel = self._libraries.grpc.insecure_channel(f"unix:{path}", OPTIONS)
        return self

    def _join(self):
        """Gives the command the other end of gRPC's connection, which is made with the first request and never again."""
        self._listener.settimeout(QUESTION_SECONDS)
        try:
            connection, _ = self._listener.accept()
            with connection:
                connection.setblocking(True)
                self._joined = Joined(self._host.command(*DIAL), connection)
        except OSError as error:
            raise EngineError(f"{self._host.agent}: cannot ask its CRI: {error.strerror or error}") from None
        self._stop_listening()

    def _stop_listening(self):
        self._listener.close()
        self._folder.cleanup()

    def __exit__(self, kind, error, _):
        said = program.last_line(self._end())
        if kind is None or not issubclass(kind, _Unanswered):
            return
        status = self._joined.status
        unknown = error.code == self._libraries.grpc.StatusCode.UNIMPLEMENTED
        raise (NotInstalled if status == NOT_INSTALLED or unknown else EngineError)(
            f"{error}{said and ': ' + said}") from None

    def _end(self):
        self._channel.close()
        self._stop_listening()
        return self._joined.end() if self._joined is not None else ""

    def ask(self, method, **fields):
        """The answer to a request with these fields; None if it names something that is not there."""
        grpc, messages = self._libraries.grpc, self._libraries.messages
        found = self._libraries.methods[method]
        request = getattr(messages, found.input_type.name)(**fields)
        call = self._channel.unary_unary(
            f"/{found.containing_service.full_name}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(messages, found.output_type.name).FromString,
        )
        asked = call.future(request, timeout=QUESTION_SECONDS)
        if self._joined is None:
            self._join()
        try:
            return asked.result()
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise _Unanswered(error.code(), f"{self._host.agent}: {method}: {error.details()}") from None

    def status(self, method, **fields):
        """The same of a status, and what containerd adds to it."""
        answer = self.ask(method, verbose=True, **fields)
        try:
            return answer, json.loads(answer.info["info"]) if answer is not None else {}
        except (ValueError, KeyError):
            raise EngineError(f"{self._host.agent}: {method}: this is not containerd's answer") from None


class _Unanswered(EngineError):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
