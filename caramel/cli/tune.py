"""``caramel tune``: try a plan with other limits, and keep the fastest."""

from __future__ import annotations

from typing import Any

import click

from caramel.cli.options import (
    checked_place,
    print_json,
    reporting_errors,
    with_cluster,
    with_collectives,
    with_devices,
    with_json,
    with_servers,
)
from caramel.cli.places import Place
from caramel.cli.scripts import ProgramCommand, loaded_program, next_command
from caramel.util.progress import say
from caramel.util.whole_files import check_writable


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers", type=int, help="Number of workers; default: as many as the cluster lists.")
@with_cluster("processes")
@with_collectives
@with_servers
@click.option(
    "--trace",
    metavar="FILE.json",
    type=click.Path(dir_okay=False),
    help="Measured times of the program's ops (caramel trace makes them); default: they are measured.",
)
@with_devices
@click.option("--trials", type=click.IntRange(min=1), default=20, show_default=True, help="Number of trials.")
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Steps of each.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the search.")
@click.option("--out", metavar="FILE.json", type=click.Path(dir_okay=False), help="File to write the plan to.")
@with_json
@reporting_errors
def tune(
    program: str,
    arguments: tuple[str, ...],
    workers: int | None,
    place: Place,
    devices: tuple[str, ...],
    trials: int,
    steps: int,
    seed: int,
    out: str | None,
    as_json: bool,
    **decisions: Any,
) -> None:
    """Try a plan on the workers with other limits, and keep the fastest.

    What is tuned: how many bytes travel together, into how many each transfer is cut, how many may be under way, and
    in how many chunks; with parameter servers the order of pulls, and how many may be on the way. Bayesian
    optimisation chooses each trial from the times of those before. The first one is the planner's plan, and at the end
    the fastest runs against it in turn: it is kept only if it is faster beyond noise.

    The network and the program are measured first, unless --network and --trace have them. What is trained meanwhile
    is thrown away. FILE.py alone is a script that trains a Keras model: it runs as far as its first fit.
    """
    if out is not None:
        check_writable(out)
    workers, devices = checked_place(place, workers, devices, decisions, program)
    chosen = place.cluster(workers)
    from caramel.cli.measured_plan import measured_options
    from caramel.tuning.live import Trial
    from caramel.tuning.live import tune as tuned

    loaded = loaded_program(program, arguments, workers)
    options = measured_options(loaded, workers, chosen, devices, decisions, 3, say)
    say(f"3 of 3: up to {trials} trials of {steps} steps")
    numbers = iter(range(trials + 1))

    def on_trial(trial: Trial) -> None:
        say(f"trial {next(numbers)}: {trial}")

    found = tuned(
        loaded.context,
        workers,
        cluster=chosen,
        batches=None if loaded.on_workers else loaded.batches,
        trials=trials,
        steps=steps,
        seed=seed,
        device_list=list(devices) or None,
        on_trial=on_trial,
        **options,
    )
    if out is not None:
        found.plan.save(out)
    if as_json:
        shown = [
            {"limits": None if t.limits is None else str(t.limits), "step_s": t.step_s, "error": t.error or None}
            for t in found.trials
        ]
        chosen_limits = None if found.limits is None else str(found.limits)
        print_json({"plan": found.plan.digest, "limits": chosen_limits, "trials": shown, "ratios": list(found.ratios)})
        return
    click.echo(found.table())
    if out is not None:
        click.echo(f"\nwritten: {out}\n\nnext: {next_command(program, arguments, workers, place, devices, out)}")
