"""Sums over all workers in the forward pass, where a loss is not linear in what single workers add up.

A loss may be a ratio of sums (a mean over the entries that a mask leaves), a sum over the examples beside a term
without examples (a regulariser), or any other function of sums and means over the batch. No sum or mean of the
workers' losses is that of one device then. But if each worker goes on with the sums over all workers, its loss is that
of one device, and so are the gradients, once what enters each sum's own gradient is scaled for it.

This module finds the tensors to sum and puts an Identity behind each, and in front of the gradients that enter; the
modifier `caramel.modifiers.sum_forward` makes collectives of these.
"""

from __future__ import annotations

from collections.abc import Collection

from caramel.errors import CaptureError, UnsupportedError
from caramel.frontend.attributes import GRADIENT_ATTRIBUTE
from caramel.frontend.captured import RawProgram
from caramel.frontend.roles.divergence import Locality
from caramel.frontend.roles.forward_search import Analyse, GatherNeeded, Search
from caramel.frontend.roles.needs import kind_of_sum
from caramel.frontend.roles.summed_graph import name_over_workers
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph, node_of, tensor_name
from caramel.graph.guards import guards_of


def with_forward_sums(
    raw: RawProgram, analyse: Analyse, local: Collection[str], refusal: CaptureError
) -> RawProgram | None:
    """The program with sums over the workers where its losses need them.

    Args:
        raw: the captured program.
        analyse: see `Analyse`.
        local: handle nodes of the variables that have a value of their own on each worker.
        refusal: why the program cannot be replicated as it is.

    Returns:
        The program; None where sums of tensors do not make the losses those of one device.

    Raises:
        GatherNeeded: the examples of all workers are needed.
    """
    at_ops: frozenset[str] = frozenset()  # tensors that are summed where they are made
    best: RawProgram | None = None  # with as much as results of the step allow so far
    while True:
        search = Search(raw, analyse, at_ops, refusal)
        try:
            summed = search.run()
        except GatherNeeded:
            if best is None:
                raise
            return best
        if summed is None:
            if not search.twice - at_ops:
                return best
            at_ops |= search.twice
            continue
        differing = differing_entries(summed, local)
        misplaced = {t for t, sources in search.sources.items() if sources != (t,) and differing & search.entries_of(t)}
        if not misplaced:
            best = summed
            if not search.wanted_at_ops - at_ops:
                return best
        at_ops |= misplaced | search.wanted_at_ops


def refuse_sums_of_others(raw: RawProgram, reductions: Reductions) -> None:
    """Check that what is summed over the workers is still a sum or a mean of each worker's examples.

    Args:
        raw: the program with the sums.
        reductions: analysis of how its tensors reduce over the batch.

    Raises:
        CaptureError: something of it is summed already.
    """
    for each in raw.forward_sums:
        if each.node in raw.graph and each.kind in ("sum", "mean"):
            tensor = tensor_name(raw.graph[each.node].input[0])
            if GRADIENT_ATTRIBUTE in raw.graph[node_of(tensor)].attr:
                continue  # what that is follows from what is differentiated; see `inner_sums`
            if each.node == name_over_workers(tensor) and kind_of_sum(reductions.value_of(tensor)) != each.kind:
                raise CaptureError(
                    f"{tensor!r} would be summed over the workers although parts of it are sums already: with several "
                    "workers its value would be another"
                )


def refuse_branches_that_differ(raw: RawProgram, step: Graph, local: Collection[str]) -> None:
    """Check that what is summed or gathered over the workers is so on all of them, or on none.

    Args:
        raw: the program with the sums.
        step: the nodes of the step.
        local: handle nodes of the variables that have a value of their own on each worker.

    Raises:
        UnsupportedError: it is in a branch that some workers may take and others not.
    """
    nodes = [node for each in raw.forward_sums for node in (each.node, *each.entries) if node in step]
    guards = guards_of(step).by_node
    if raw.is_alone or not any(guards[node] for node in nodes):
        return
    start = {*(i.node for i in raw.inputs if i.split and i.node in step), *local}
    differing = Locality(step, raw.library).differing(start)
    for node in nodes:
        for condition, _ in sorted(guards[node]):
            if condition in differing:
                raise UnsupportedError(
                    f"{node.rpartition('/')[0] or node!r} needs values of all workers, in a branch that op "
                    f"{condition!r} ({step[condition].op}) decides, which each worker computes from its own examples "
                    "or random numbers: the others would wait for a worker that takes another branch. Let constants, "
                    "variables or inputs listed in replicated= decide"
                )


def differing_entries(raw: RawProgram, local: Collection[str]) -> set[str]:
    """The gradients that enter sums and are not the same on all workers.

    Args:
        raw: the program with the sums.
        local: handle nodes of the variables that have a value of their own on each worker.
    """
    entries = {entry for each in raw.forward_sums for entry in each.entries}
    if not entries:
        return set()
    start = {*(i.node for i in raw.inputs if i.split and i.node in raw.graph), *local}
    # Of a gradient by what was gathered a worker has its own rows, and of a ratio its own share.
    start |= {entry for each in raw.forward_sums if each.kind in ("gather", "ratio") for entry in each.entries}
    graph = raw.graph.pruned(entries)
    has_chosen = any(n.op in ("Where", "DynamicPartition") for n in graph)  # shapes depend on the examples then
    differing = Locality(graph, raw.library).differing(start & graph.nodes.keys(), by_shape=has_chosen)
    return {entry for entry in entries if node_of(graph[entry].input[0]) in differing}
