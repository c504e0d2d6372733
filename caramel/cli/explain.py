"""``caramel explain``: what a plan that was saved decides, and why."""

from __future__ import annotations

from typing import Any

import click

from caramel.cli.options import print_json, reporting_errors, with_json
from caramel.cli.results import compared
from caramel.util.tables import wrapped_lines


@click.command()
@click.argument("plan", metavar="PLAN.json", type=click.Path(dir_okay=False))
@click.argument("gradients", nargs=-1, metavar="[GRADIENT]...")
@click.option("--diff", "other", metavar="FILE.json", type=click.Path(dir_okay=False), help="Also compare with a plan.")
@with_json
@reporting_errors
def explain(plan: str, gradients: tuple[str, ...], other: str | None, as_json: bool) -> None:
    """Show a plan that was saved, or say of gradients in it how they travel and why.

    GRADIENT is the name of a parameter, or the end of one that no other has, such as dense/kernel. No program is read,
    and nothing is decided anew.
    """
    from caramel.plan import Plan

    found = Plan.load(plan)
    explanations = {name: found.explain(name) for name in gradients}
    differences = None if other is None else Plan.load(other).diff(found)
    predicted = found.predicted
    if as_json:
        facts: dict[str, Any] = {"digest": found.digest, "workers": found.workers, "explanations": explanations}
        facts |= {} if differences is None else {"differences": differences.splitlines()}
        print_json({**facts, **({} if predicted is None else predicted.as_dict())})
        return
    paragraphs = [*map(wrapped_lines, explanations.values())] or [found.table()]
    if differences is not None:
        paragraphs.append(compared(other, plan, differences))
    click.echo("\n\n".join(paragraphs))
