"""Published measurements of an MPI all-reduce over 10 GbE: at 8 workers no line fits, and the model says so."""

import re

import numpy as np
import pytest

from benchmarks.published_data import all_reduce_samples
from caramel.netmodel.line import Curve
from caramel.netmodel.model import NetworkModel


@pytest.fixture(scope="module")
def samples():
    return all_reduce_samples()


def test_the_data_is_whole(samples):
    assert sorted(samples) == [2, 4, 8]
    for measured in samples.values():
        sizes = [s.size_bytes for s in measured]
        assert (sizes[0], sizes[-1]) == (4, 2**20)
        assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(("workers", "a_us", "b_ns"), [(2, 114, 1.64), (4, 259, 2.02), (8, 832, 3.34)])
def test_published_lines(samples, workers, a_us, b_ns):
    large = [s for s in samples[workers] if s.size_bytes >= 2**14]
    b, a = np.polyfit([s.size_bytes for s in large], [s.time_s for s in large], 1)
    assert a * 1e6 == pytest.approx(a_us, rel=0.1)
    assert b * 1e9 == pytest.approx(b_ns, rel=0.1)


def test_the_jump_is_named(samples):
    curve = Curve.fitted(8, "ring", 1, samples[8])
    assert not curve.fits
    assert [s.size_bytes for s in curve.jump] == [8192, 12288]
    assert re.search(r"jump.* (8192|8 KiB).* (12288|12 KiB)", curve.warning)
    assert re.search(r"ring .*depth 1 .*8 workers", curve.warning)
    assert NetworkModel("10 GbE", (curve,)).warnings == (curve.warning,)


def test_measurements_are_interpolated(samples):
    """Half of the sizes, but both sides of the jump, predict the other half; below it the sizes are far apart."""
    known = [s for n, s in enumerate(samples[8]) if n % 2 == 0 or s.size_bytes <= 12288]
    unknown = [s for s in samples[8] if s not in known]
    curve = Curve.fitted(8, "ring", 1, known)
    assert not curve.fits
    by_line = [abs(curve.line.time_s(s.size_bytes) / s.time_s - 1) for s in samples[8]]
    assert max(by_line) > 0.5
    assert all(curve.time_s(s.size_bytes) == pytest.approx(s.time_s) for s in known)
    assert all(curve.time_s(s.size_bytes) == pytest.approx(s.time_s, rel=0.2) for s in unknown)


def test_the_line_of_all_sizes_is_half_off(samples):
    curve = Curve.fitted(8, "ring", 1, samples[8])
    times = np.array([s.time_s for s in samples[8]])
    sizes = np.array([s.size_bytes for s in samples[8]])
    weights = 1 / times
    b, a = np.polyfit(sizes, times, 1, w=weights)
    assert a > 0 and b > 0
    assert (curve.line.a_s, curve.line.b_s_per_byte) == pytest.approx((a, b), rel=1e-6)
    assert np.max(np.abs((a + b * sizes) / times - 1)) > 0.5
    assert abs(curve.worst[1]) == pytest.approx(np.max(np.abs((a + b * sizes) / times - 1)))
