"""Errors of lookups in tables that are divided between the workers, in the words of the program."""

from __future__ import annotations

import re

from caramel.model import Model
from caramel.modifiers.update_shards import divided_tables
from caramel.plan import Plan

_OUT_OF_RANGE = re.compile(
    r"caramel/table_(?P<table>\d+)/lookup_\d+/gather_(?P<owner>\d+)_(?P<rank>\d+)\b.*"
    r"indices\[[\d, ]*\] = (?P<index>-?\d+) is not in",
    re.DOTALL,
)


def with_row(text: str, model: Model, plan: Plan) -> str:
    """An error's text; of an index that is out of range with the row of the whole table, whose owner knows another.

    Args:
        text: of the error of a step.
        model: the single-device step.
        plan: the plan that runs.
    """
    found = _OUT_OF_RANGE.search(text)
    if found is None:
        return text
    table, owner, rank, index = (int(found[name]) for name in ("table", "owner", "rank", "index"))
    name = divided_tables(model, plan)[table].parameter
    rows = model.variable_by_name[name].shape[0]
    # The owner of row r has it as number r // N; see `caramel.collectives.rows`.
    return f"{text} (worker {rank} looks up row {index * plan.workers + owner} of {name!r}, which has {rows})"
