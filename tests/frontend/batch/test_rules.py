"""The merged table of rules."""

import pytest

from caramel.errors import InvariantError
from caramel.frontend.batch import (
    elementwise,
    gathers,
    layers,
    layout,
    partitions,
    permutations,
    places,
    ragged,
    reductions,
    rules,
    samplers,
    sizes,
    tensor_lists,
)


def test_an_op_with_two_rules_is_found():
    with pytest.raises(InvariantError, match="op 'Neg' has two rules"):
        rules.merged({"Neg": len, "Exp": len}, {"Sin": len}, {"Neg": len})


def test_every_rule_is_in_the_merged_table():
    tables = [
        f.RULES
        for f in (elementwise, gathers, layers, layout, partitions, permutations, places, ragged, reductions, samplers)
    ]
    tables += [tensor_lists.RULES, layers.PARTIAL_RULES, elementwise.PARTIAL_RULES, sizes.SHAPE_RULES]
    assert sum(map(len, tables)) == len(rules.ALL_RULES)
    assert all(rules.ALL_RULES[op] is rule for table in tables for op, rule in table.items())
