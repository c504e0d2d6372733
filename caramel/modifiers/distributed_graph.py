"""The graph under construction: nodes of all workers, and beside it what each node is for."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.graph.canonical_functions import merged
from caramel.graph.graph import Graph, NodeDef


class Purpose(enum.Enum):
    """Why a node is in the distributed graph."""

    REPLICA = "replica"
    INPUT = "input"
    """A worker's own input pipeline; runs between steps, and what it keeps is read in them."""
    COLLECTIVE = "collective"
    STATE = "state"
    """Initial values, broadcast, save and restore; runs between steps."""
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class Role:
    """What a node is for, and whose it is.

    Attributes:
        purpose: why it is there.
        rank: the worker that it belongs to.
        transfer: number of the transfer, for collectives.
    """

    purpose: Purpose
    rank: int
    transfer: int | None = None


@dataclass(frozen=True)
class DistributedGraph:
    """Nodes and their roles. Passes make a new one."""

    graph: Graph
    roles: Mapping[str, Role]

    def extended(
        self,
        added: Sequence[tuple[NodeDef, Role]],
        changed: Mapping[str, NodeDef] | None = None,
        libraries: Sequence[Any] = (),
    ) -> DistributedGraph:
        """A new graph with some nodes replaced, and some nodes and the functions of some libraries added."""
        library = merged(self.graph.library, *libraries) if libraries else self.graph.library
        graph = self.graph.replaced(changed or {}, [node for node, _ in added], library)
        return DistributedGraph(graph, {**self.roles, **{node.name: role for node, role in added}})


def replica_name(rank: int, name: str) -> str:
    """Name of a user's node on a worker. Caramel's own nodes live under ``caramel/`` instead."""
    return f"worker_{rank}/{name}"


def own_name(rank: int, name: str) -> str:
    """Name of a node that Caramel adds for a worker."""
    return f"caramel/worker_{rank}/{name}"
