"""Random plans: whatever a plan may say, for tests that it changes no result."""

from dataclasses import replace

import numpy as np

import caramel
from caramel.analyzers.policies.control_edges import control_edges
from caramel.analyzers.policies.order import order_by_cost
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.analyzers.step.element_updates import element_updates, writers_before_gradient
from caramel.collectives.algorithms import ALL_GATHER
from caramel.compiler.sharded_updates import with_sharded_updates
from caramel.facts import BACKWARD, FORWARD, InFlight, Piece
from caramel.netmodel.choice import ON_ONE_WORKER

IN_ORDER = ("shuffle", "star", "chain")
ANY = (*IN_ORDER, "ring", "halving_doubling", "native")


def random_plan(context, workers, seed, sharded=0.0, **options):
    """A plan of random pieces, buckets, windows, algorithms, depths, limits and edges, with a part of updates sharded."""
    rng = np.random.default_rng(seed)
    plan = caramel.ARModel(context, workers, batching=False, **options).plan
    model = context.model
    candidates = element_updates(model)[0] if sharded else {}
    updates = {name: update for name, update in candidates.items() if rng.random() < sharded}
    found = find_dependencies(model)
    by_name = {g.name: g for g in model.gradients}
    windows = {FORWARD: [], BACKWARD: []}
    for template in plan.transfers:
        (piece,) = template.pieces
        gradient = by_name[piece.gradient]
        is_free = not found.kept_reasons[gradient.name] and workers > 1
        if gradient.name in updates:
            is_free = is_free and not writers_before_gradient(model, updates[gradient.name])
        is_whole = gradient.is_sparse or gradient.name in updates
        for part in [piece] if is_whole else cut_at_random(rng, gradient):
            window = FORWARD if is_free and rng.random() < 0.5 else BACKWARD
            group = found.levels[gradient.name], found.conditions[gradient.name]
            windows[window].append((part, template, group))
    transfers = []
    for window, parts in windows.items():
        made = [transfer(rng, group, window, by_name, plan, updates) for group in grouped(rng, parts)]
        order = sorted(range(len(made)), key=lambda n: (made[n][1], rng.random()))
        transfers += [made[n][0] for n in order]
    order = order_by_cost(model, found, {op: float(rng.integers(1, 9)) * 1e-6 for op in found.ops}, "random")
    kind = rng.choice(["none", "total", "updates"])
    edges = () if kind == "none" else control_edges(model, found, order, str(kind)).edges
    in_flight = InFlight(*([None, 1, 2, 3][rng.integers(4)] for _ in (FORWARD, BACKWARD)))
    if seed % 3 == 0:  # no number of the others is drawn anew
        in_flight = replace(in_flight, credit_bytes=16 * (1 + seed % 7))
    plan = replace(plan, transfers=tuple(transfers), edges=edges, order=order.gradients, in_flight=in_flight, proof=())
    return with_sharded_updates(plan, model, updates, {}) if updates and workers > 1 else plan


def cut_at_random(rng, gradient):
    """All of a gradient, in one to three pieces."""
    most = min(gradient.size - 1, 2)
    count = int(rng.integers(0, most + 1)) if most > 0 else 0
    cuts = sorted(rng.choice(np.arange(1, gradient.size), size=count, replace=False)) if count else []
    edges = [0, *(int(c) for c in cuts), gradient.size]
    return [Piece(gradient.name, a, b - a) for a, b in zip(edges, edges[1:])]


def grouped(rng, parts):
    """Parts of one element type, level and condition together at random, sparse ones alone."""
    groups = {}
    for number, (part, template, level) in enumerate(parts):
        alone = number if template.algorithm == ALL_GATHER else int(rng.integers(0, 3))
        groups.setdefault((level, template.dtype, template.algorithm == ALL_GATHER, alone), []).append(
            (part, template, level)
        )
    made = list(groups.values())
    for group in made:
        rng.shuffle(group)
    return made


def transfer(rng, group, window, by_name, plan, sharded):
    """A transfer of some parts, and their level."""
    template, level = group[0][1], group[0][2]
    pieces = tuple(part for part, _, _ in group)
    if template.algorithm == ALL_GATHER:
        return replace(template, window=window), level
    elements = sum(p.elements for p in pieces)
    allowed = IN_ORDER if plan.deterministic else ANY
    if any(piece.gradient in sharded for piece in pieces):
        allowed = [name for name in allowed if name not in ON_ONE_WORKER]
    algorithm = str(rng.choice(allowed))
    if algorithm == "native" and (template.dtype not in ("float32", "float64") or template.wire):
        algorithm = "ring"
    depth = 1 if algorithm == "native" else int(rng.integers(1, 5))
    return (
        replace(
            template,
            pieces=pieces,
            elements=elements,
            size_bytes=elements * by_name[pieces[0].gradient].item_bytes,
            algorithm=algorithm,
            depth=depth,
            window=window,
        ),
        level,
    )
