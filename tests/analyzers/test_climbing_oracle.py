"""The oracle of `climbing_oracle`, against the product's simulator and brute force of another kind."""

import random

import pytest
from climbing_oracle import Climber, Step, climbed_s, line, shortest_of_all_s
from packing_oracles import boundaries_of, by_brute_force, instances
from planner_instances import anything_on_a_curve, chain, long_updates, random_line, swapped_orders


def walked_plans(step, seed, count):
    """Random plans, each by a random move from the one before."""
    climber = Climber(step, random.Random(seed))
    plan = climber.start()
    for _ in range(count):
        yield plan
        plan = climber.rng.choice(climber.moves)(plan) or plan


@pytest.mark.parametrize("instance", [swapped_orders, long_updates, anything_on_a_curve])
def test_steps_are_those_of_the_simulator(instance):
    lengths = set()
    for seed in range(40):
        step = Step(*instance(seed))
        lengths |= {step.simulated_s(*plan) for plan in walked_plans(step, seed, 20)}  # compares both
    assert len(lengths) > 400


def test_all_plans_are_those_of_unit_bytes():
    for units, compute, start in instances(5, 40, agree=False, kept=0.2, most=4):
        _, waited = by_brute_force(units, compute, start)
        step_s = shortest_of_all_s(boundaries_of(units, compute), line(start, 1.0), 5)
        assert step_s == pytest.approx(compute + waited, abs=1e-9)


def few(seed, count, updates):
    rng = random.Random(seed)
    boundaries = chain(rng, count, updates=updates, swaps=rng.randint(0, 1))
    return boundaries, random_line(rng, boundaries)


@pytest.mark.parametrize(
    ("count", "parts", "seeds"),
    [
        (2, 2, range(6)),
        (3, 2, range(6)),
        pytest.param(2, 4, range(100, 140), marks=pytest.mark.soak),
        pytest.param(3, 2, range(200, 260), marks=pytest.mark.soak),
        pytest.param(4, 1, range(300, 340), marks=pytest.mark.soak),
        pytest.param(4, 2, range(400, 402), marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("updates", [0.0, 0.15])
def test_climbing_finds_what_all_plans_have(count, parts, seeds, updates):
    for seed in seeds:
        boundaries, known = few(seed, count, updates)
        assert climbed_s(boundaries, known, seed) <= shortest_of_all_s(boundaries, known, parts) * (1 + 1e-4), seed


def test_climbing_is_the_same_for_a_seed():
    boundaries, known = anything_on_a_curve(7)
    assert climbed_s(boundaries, known, 3, 2) == climbed_s(boundaries, known, 3, 2)
