"""Profiles: the measures of the papers, of steps made by hand and of real ones."""

import math
import re

import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel
from caramel.report.profile import Profile, profiled_step
from caramel.report.step_timeline import COMPUTE, STALL, TRANSFER, Bar, Lanes, StepTimeline


def step(computed, sent, step_s=None, has_one_clock=True):
    """A step from (start, end) of computation and of transfers of each worker."""
    workers = tuple(
        Lanes(
            rank,
            tuple(Bar(COMPUTE, "op", *times) for times in ops),
            tuple(Bar(TRANSFER, f"transfer {number}", *times, number) for number, times in enumerate(transfers)),
        )
        for rank, (ops, transfers) in enumerate(zip(computed, sent))
    )
    last_s = max(times[1] for each in (*computed, *sent) for times in each)
    return profiled_step(StepTimeline("measured", step_s or last_s, workers, has_one_clock=has_one_clock))


@pytest.mark.parametrize("shorter", [1.0, 3.0, 5.0])
def test_the_best_order_hides_the_shorter_of_both(shorter):
    found = step([[(0.0, 5.0)]], [[(0.0, shorter)]])
    assert found.efficiency == found.alpha == 1.0
    assert found.utilisation == 1.0 and found.rho == shorter / 5 and found.speedup == shorter / 5


def test_the_worst_order_hides_nothing():
    found = step([[(0.0, 2.0)]], [[(2.0, 5.0)]])
    assert found.efficiency == found.alpha == 0.0
    assert found.rho == 1.5 and found.speedup == pytest.approx(2 / 3) and found.utilisation == pytest.approx(2 / 5)


@pytest.mark.parametrize("seed", range(20))
def test_the_utilisation_of_alpha_and_rho_is_that_of_the_step(seed):
    """Where there is no time of neither: U = C / T, within the 1 % that the equation's authors leave."""
    rng = np.random.default_rng(seed)
    compute_s, both_s = rng.uniform(0.1, 5), rng.uniform(0, 1)
    communication_s = both_s + rng.uniform(0.1, 5)
    both_s = min(both_s, compute_s)
    first = compute_s - both_s
    found = step([[(0.0, compute_s)]], [[(first, first + communication_s)]])
    assert found.utilisation == pytest.approx(compute_s / found.step_s, rel=0.01)
    assert found.idle_s == pytest.approx(0, abs=1e-9) and found.efficiency == pytest.approx(found.alpha)


def test_ops_side_by_side_count_once():
    found = step([[(0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]], [[(1.0, 2.0), (1.5, 4.0)]])
    assert (found.compute_s, found.communication_s, found.both_s) == (3.0, 3.0, 2.0)


def test_time_of_neither_counts_against_the_order():
    found = step([[(0.0, 2.0)]], [[(3.0, 4.0)]])
    assert found.idle_s == 1.0 and found.alpha == 0.0 and found.efficiency == -1.0


@pytest.mark.parametrize("computed, sent", [([[(0.0, 2.0)]], [[]]), ([[]], [[(0.0, 2.0)]])])
def test_all_orders_are_equal_where_only_one_of_both_happens(computed, sent):
    found = step(computed, sent)
    assert found.efficiency is None and found.alpha is None and found.speedup == 0.0
    assert found.utilisation == (1.0 if sent == [[]] else None)
    text = Profile((found,), ()).table()
    assert "undefined" in text and "how good the order is" in text


def test_who_waits_for_whom():
    """Worker 1 takes part in the first transfer 2 s after worker 0, which has an op for the first half of that."""
    found = step(
        [[(0.0, 2.0), (4.0, 6.0)], [(0.0, 3.0), (4.0, 6.0)], [(0.0, 1.5), (4.0, 6.0)]],
        [[(1.0, 4.0), (5.0, 7.0)], [(3.0, 4.0), (5.0, 7.0)], [(1.5, 4.0), (5.0, 7.0)]],
    )
    assert [each.wait_s for each in found.workers] == [1.0, 0.0, 1.5]
    early = step([[(0.0, 2.0)], [(0.0, 5.0)]], [[(1.0, 2.0)], [(1.0, 2.0)]])
    assert [each.wait_s for each in early.workers] == [3.0, 0.0] and early.straggler_effect == pytest.approx(0.6)
    assert found.straggler == 1 and found.straggler_effect == pytest.approx(1.5 / 7)
    profile = Profile((found,) * 3, (6.5, 7.0, 7.5))
    assert profile.straggler == 1 and "Worker 1 is the one that the others wait for" in profile.table()
    assert "7 s" in profile.table() or "7000 ms" in profile.table()
    values = profile.as_dict()
    assert values["plain_step_s"] == 7.0 and values["workers"][2]["wait_s"] == 1.5 and values["steps"] == 3


def test_clocks_that_differ_say_nothing_of_waits():
    found = step([[(0.0, 2.0)], [(0.0, 1.0)]], [[(2.0, 3.0)], [(1.0, 3.0)]], has_one_clock=False)
    assert found.straggler is None and found.straggler_effect is None
    assert Profile((found,), ()).straggler is None and "not known" in Profile((found,), ()).table()


def test_a_stall_is_no_computation():
    lanes = Lanes(0, (Bar(COMPUTE, "a", 0.0, 1.0), Bar(STALL, "wait", 1.0, 3.0)), (Bar(TRANSFER, "t", 1.0, 3.0, 0),))
    assert profiled_step(StepTimeline("measured", 3.0, (lanes,))).compute_s == 1.0


def test_measures_that_there_are():
    found = Profile((step([[(0.0, 2.0)]], [[(1.0, 3.0)]]),), ())
    assert found.median("alpha") == 0.5 and found.median("step_s") == 3.0
    with pytest.raises(caramel.InputError, match="no measure 'beta'; there are step_s"):
        found.median("beta")


# -- real steps ----------------------------------------------------------------------------------


def looping(is_in_front=True):
    """A step in which each worker goes as many rounds as its examples say, in front of its gradient or beside it."""
    w = tf.Variable(tf.ones([64, 64]), name="w")

    def train(x, rounds):
        def more(i, _):
            return i < tf.reduce_max(rounds)

        _, busy = tf.while_loop(
            more, lambda i, z: (i + 1, tf.tanh(z @ z)), [0, tf.random.stateless_normal([300, 300], [1, 2])]
        )
        with tf.GradientTape() as tape:
            seen = x + 0.0 * tf.stop_gradient(tf.reduce_mean(busy)) if is_in_front else x
            loss = tf.reduce_mean((seen @ w) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return {"loss": loss, "busy": tf.reduce_mean(tf.stop_gradient(busy)) + 0.0 * loss}

    specs = [tf.TensorSpec([None, 64]), tf.TensorSpec([None], tf.int32)]
    return caramel.capture(train, specs, loss="loss", loss_reduction="mean")


def test_profiles_of_real_steps():
    context = looping()
    batch = np.ones([6, 64], np.float32), np.full([6], 2, np.int32)
    with caramel.ARModel(context, 2).session(caramel.InProcess()) as session:
        found = caramel.profile(session, lambda count: [batch] * count, steps=4)
        assert session.step_count == 11
    assert len(found.steps) == 4 and len(found.plain_steps_s) == 4
    for each in found.steps:
        assert 0 < each.compute_s <= each.step_s and 0 < each.communication_s <= each.step_s
        assert each.both_s <= min(each.compute_s, each.communication_s) and each.idle_s >= -1e-9
        assert math.isclose(each.utilisation, each.compute_s / (each.step_s - each.idle_s), rel_tol=1e-6)
    assert found.table().startswith("profile of 4 steps: ") and str(found) == found.table()


def test_exchanges_of_local_steps_are_named():
    """They are in no step, so the figures do not have them."""
    batch = np.ones([6, 64], np.float32), np.full([6], 2, np.int32)
    with caramel.ARModel(looping(), 2, sync_every=20).session(caramel.InProcess()) as session:
        found = caramel.profile(session, lambda count: [batch] * count, steps=2)
    (note,) = found.notes
    assert "after at most 20 steps" in note and re.search(r"is in none of these figures: one took [\d.]+ ms\.$", note)
    assert note in " ".join(found.table().split())


def test_batches_that_end_too_early():
    context = looping()
    batch = np.ones([4, 64], np.float32), np.full([4], 1, np.int32)
    with caramel.ARModel(context, 2).session(caramel.InProcess()) as session:
        with pytest.raises(caramel.CaramelError, match="there are 5 batches for 7 steps"):
            caramel.profile(session, lambda count: [batch] * 5, steps=2)
        with pytest.raises(caramel.InputError, match="steps"):
            caramel.profile(session, lambda count: [batch] * 5, steps=0)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("slow, is_in_front", [(2, True), (1, False), *in_soak((0, True))])
def test_a_worker_that_is_delayed_on_purpose_is_the_straggler(slow, is_in_front):
    context = looping(is_in_front)
    rounds = np.ones([6], np.int32)
    rounds[2 * slow : 2 * slow + 2] = 60
    batch = np.ones([6, 64], np.float32), rounds
    with caramel.ARModel(context, 3).session(caramel.LocalProcesses()) as session:
        found = caramel.profile(session, lambda count: [batch] * count, steps=5)
    assert found.straggler == slow and found.median("straggler_effect") > 0.2, found.table()
    assert f"Worker {slow} is the one" in found.table()
