"""The rule of each op, from the files that have the rules of its kind; no op stands in two."""

from __future__ import annotations

from collections.abc import Mapping

from caramel.errors import InvariantError
from caramel.frontend.batch import elementwise, gathers, layers, layout, reductions, sizes, tensor_lists
from caramel.frontend.batch.op import Rule


def merged(*tables: Mapping[str, Rule]) -> dict[str, Rule]:
    """Several tables as one.

    Raises:
        InvariantError: an op stands in two of them (a defect of this library).
    """
    rules: dict[str, Rule] = {}
    for table in tables:
        if twice := sorted(rules.keys() & table.keys()):
            raise InvariantError(f"op {twice[0]!r} has two rules")
        rules |= table
    return rules


_ON_EXAMPLES = merged(layout.RULES, gathers.RULES, layers.RULES, elementwise.RULES, reductions.RULES)
_PARTLY = merged(layers.PARTLY, elementwise.PARTLY)

ALL = merged(_ON_EXAMPLES, _PARTLY, tensor_lists.RULES, sizes.SHAPES)
"""The rule of each op that has one."""

PARTLY = frozenset(_PARTLY)
"""Ops of which an output may depend on some inputs only: they are asked even if nothing is known of another input."""

ON_SHAPES_AND_LISTS = frozenset(sizes.SHAPES) | frozenset(tensor_lists.RULES)
"""Ops whose results say something of the batch although none of their inputs may depend on the examples."""
