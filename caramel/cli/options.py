"""The options that several commands share, and the way in which errors end them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from caramel.cli.quiet import load_quietly
from caramel.errors import CaramelError, InputError
from caramel.runtime.host.membership import LAST_PORT
from caramel.util.arguments import whole_number, worker_count
from caramel.util.whole_files import file_to_replace

if TYPE_CHECKING:
    from caramel.armodel import ARModel
    from caramel.frontend.program_file import Program
    from caramel.runtime.clusters.base import Cluster
    from caramel.runtime.host.membership import Membership

TF_CONFIG = "tf-config"
"""The value of ``--cluster`` that takes the environment variable's cluster."""


def reporting_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the library's errors into a message and exit code 1."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        try:
            return command(*args, **kwargs)
        except CaramelError as error:
            if context.obj["debug"]:
                raise
            raise click.ClickException(str(error)) from error

    return wrapped


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Several options as one decorator; the help lists them in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class PolicyOption(click.Option):
    """``--policy``. The registry has the names and what they mean; it is imported once somebody asks."""

    @property
    def help(self) -> str:
        """The help, with what each policy does."""
        from caramel.analyzers.registry import POLICIES

        summaries = "; ".join(f"{policy.name}: {policy.summary}" for policy in POLICIES.values())
        return f"How to make buckets and put them into windows. {summaries}."

    @help.setter
    def help(self, text: str | None) -> None:
        """Click sets the text of an option when it makes it; this one has none of its own."""


class PolicyName(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """The name of a policy; see `PolicyOption`."""

    name = "policy"

    def _choice(self) -> click.Choice[str]:
        from caramel.analyzers.registry import POLICIES

        return click.Choice(list(POLICIES))

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The names, for the help."""
        return f"[{'|'.join(self._choice().choices)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an unknown name."""
        return self._choice().convert(value, param, ctx)


def with_cluster(default: str) -> Callable[..., Any]:
    """Options about where to run."""
    return _options(
        click.option(
            "--cluster",
            metavar="CLUSTER",
            default=default,
            show_default=True,
            help="in-process: virtual devices of this process. processes: a TensorFlow server process for each worker. "
            "HOST:PORT,HOST:PORT,...: servers that run already (caramel worker). tf-config: the servers that the "
            "environment variable TF_CONFIG names; this must be its chief or worker 0.",
        ),
        click.option("--base-port", type=int, help="processes: task r listens on this port + r; default: free ports."),
        click.option(
            "--allow-open-ports",
            is_flag=True,
            help="processes: start even where the kernel allows no network namespace. The servers then listen on every "
            "interface, and anyone who reaches them can run any graph.",
        ),
    )


with_devices = click.option(
    "--device", "devices", multiple=True, help="Device of each worker, in order; default /job:worker/task:R."
)
"""The workers' devices."""

with_collectives = _options(
    click.option(
        "--network",
        metavar="FILE.json",
        type=click.Path(dir_okay=False),
        help="Choose algorithms and depths by this model of the network (caramel netbench makes one).",
    ),
    click.option("--algorithm", metavar="NAME", help="One all-reduce algorithm for all gradients instead."),
    click.option("--depth", type=int, help="Number of chunks of every all-reduce instead."),
    click.option("--deterministic", is_flag=True, help="Add gradients in rank order only."),
    click.option("--wire", metavar="DTYPE", help="Send gradients rounded to bfloat16 or float16."),
)
"""Options about the all-reduces."""

with_policies = _options(
    click.option(
        "--trace",
        metavar="FILE.json",
        type=click.Path(dir_okay=False),
        help="Measured times of the program's ops (caramel trace makes them).",
    ),
    click.option(
        "--policy",
        cls=PolicyOption,
        type=PolicyName(),
        default="optimal",
        show_default=True,
    ),
    click.option("--serialization/--no-serialization", default=True, help="Enforce one order of computation."),
    click.option("--batching/--no-batching", default=True, help="Send small gradients together."),
    click.option("--scheduling/--no-scheduling", default=True, help="Send gradients in the next forward pass, too."),
)
"""Options about decisions; each switch takes one of the paper's optimisations away."""

with_plan = click.option(
    "--plan",
    metavar="FILE.json",
    type=click.Path(dir_okay=False),
    help="Apply this plan (caramel plan --out) as it is, instead of making one.",
)
"""A finished plan."""


def check_decisions(workers: int, devices: Sequence[str], decisions: Mapping[str, Any]) -> None:
    """Refuse options about the plan that are wrong whatever the program is, before TensorFlow is loaded.

    Args:
        workers: number of workers.
        devices: device of each worker; empty for the default.
        decisions: further options of `ARModel`, by name.

    Raises:
        CaramelError: an option does not fit, or a file of one cannot be read.
    """
    worker_count(workers, "--workers")
    from caramel.compiler.options import CompileOptions
    from caramel.graph.devices import parse_devices
    from caramel.measure.trace_file import load_trace
    from caramel.plan import Plan

    options = CompileOptions(workers=workers, device_list=devices or None, **decisions)
    if devices:
        parse_devices(devices, workers)
    if options.trace is not None:
        load_trace(decisions["trace"])
    if options.plan is not None:
        Plan.load(decisions["plan"])


def check_cluster_options(kind: str, base_port: int | None, workers: int) -> None:
    """Refuse options about the cluster that are wrong whatever the program is.

    Args:
        kind: value of ``--cluster``.
        base_port: value of ``--base-port``.
        workers: number of workers.

    Raises:
        InputError: there are no such ports.
    """
    if ":" not in kind and kind not in ("in-process", "processes", TF_CONFIG):
        raise click.UsageError(
            f"--cluster takes in-process, processes, {TF_CONFIG} or HOST:PORT,HOST:PORT,..., got {kind!r}"
        )
    if base_port is None:
        return
    if kind != "processes":
        raise click.UsageError(f"--base-port belongs to --cluster processes, and --cluster is {kind}")
    last = LAST_PORT + 1 - workers
    whole_number(base_port, "--base-port", most=last, reason=f"each of {workers} workers has a port, up to {LAST_PORT}")


def chosen_cluster(kind: str, base_port: int | None, allow_open_ports: bool) -> Cluster:
    """The cluster of ``--cluster``, and TensorFlow loaded.

    Args:
        kind: value of ``--cluster``.
        base_port: value of ``--base-port``.
        allow_open_ports: value of ``--allow-open-ports``.

    Raises:
        InputError: TF_CONFIG describes no cluster, or this process is not the one that drives it.
    """
    # Before TensorFlow is loaded, because the description may be wrong.
    membership = cluster_of_tf_config() if kind == TF_CONFIG else None
    load_quietly()  # the program imports Keras if it needs it
    from caramel.runtime.clusters.existing import Servers
    from caramel.runtime.clusters.in_process import InProcess
    from caramel.runtime.clusters.local_processes import LocalProcesses

    if kind == "in-process":
        return InProcess()
    if kind == "processes":
        return LocalProcesses(allow_open_ports=allow_open_ports, base_port=base_port)
    if membership is None:
        return Servers(tuple(kind.split(",")))
    servers = Servers(membership.addresses, task=membership.task)
    servers.check_drives()
    if membership.task == 0:
        click.echo(f"anyone who reaches {membership.addresses[0]} can run any graph there", err=True)
    return servers


def cluster_of_tf_config() -> Membership:
    """The members of TF_CONFIG's cluster; notes about parts that were left out are printed."""
    from caramel.runtime.host.membership import from_tf_config

    membership = from_tf_config()
    for note in membership.notes:
        click.echo(f"note: {note}", err=True)
    return membership


def check_writable(file: str) -> None:
    """Refuse a file that cannot be written, before anything is measured or planned for it.

    Raises:
        InputError: there is no such directory, or it is not writable; or there is something other than a regular file.
    """
    try:
        target = file_to_replace(file)
    except OSError as error:
        raise InputError(f"{file!r} cannot be written: {error.strerror}") from error
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{file!r} cannot be written: there is no such directory, or it is not yours to write to")
    try:
        tempfile.TemporaryFile(dir=target.parent, prefix=target.name).close()
    except OSError as error:  # a file system without files of one's own, for one
        raise InputError(f"{file!r} cannot be written: {error.strerror}") from error


def arguments_of(batch: Any) -> tuple[Any, ...]:
    """The arguments of a step, or of an evaluation, for a batch of the program's."""
    return batch if isinstance(batch, tuple) else (batch,)


def compiled(
    program: str, workers: int, devices: tuple[str, ...], decisions: dict[str, Any]
) -> tuple[Program, ARModel]:
    """Capture and compile a program file, and print the plan."""
    from caramel.frontend.program_file import load_program

    loaded = load_program(program)
    from caramel.armodel import ARModel

    armodel = ARModel(loaded.context, workers, device_list=devices or None, **decisions)
    click.echo(armodel.plan.table())
    return loaded, armodel
