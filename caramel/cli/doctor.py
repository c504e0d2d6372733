"""``caramel doctor``: whether a machine and a cluster are ready, and what to mend."""

from __future__ import annotations

import click

from caramel.cli.options import print_json, reporting_errors, with_json
from caramel.cli.places import Place, refuse_two_descriptions
from caramel.cli.quiet import load_quietly


@click.command()
@click.option(
    "--cluster",
    metavar="HOST:PORT,...",
    help="Also look at these servers (caramel worker), from the machine that will drive them. tf-config: those of "
    "the environment variable TF_CONFIG. slurm: those of the Slurm job step.",
)
@click.option(
    "--hosts",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Instead of --cluster: a file with the servers, one a line.",
)
@click.option(
    "--checkpoint-dir",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Also look whether checkpoints can be written there, and whether the servers see it.",
)
@with_json
@reporting_errors
def doctor(cluster: str | None, hosts: str | None, checkpoint_dir: str | None, as_json: bool) -> None:
    """Say whether this machine, and a cluster, are ready: one line for each check, with what to mend.

    The exit status is 1 if there is a problem. A warning is none. Servers are asked a few small questions and sent some
    megabytes; a file in the directory is there only meanwhile.
    """
    from caramel.doctor.examination import as_values, examine
    from caramel.doctor.finding import State
    from caramel.runtime.held_directory import checked_directory
    from caramel.runtime.host.hosts_file import from_hosts_file
    from caramel.runtime.host.membership import Membership

    refuse_two_descriptions(cluster is not None, hosts)
    membership = Membership(())
    if hosts is not None:
        membership = from_hosts_file(hosts)  # names that do not resolve are findings
    elif cluster is not None:
        membership = Place(cluster).servers
    if checkpoint_dir is not None:
        checked_directory(checkpoint_dir)
    findings = []
    for finding in examine(membership.addresses, membership.task, checkpoint_dir, load_quietly):
        findings.append(finding)
        if not as_json:
            click.echo(finding.line())
    if as_json:
        print_json(as_values(findings))
    problems, warnings = (
        sum(finding.state is state for finding in findings) for state in (State.PROBLEM, State.WARNING)
    )
    if not as_json:
        click.echo(
            f"\n{problems} problem{'' if problems == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
        )
    if problems:
        click.get_current_context().exit(1)
