"""Traces with other numbers of examples: lines through what was traced, and nothing far from it."""

from dataclasses import replace

import pytest

from caramel.errors import InputError
from caramel.facts import Trace
from caramel.scaling.batches import TracedBatches

A, B = {"product": 2e-3, "fixed": 1e-3}, {"product": 1e-4, "fixed": 0.0}


def traced(examples, workers=1):
    """A step whose products take 2 ms + 0.1 ms for each example, and whatever else 1 ms."""
    op_s = {name: A[name] + B[name] * examples for name in A}
    step_s = 1.1 * sum(op_s.values())
    return Trace(
        *("digest", op_s, {"product": 40 * examples}, step_s, sum(op_s.values()), 3, workers, examples, "by hand"),
        ordered_step_s={"none": step_s, "total": 1.2 * step_s},
        op_least_s={name: 0.9 * time_s for name, time_s in op_s.items()},
        plain_steps_s=(0.95 * step_s, step_s, 1.05 * step_s),
    )


@pytest.mark.parametrize("given", [(8, 32), (32, 8), (8, 16, 32)])
@pytest.mark.parametrize("examples", [4, 12, 16, 64])
def test_lines(given, examples):
    found, wanted = TracedBatches([traced(count) for count in given]).at(examples), traced(examples)
    assert found.examples == examples
    for name in ("op_s", "op_bytes", "op_least_s", "ordered_step_s"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name)), name
    assert (found.step_s, found.predicted_s) == pytest.approx((wanted.step_s, wanted.predicted_s))
    assert found.plain_steps_s == pytest.approx(wanted.plain_steps_s)
    assert found.spread == pytest.approx(wanted.spread)


def test_what_was_traced_is_taken_as_it_is():
    few, many = traced(8), traced(32)
    batches = TracedBatches([many, few])
    assert batches.at(8) is few and batches.at(32) is many and batches.at(None) is many and batches.usual == 32


@pytest.mark.parametrize("examples", [1, 3, 65, 1000])
def test_nothing_is_known_far_from_what_was_traced(examples):
    assert TracedBatches([traced(8), traced(32)]).at(examples) is None


def test_one_trace_says_nothing_of_other_batches():
    batches = TracedBatches([traced(16)])
    assert batches.at(16) is not None and batches.at(15) is None
    without = TracedBatches([replace(traced(16), examples=None)])
    assert without.usual is None and without.at(None) is not None


def test_lines_do_not_fall_and_begin_at_no_less_than_nothing():
    falling = [replace(traced(count), op_s={"product": time_s}) for count, time_s in ((10, 2e-3), (20, 1e-3))]
    assert TracedBatches(falling).at(40).op_s["product"] == pytest.approx(1.5e-3)
    below = [replace(traced(count), op_s={"product": time_s}) for count, time_s in ((10, 1e-3), (20, 4e-3))]
    assert TracedBatches(below).at(5).op_s["product"] == pytest.approx(5 * (10e-3 + 80e-3) / 500)


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([traced(8), replace(traced(16), model_digest="other")], "different programs"),
        ([traced(8), traced(16, workers=2)], "numbers of workers"),
        ([traced(8), traced(8)], "of its own, got 8, 8"),
        ([traced(8), replace(traced(16), examples=None)], "of its own, got 8, none"),
    ],
)
def test_traces_that_do_not_fit_together(traces, message):
    with pytest.raises(InputError, match=message):
        TracedBatches(traces)
