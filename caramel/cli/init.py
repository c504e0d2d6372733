"""``caramel init``: write a program file to begin with."""

from __future__ import annotations

import click

from caramel.cli.options import print_json, reporting_errors, with_json
from caramel.starters.starter import KINDS, next_commands, write_starter


@click.command()
@click.argument("path", metavar="[PATH]", default="train.py", type=click.Path())
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="keras",
    show_default=True,
    help="keras: a script with a compiled model. tf1: a graph of TensorFlow 1. step: a training step of your own.",
)
@with_json
@reporting_errors
def init(path: str, kind: str, as_json: bool) -> None:
    """Write a small program file that trains, to be changed; default: train.py.

    What is there already is not overwritten.
    """
    written = write_starter(kind, path)
    if as_json:
        print_json({"written": [str(written)], "next": [command for command, _ in next_commands(kind, written)]})
        return
    click.echo(f"written: {written}\n\nnext:")
    for command, meaning in next_commands(kind, written):
        click.echo(f"  {command}\n      {meaning}")
