"""The quick evaluation of a step against the simulator, to rounding."""

import random
from dataclasses import replace

import pytest
from policy_common import line

from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.optimal.local_search import LocalSearch
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary, InFlight, Piece, Schedule, Scheduled
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel


def random_step(rng):
    """Gradients in any order of readiness and of reads, with updates, cut or not, in any order in both windows."""
    count, compute_s = rng.randint(1, 7), rng.choice([10.0, 20.0])
    gradients = []
    for n in range(count):
        elements = rng.randint(2, 40)
        read_s = rng.choice([0.0, compute_s, rng.uniform(0, 1.2 * compute_s), float(rng.randint(0, 10))])
        ready_s = rng.choice([compute_s, rng.uniform(0, 1.1 * compute_s), float(rng.randint(0, 10))])
        update_s = rng.choice([0.0, 0.0, rng.uniform(0, 2), float(rng.randint(0, 2))])
        gradients.append(Boundary(f"g{n}", "float32", elements, 4.0 * elements, ready_s, read_s, update_s))
    windows = {FORWARD: [], BACKWARD: []}
    for g in gradients:
        cut = rng.randint(1, g.elements - 1) if rng.random() < 0.4 else 0
        parts = [(0, cut), (cut, g.elements - cut)] if cut else [(0, g.elements)]
        places = rng.sample([FORWARD, BACKWARD], 2) if cut else [rng.choice([FORWARD, BACKWARD])]
        for window, part in zip(places, parts):
            piece = Piece(g.name, *part)
            if windows[window] and rng.random() < 0.5:
                rng.choice(windows[window]).append(piece)
            else:
                windows[window].insert(rng.randint(0, len(windows[window])), [piece])
    transfers = [Scheduled(tuple(pieces), window, "") for window in (FORWARD, BACKWARD) for pieces in windows[window]]
    return Boundaries(tuple(gradients), compute_s), Schedule(tuple(transfers), "")


def contended(rng):
    """A network on which transfers lag, and take from computation."""
    curves, contentions = [], []
    for algorithm in ("ring", "shuffle"):
        samples = [Sample(size, rng.uniform(0.2, 3.0)) for size in (8, 64, 512)]
        curves.append(Curve.fitted(4, algorithm, 1, samples))
        for size in (8, 512):
            contentions.append(Contention(4, algorithm, 1, size, rng.uniform(0, 0.6), 2.0, rng.uniform(0.2, 2.0)))
    model = NetworkModel("a test", tuple(curves), contentions=tuple(contentions))
    return Network(CollectiveOptions(network=model), 4)


@pytest.mark.parametrize("kind", ["line", "contended"])
@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_simulator(kind, seed):
    rng = random.Random(f"{kind} {seed}")
    for _ in range(60):
        boundaries, schedule = random_step(rng)
        network = line(rng.choice([0.0, 0.5, 1.0]), rng.uniform(0.01, 0.2)) if kind == "line" else contended(rng)
        if rng.random() < 0.3:
            boundaries = replace(boundaries, factor=1.3)
        scales = (1.0, 0.8, 1.25)
        limits = rng.choice(
            [None, InFlight(1, 2), InFlight(2, 1), InFlight(None, 3), InFlight(credit_bytes=80), InFlight(2, 3, 50)]
        )
        found = LocalSearch(network, boundaries, scales, limits).times_s(schedule)
        wanted = [simulate_on(network, boundaries.scaled(s), schedule, limits).iteration_s for s in scales]
        assert found == pytest.approx(wanted, rel=1e-12), (boundaries, schedule)
