"""The command ``caramel``. TensorFlow is imported only by the subcommands that need it."""

from __future__ import annotations

import click

from caramel import __version__
from caramel.cli.doctor import doctor
from caramel.cli.explain import explain
from caramel.cli.export import export
from caramel.cli.init import init
from caramel.cli.launch import launch
from caramel.cli.logs import with_logs
from caramel.cli.netbench import netbench
from caramel.cli.plan import plan
from caramel.cli.profile import profile
from caramel.cli.run import run
from caramel.cli.scale import scale
from caramel.cli.trace import trace
from caramel.cli.tune import tune
from caramel.cli.worker import worker

COMMANDS = (init, run, launch, export, plan, explain, tune, profile, scale, netbench, trace, worker, doctor)
"""All subcommands."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@with_logs
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def main(context: click.Context, debug: bool) -> None:
    """Compile a single-device TensorFlow training program for N workers, and run or export it.

    FILE.py is a Keras script that calls model.fit, as it is. FILE.py:ENTRY names a function without arguments that
    builds a TF1-style graph, or returns {'step': function, 'inputs': [tf.TensorSpec, ...], 'data': batches, ...}.
    """
    context.obj = {"debug": debug}


for command in COMMANDS:
    main.add_command(command)
