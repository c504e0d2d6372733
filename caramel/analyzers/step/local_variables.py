"""Which variables differ between workers that train by themselves, and which an exchange makes equal again."""

from __future__ import annotations

from dataclasses import replace

from caramel.graph.graph import node_of
from caramel.model import Model, Variable, VariableClass


def exchangeable(model: Model) -> tuple[Variable, ...]:
    """The variables that an exchange makes equal: the parameters of the step."""
    return tuple(v for v in model.variables_of(VariableClass.PARAMETER) if v.node in model.graph)


def with_local_state(model: Model) -> Model:
    """The step as workers run it that update with their own gradients: what follows from these is local to each.

    Args:
        model: the single-device step.

    Returns:
        The step in which slots, and other variables but parameters that are written from gradients, count as
        statistics: each worker has its own, and checkpoints keep those of all.
    """
    gradients = {node_of(t) for g in model.gradients for t in (g.tensor, *(source for source, _ in g.sources))}
    behind = model.graph.descendants(gradients, control=False)
    written = {name for name, writers in model.updates if not behind.isdisjoint(writers)}
    shared = (VariableClass.SLOT, VariableClass.HYPERPARAMETER)
    return replace(
        model,
        variables=tuple(
            replace(v, kind=VariableClass.STATISTICS) if v.kind in shared and v.name in written else v
            for v in model.variables
        ),
    )
