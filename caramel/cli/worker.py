"""``caramel worker``: the server of one worker."""

from __future__ import annotations

import logging

import click

from caramel.cli.options import TF_CONFIG, cluster_of_tf_config, reporting_errors
from caramel.cli.quiet import load_quietly

_logger = logging.getLogger(__name__)


@click.command()
@click.option(
    "--cluster", default="tf-config", metavar="HOST:PORT,...", help="Address of every worker, in order; see below."
)
@click.option("--task", type=int, help="Which of them this is, from 0.")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of virtual CPU devices, for as many replicas in this process.",
)
@reporting_errors
def worker(cluster: str, task: int | None, devices: int) -> None:
    """Start the server of one worker, on the machine with that address, and keep it running.

    Without --cluster and --task, the environment variable TF_CONFIG says both, as orchestrators set it.

    A TensorFlow server listens on every interface and runs any graph for anyone who reaches it: start it in a
    network that only you can reach.
    """
    from caramel.runtime.host.membership import Membership, checked_addresses

    if cluster == TF_CONFIG:
        if task is not None:
            raise click.UsageError("--task belongs to --cluster HOST:PORT,...; without it, TF_CONFIG says the task")
        membership = cluster_of_tf_config()
    else:
        membership = Membership(checked_addresses(cluster.split(",")), task)
    last = len(membership.addresses) - 1
    if membership.task is None:
        raise click.UsageError(
            f"say which server this is: --task 0 to {last}"
            if cluster != TF_CONFIG
            else "TF_CONFIG has no 'task', so which server this is is not known: add it, or give --cluster and --task"
        )
    if not 0 <= membership.task <= last:
        raise click.UsageError(f"--task must be between 0 and {last}, got {membership.task}")
    from caramel.runtime.host.environment import prepare_server
    from caramel.runtime.host.server import serve_forever

    prepare_server()
    load_quietly()
    _logger.warning("anyone who reaches %s can run any graph here", membership.addresses[membership.task])
    serve_forever(membership.addresses, membership.task, devices)
