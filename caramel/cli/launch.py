"""``caramel launch``: start the workers of a file of hosts, train, and stop them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from caramel.cli.options import reporting_errors
from caramel.cli.places import Place
from caramel.cli.run import run
from caramel.runtime.clusters.remote_workers import RemoteOptions, RemoteWorkers

if TYPE_CHECKING:
    from caramel.runtime.clusters.base import Cluster


@dataclass(frozen=True)
class LaunchedPlace(Place):
    """The hosts of a file, on which workers are started once the options of the command are known to be right.

    Attributes:
        remote: how they are started.
    """

    remote: RemoteOptions = field(default_factory=RemoteOptions)

    @property
    def starts_servers(self) -> bool:
        """Whether the command starts servers: on the hosts."""
        return True

    def cluster(self, workers: int, trains: bool = False) -> Cluster:
        """The cluster, whose workers listen, that of task 0 too; they are stopped with the command."""
        assert self.membership is not None
        started = RemoteWorkers(self.membership, replace(self.remote, threads=self.threads))
        click.get_current_context().obj["workers"] = started
        started.start()
        cluster = super().cluster(workers, trains)  # this loads TensorFlow meanwhile
        started.await_all()
        return cluster


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--hosts", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="The hosts; see run.")
@click.option(
    "--ssh", default="ssh", show_default=True, metavar="COMMAND", help="The command that connects to another machine."
)
@click.option(
    "--remote-python", metavar="PATH", help="Python with Caramel on the hosts; default: the path of this one."
)
@click.option(
    "--remote-directory", metavar="DIR", help="Working directory on the hosts; default: this one, where it exists."
)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF RUN]")
@reporting_errors
def launch(
    hosts: str,
    ssh: str,
    remote_python: str | None,
    remote_directory: str | None,
    program: str,
    options: tuple[str, ...],
) -> None:
    """Train on the hosts of a file: start a worker on each, run the program here, and stop the workers.

    What follows the program are options of `caramel run`. Run it on the first host, or where it sees the same files
    as the first host. Other hosts are reached by ssh, which must not ask for a password.
    """
    outer = click.get_current_context()
    remote = RemoteOptions(ssh, remote_python, remote_directory)
    shared: dict[str, Any] = {**outer.obj, "place": partial(LaunchedPlace, remote=remote)}
    arguments = ["--hosts", hosts, program, *options]  # in front: after a "--" all are the script's own
    with run.make_context("run", arguments, parent=outer, obj=shared) as inner:
        if inner.params["task"] is not None:
            raise click.UsageError("leave out --task: this process drives, and each host gets a worker of its own")
        try:
            run.invoke(inner)
        except BaseException:
            if "workers" in shared:
                for line in shared["workers"].troubles():
                    click.echo(line, err=True)
            raise
        finally:
            if "workers" in shared:
                shared["workers"].stop()
