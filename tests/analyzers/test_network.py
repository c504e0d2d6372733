"""Times of transfers as planners ask for them."""

import pytest

from caramel.analyzers.network import Network
from caramel.errors import InputError
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel

MODEL = NetworkModel.from_costs(2e-3, 3e-6, 5e-6)


@pytest.mark.parametrize("options", [("ring", 1), ("ring", None), ("halving_doubling", 1), (None, None)])
def test_times_are_those_of_the_cost_table(options):
    """For two workers, ring and halving-doubling are alike: two messages, all bytes once, half of them added."""
    network = Network(CollectiveOptions(*options, network=MODEL), 2)
    assert network.time_s(1000) == pytest.approx(2 * 2e-3 + 1000 * 3e-6 + 500 * 5e-6)


def test_one_worker_sends_nothing():
    network = Network(CollectiveOptions("ring", 1, network=MODEL), 1)
    assert (network.time_s(1000), network.threshold_bytes, network.line(1000).a_s) == (0, 0, 0)
    network.must_be_known("a test")


def test_without_a_model_nothing_is_known():
    with pytest.raises(InputError, match="a test needs.*network="):
        Network(CollectiveOptions(), 2).must_be_known("a test")
