"""How much longer steps under the default plan are than the shortest that hill climbing finds.

Where many steps are planned, the limits are on percentiles: climbing proves nothing about any one step.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from climbing_oracle import climbed_s, line
from planner_instances import (
    PROFILES,
    RHOS,
    anything_on_a_curve,
    long_updates,
    measured_networks,
    on_a_curve,
    published,
    published_networks,
    swapped_orders,
)
from variants import in_soak

from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.optimal.step_bound import step_bound_s
from caramel.analyzers.policies.best_packing import choose_packing
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary, Piece, Schedule, Scheduled

MILLION = 10**6

MEASURED = ("10 GbE, measured", "star of eight")
"""Those of `published_networks` that are no lines."""


def planned_s(boundaries, known):
    schedule = choose_packing(boundaries, known.network)
    return simulate_on(known.network, boundaries, schedule).iteration_s


def gap(boundaries, known, seed):
    """How much longer the planned step is than the climbed one, as a fraction."""
    step_s = planned_s(boundaries, known)
    if step_s <= (boundaries.compute_s + boundaries.updates_s) * (1 + 1e-9):
        return 0.0  # nothing is exposed, so no step is shorter
    return step_s / climbed_s(boundaries, known, seed) - 1


def percentile(values, percent):
    """The least value that so many percent of the values are at most."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def check_percentile(by_instance, percent, limit):
    """Check a percentile, and say which instances are the worst."""
    worst = sorted(by_instance, key=by_instance.get)[-5:][::-1]
    found = percentile(by_instance.values(), percent)
    listed = ", ".join(f"{name}: {by_instance[name]:.2%}" for name in worst)
    assert found <= limit, f"percentile {percent} is {found:.2%}; the worst are {listed}"


def gaps(instance, seeds):
    return {seed: gap(*instance(seed), seed) for seed in seeds}


# -- orders that disagree, and updates ----------------------------------------------------------


def gradient(name, millions, ready_s, read_s, update_s=0.0):
    return Boundary(name, "float32", millions * MILLION, 4.0 * millions * MILLION, ready_s, read_s, update_s)


def by_hand_s(boundaries, known, plan):
    schedule = Schedule(tuple(Scheduled(tuple(Piece(*p) for p in pieces), w, "") for w, pieces in plan), "by hand")
    return simulate_on(known.network, boundaries, schedule).iteration_s


def test_a_step_whose_orders_disagree():
    gradients = (gradient("third", 6, 12, 7), gradient("second", 7, 13, 0), gradient("first", 5, 17, 4))
    boundaries, known = Boundaries(gradients, 17.0), line(0.1, 0.7027777777777777 / (4 * MILLION))
    cut = int(1.32 * MILLION)
    plan = [
        (FORWARD, [("first", 0, 5 * MILLION)]),
        (FORWARD, [("third", cut, 6 * MILLION - cut)]),
        (BACKWARD, [("third", 0, cut)]),
        (BACKWARD, [("second", 0, 7 * MILLION)]),
    ]
    shortest_s = min(by_hand_s(boundaries, known, plan), climbed_s(boundaries, known, 0))
    assert planned_s(boundaries, known) <= 1.02 * shortest_s


def test_a_step_of_long_updates():
    gradients = (
        gradient("third", 5, 8, 4, 1.5),
        gradient("second", 4, 9, 3, 1.2),
        gradient("first", 1, 20, 0, 0.3),
    )
    boundaries, known = Boundaries(gradients, 20.0), line(0.07, 1.493 / (4 * MILLION))
    alone = [(BACKWARD, [(g.name, 0, g.elements)]) for g in gradients]
    shortest_s = min(by_hand_s(boundaries, known, alone), climbed_s(boundaries, known, 0))
    assert planned_s(boundaries, known) <= 1.01 * shortest_s


@pytest.mark.parametrize("seeds", [range(4), *in_soak(*(range(500 * n, 500 * n + 500) for n in range(6)))])
def test_orders_that_disagree_by_one_swap(seeds):
    check_percentile(gaps(swapped_orders, seeds), 95, 0.01)


@pytest.mark.parametrize("seeds", [range(2), *in_soak(*(range(100 * n, 100 * n + 100) for n in range(6)))])
def test_updates_that_are_long(seeds):
    check_percentile(gaps(long_updates, seeds), 95, 0.01)


# -- measured curves ----------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [range(3), *in_soak(*(range(100 * n, 100 * n + 100) for n in range(6)))])
def test_random_curves(seeds):
    check_percentile(gaps(on_a_curve, seeds), 95, 0.02)


def published_gap(model, name, rho):
    known = measured_networks()[name]
    return gap(published(model, known, rho), known, 0)


@pytest.mark.soak  # as test_random_curves
def test_a_published_network_on_a_measured_curve():
    assert published_gap("AlexNet", "star of eight", 2) <= 0.02


@pytest.mark.soak
@pytest.mark.parametrize("name", measured_networks())
def test_published_networks_on_measured_curves(name):
    instances = [(model, name, rho) for model in PROFILES for rho in RHOS]
    check_percentile({instance: published_gap(*instance) for instance in instances}, 95, 0.02)


# -- the lower bound ----------------------------------------------------------------------------


def check_bounds(instance, seeds, **effort):
    """Check that no step that climbing finds is shorter than the bound."""
    too_high = {}
    for seed in seeds:
        boundaries, known = instance(seed)
        bound_s = step_bound_s(boundaries, known.network)
        step_s = climbed_s(boundaries, known, seed, **effort)
        if bound_s > step_s * (1 + 1e-9):
            too_high[seed] = f"{bound_s / step_s - 1:.3g}"
    assert not too_high, f"by seed, by how much the bound is above a step: {too_high}"


def test_the_bound_is_below_every_step():
    check_bounds(anything_on_a_curve, range(100), starts=1, longest=0)


@pytest.mark.soak
@pytest.mark.parametrize("seeds", [range(250 * n, 250 * n + 250) for n in range(8)])
def test_the_bound_is_below_every_step_of_longer_climbs(seeds):
    check_bounds(anything_on_a_curve, seeds, starts=10)


def over_bound(model, name, rho):
    """How much longer the planned step is than the bound, as a fraction."""
    known = published_networks()[name]
    boundaries = published(model, known, rho)
    return planned_s(boundaries, known) / step_bound_s(boundaries, known.network) - 1


def check_over_bounds(instances):
    found = {instance: over_bound(*instance) for instance in instances}
    assert min(found.values()) >= -1e-9
    assert median(found.values()) <= 0.005
    check_percentile(found, 95, 0.03)


def test_a_few_published_networks_are_planned_close_to_their_bounds():
    check_over_bounds([("AlexNet", "10 GbE", 1), ("VGG-16", "star of eight", 2), ("GoogleNet", "10 GbE of 64", 0.5)])


def published_steps(names):
    return [(model, name, rho) for model in PROFILES for name in names for rho in RHOS]


@pytest.mark.soak
def test_published_networks_are_planned_close_to_their_bounds():
    check_over_bounds(published_steps([name for name in published_networks() if name not in MEASURED]))


@pytest.mark.soak
@pytest.mark.xfail(reason="on measured curves the bound is loose: 4.1 % at the 95th percentile of all", strict=True)
def test_so_are_those_whose_times_were_measured():
    """A bound is made of lines below a curve. Climbing finds no steps there that are much shorter than the planned."""
    check_over_bounds(published_steps(published_networks()))


# -- the same plan in any process ---------------------------------------------------------------


def plans():
    """Plans of a few steps, as JSON."""
    steps = [swapped_orders(3), long_updates(4), anything_on_a_curve(5)]
    return json.dumps([dataclasses.asdict(choose_packing(boundaries, known.network)) for boundaries, known in steps])


@pytest.mark.soak  # as test_plans_and_graphs_do_not_depend_on_the_process, of whole programs
def test_plans_are_the_same_in_any_process():
    here = Path(__file__).resolve()
    program = "import test_packing_gaps; print(test_packing_gaps.plans())"
    path = os.pathsep.join([str(here.parent), str(here.parents[1]), str(here.parents[2]), str(here.parents[3])])
    found = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        found.append(subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True))
    assert found[0].stdout == found[1].stdout
    assert len(json.loads(found[0].stdout)) == 3
