"""Lines and curves: the weighted fit, the threshold, and what is said and done where a line does not fit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from caramel.errors import FitError
from caramel.netmodel.line import Curve, Line, Sample, fit_line
from caramel.util.units import format_size

SIZES = (4, 1000, 2**16, 2**20, 2**22)
JUMPING = [Sample(2**n, t) for n, t in zip(range(8, 15), (1e-4, 1.1e-4, 1.2e-4, 1.4e-4, 9e-4, 1e-3, 1.2e-3))]


def log_floats(least, most):
    return st.floats(math.log(least), math.log(most)).map(math.exp)


def samples_of(line, sizes=SIZES):
    return [Sample(size, line.a_s + line.b_s_per_byte * size) for size in sizes]


def costs_of(samples, line):
    """What the fit makes small: relative errors, squared."""
    return sum(((line.a_s + line.b_s_per_byte * s.size_bytes) / s.time_s - 1) ** 2 for s in samples)


def oracle(samples):
    scale = max(s.size_bytes for s in samples)
    rows = np.array([[1 / s.time_s, s.size_bytes / scale / s.time_s] for s in samples])
    (a, b), _ = nnls(rows, np.ones(len(samples)))
    return Line(a, b / scale)


@given(log_floats(1e-6, 1e-1), log_floats(1e-12, 1e-6))
def test_lines_without_noise_are_recovered(a, b):
    found = fit_line(samples_of(Line(a, b)))
    assert found.a_s == pytest.approx(a, rel=1e-6)
    assert found.b_s_per_byte == pytest.approx(b, rel=1e-6)


@given(
    st.lists(st.tuples(st.integers(1, 2**26), log_floats(1e-6, 10)), min_size=2, max_size=12).filter(
        lambda pairs: len({size for size, _ in pairs}) > 1
    )
)
def test_fit_against_nonnegative_least_squares(pairs):
    samples = [Sample(size, time) for size, time in pairs]
    found = fit_line(samples)
    assert found.a_s >= 0 and found.b_s_per_byte >= 0
    best = costs_of(samples, oracle(samples))
    assert costs_of(samples, found) == pytest.approx(best, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_fit_of_noisy_lines(seed):
    rng = np.random.default_rng(seed)
    samples = [Sample(s.size_bytes, s.time_s * rng.uniform(0.8, 1.2)) for s in samples_of(Line(1e-4, 2e-9)) * 3]
    found, expected = fit_line(samples), oracle(samples)
    assert found.a_s == pytest.approx(expected.a_s, rel=1e-6)
    assert found.b_s_per_byte == pytest.approx(expected.b_s_per_byte, rel=1e-6)
    unweighted = np.polyfit([s.size_bytes for s in samples], [s.time_s for s in samples], 1)
    assert found.a_s != pytest.approx(unweighted[1], rel=1e-3)


def test_neither_number_is_negative():
    falling = fit_line([Sample(1000, 2.0), Sample(2000, 1.0)])
    assert falling.b_s_per_byte == 0
    assert falling.a_s == pytest.approx((1 / 2 + 1) / (1 / 4 + 1))  # sum(1/T) / sum(1/T^2)
    steep = fit_line([Sample(1000, 1.0), Sample(2000, 4.0)])
    assert steep.a_s == 0
    assert steep.b_s_per_byte == pytest.approx((1000 / 1 + 2000 / 4) / (1000**2 + 500**2))  # sum(x/T) / sum((x/T)^2)


@pytest.mark.parametrize("samples", [[], [Sample(8, 1.0)], [Sample(8, 1.0), Sample(8, 2.0)]])
def test_too_few_sizes(samples):
    with pytest.raises(FitError, match="sizes"):
        fit_line(samples)
    with pytest.raises(FitError, match="sizes"):
        Curve.fitted(4, "ring", 1, samples)


@pytest.mark.parametrize("time", [0.0, -1e-3, math.nan, math.inf, -math.inf])
def test_bad_times(time):
    with pytest.raises(FitError, match="times between"):
        fit_line([Sample(8, 1.0), Sample(16, time), Sample(32, 1.0)])


# -- the threshold -------------------------------------------------------------------------------


def joins_well(line, size):
    """f(2x) / (2 f(x)) > 0.8, from its definition."""
    one, two = (line.a_s + line.b_s_per_byte * n * size for n in (1, 2))
    return two / (2 * one) > 0.8


@given(log_floats(1e-6, 1e-1), log_floats(1e-12, 1e-6))
def test_threshold_of_a_line(a, b):
    line = Line(a, b)
    assert line.threshold_bytes == pytest.approx(1.5 * a / b)
    assert joins_well(line, line.threshold_bytes * 1.001)
    assert not joins_well(line, line.threshold_bytes * 0.999)


def test_thresholds_at_the_edges():
    assert Line(1e-3, 0.0).threshold_bytes == math.inf
    assert Line(0.0, 1e-9).threshold_bytes == 0
    assert Line(0.0, 0.0).threshold_bytes == 0


def saves(curve, size):
    """Whether joining two transfers of a size saves at least 20 %."""
    return curve.time_s(2 * size) <= 0.8 * 2 * curve.time_s(size)


@given(
    st.lists(st.tuples(st.integers(1, 2**24), log_floats(1e-5, 1.0)), min_size=2, max_size=8, unique_by=lambda p: p[0])
)
def test_the_threshold_of_measurements_is_the_largest_size_that_still_saves(points):
    curve = Curve.fitted(4, "ring", 1, [Sample(size, time) for size, time in points])
    if curve.fits and curve.line.a_s > 0:
        assert curve.threshold_bytes == curve.line.threshold_bytes
        return
    found = curve.threshold_bytes
    if math.isinf(found):
        assert saves(curve, 2.0**30)
        return
    assert curve.time_s(2 * found) <= 0.8 * 2 * curve.time_s(found) * (1 + 1e-9)
    larger = np.geomspace(found * 1.0001, max(10 * found, 2.0**26), 2000)
    assert not any(saves(curve, size) for size in larger)


def test_beyond_a_jump_joining_may_save_again():
    """Two of 2 KiB take as long as one of 8 KiB would; two of 16 KiB save a third, and two of 128 KiB nothing."""
    points = [(1024, 1e-4), (4096, 1e-4), (8192, 3e-4), (65536, 4e-4), (262144, 1.6e-3)]
    curve = Curve.fitted(8, "ring", 1, [Sample(*point) for point in points])
    assert not curve.fits and not saves(curve, 4096) and saves(curve, 16384)
    assert 32768 <= curve.threshold_bytes <= 65536


def test_below_the_smallest_size_a_transfer_takes_what_it_takes_there():
    curve = Curve.fitted(4, "star", 1, [Sample(4096, 9e-4), Sample(8192, 9e-4), Sample(2**20, 0.35)])
    assert [curve.time_s(size) for size in (0, 1, 64, 4096)] == [9e-4] * 4


def test_line_times():
    assert Line(2.0, 3.0).time_s(0) == 2
    assert Line(2.0, 3.0).time_s(10) == 32


# -- curves --------------------------------------------------------------------------------------


def test_a_curve_that_fits():
    line = Line(1e-4, 1e-9)
    curve = Curve.fitted(4, "ring", 2, [*reversed(samples_of(line)), *samples_of(line, [77])])
    assert (curve.workers, curve.algorithm, curve.depth) == (4, "ring", 2)
    assert [s.size_bytes for s in curve.samples] == sorted([*SIZES, 77])
    assert curve.valid_bytes == (4, 2**22)
    assert curve.line == fit_line(samples_of(line, [*SIZES, 77])) or curve.line.a_s == pytest.approx(1e-4)
    assert curve.residuals == pytest.approx([0] * 6, abs=1e-9)
    assert curve.fits and curve.warning is None and curve.jump is None
    for size in (0, 4, 5000, 2**22, 2**30):
        assert curve.time_s(size) == pytest.approx(1e-4 + 1e-9 * max(size, 4))


@given(st.lists(st.floats(1e-5, 1e-2), min_size=7, max_size=7), st.randoms())
def test_residuals_and_predictions(times, random):
    samples = [Sample(s.size_bytes, time) for s, time in zip(JUMPING, times)]
    shuffled = list(samples)
    random.shuffle(shuffled)
    curve = Curve.fitted(8, "star", 1, shuffled)
    assert list(curve.samples) == samples
    a, b = curve.line.a_s, curve.line.b_s_per_byte
    residuals = [(a + b * s.size_bytes) / s.time_s - 1 for s in samples]
    assert curve.residuals == pytest.approx(residuals, abs=1e-9)
    worst = int(np.argmax(np.abs(residuals)))
    assert abs(curve.worst[1]) == pytest.approx(abs(residuals[worst]), abs=1e-9)
    assert curve.worst[1] == curve.residuals[samples.index(curve.worst[0])]
    assert curve.fits == (max(map(abs, curve.residuals)) <= 0.25)
    assert (curve.warning is None) == curve.fits
    for size in (0, 255, 256, 300, 1024, 5000.5, 16384, 16385, 10**6):
        expected = np.interp(size, [s.size_bytes for s in samples], times)
        if size > 16384:
            half_s = times[[s.size_bytes for s in samples].index(8192)]
            slope = (times[-1] - half_s) / 8192 if half_s < times[-1] else b
            most = times[-1] / 16384 if half_s < times[-1] else math.inf
            expected = times[-1] + min(slope, most) * (size - 16384)
        assert curve.time_s(size) == pytest.approx(expected)


def test_beyond_the_largest_size_bytes_take_what_they_took_up_to_there():
    """Chunks of small sizes cost more than a line says, which then is too flat (links of 50 Mbit/s, 4 workers)."""
    times = {2**12: 12.51e-3, 2**15: 11.79e-3, 2**18: 68.4e-3, 2**20: 266.14e-3}
    curve = Curve.fitted(4, "ring", 4, [Sample(*each) for each in times.items()])
    bytes_s = 1.5 * 1.75 * 2**20 / (47.9e6 / 8)  # of what each worker sends
    assert 2**20 * curve.line.b_s_per_byte < 0.9 * times[2**20]
    assert bytes_s < curve.time_s(1.75 * 2**20) < 1.02 * bytes_s
    jump = Curve.fitted(4, "ring", 1, [Sample(2**19, 1e-3), Sample(2**20, 1.0)])
    assert jump.time_s(2**21) == pytest.approx(2.0)  # two all-reduces of 1 MiB
    near = Curve.fitted(4, "ring", 1, [Sample(2**18, 0.25), Sample(2**20 - 1, 1.01), Sample(2**20, 1.0)])
    assert near.time_s(2**21) == pytest.approx(2.0)


@pytest.mark.parametrize(("factor", "fits"), [(1.2, True), (1.7, False)])
def test_within_a_quarter(factor, fits):
    """Two samples of the same size, apart by a factor: the line that misses both least is off by (f - 1) / (f + 1)."""
    samples = [Sample(size, time) for size in (1000, 2000) for time in (1e-3, factor * 1e-3)]
    curve = Curve.fitted(2, "ring", 1, samples)
    assert curve.fits == fits
    if not fits:
        assert all(1e-3 <= curve.time_s(size) <= factor * 1e-3 for size in (1000, 1500, 2000))


def test_the_warning_says_what_and_where():
    curve = Curve.fitted(8, "halving_doubling", 3, JUMPING)
    residuals = np.abs(curve.residuals)
    worst = JUMPING[int(np.argmax(residuals))].size_bytes
    text = curve.warning
    assert "halving_doubling" in text
    for number in ("8", "3"):
        assert number in text
    assert format_size(worst) in text or str(worst) in text
    assert f"{max(residuals):.0%}".rstrip("%") in text
    assert [s.size_bytes for s in curve.jump] == [2048, 4096]
    assert all(format_size(size) in text or str(size) in text for size in (2048, 4096))


def jump_by_brute_force(samples):
    growth = [(b.time_s / a.time_s) / (b.size_bytes / a.size_bytes) for a, b in zip(samples, samples[1:])]
    largest = int(np.argmax(growth))
    return (samples[largest], samples[largest + 1]) if growth[largest] > 1.5 else None


@given(st.lists(st.floats(1e-5, 1e-3), min_size=7, max_size=7))
def test_jumps(times):
    samples = [Sample(s.size_bytes, time) for s, time in zip(JUMPING, times)]
    assert Curve.fitted(8, "star", 1, samples).jump == jump_by_brute_force(samples)


def test_a_bend_is_no_jump():
    curve = Curve.fitted(8, "star", 1, [Sample(4**n, 1e-5 * 2**n) for n in range(4, 11)])  # T ~ sqrt(bytes)
    assert not curve.fits and curve.jump is None
    assert "jump" not in curve.warning


@pytest.mark.parametrize("times", [(1e-12, 1e9), (1e-300, 1e-299), (1e299, 1e300), (1e-320, 1.0), (1e-9, 1e308)])
def test_times_far_apart(times):
    """Absurd, but positive and finite: a line, or a FitError that says so."""
    try:
        line = fit_line([Sample(64, times[0]), Sample(2**20, times[1])])
    except FitError:
        return
    assert math.isfinite(line.a_s) and math.isfinite(line.b_s_per_byte)
