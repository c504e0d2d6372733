"""``caramel worker``: the server of one worker."""

from __future__ import annotations

import os

import click

from caramel.cli.options import reporting_errors
from caramel.cli.places import SLURM, TF_CONFIG, Place, own_tasks, refuse_two_descriptions, serve
from caramel.errors import listed
from caramel.runtime.host.membership import Membership


@click.command()
@click.option(
    "--cluster",
    metavar="HOST:PORT,...",
    help="Address of every worker, in order; or tf-config or slurm. Default: tf-config; see below.",
)
@click.option(
    "--hosts",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Instead of --cluster: a file with the servers, one a line: HOST, HOST:PORT or HOST:PORT workers=K.",
)
@click.option(
    "--task", type=int, help="Which of them this is, from 0; --hosts: default: the one with this machine's name."
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Number of virtual CPU devices, for as many replicas in this process; default: as in the file of hosts, or 1.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of ops that it runs at once; default: one for each core, and 6 for transfers. Where steps take less "
    "than 50 ms, as many as cores are better.",
)
@click.option(
    "--with-ps",
    is_flag=True,
    help="tf-config: tasks of the job ps take part, as parameter servers (caramel run --servers K); give it on all.",
)
@click.option(
    "--exit-with-driver",
    is_flag=True,
    help="End, with exit status 0, once the driver that has used this server has ended.",
)
@click.option(
    "--exit-with-input",
    is_flag=True,
    help="End once standard input ends, as it does when a connection over ssh breaks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON: that the server is ready, what was freed.")
@reporting_errors
def worker(
    cluster: str | None,
    hosts: str | None,
    task: int | None,
    devices: int | None,
    threads: int | None,
    with_ps: bool,
    exit_with_driver: bool,
    exit_with_input: bool,
    as_json: bool,
) -> None:
    """Start the server of one worker, on the machine with that address, and keep it running.

    Without --cluster, --hosts and --task, the environment variable TF_CONFIG says both, as orchestrators set it.

    A TensorFlow server listens on every interface and runs any graph for anyone who reaches it: start it in a
    network that only you can reach.
    """
    refuse_two_descriptions(cluster is not None, hosts)
    if cluster is None and hosts is None and not os.environ.get("TF_CONFIG"):
        raise click.UsageError(
            "say which servers there are and which one this is: --cluster HOST:PORT,HOST:PORT,... --task N, or --hosts "
            "FILE. (TF_CONFIG is not set, in which orchestrators say both)"
        )
    membership = _membership(TF_CONFIG if cluster is None else cluster, hosts, task, with_ps)
    serve(membership, devices, threads, exit_with_driver, exit_with_input, as_json)


def _membership(cluster: str, hosts: str | None, task: int | None, with_ps: bool) -> Membership:
    """The cluster, with the task of this process.

    Raises:
        InputError: it is not described as it should be.
    """
    if hosts is None and cluster in (TF_CONFIG, SLURM) and task is not None:
        raise click.UsageError(f"--task belongs to --cluster HOST:PORT,... and --hosts; here {cluster} says the task")
    if with_ps and (hosts is not None or cluster != TF_CONFIG):
        raise click.UsageError(f"--with-ps belongs to {TF_CONFIG}: elsewhere the last tasks are parameter servers")
    place = Place(cluster, hosts, task, with_ps=with_ps)
    place.check(1)
    if hosts is not None and task is None:
        place = Place(cluster, hosts, _own_task(hosts))
    membership = place.servers
    if membership.task is None:
        last = len(membership.addresses) - 1
        raise click.UsageError(
            "TF_CONFIG has no 'task', so which server this is is not known: add it, or give --cluster and --task"
            if hosts is None and cluster == TF_CONFIG
            else f"say which server this is: --task 0 to {last}"
        )
    return membership


def _own_task(hosts: str) -> int:
    """The task whose line in a file of hosts is this machine's.

    Raises:
        click.UsageError: no line is, or several are.
    """
    from caramel.runtime.host.hosts_file import from_hosts_file

    membership = from_hosts_file(hosts)
    own = own_tasks(membership)
    if len(own) == 1:
        return own[0]
    names = listed([f"{task} ({membership.addresses[task]})" for task in own or range(len(membership.addresses))], 4)
    found = f"several lines of {hosts} lead" if own else f"no line of {hosts} leads"
    raise click.UsageError(f"{found} to this machine, so say which server this is: --task, one of {names}")
