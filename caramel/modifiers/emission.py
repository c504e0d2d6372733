"""Emission: the graph under construction, and all that modifiers read of each other.

A modifier is a function ``Emission -> Emission`` that changes one thing; `caramel.modifiers.passes` has their order.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from caramel.analyzers.step.postponement import Postponement, postponement
from caramel.data.pipeline import Pipeline
from caramel.facts import Piece
from caramel.graph.canonical_functions import merged_libraries
from caramel.graph.graph import Graph, NodeDef
from caramel.model import Evaluation, Model
from caramel.plan import Plan


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
    """The purpose of a node, and the worker that it belongs to.

    Attributes:
        purpose: the reason that it is in the graph.
        rank: rank of the worker that it belongs to. Parameter servers count on from the workers: server k of N workers
            has N + k.
        transfer: number of the transfer, for collectives.
    """

    purpose: Purpose
    rank: int
    transfer: int | None = None


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that a checkpoint keeps besides variables, under a key."""

    key: str
    tensor: str
    dtype: str


Pieces = Mapping[tuple[int, Piece], str]
"""The local tensor of each (rank, piece): in the gradient's shape if the piece is all of it, else flat."""


@dataclass(frozen=True)
class Emission:
    """The state of an emission. The decisions stay as they are; every modifier makes a new one with more of the graph.

    Attributes:
        model: the single-device step.
        plan: the decisions to carry out.
        postponement: nodes that move to the next step, as follows from the plan.
        evaluation: the declared evaluation, if there is one.
        pipeline: the workers' input pipelines, if they read a dataset.
        job_workers: number of workers that share a dataset; more than the plan's if only some of them are emitted.
        graph: the nodes of all workers.
        roles: purpose and worker of each node, by name.
        gradients: the local tensor of each (rank, gradient's name); `weigh` adds them.
        indices: the row numbers of the local slices of each (rank, sparse gradient's name); likewise.
        pieces: the local tensor of each (rank, piece); `cut` adds them. For a piece in the forward window, once
            `postpone` has run, the tensor that the step before has kept.
        saved: tensors that a checkpoint keeps besides variables; `save_position` adds them.
    """

    model: Model
    plan: Plan
    postponement: Postponement
    evaluation: Evaluation | None
    pipeline: Pipeline | None
    job_workers: int
    graph: Graph = field(default_factory=lambda: Graph([]))
    roles: Mapping[str, Role] = field(default_factory=dict)
    gradients: Mapping[tuple[int, str], str] = field(default_factory=dict)
    indices: Mapping[tuple[int, str], str] = field(default_factory=dict)
    pieces: Pieces = field(default_factory=dict)
    saved: tuple[SavedTensor, ...] = ()

    @classmethod
    def initial(
        cls,
        model: Model,
        plan: Plan,
        evaluation: Evaluation | None = None,
        pipeline: Pipeline | None = None,
        job_workers: int | None = None,
    ) -> Emission:
        """A fresh emission, on which no modifier has run; see the attributes."""
        postponed_nodes = postponement(model, plan.postponed)
        return cls(
            model, plan, postponed_nodes, evaluation, pipeline, plan.workers if job_workers is None else job_workers
        )

    def extended(
        self,
        added: Sequence[tuple[NodeDef, Role]],
        changed: Mapping[str, NodeDef] | None = None,
        libraries: Sequence[Any] = (),
        **others: Any,
    ) -> Emission:
        """The emission with a new graph.

        Args:
            added: nodes to add, with their roles.
            changed: nodes to replace, by name.
            libraries: function libraries to add.
            others: new values of other attributes, by name.
        """
        library = merged_libraries(self.graph.library, *libraries) if libraries else self.graph.library
        graph = self.graph.replaced(changed or {}, [node for node, _ in added], library)
        roles = {**self.roles, **{node.name: role for node, role in added}}
        return replace(self, graph=graph, roles=roles, **others)


class Modifier(Protocol):
    """A function that changes one thing; one that only checks returns the emission unchanged."""

    __name__: str

    def __call__(self, emission: Emission, /) -> Emission:
        """Run it."""


def replica_name(rank: int, name: str) -> str:
    """Name of a user's node on a worker. Caramel's own nodes live under ``caramel/`` instead."""
    return f"worker_{rank}/{name}"


def server_name(server: int, name: str) -> str:
    """Name of a user's node on a parameter server."""
    return f"server_{server}/{name}"


def own_name(rank: int, name: str) -> str:
    """Name of a node that Caramel adds for a worker."""
    return f"caramel/worker_{rank}/{name}"
