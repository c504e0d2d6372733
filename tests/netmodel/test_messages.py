"""The cost of a message, concluded from all-reduces whose formula is known."""

import pytest

from caramel.errors import InputError
from caramel.netmodel.costs import Cost, factors
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.messages import message_cost
from caramel.netmodel.model import NetworkModel

SIZES = (2**12, 2**16, 2**20, 2**24)


def measured(algorithms, workers, alpha=2e-4, beta=1e-8, gamma=3e-10):
    """A model of exact measurements."""
    cost = Cost(alpha, beta, gamma)
    curves = []
    for name in algorithms:
        for number in workers:
            samples = tuple(Sample(size, cost.time_s(name, number, 1, size)) for size in SIZES)
            curves.append(Curve.fitted(number, name, 1, samples))
    return NetworkModel("exact", tuple(curves), gamma)


def test_as_given():
    found = message_cost(NetworkModel.from_costs(1e-4, 1e-8, 1e-10), 4)
    assert (found.alpha_s, found.beta_s_per_byte, found.gamma_s_per_byte) == (1e-4, 1e-8, 1e-10)
    assert found.time_s(1000) == pytest.approx(1e-4 + 1e-5)


@pytest.mark.parametrize("algorithm", ["star", "shuffle", "ring"])
@pytest.mark.parametrize("workers", [2, 4, 7])
def test_from_exact_measurements(algorithm, workers):
    found = message_cost(measured([algorithm], [workers]), workers)
    assert found.alpha_s == pytest.approx(2e-4, rel=1e-6) and found.beta_s_per_byte == pytest.approx(1e-8, rel=1e-6)
    assert found.gamma_s_per_byte == 3e-10 and algorithm in found.basis and str(workers) in found.basis


def test_the_star_is_preferred_and_the_nearest_number_of_workers():
    found = message_cost(measured(["ring", "star"], [2, 8]), 6)
    assert found.basis == "messages as in the star of 8 workers"
    assert factors("star", 8).messages == 14


def test_one_worker_alone_says_nothing():
    network = NetworkModel("one", (Curve.fitted(1, "star", 1, [Sample(8, 1e-6), Sample(80, 1e-6)]),), 0.0)
    with pytest.raises(InputError, match="measure it with more"):
        message_cost(network, 4)
