"""Where gradients enter what is summed or gathered over the workers."""

from __future__ import annotations

from caramel.frontend.attributes import TARGETS_ATTRIBUTE
from caramel.frontend.captured import RawProgram
from caramel.graph.graph import node_of


def is_any_differentiated_again(raw: RawProgram, name: str) -> bool:
    """Whether a differentiation goes through a gradient that enters an op: what is done to it would be left out.

    Args:
        raw: the captured program.
        name: name of the op.
    """
    entries = {node_of(entry.tensor) for entry in raw.entries.get(name, ())}
    if not entries:
        return False
    targets = {node_of(t) for t, _ in raw.differentiated} & raw.graph.nodes.keys()
    targets |= {n.name for n in raw.graph if TARGETS_ATTRIBUTE in n.attr}
    return not entries.isdisjoint(raw.graph.ancestors(sorted(targets), control=False))
