"""The options that scripts/drain, scripts/rebalance and scripts/container share."""

import argparse
import shlex
import shutil
import sys

from gcr_moves import cli as program
from gcr_moves import text
from gcr_moves.cluster import Cluster
from gcr_moves.container_jobs import Containers
from gcr_moves.runner import Limits, Runner
from gcr_moves.slurm import Slurm, SlurmError

CERTIFICATES = (
    ("--ca", "the authority's certificate"),
    ("--cert", "your certificate"),
    ("--key", "its private key"),
)


def positive(kind):
    def read(words):
        number = kind(words)
        if number <= 0:
            raise argparse.ArgumentTypeError("must be above 0")
        return number

    return read


def explained(parse):
    """A type of arguments: what parse() makes of them, or why it cannot."""

    def read(words):
        try:
            return parse(words)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def add_options(parser):
    limits = Limits()
    group = parser.add_argument_group("how much at a time, and how long")
    number, seconds = positive(int), positive(float)
    group.add_argument("--per-host", type=number, default=limits.per_host, metavar="N",
                       help="migrations at a time that one host takes part in (default %(default)s)")
    group.add_argument("--total", type=number, default=limits.total, metavar="N",
                       help="migrations at a time in all (default %(default)s)")
    group.add_argument("--tries", type=number, default=limits.tries, metavar="N",
                       help="how often to try one process before it is left (default %(default)s)")
    group.add_argument("--pause", type=seconds, default=limits.pause_seconds, metavar="S",
                       help="seconds before a process is tried again, and before a host that does not "
                       "answer is queried again; twice as long each time (default %(default)s)")
    group.add_argument("--patience", type=seconds, default=limits.patience_seconds, metavar="S",
                       help="seconds to wait for a source that does not answer, and for a migration "
                       "whose outcome is not known (default %(default)s)")
    group.add_argument("--interval", type=seconds, default=limits.interval_seconds, metavar="S",
                       help="seconds between two queries of the hosts (default %(default)s)")
    group = parser.add_argument_group("the rest")
    group.add_argument("--dry-run", action="store_true", help="show the plan, and change nothing")
    group.add_argument("--json", action="store_true",
                       help="print the report as one JSON object on standard output")
    group.add_argument("--quiet", action="store_true", help="no lines of progress on standard error")
    add_program_options(group)


def add_program_options(group):
    """How gcr-migrate is called."""
    add_questioner_options(group)
    group.add_argument("--migrate-option", action="append", default=[], metavar="WORD",
                       help="passed on to every migration, such as --migrate-option=--strict; may be "
                       "given again")


def add_questioner_options(group):
    """The same, by what migrates nothing."""
    group.add_argument("--cli", default=program.find_program(), metavar="FILE",
                       help="gcr-migrate (default %(default)s)")
    for name, what in CERTIFICATES:
        group.add_argument(name, metavar="FILE", help=f"as for gcr-migrate: {what}")


def add_shell_option(parser):
    parser.add_argument("--shell", metavar="WORDS", type=shlex.split, default="ssh -o BatchMode=yes root@%h",
                        help="runs a command line on host %%h, to reach the engines of containers (default "
                        "%(default)s)")


def certificates_of(options):
    """As words for gcr-migrate."""
    words = []
    for name, _ in CERTIFICATES:
        value = getattr(options, name.removeprefix("--"))
        words += [name, value] if value else []
    return words


def add_slurm_options(parser):
    """The group that they are in."""
    group = parser.add_argument_group("where Slurm places: docs/slurm.md")
    group.add_argument("--wait-program", default=program.find_installed("gcr-slurm-wait"), metavar="FILE",
                       help="gcr-slurm-wait on the nodes (default %(default)s)")
    group.add_argument("--folder", default="/run/gcr-migrate-slurm", metavar="DIR",
                       help="[slurm] folder of the nodes' agent.toml (default %(default)s); %%n stands for "
                       "the node's name")
    group.add_argument("--placeholder-option", action="append", default=[], metavar="WORD",
                       help="passed on to sbatch for every placeholder, such as "
                       "--placeholder-option=--nice=-100; may be given again")
    return group


def slurm_of(options):
    jobs_program = shutil.which(program.find_installed("gcr-slurm-jobs"))
    return Slurm(options.wait_program, options.folder, options.placeholder_option, jobs_program)


def agents_of(slurm, names, alone, parser):
    """The agents of Slurm nodes, by name: of `names`, and unless these are `alone` of all others."""
    try:
        agents = {name: node.address for name, node in slurm.nodes().items()}
    except SlurmError as error:
        parser.error(f"cannot ask Slurm for its nodes: {error}")
    for name in names:
        if name not in agents:
            parser.error(f"Slurm knows no node {name}")
    return {name: agents[name] for name in (names if alone else agents)}


def hosts_of_file(path, parser):
    """One name per line; what follows a # is a remark."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split("#")[0].strip() for line in file]
    except OSError as error:
        parser.error(f"cannot read {path}: {error.strerror}")
    return [line for line in lines if line]


def make(options, names):
    """The cluster, the runner and the function for lines of progress."""
    limits = Limits(
        per_host=options.per_host,
        total=options.total,
        tries=options.tries,
        pause_seconds=options.pause,
        patience_seconds=options.patience,
        interval_seconds=options.interval,
    )
    say = text.progress_to(sys.stderr, options.quiet)
    cli = program.Cli(options.cli, certificates_of(options))
    cluster = Cluster(cli, names, options.pause)
    shell = getattr(options, "shell", None)
    containers = Containers(cli, shell, say, limits.patience_seconds) if shell else None
    checkpoint_options = getattr(options, "checkpoint_option", ())
    return cluster, Runner(cluster, limits, say, options.migrate_option, checkpoint_options, containers), say


def absolute(words):
    """Of a path; empty, as a default is: none."""
    if words and not words.startswith("/"):
        raise argparse.ArgumentTypeError("its path must begin with /")
    return words
