"""The rule of each op, from the file with the rules of its kind; no op has rules in two files."""

from __future__ import annotations

from collections.abc import Mapping

from caramel.errors import InvariantError
from caramel.frontend.batch import (
    coordinates,
    elementwise,
    gathers,
    layers,
    layout,
    partitions,
    permutations,
    places,
    ragged,
    reductions,
    samplers,
    sizes,
    tensor_lists,
)
from caramel.frontend.batch.domain import (
    ChosenShape,
    Coordinates,
    Entries,
    Followed,
    Offsets,
    Order,
    Permutation,
    Positions,
    Tokens,
)
from caramel.frontend.batch.op import Op, Rule


def merged(*tables: Mapping[str, Rule]) -> dict[str, Rule]:
    """Several tables of rules merged into one.

    Args:
        tables: rules by op type.

    Raises:
        InvariantError: an op is in two tables (a defect of this library).
    """
    rules: dict[str, Rule] = {}
    for table in tables:
        if twice := sorted(rules.keys() & table.keys()):
            raise InvariantError(f"op {twice[0]!r} has two rules")
        rules |= table
    return rules


_ON_EXAMPLES = merged(
    layout.RULES,
    gathers.RULES,
    layers.RULES,
    elementwise.RULES,
    reductions.RULES,
    samplers.RULES,
    partitions.RULES,
    permutations.RULES,
    places.RULES,
    ragged.RULES,
)
_PARTIAL_RULES = merged(layers.PARTIAL_RULES, elementwise.PARTIAL_RULES)

ALL_RULES = merged(_ON_EXAMPLES, _PARTIAL_RULES, tensor_lists.RULES, sizes.SHAPE_RULES)
"""The rule of each op that has one."""

PARTIAL_OPS = frozenset(_PARTIAL_RULES)
"""Ops of which an output may depend on some inputs only: their rule is used even if another input is `Unknown`."""

ON_SHAPES_AND_LISTS = frozenset(sizes.SHAPE_RULES) | frozenset(tensor_lists.RULES)
"""Ops whose results may depend on the size of the batch although no input depends on the examples."""

_READERS: Mapping[type, Rule] = {
    Positions: places.of_positions,
    Permutation: permutations.of_permutation,
    Order: partitions.of_order,
    ChosenShape: sizes.of_chosen_shape,
    Coordinates: coordinates.of_coordinates,
    Offsets: coordinates.of_offsets,
    Entries: samplers.of_entries,
    Tokens: ragged.of_tokens,
    Followed: samplers.of_followed,
}
"""Rules of all ops that read a value of a kind that few ops may read, by the kind, whatever stands beside it."""


def reader_of(op: Op) -> Rule | None:
    """The rule of an op that reads a value of such a kind; None for any other op."""
    return next((rule for kind, rule in _READERS.items() if any(isinstance(v, kind) for v in op.inputs)), None)
