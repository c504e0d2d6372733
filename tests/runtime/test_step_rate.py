"""The rate of steps, without the first ones."""

import pytest

from caramel.runtime.step_rate import StepRate


@pytest.fixture
def at(monkeypatch):
    """Function that sets the clock."""
    now = {"s": 0.0}
    monkeypatch.setattr("caramel.runtime.step_rate.time.perf_counter", lambda: now["s"])
    return lambda seconds: now.update(s=seconds)


def test_the_first_steps_do_not_count(at):
    rate = StepRate()
    for seconds in (5.0, 5.5, 6.0, 6.2, 6.4):
        assert rate.step_s is None or seconds == 6.4
        at(seconds)
        rate.note(32)
    assert rate.step_s == pytest.approx(0.2) and rate.examples_per_s == pytest.approx(160)
    assert str(rate) == "5 steps in 6.4 s (after the first 3 a median of 200 ms each, 160 examples/s)"


def test_few_steps_have_no_rate(at):
    rate = StepRate()
    at(2.0)
    rate.note(8)
    assert str(rate) == "1 step in 2.0 s" and rate.examples_per_s is None


def test_examples_that_are_not_known(at):
    rate = StepRate()
    for seconds in range(1, 6):
        at(float(seconds))
        rate.note(0)
    assert str(rate) == "5 steps in 5.0 s (after the first 3 a median of 1000 ms each)"


def test_the_first_run_of_so_many_steps_does_not_count(at):
    """TensorFlow gets ready for it; steps by themselves before and after it do."""
    rate = StepRate()
    for seconds, steps in ((5, 1), (6, 1), (7, 1), (8, 1), (28, 4), (30, 4), (32, 4), (33, 1)):
        at(float(seconds))
        rate.note(8 * steps, steps)
    assert rate.steps == 17 and rate.steps_in_run == 4
    assert rate.step_s == pytest.approx(0.75)  # 1, 0.5, 0.5 and 1 s in the runs that count
    assert rate.examples_per_s == pytest.approx(80 / 6)


def test_seconds_in_which_steps_wait_for_their_data(at):
    rate = StepRate()
    assert rate.data_wait_s == 0
    for number, wait_s in enumerate([10.0, 11.0, 12.0, 12.5, 13.5], 1):
        at(float(number))
        rate.note(4, 1, wait_s)
    assert rate.data_wait_s == pytest.approx(0.75)  # of the last two: 0.5 and 1
