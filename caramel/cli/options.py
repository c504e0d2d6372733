"""The options that several commands share, and the way in which errors end them."""

from __future__ import annotations

import json
import logging
import math
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from caramel.cli.logs import is_quiet, set_up, with_logs
from caramel.cli.places import Place, refuse_two_descriptions
from caramel.cli.scripts import check_program
from caramel.errors import CaramelError
from caramel.util.arguments import predicted_worker_count, worker_count
from caramel.util.progress import note_said

if TYPE_CHECKING:
    from caramel.armodel import ARModel
    from caramel.frontend.program_file import Program


def reporting_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the library's errors into a message and exit code 1; what else is said is as the options about it say."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        try:
            set_up(context)
            return command(*args, **kwargs)
        except CaramelError as error:
            text = _with_options(str(error), context.command)
            note_said(text, logging.ERROR)
            if context.obj["debug"]:
                raise
            raise click.ClickException(text) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            context.exit(128 + signal.SIGINT)

    return with_logs(wrapped)


def _with_options(text: str, command: click.Command) -> str:
    """An error of the library with the command's options for those of `ARModel`: ``servers=4`` is ``--servers 4``.

    Args:
        text: the error. What stands in brackets stays, such as the arguments of calls.
        command: the command that was given.
    """
    from caramel.compiler.options import OPTION_NAMES

    options = {p.name: p for p in command.params if isinstance(p, click.Option) and p.name in OPTION_NAMES}
    if not options:
        return text

    def as_option(found: re.Match[str]) -> str:
        before = text[: found.start()]
        if before.count("(") > before.count(")"):
            return found[0]
        option, value = options[found[1]], found[2].strip("'")
        if value == "False" and option.secondary_opts:
            return option.secondary_opts[0]
        return max(option.opts, key=len) + (f" {value}" if value and not option.is_flag else "")

    return re.sub(rf"(?<![\w./=-])({'|'.join(options)})=('[^']*'|[\w.+-]*)", as_option, text)


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

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin so."""
        return self._choice().shell_complete(ctx, param, incomplete)


def with_cluster(default: str) -> Callable[..., Any]:
    """Options about where to run, which the command gets as its ``place``."""
    options = _options(
        click.option(
            "--cluster",
            metavar="CLUSTER",
            default=default,
            show_default=True,
            help="in-process: virtual devices of this process. processes: a TensorFlow server process for each worker. "
            "HOST:PORT,HOST:PORT,...: servers that run already (caramel worker). tf-config: the servers that the "
            "environment variable TF_CONFIG names; this must be its chief or worker 0. slurm: the tasks of the Slurm "
            "job step: task 0 drives, the others serve. ray: servers that are started on the Ray cluster of this node.",
        ),
        click.option(
            "--hosts",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Instead of --cluster: servers that a file lists, one a line: HOST, HOST:PORT or HOST:PORT workers=K.",
        ),
        click.option(
            "--task",
            type=int,
            help="--hosts and HOST:PORT: this command runs on each host, and this is its number: 0 drives, with a "
            "server of its own, the others serve until it has ended.",
        ),
        click.option(
            "--base-port",
            type=int,
            help="processes: task r listens on this port + r; default: free ports. slurm: the first task of each node "
            "listens on this port, the next ones on those after it; default: one that the job's number chooses.",
        ),
        click.option(
            "--allow-open-ports",
            is_flag=True,
            help="processes: start even where the kernel allows no network namespace. The servers then listen on every "
            "interface, and anyone who reaches them can run any graph.",
        ),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            help="Number of ops that each server which this command starts runs at once; default: as the plan "
            "says, where there is one.",
        ),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_place(
            *,
            cluster: str,
            hosts: str | None,
            task: int | None,
            base_port: int | None,
            allow_open_ports: bool,
            threads: int | None,
            **rest: Any,
        ) -> Any:
            context = click.get_current_context()
            refuse_two_descriptions(context.get_parameter_source("cluster") is not ParameterSource.DEFAULT, hosts)
            make = context.obj.get("place", Place)  # launch starts the servers first
            of_tasks = task, base_port, allow_open_ports, threads
            return command(place=make(cluster, hosts, *of_tasks, *_servers_of(rest)), **rest)

        return options(with_place)

    return decorate


with_devices = click.option(
    "--device", "devices", multiple=True, help="Device of each worker, in order; default /job:worker/task:R."
)
"""The workers' devices."""

with_collectives = _options(
    click.option(
        "--network",
        metavar="FILE.json",
        type=click.Path(dir_okay=False),
        help="Choose algorithms and depths by this model of the network (caramel netbench makes one). A script's "
        "fit is also traced, and planned, by it.",
    ),
    click.option("--algorithm", metavar="NAME", help="One all-reduce algorithm for all gradients instead."),
    click.option("--depth", type=int, help="Number of chunks of every all-reduce instead."),
    click.option("--deterministic", is_flag=True, help="Add gradients in rank order only."),
    click.option("--wire", metavar="DTYPE", help="Send gradients rounded to bfloat16 or float16."),
)
"""Options about the all-reduces."""

_SERVERS = (
    click.option(
        "--servers",
        metavar="K",
        type=click.IntRange(min=1),
        help="K parameter servers, as tasks after those of the workers: they have the parameters, which workers pull, "
        "and to which they push gradients, instead of all-reduces.",
    ),
    click.option(
        "--server-device",
        "server_list",
        multiple=True,
        callback=lambda context, parameter, value: list(value) or None,
        help="Device of each parameter server, in order, such as that of a worker; default: tasks of their own.",
    ),
)

with_servers = _options(*_SERVERS)
"""Options about parameter servers."""

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
    click.option(
        "--shard-updates",
        type=click.Choice(["all", "auto", "none"]),
        default="none",
        show_default=True,
        help="Each worker makes its part of an update, and has its part of the slots: of all that can be, where that "
        "is predicted to be faster, or of none.",
    ),
    click.option(
        "--shard-embeddings",
        type=click.Choice(["all", "auto", "none"]),
        help="Each worker has some rows of embedding tables and their slots, which the others look up there: of all "
        "tables that can be divided, where that is predicted to be faster (the default of a plan that predicts), or of "
        "none.",
    ),
    click.option(
        "--sync-every",
        metavar="STEPS",
        type=click.IntRange(min=1),
        help="Every worker trains by itself for so many steps, and then all exchange what they have trained. This is "
        "not the training of one device.",
    ),
    *_SERVERS,
    click.option(
        "--ordering",
        metavar="NAME",
        help="Order in which workers get parameters from servers: tac, tao or best by times (--trace, --network); "
        "tic, tio or read by the graph alone; none; random and reverse to compare. Default: best, or tic where no "
        "times are known.",
    ),
    click.option(
        "--pulls-in-flight",
        metavar="W",
        type=click.IntRange(min=1),
        help="Number of parameters on the way from a server to a worker at once; default: 2.",
    ),
    click.option("--outer-learning-rate", type=float, help="Of the exchange after local steps; default: 0.7."),
    click.option("--outer-momentum", type=float, help="Of that exchange; default: 0.5."),
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
    (predicted_worker_count if decisions.get("is_what_if") else worker_count)(workers, "--workers")
    from caramel.analyzers.plan_checks import check_workers
    from caramel.compiler.options import CompileOptions
    from caramel.graph.devices import parse_devices
    from caramel.measure.trace_file import load_trace
    from caramel.plan import Plan

    options = CompileOptions(workers=workers, device_list=devices or None, **decisions)
    if devices:
        parse_devices(devices, workers)
    if options.server_list is not None and options.servers is not None:
        parse_devices(options.server_list, options.servers, "--server-device", "server")
    if options.trace is not None:
        load_trace(decisions["trace"])
    if options.plan is not None:
        check_workers(Plan.load(decisions["plan"]), workers)


def checked_place(
    place: Place,
    workers: int | None,
    devices: Sequence[str],
    decisions: Mapping[str, Any],
    program: str,
) -> tuple[int, tuple[str, ...]]:
    """The workers of a command that runs a program, once all that is given was checked; or serve there.

    Args:
        place: where it runs.
        workers: number of workers, if it was given.
        devices: device of each worker; empty for the default.
        decisions: further options of `ARModel`, by name.
        program: ``FILE.py:ENTRY``, or ``FILE.py`` for a script.

    Returns:
        The number of workers, and their devices.

    Raises:
        CaramelError: an option does not fit, or there is no such program.
    """
    place.check(workers or 1)
    number, own_devices = place.size(workers, devices)
    check_decisions(number, own_devices, decisions)
    check_program(program)
    if place.serves:
        place.serve(own_devices)
    return number, own_devices


def _servers_of(options: Mapping[str, Any]) -> tuple[bool, int]:
    """Whether options of a command ask for parameter servers; and for how many tasks of their own."""
    if options.get("servers") is None and options.get("plan") is None:
        return False, 0
    from caramel.compiler.server_tasks import server_tasks

    tasks = server_tasks(options)
    return tasks is not None, tasks or 0


_RESULTS = "caramel.results"
"""Key of the stream for results, in the meta data of click's context."""


def _kept_for_results(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Keep standard output for the result: what the user's program prints goes to standard error."""
    if value and not context.resilient_parsing:
        context.meta[_RESULTS] = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))
    return value


with_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    callback=_kept_for_results,
    help="Print the result as JSON, in SI units; what the program prints goes to standard error.",
)
"""Whether the result is for programs."""


def print_json(values: Mapping[str, Any]) -> None:
    """Print a result for programs."""
    text = json.dumps(_as_json_has_it(values), indent=1, allow_nan=False)
    click.echo(text, file=click.get_current_context().meta[_RESULTS])


def _as_json_has_it(value: Any) -> Any:
    """Values without numbers that JSON does not know: a loss that is no number is null."""
    if isinstance(value, Mapping):
        return {key: _as_json_has_it(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json_has_it(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def compiled(
    program: str,
    arguments: Sequence[str],
    workers: int,
    devices: tuple[str, ...],
    decisions: dict[str, Any],
    shows_plan: bool = True,
) -> tuple[Program, ARModel]:
    """Capture and compile a program file, and print the plan unless no more than results are to be said."""
    from caramel.cli.scripts import loaded_program

    loaded = loaded_program(program, arguments, workers)
    from caramel.armodel import ARModel

    armodel = ARModel(loaded.context, workers, device_list=devices or None, **decisions)
    if decisions.get("trace") is not None:
        from caramel.cli.workflows import warn_of_other_batch
        from caramel.measure.trace_file import load_trace

        warn_of_other_batch(load_trace(decisions["trace"]), loaded, workers)
    if shows_plan and not is_quiet():
        click.echo(armodel.plan.table())
    return loaded, armodel
