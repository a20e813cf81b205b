"""Jobs in containers, as drains and rebalancings move them: by the first process of their container, which agents name.

Shells and engines are asked only once a job is in a container.
"""

import dataclasses

from gcr_moves import cli as program
from gcr_moves import engines
from gcr_moves.containers import Move, Refused
from gcr_moves.cri import Cri
from gcr_moves.docker import Docker
from gcr_moves.jobs import Jobs
from gcr_moves.podman import Podman

ENGINES = {"podman": Podman, "docker": Docker, "cri": Cri, "job": Jobs}


def find_by_init(host, pid):
    """The name of the engine that has the container with this first process, and the container; None if no engine has
    it. EngineError if one did not answer that may have it."""
    trouble = None
    for name, engine in ENGINES.items():
        try:
            container = engine(host).find_by_init(pid)
        except engines.EngineError as error:
            trouble = trouble or error
            continue
        if container is not None:
            return name, container
    if trouble:
        raise trouble
    return None


class Containers:
    """Where they are. Thread-safe."""

    def __init__(self, cli, shell, say, patience):
        """`shell`: as of engines.Host."""
        self._cli, self._shell, self._say, self._patience = cli, shell, say, patience
        self._names = {}  # by host and PID of the first process

    def name_of(self, job, source):
        """"podman:train", as the job's container was found last; empty if it was not."""
        return self._names.get((source, job.container_init), "")

    def find(self, job, source, destination, patience=None):
        """The move of the job with its container; None if no engine of the source has that. CliError if an engine
        that may have it does not answer."""
        host = engines.Host(source, self._shell)
        try:
            found = find_by_init(host, job.container_init)
        except engines.EngineError as error:
            raise program.CliError(program.FAILED, str(error)) from None
        if found is None:
            return None
        name, container = found
        self._names[source, job.container_init] = f"{name}:{container.name}"
        engine = ENGINES[name]
        there = engine(engines.Host(destination, self._shell))
        return Moving(Move(self._cli, engine(host), there, self._say, patience or self._patience), container.name)


class Moving:
    """A job with its container. Once it is ordered it is like a cli.Migration."""

    def __init__(self, move, name):
        self._move, self._name = move, name
        self._options = []

    def preflight(self, options):
        """The blockers. CliError if not all are known."""
        try:
            findings = self._move.preflight(self._name, options)
        except engines.EngineError as error:
            raise program.CliError(program.FAILED, str(error)) from None
        return program.blockers_of(findings)

    def order(self, options):
        """`options`: of the migration, which begins with wait()."""
        self._options = options
        return self

    @property
    def migration_id(self):
        return self._move.migration_id

    def cancel(self):
        self._move.cancel()

    def leave(self):
        self._move.leave()

    def wait(self):
        try:
            outcome = self._move.run(self._name, self._options)
        except Refused as refusal:
            return program.Ended(program.REFUSED, str(refusal))
        except engines.EngineError as error:
            return program.Ended(program.FAILED, str(error))
        return self._ended(outcome)

    def settle(self):
        """Finishes what was begun earlier; None if the container is gone."""
        try:
            outcome = self._move.settle(self._name)
        except engines.EngineError as error:
            return program.Ended(program.UNKNOWN, str(error))
        return outcome and self._ended(outcome)

    @staticmethod
    def _ended(outcome):
        message = outcome.message or outcome.migration.message
        return dataclasses.replace(outcome.migration, status=outcome.status, message=message)
