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
from caramel.graph.canonical_functions import merged
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
class Saved:
    """Something besides variables that a checkpoint keeps: a tensor, under a key."""

    key: str
    tensor: str
    dtype: str


Pieces = Mapping[tuple[int, Piece], str]
"""The local tensor of each (rank, piece): in the gradient's shape if the piece is all of it, else flat."""


@dataclass(frozen=True)
class Emission:
    """The state of an emission. What was decided stays as it is; every modifier makes a new one with more of the rest.

    Attributes:
        model: the single-device step.
        plan: the decisions to carry out.
        postponement: which nodes move to the next step, as follows from the plan.
        evaluation: a declared evaluation, if there is one.
        pipeline: the workers' input pipelines, if they read a dataset.
        job_workers: between how many workers a dataset is divided; more than the plan's if only some are emitted.
        graph: the nodes of all workers.
        roles: for each node what it is for and whose it is.
        gradients: the local tensor of each (rank, gradient's name); made by `weigh`.
        pieces: the local tensor of each (rank, piece); made by `cut`. Of the forward window, once `postpone` has run,
            what was kept of it.
        saved: what a checkpoint keeps besides variables; made by `save_position`.
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
    pieces: Pieces = field(default_factory=dict)
    saved: tuple[Saved, ...] = ()

    @classmethod
    def begun(
        cls,
        model: Model,
        plan: Plan,
        evaluation: Evaluation | None = None,
        pipeline: Pipeline | None = None,
        job_workers: int | None = None,
    ) -> Emission:
        """An emission of which no modifier has run; see the attributes."""
        moved = postponement(model, plan.postponed)
        return cls(model, plan, moved, evaluation, pipeline, plan.workers if job_workers is None else job_workers)

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
            others: new values of other attributes.
        """
        library = merged(self.graph.library, *libraries) if libraries else self.graph.library
        graph = self.graph.replaced(changed or {}, [node for node, _ in added], library)
        roles = {**self.roles, **{node.name: role for node, role in added}}
        return replace(self, graph=graph, roles=roles, **others)


class Modifier(Protocol):
    """A function that changes one thing, or only checks: then it gives back what it was given."""

    __name__: str

    def __call__(self, emission: Emission, /) -> Emission:
        """Run it."""


def replica_name(rank: int, name: str) -> str:
    """Name of a user's node on a worker. Caramel's own nodes live under ``caramel/`` instead."""
    return f"worker_{rank}/{name}"


def own_name(rank: int, name: str) -> str:
    """Name of a node that Caramel adds for a worker."""
    return f"caramel/worker_{rank}/{name}"
