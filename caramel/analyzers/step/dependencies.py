"""Dependencies: the ops that each gradient needs, and the users of the variables that its update writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.step.postponement import Postponement, Postponements
from caramel.errors import InputError
from caramel.facts import Dependencies
from caramel.graph.fusion import fused_groups
from caramel.graph.graph import node_of
from caramel.graph.guards import condition_of, guards_of
from caramel.model import Gradient, Model


def dependencies() -> Analyzer:
    """The analyzer that provides `Dependencies`."""
    return Analyzer("dependencies", (Model,), Dependencies, find_dependencies)


def find_dependencies(model: Model) -> Dependencies:
    """Read the dependencies off the step's graph.

    Args:
        model: the single-device step.

    Source:
        Caramel, sections 3.3.1 (boundaries) and 4.1.
    """
    postponements = Postponements(model)
    ops = model.graph.order
    masks = _needed_by(model, ops)
    needs = _bits([masks[op] for op in ops], len(model.gradients))
    closures = {g.name: _closure(postponements, g) for g in model.gradients}
    needs.setflags(write=False)
    return Dependencies(
        ops=ops,
        gradients=tuple(g.name for g in model.gradients),
        needs=needs,
        producers={g.name: _producers(g) for g in model.gradients},
        reads={name: _users(postponements, closure) for name, (closure, _) in closures.items()},
        updates=_updates(postponements),
        levels=_levels(model, postponements, masks),
        kept_reasons={name: reason for name, (_, reason) in closures.items()},
        conditions=conditions_of(model),
    )


def conditions_of(model: Model) -> Mapping[str, str]:
    """The condition under which a step makes each gradient; "" where it always does.

    Args:
        model: the single-device step.
    """
    guards = guards_of(model.graph)
    return {g.name: condition_of(model.graph, guards, g.tensor) for g in model.gradients}


def _producers(gradient: Gradient) -> tuple[str, ...]:
    tensors = [gradient.tensor, *([gradient.indices] if gradient.indices is not None else [])]
    return tuple(dict.fromkeys(node_of(tensor) for tensor in tensors))


def _needed_by(model: Model, ops: Sequence[str]) -> Mapping[str, int]:
    """The gradients that need each op, as the bits of an integer."""
    masks = dict.fromkeys(ops, 0)
    for number, gradient in enumerate(model.gradients):
        for producer in _producers(gradient):
            masks[producer] |= 1 << number
    groups, is_complete = fused_groups(model.graph), False
    while not is_complete:
        for op in reversed(ops):
            mask = masks[op]
            if mask:
                for source in model.graph.sources(op):
                    masks[source] |= mask
        # Who needs one of several ops that are one needs all of them, and what these need.
        before = [masks[op] for names in groups for op in names]
        for names in groups:
            masks.update(dict.fromkeys(names, reduce(or_, (masks[op] for op in names))))
        is_complete = before == [masks[op] for names in groups for op in names]
    return masks


def _bits(masks: Sequence[int], count: int) -> np.ndarray:
    """Whether each of so many bits is set in each mask, shape [count, masks]."""
    width = -(-count // 8)
    data = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
    bits = np.unpackbits(data.reshape(len(masks), width), axis=1, count=count, bitorder="little")
    return np.ascontiguousarray(bits.T).astype(bool)


def _closure(postponements: Postponements, gradient: Gradient) -> tuple[Postponement | None, str]:
    try:
        return postponements.of([gradient.name]), ""
    except InputError as error:
        return None, str(error)


def _users(postponements: Postponements, closure: Postponement | None) -> tuple[str, ...]:
    """The ops of a step that have to wait for a postponed update: all that use a variable that it writes."""
    if closure is None:
        return ()
    moved = set(closure.moved)
    handles = dict.fromkeys([*closure.written, *closure.read])
    users = (
        user
        for handle in handles
        for user in postponements.touched.get(handle, ())
        if user not in moved and (handle in closure.written or user in postponements.writes.get(handle, ()))
    )
    return tuple(dict.fromkeys(users))


def _updates(postponements: Postponements) -> Mapping[str, tuple[str, ...]]:
    """The ops that follow from one gradient only, by its name."""
    following = {g.name: postponements.following(g) for g in postponements.model.gradients}
    counts: dict[str, int] = {}
    for nodes in following.values():
        for node in nodes:
            counts[node] = counts.get(node, 0) + 1
    return {
        name: tuple(sorted((n for n in nodes if counts[n] == 1), key=postponements.rank.__getitem__))
        for name, nodes in following.items()
    }


def _levels(model: Model, postponements: Postponements, masks: Mapping[str, int]) -> Mapping[str, int]:
    """The number of all-reduces in a row before each gradient."""
    before: dict[str, set[str]] = {g.name: set() for g in model.gradients}
    names = [g.name for g in model.gradients]
    for gradient in model.gradients:
        later = 0
        for reader in postponements.readers[gradient.name]:
            later |= masks[reader]
        for number, name in enumerate(names):
            if later >> number & 1 and name != gradient.name:
                before[name].add(gradient.name)
    levels: dict[str, int] = {}
    for name in sorted(
        names, key=lambda name: len(before[name])
    ):  # what is before one of these is before this one, too
        levels[name] = 1 + max((levels[other] for other in before[name]), default=-1)
    return levels
