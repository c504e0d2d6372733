"""Errors of lookups in tables whose rows are divided between workers or servers, in the words of the program."""

from __future__ import annotations

import re

from caramel.analyzers.servers.split import split_step
from caramel.model import Model
from caramel.modifiers.server_handles import table_of
from caramel.modifiers.update_shards import divided_tables
from caramel.plan import Plan

_OUT_OF_RANGE = re.compile(
    r"caramel/(?:table_(?P<table>\d+)/)?lookup_(?P<lookup>\d+)/gather_(?P<owner>\d+)_(?P<rank>\d+)\b.*"
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
    owner, rank, index = (int(found[name]) for name in ("owner", "rank", "index"))
    if plan.servers is None:
        table = model.variable_by_name[divided_tables(model, plan)[int(found["table"])].parameter]
        owners = plan.workers
    else:
        table, servers = table_of(model, plan.servers, split_step(model).lookups[int(found["lookup"])])
        owners = len(servers)
    name, rows = table.name, table.shape[0]
    # Of K owners, that of row r has it as number r // K; see `caramel.collectives.rows`.
    return f"{text} (worker {rank} looks up row {index * owners + owner} of {name!r}, which has {rows})"
