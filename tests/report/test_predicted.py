"""The lanes of a prediction add up to its figures."""

import pytest

from caramel.plan import Plan
from caramel.report.predicted import MOST_LANES, predicted_timeline


def total_s(bars, *kinds):
    return sum(bar.time_s for bar in bars if bar.kind in kinds)


def test_lanes_add_up_to_the_figures(planned):
    figures, step = planned.plan.prediction.timeline, predicted_timeline(planned.plan)
    assert [lanes.rank for lanes in step.workers] == [0, 1, 2]
    assert step.iteration_s == figures.iteration_s and figures.exposed_s > 0
    for lanes in step.workers:
        assert total_s(lanes.computation, "compute", "update") == pytest.approx(figures.compute_s)
        assert total_s(lanes.computation, "stall") == pytest.approx(figures.exposed_s)
        ends = [bar.end_s for bar in lanes.computation]
        assert all(a == pytest.approx(b.start_s) for a, b in zip(ends, lanes.computation[1:]))
        assert sorted(bar.transfer for bar in lanes.link) == list(range(len(planned.plan.transfers)))


def test_stalls_wait_for_transfers_that_end_with_them(planned):
    (lanes, *_) = predicted_timeline(planned.plan).workers
    ends = {bar.transfer: bar.end_s for bar in lanes.link}
    stalls = [bar for bar in lanes.computation if bar.kind == "stall"]
    assert stalls
    for stall in stalls:
        assert ends[stall.transfer] == pytest.approx(stall.end_s)


def test_a_plan_from_a_file_has_the_same_lanes(planned):
    assert predicted_timeline(Plan.from_json(planned.plan.to_json())) == predicted_timeline(planned.plan)


def test_without_a_prediction_there_is_none(context):
    import caramel

    assert predicted_timeline(caramel.ARModel(context, 2).plan) is None


def test_of_very_many_workers_some_are_shown(planned):
    from dataclasses import replace

    step = predicted_timeline(replace(planned.plan, workers=800))
    assert len(step.workers) == MOST_LANES and any("800" in note for note in step.notes)
