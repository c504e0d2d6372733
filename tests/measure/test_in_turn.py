"""Steps of two programs in turn."""

import statistics

from caramel.measure import in_turn
from caramel.measure.in_turn import ROUNDS, is_gain, times_in_turn


def test_both_take_turns(monkeypatch):
    """Every other round begins with the second; what comes back is of the first and the second all the same."""
    asked = []

    def timed_steps(session, batches, steps):
        asked.append(session)
        assert batches == "batches"
        return [1.0 + len(asked), 100.0, 0.0] if steps == 3 else []

    monkeypatch.setattr(in_turn, "timed_steps", timed_steps)
    times_s = times_in_turn(("first", "second"), "batches", 3)
    assert asked == ["first", "second", "second", "first"] * 2 + ["first", "second"]
    assert times_s == [(2.0, 3.0), (5.0, 4.0), (6.0, 7.0), (9.0, 8.0), (10.0, 11.0)]
    assert len(times_s) == ROUNDS


def test_gains():
    assert is_gain((0.9, 0.95, 0.9, 1.2, 0.8)) and not is_gain((0.9, 0.95, 1.0, 1.2, 0.8))
    assert not is_gain((0.995, 0.991, 0.992)) and statistics.median((0.995, 0.991, 0.992)) < 1
