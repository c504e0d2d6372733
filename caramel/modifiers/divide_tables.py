"""Divide tables: each worker has some rows of an embedding table, and lookups ask the workers that have a row."""

from __future__ import annotations

from caramel.analyzers.step.row_updates import RowUpdate
from caramel.collectives.dealt_rows import rows_of_owners
from caramel.collectives.rows import lower_lookup
from caramel.graph.graph import NodeDef, control_texts, copied
from caramel.graph.nodes import shape_attribute
from caramel.graph.shapes import SHAPES_ATTRIBUTE
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name
from caramel.modifiers.table_nodes import handed_on, row_count, stated_shape
from caramel.modifiers.update_shards import divided_tables
from caramel.modifiers.weigh import replica_tensor


def divide_tables(emission: Emission) -> Emission:
    """Give each worker its rows of the tables that the plan divides, and let lookups ask whoever has a row.

    The workers' gradients of these rows come to the same workers, see `caramel.modifiers.aggregate`, so that each can
    update its own by the ops that the step has for all of them.

    Args:
        emission: the emission with the replicas.

    Returns:
        The emission in which variables have their own rows only, and each lookup of rows is one over all workers.
    """
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    for number, update in enumerate(divided_tables(emission.model, emission.plan)):
        table = _Table(emission, number, update, changed)
        table.divide()
        table.look_up()
        added += table.added
    return emission.extended(added, changed) if added else emission


class _Table:
    """The nodes that divide one table.

    Attributes:
        added: new nodes, with their roles.

    Args:
        emission: the emission with the replicas.
        number: number of the table.
        update: the table's lookups and update.
        changed: nodes that are changed, by name.
    """

    def __init__(self, emission: Emission, number: int, update: RowUpdate, changed: dict[str, NodeDef]) -> None:
        self._emission, self._number, self._update, self._changed = emission, number, update, changed
        self._variables = emission.model.variable_by_name
        self._parameter = self._variables[update.parameter]
        self._rows = rows_of_owners(self._parameter.shape[0], emission.plan.workers)
        self.added: list[tuple[NodeDef, Role]] = []

    def divide(self) -> None:
        """Give the variables as many rows as each worker has, and the ops that ask for their number another one."""
        for rank, rows in enumerate(self._rows):
            for name in (self._update.parameter, *self._update.slots):
                variable = self._variables[name]
                handle = self._change(replica_name(rank, variable.node))
                handle.attr["shape"].CopyFrom(shape_attribute((rows, *variable.shape[1:])))
            for name in sorted(self._update.nodes):
                self._change(replica_name(rank, name))
            for name, position in self._update.counts:
                self._change(replica_name(rank, name)).input[position] = self._count(rank, name, position)
            for name in self._update.shapes:
                self._state_shape(rank, replica_name(rank, name))

    def look_up(self) -> None:
        """Let all lookups ask the workers that have the rows, before these update them."""
        plan, ranks = self._emission.plan, range(self._emission.plan.workers)
        for position, lookup in enumerate(self._update.lookups):
            lowered = lower_lookup(
                prefix=f"caramel/table_{self._number}/lookup_{position}",
                indices=[replica_tensor(rank, lookup.indices) for rank in ranks],
                handles=[replica_name(rank, self._parameter.node) for rank in ranks],
                devices=plan.devices,
                dtype=self._parameter.dtype,
                index_dtype=lookup.index_dtype,
            )
            self.added += [(each, Role(Purpose.COLLECTIVE, rank)) for each, rank in lowered.nodes]
            for rank in ranks:
                for writer in self._update.writers:
                    changed = self._change(replica_name(rank, writer))
                    changed.input.extend(f"^{gather}" for gather in lowered.gathers[rank])
                self._replace(replica_name(rank, lookup.node), lowered.rows[rank])

    def _replace(self, name: str, rows: str) -> None:
        """Let a node hand on rows in place of looking them up."""
        self._changed[name] = handed_on(self._emission.graph[name], rows, self._parameter.dtype)

    def _state_shape(self, rank: int, name: str) -> None:
        """Let a node state the shape of the whole table."""
        original, device = self._emission.graph[name], self._emission.plan.devices[rank]
        self._changed[name] = stated_shape(original, name, self._parameter.shape, device, control_texts(original))

    def _count(self, rank: int, name: str, position: int) -> str:
        """A constant with the number of a worker's rows."""
        own = own_name(rank, f"table_{self._number}/rows_of_{len(self.added)}_{position}")
        count = row_count(self._emission.model.graph[name], own, self._rows[rank], self._emission.plan.devices[rank])
        self.added.append((count, Role(Purpose.REPLICA, rank)))
        return own

    def _change(self, name: str) -> NodeDef:
        """A node to change, without the shapes that it has had."""
        if name not in self._changed:
            self._changed[name] = copied(self._emission.graph[name])
            self._changed[name].attr.pop(SHAPES_ATTRIBUTE, None)
        return self._changed[name]
