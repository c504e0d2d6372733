"""Predictions over bandwidth: the limits of the default policy, from published times and from random layers."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.planning import COMPLETE, FASTEST, POLICIES, RATES_BIT_PER_S, SLOWEST, curves, format_rate, plot, table
from benchmarks.published_data import boundaries_of
from benchmarks.published_layers import Layer, googlenet_on_k80
from caramel.analyzers.cost.network import Network
from caramel.analyzers.registry import automatic_analyzers
from caramel.facts import Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel

WORKERS = 8


def googlenet():
    return boundaries_of(googlenet_on_k80())


def synthetic():
    """Sizes of VGG-16's layers, with updates; times that fall as the images get smaller."""
    sizes = [1_792, 36_928, 73_856, 147_584, 295_168, 590_080, 590_080, 1_180_160, *[2_359_808] * 5]
    sizes += [102_764_544, 16_781_312, 4_097_000]
    times = np.linspace(0.12, 0.01, len(sizes)).tolist()
    made = boundaries_of([Layer(4 * size, time_s / 2, time_s) for size, time_s in zip(sizes, times)])
    updated = (replace(g, update_s=0.1 * time_s) for g, time_s in zip(made.gradients, reversed(times)))
    return replace(made, gradients=tuple(updated))


@pytest.fixture(scope="module", params=[googlenet, synthetic], ids=["googlenet", "synthetic"])
def found(request):
    return curves("model", request.param(), WORKERS, RATES_BIT_PER_S[::8])


def test_the_limits_are_kept(found):
    slow, fast = found.points[0], found.points[-1]
    assert (slow.rate_bit_per_s, fast.rate_bit_per_s) == (pytest.approx(SLOWEST), pytest.approx(FASTEST))
    assert (SLOWEST, FASTEST) == (10e6, 100e9)
    assert slow.policies_s[COMPLETE] <= 1.05 * slow.lb1_s
    assert fast.policies_s[COMPLETE] <= 1.02 * found.compute_s
    assert found.missed() == []


def test_bounds_and_policies_are_ordered_at_every_rate(found):
    for point in found.points:
        complete_s = point.policies_s[COMPLETE]
        assert max(point.lb1_s, found.compute_s) <= complete_s * (1 + 1e-9)
        others_s = min(point.policies_s["paper"], point.policies_s["no scheduling"])
        assert complete_s <= 1.005001 * others_s  # plans that differ by less are taken for equal
    times = [point.policies_s["no scheduling"] for point in found.points]
    assert times[0] > 2 * times[-1]  # otherwise the rates would decide nothing


def test_bytes_over_the_slowest_links(found):
    """The last rows by hand: 7 of 8 parts of all bytes, twice, over each link; less than a step's rooms hidden."""
    slow = found.points[0]
    wire_s = 2 * (WORKERS - 1) / WORKERS * found.gradient_bytes / (SLOWEST / 8)
    assert wire_s <= slow.policies_s[COMPLETE] <= 1.05 * (wire_s + found.compute_s)


def test_misses_are_said(found):
    slow, *others, fast = found.points
    late = replace(slow, policies_s={**slow.policies_s, COMPLETE: 1.06 * slow.lb1_s})
    slower = replace(fast, policies_s={**fast.policies_s, COMPLETE: 1.03 * found.compute_s})
    missed = replace(found, points=(late, *others, slower)).missed()
    assert missed == [
        "model at 10 Mbit/s: 1.060 times LB1, limit 1.05",
        "model at 100 Gbit/s: 1.030 times computation, limit 1.02",
    ]


def test_at_least_three_rates_in_a_decade():
    ratios = np.divide(RATES_BIT_PER_S[1:], RATES_BIT_PER_S[:-1])
    assert max(ratios) <= 10 ** (1 / 3)


def test_the_policies_are_those_of_the_options():
    """`automatic` with a trace and a network; what makes boundaries, edges and depths aside."""
    network = Network(CollectiveOptions(network=NetworkModel.from_link_rate(1e9)), WORKERS)
    trace = Trace("", {}, {}, 1.0, 1.0, 1, 1, None, "")
    options = ({}, {"policy": "paper"}, {"scheduling": False}, {"scheduling": False, "batching": False})
    for policy, chosen in zip(POLICIES.values(), options):
        names = [analyzer.name for analyzer in automatic_analyzers(network, trace, **chosen)[0]]
        # The simplest packing of a whole model has another name than the same one of boundaries.
        mine = ["backward window" if a.name == "backward only" else a.name for a in policy]
        assert set(mine) <= set(names), chosen
        assert not {"best packing", "paper packing"} & set(names) - set(mine)


def test_what_is_shown(found, tmp_path):
    plot([found, found], str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    lines = table(found).splitlines()
    assert len(lines) == 2 + len(found.points)
    assert lines[2].startswith("| 10 Mbit/s |") and lines[-1].startswith("| 100 Gbit/s |")
    assert format_rate(1e9) == "1 Gbit/s"
