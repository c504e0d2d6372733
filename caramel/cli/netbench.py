"""``caramel netbench``: measure a network, or describe one."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from caramel.cli.options import print_json, reporting_errors, with_cluster, with_devices, with_json
from caramel.cli.places import RAY, Place
from caramel.util.figures import check_plot
from caramel.util.units import parse_rate, parse_size
from caramel.util.whole_files import check_writable

if TYPE_CHECKING:
    from caramel.netmodel.model import NetworkModel
    from caramel.runtime.clusters.base import Cluster


_NOT_GIVEN = (None, ())
"""The values of options that were not given."""


@click.command()
@click.option(
    "--workers",
    "numbers",
    multiple=True,
    type=int,
    help="Number of workers; several to predict others. Default: as many as the cluster has.",
)
@with_cluster("processes")
@with_devices
@click.option("--out", metavar="FILE.json", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--quick", is_flag=True, help="A first look in one to two minutes: fewer sizes, depths and rounds.")
@click.option("--plot", metavar="FILE.png", type=click.Path(dir_okay=False), help="Also draw the measurements.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="SIZE",
    help="Bytes of a tensor; default: 64 B to 32 MiB. 64 B always.",
)
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAME", help="What to measure; default: all.")
@click.option("--depth", "depths", multiple=True, type=int, help="Numbers of chunks; default: 1, 2, 4 and 8.")
@click.option("--rounds", type=int, help="How often each is timed; default: 7.")
@click.option("--link-rate", metavar="RATE", help="Measure nothing: links of this rate, such as 10Gbit/s.")
@click.option("--latency", type=float, metavar="SECONDS", help="link-rate: time of a message.")
@click.option("--alpha", type=float, metavar="SECONDS", help="Measure nothing: time of a message.")
@click.option("--beta", type=float, metavar="S/BYTE", help="With --alpha: time of a byte on a link.")
@click.option("--gamma", type=float, metavar="S/BYTE", help="With --alpha: time of adding a byte.")
@click.option("--description", default="", help="Where this is, for the reader of the file.")
@with_json
@reporting_errors
def netbench(
    numbers: tuple[int, ...],
    place: Place,
    devices: tuple[str, ...],
    out: str | None,
    quick: bool,
    plot: str | None,
    description: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure all-reduces on a cluster and fit a model of its network.

    Measure on the cluster that will train: between processes of one machine, this machine is measured.
    """
    if out is None:
        raise click.UsageError("say where to write the model: --out FILE.json")
    check_writable(out)
    if plot is not None:
        check_plot(plot)
    from caramel.netmodel.file import save, to_json
    from caramel.netmodel.report import as_text

    costs = {name: options.pop(name) for name in ("link_rate", "latency", "alpha", "beta", "gamma")}
    if any(value is not None for value in costs.values()):
        given = [value for value in options.values() if value not in _NOT_GIVEN]
        given += devices
        if plot is not None or description or quick or given:
            raise click.UsageError("a network given by hand is not measured: leave out --plot, --size and the like")
        network = _given_network(**costs)
        text = as_text(network, numbers)
        save(network, out)
    else:
        place.check(max(numbers, default=1))
        if not numbers and devices:
            numbers = (len(devices),)
        if not numbers and place.membership is not None:
            numbers = (sum(place.membership.workers),)
        elif not numbers and place.is_kind(RAY):
            numbers = (place.size(None)[0],)
        if not numbers:
            raise click.UsageError("say how many workers to measure: --workers N (several times for several numbers)")
        if place.serves:
            place.serve(devices)
        cluster = place.cluster(max(numbers))
        where = description or f"{type(cluster).__name__} on {platform.node()}"
        network = _measured_network(cluster, numbers, where, out, quick, devices, **options)
        text = as_text(network)
        if plot is not None:
            from caramel.netmodel.plot import save_plot

            save_plot(network, plot)
    written = [name for name in (out, plot) if name is not None]
    if as_json:
        print_json({"written": written, "network": json.loads(to_json(network))})
        return
    click.echo(text)
    click.echo(f"\nwritten: {', '.join(written)}")


def _measured_network(
    cluster: Cluster,
    numbers: tuple[int, ...],
    description: str,
    out: str,
    quick: bool,
    devices: tuple[str, ...],
    **options: Any,
) -> NetworkModel:
    """Measure one number of workers after the other; each result is saved before the next is measured."""
    from caramel.measure.netbench import QUICK, Settings, measure_network
    from caramel.netmodel.file import save

    sizes = tuple(parse_size(text) for text in options.pop("sizes"))
    chosen = {"sizes": sizes, **options}
    given = {name: value for name, value in chosen.items() if value not in _NOT_GIVEN}
    settings = replace(QUICK if quick else Settings(), hierarchy="algorithms" not in given, **given)
    return measure_network(
        cluster, numbers, settings, description, on_network=lambda network: save(network, out), device_list=devices
    )


def _given_network(
    link_rate: str | None, latency: float | None, alpha: float | None, beta: float | None, gamma: float | None
) -> NetworkModel:
    from caramel.netmodel.model import MESSAGE_LATENCY_S, NetworkModel

    if link_rate is not None:
        if alpha is not None or beta is not None or gamma is not None:
            raise click.UsageError("give either --link-rate or --alpha and --beta")
        return NetworkModel.from_link_rate(parse_rate(link_rate), MESSAGE_LATENCY_S if latency is None else latency)
    if alpha is None or beta is None or latency is not None:
        raise click.UsageError("--alpha and --beta belong together, --latency belongs to --link-rate")
    return NetworkModel.from_costs(alpha, beta, gamma or 0.0)
