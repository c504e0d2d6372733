"""``python -m benchmarks.testbed``: build a testbed, see what its links do, and remove it."""

from __future__ import annotations

import click

from benchmarks.output import errors_for_click
from benchmarks.testbed.testbed import Testbed
from caramel.errors import InputError
from caramel.util.units import parse_rate


def _rate(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else parse_rate(text)
    except InputError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hosts", type=int, default=2, show_default=True, help="Number of hosts.")
@click.option("--rate", callback=_rate, help="Rate of each link, as 500mbit, 1gbit or 62.5MB; default: no limit.")
@click.option("--burst", type=int, metavar="BYTES", help="What passes an idle link unshaped; default: fits the rate.")
@click.option("--seconds", type=float, default=1.0, show_default=True, help="How long to measure each pair.")
@errors_for_click
def main(hosts: int, rate: float | None, burst: int | None, seconds: float) -> None:
    """Build hosts with shaped links, measure from each host to the next, and remove them again. Needs root."""
    with Testbed(hosts, rate, burst) as testbed:
        _report(testbed, seconds)


def _report(testbed: Testbed, seconds: float) -> None:
    rate = testbed.rate_bytes_per_s
    limit = "no limit" if rate is None else f"{_mbit(rate)} set, bursts of {testbed.burst_bytes} bytes"
    click.echo(f"hosts: {len(testbed.hosts)}; each link: {limit}")
    for host in testbed.hosts:
        click.echo(f"{host.name:8} {host.address}")
    for sender in range(len(testbed.hosts) if len(testbed.hosts) > 1 else 0):
        receiver = (sender + 1) % len(testbed.hosts)
        measured = testbed.measure_rate_bytes_per_s(sender, receiver, seconds)
        share = "" if rate is None else f", {100 * measured / rate:.1f} % of the rate"
        click.echo(f"host{sender} to host{receiver}: {_mbit(measured)} payload measured{share}")


def _mbit(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s * 8 / 1e6:.1f} Mbit/s"


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.testbed")
