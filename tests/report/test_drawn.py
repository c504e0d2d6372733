"""Shapes of a page: in their places, few enough, and lines whose ends are the values' ends."""

import math

import pytest

from caramel.report.drawn_lanes import WIDTH, drawn_step, ticks
from caramel.report.drawn_series import HEIGHT, drawn_series
from caramel.report.step_timeline import Bar, Lanes, StepTimeline


def test_boxes_and_paths_are_where_the_bars_are():
    computation = (Bar("compute", "", 0.0, 0.25), Bar("stall", "w", 0.25, 1.0, 0))
    link = (Bar("transfer", "transfer 0", 0.5, 1.0, 0), Bar("transfer", "transfer 1", 0.75, 1.0, 1))
    step = StepTimeline("predicted", 1.0, (Lanes(0, computation, link),) * 3)
    drawn = drawn_step(step, "a step", 2.0, 1, 1, "each worker")
    lane, sent = drawn.lanes
    assert lane.paths["compute"] == f"M0 0h{WIDTH // 8}v10h-{WIDTH // 8}z" and drawn.end == 50
    assert [(box.left, box.width, box.row) for box in sent.boxes] == [(25, 25, 0), (37.5, 12.5, 1)] and sent.rows == 2


def test_many_bars_become_few_shapes(large_step):
    drawn = drawn_step(large_step(5000, 2, transfers=3000), "a step", 0.05, 8, 8)
    assert len(drawn.lanes) == 4
    assert sum(path.count("M") for path in drawn.lanes[0].paths.values()) < 2500
    assert 0 < len(drawn.lanes[1].boxes) <= 150
    assert sum(box.bar.count for box in drawn.lanes[1].boxes) == 3000


@pytest.mark.parametrize("length_s", [1e-7, 3e-5, 0.0123, 0.5, 7.0, 1000.0])
def test_ticks_are_round_and_few(length_s):
    found = ticks(length_s)
    assert 2 <= len(found) <= 6 and found[0] == (0.0, "0") and found[-1][0] <= 100
    step_ms = float(found[1][1])
    assert float(f"{step_ms / 10 ** math.floor(math.log10(step_ms) + 1e-9):.6g}") in (1, 2, 5)
    assert found[1][0] == pytest.approx(100 * step_ms / (length_s * 1e3), abs=0.06)


def heights(path):
    return [float(point.split()[1]) for point in path.strip("Mz").split("L")]


def test_a_line_goes_from_end_to_end():
    drawn = drawn_series("loss", [4.0, 3.0, 2.0])
    assert heights(drawn.line) == [0, HEIGHT / 2, HEIGHT] and (drawn.low, drawn.high, drawn.last) == ("2", "4", "2")
    assert drawn.band == drawn.note == ""


def test_values_far_apart_have_a_logarithmic_axis():
    drawn = drawn_series("loss", [100.0, 1.0, 0.01])
    assert heights(drawn.line) == pytest.approx([0, HEIGHT / 2, HEIGHT]) and "logarithmic" in drawn.note


def test_single_values_do_not_stretch_an_axis_that_is_cut():
    drawn = drawn_series("step [ms]", [900.0, *[5.0, 6.0] * 100], is_cut=True)
    assert drawn.high == "6" and "above the upper end" in drawn.note


def test_many_steps_have_few_points_with_a_band_around():
    drawn = drawn_series("loss", [float(n % 2) for n in range(10_000)])
    points = heights(drawn.line)
    assert len(points) <= 400 and all(abs(point - HEIGHT / 2) < 5 for point in points)
    assert set(heights(drawn.band)) == {0, HEIGHT} and "mean of 25 steps" in drawn.note


def test_what_is_no_number_is_left_out_and_said():
    drawn = drawn_series("loss", [1.0, math.nan, math.inf, 1.0])
    assert "2 steps have no finite value" in drawn.note and set(heights(drawn.line)) == {HEIGHT / 2}
    assert drawn_series("loss", [math.nan]) is None


def test_a_single_step_is_a_line_across():
    assert heights(drawn_series("loss", [2.0]).line) == [HEIGHT / 2] * 2
