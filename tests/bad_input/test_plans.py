"""Plans that do not fit, or were edited."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import InputError, PlanError
from caramel.facts import InFlight, Piece, Timeline
from caramel.modifiers.emission import Purpose
from caramel.prediction import Prediction

v1 = tf.compat.v1


def build(rate=0.1, units=5):
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    w = v1.get_variable("w", [3, units], initializer=v1.ones_initializer())
    b = v1.get_variable("b", [units], initializer=v1.zeros_initializer())
    d = v1.get_variable("d", [units], dtype=tf.float64, initializer=v1.ones_initializer())
    table = v1.get_variable("table", [7, units], initializer=v1.ones_initializer())
    hidden = tf.matmul(x, w) + b + tf.gather(table, tf.cast(tf.abs(x[:, 0]), tf.int32) % 7)
    loss = tf.reduce_mean(tf.square(tf.cast(hidden, tf.float64) * d - 1.0))
    v1.train.MomentumOptimizer(rate, 0.9).minimize(loss)


def captured(**options):
    with caramel.capture() as context:
        build(**options)
    return context


@pytest.fixture(scope="module")
def context():
    return captured()


@pytest.fixture(scope="module")
def plan(context):
    return caramel.ARModel(context, 2, batching=False).plan


def number_of(plan, name):
    return next(n for n, t in enumerate(plan.transfers) if name in t.gradients)


def with_transfer(plan, name, **changed):
    number = number_of(plan, name)
    made = list(plan.transfers)
    made[number] = replace(made[number], **changed)
    return replace(plan, transfers=tuple(made))


def joined(plan, *names):
    """The transfers of some gradients as one."""
    parts = [plan.transfers[number_of(plan, name)] for name in names]
    rest = [t for t in plan.transfers if t not in parts]
    pieces = tuple(p for t in parts for p in t.pieces)
    elements = None if any(t.elements is None for t in parts) else sum(t.elements for t in parts)
    sizes = {"elements": elements, "size_bytes": None if elements is None else sum(t.size_bytes for t in parts)}
    return replace(plan, transfers=(*rest, replace(parts[0], pieces=pieces, **sizes)))


def test_a_plan_is_applied_as_it_is(context, plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    for given in (plan, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        again = caramel.ARModel(context, 2, plan=given)
        assert again.plan == plan and again.plan.digest == plan.digest and not again.facts
    first = caramel.ARModel(context, 2, batching=False).graph_def
    assert again.graph_def.SerializeToString(deterministic=True) == first.SerializeToString(deterministic=True)
    elsewhere = caramel.ARModel(context, 2, plan=plan, device_list=["/job:a/task:0", "/job:a/task:1"])
    assert elsewhere.plan == replace(plan, devices=elsewhere.plan.devices)


def test_another_program_or_number_of_workers(context, plan):
    with pytest.raises(PlanError, match="the plan was made for another program .its digest is [0-9a-f]{12}"):
        caramel.ARModel(captured(units=4), 2, plan=plan)
    with pytest.raises(PlanError, match="the plan was made for 2 workers, not for 3: make the plan anew"):
        caramel.ARModel(context, 3, plan=plan)


def test_another_version(plan, tmp_path):
    data = json.loads(plan.to_json())
    data["version"] = 99
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(
        PlanError, match=r"plan.json' has version 99, this library reads version \d+: make the plan anew"
    ):
        caramel.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("transfers"), "is damaged: it lacks 'transfers'"),
        (lambda d: d["transfers"][0].pop("depth"), r"is damaged: transfers\[0\] lacks 'depth'"),
        (lambda d: d["transfers"][0].update(depth="2"), r"transfers\[0\].depth is '2', no whole number of at least 0"),
        (lambda d: d["transfers"][0].update(depth=True), r"transfers\[0\].depth is True, no whole number"),
        (lambda d: d["transfers"][0]["pieces"][0].update(start=-1), "start is -1, no whole number"),
        (lambda d: d["transfers"][0].update(algorithm=3), "algorithm is 3, no text"),
        (lambda d: d["transfers"][0].update(wire=[]), r"wire is \[\], no text"),
        (lambda d: d["transfers"][0].update(predicted_s=1e999), "Infinity is no number of JSON"),
        (lambda d: d.update(transfers=[3]), r"transfers\[0\] is 3, no object"),
        (lambda d: d.update(weighted="yes"), "is damaged: weighted is 'yes', no true or false"),
        (lambda d: d.update(unknown=1), "is damaged: it has an unknown 'unknown'"),
        (lambda d: d.update(devices="/job:a"), "devices is '/job:a', no list"),
        (lambda d: d.update(edges=[["a"]]), r"edges\[0\] is \['a'\], no list of 2 entries"),
        (lambda d: d.update(edges=[[["a"], ["b"]]]), r"edges\[0\]\[0\] is \['a'\], no text"),
        (lambda d: d.update(notes=[1]), r"notes\[0\] is 1, no text"),
        (lambda d: d.update(prediction={}), "prediction lacks 'alternatives'"),
    ],
)
def test_a_damaged_file(plan, change, message, tmp_path):
    data = json.loads(plan.to_json())
    change(data)
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(PlanError, match=message):
        caramel.Plan.load(tmp_path / "plan.json")


def test_predictions_of_other_transfers(plan):
    """`explain` would speak of another transfer."""
    timeline = Timeline((), 1.0, 1.0, 0.0)
    for alternatives in ((), (None,) * len(plan.transfers)):
        made = replace(plan, prediction=Prediction(timeline, 1.0, "made up", alternatives))
        assert caramel.Plan.from_json(made.to_json()) == made
    made = replace(plan, prediction=Prediction(timeline, 1.0, "made up", (None,)))
    with pytest.raises(PlanError, match="the plan predicts other transfers than it has"):
        caramel.Plan.from_json(made.to_json())


def test_files_that_cannot_be_read_or_written(plan, tmp_path):
    with pytest.raises(PlanError, match="nothing.json' cannot be read"):
        caramel.Plan.load(tmp_path / "nothing.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="bytes' cannot be read"):
        caramel.Plan.load(tmp_path / "bytes")
    with pytest.raises(PlanError, match="cannot be written"):
        plan.save(tmp_path / "no" / "plan.json")


def test_edited_plans_that_break_an_invariant(context, plan):
    w = plan.transfers[number_of(plan, "w")]
    half = replace(w, pieces=(Piece("w", 0, 7),), elements=7)
    cases = {
        "transfer 0 is empty": replace(plan, transfers=(replace(w, pieces=()), *plan.transfers)),
        "the pieces of gradient 'w' must be its 15 elements, each once; they are 0:7": replace(
            plan, transfers=tuple(half if t is w else t for t in plan.transfers)
        ),
        "must be its 15 elements, each once; they are 0:15, 0:15": replace(plan, transfers=(w, *plan.transfers)),
        "must be its 15 elements, each once; they are not there": replace(
            plan, transfers=tuple(t for t in plan.transfers if t is not w)
        ),
        "which the program has no gradient of": with_transfer(plan, "w", pieces=(Piece("ghost", 0, 15),)),
        "is of float32, but 'd' is of float64": joined(plan, "w", "d"),
        "has the sparse gradient 'table': it travels alone": joined(plan, "table", "w"),
        "in the window 'sideways'": with_transfer(plan, "w", window="sideways"),
        "is a 'pigeon' all-reduce": with_transfer(plan, "w", algorithm="pigeon"),
        "has depth 0": with_transfer(plan, "w", depth=0),
        "uncut, as they are": with_transfer(plan, "w", algorithm="native", depth=2),
        "sends float64 as 'float64'": with_transfer(plan, "d", wire="float64"),
        "sends float32 as 'int8'": with_transfer(plan, "table", wire="int8"),
        "no elements, no bytes, and depth 1": with_transfer(plan, "table", depth=2),
        "a sparse gradient, whose number is not known": with_transfer(plan, "table", elements=5, size_bytes=0),
        "says 3 elements, its pieces have 15": with_transfer(plan, "w", elements=3),
        "says 59 bytes, its pieces have 60": with_transfer(plan, "w", size_bytes=59),
        "combines gradients by 'sum', the program by 'mean'": replace(plan, reduction="sum"),
        "has statistics='median': there are": replace(plan, statistics="median"),
        "which the program does not have": replace(plan, edges=(("w", "x"), ("x", "ghost"))),
        "'w' wait for 'x', but VarHandleOp ops serve checkpoints": replace(plan, edges=(("x", "w"),)),
        "comes after one of the backward window": replace(
            plan, transfers=(*[t for t in plan.transfers if t is not w], replace(w, window="forward"))
        ),
        "0 transfers may be under way at once: it must be at least 1": replace(plan, in_flight=InFlight(0, 1)),
        "-1 transfers may be under way at once": replace(plan, in_flight=InFlight(None, -1)),
        "0 bytes may be under way at once: it must be at least 1": replace(plan, in_flight=InFlight(credit_bytes=0)),
        "the plan orders 'ghost'": replace(plan, edges=(("ghost", "w"),)),
        "by all_gather: all_gather and owners are for sparse ones": with_transfer(plan, "w", algorithm="all_gather"),
        "by shuffle: all_gather and owners are for sparse ones": with_transfer(plan, "table", algorithm="shuffle"),
    }
    for message, edited in cases.items():
        with pytest.raises(PlanError, match=message.replace("(", r"\(")):
            caramel.ARModel(context, 2, plan=edited)


def test_nothing_waits_for_what_may_not_run(context, plan, old_control_flow):
    """It would never run either: in the first step, when nothing is pending, or where the branch is another."""
    (update,) = (n.name for n in context.model.graph if n.op.startswith("ResourceApply") and "update_w" in n.name)
    loss = context.model.loss.partition(":")[0]
    edited = replace(caramel.ARModel(context, 2, batching=False, postponed=["w"]).plan, edges=((update, loss),))
    with pytest.raises(PlanError, match=f"lets '{loss}' wait for '{update}', which is postponed to the next step"):
        caramel.ARModel(context, 2, plan=edited)
    with caramel.capture(loss_reduction="mean") as branches:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        w = v1.get_variable("v", [3], initializer=v1.ones_initializer())
        inner = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.exp(x, name="inside"), lambda: x)
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(inner * w)))
    made = caramel.ARModel(branches, 2).plan
    (inside,) = (n.name for n in branches.model.graph if n.op == "Exp")
    with pytest.raises(PlanError, match=f"wait for '{inside}', which runs in a branch only: leave that edge out"):
        caramel.ARModel(branches, 2, plan=replace(made, edges=((inside, branches.model.loss.partition(":")[0]),)))


def test_deterministic_plans_keep_the_rank_order(context):
    made = caramel.ARModel(context, 4, deterministic=True, batching=False).plan
    with pytest.raises(PlanError, match="a ring all-reduce, which does not add in rank order"):
        caramel.ARModel(context, 4, plan=with_transfer(made, "w", algorithm="ring"))
    with pytest.raises(PlanError, match="rounds values to bfloat16, and the plan is deterministic"):
        caramel.ARModel(context, 4, plan=with_transfer(made, "table", wire="bfloat16"))


def test_a_cycle_of_edges_is_found(context, plan):
    gradient = context.model.gradients[0].tensor.partition(":")[0]
    loss = context.model.loss.partition(":")[0]
    with pytest.raises(PlanError, match="the plan breaks an invariant, after serialize: graph: cycle"):
        caramel.ARModel(context, 2, plan=replace(plan, edges=((gradient, loss), (loss, gradient))))


def chained():
    """Two updates, of which the second gradient needs the first update."""
    a, b = tf.Variable(tf.ones([3]), name="a"), tf.Variable(tf.ones([3]), name="b")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, a) - 1) ** 2)
        a.assign_sub(0.1 * tape.gradient(loss, a))
        with tf.GradientTape() as tape:
            second = tf.reduce_mean((tf.linalg.matvec(x, a) * tf.reduce_sum(b) - 1) ** 2)
        b.assign_sub(0.1 * tape.gradient(second, b))
        return loss

    return step


def test_transfers_that_wait_for_each_other_are_found():
    context = caramel.capture(chained())
    made = caramel.ARModel(context, 2).plan
    assert [t.gradients for t in made.transfers] == [("a",), ("b",)]  # however small, never in one bucket
    with pytest.raises(
        PlanError, match="transfer 0 .'b', .* cannot begin before transfer 1 .'a'.* put that one in front"
    ):
        caramel.ARModel(context, 2, plan=replace(made, transfers=tuple(reversed(made.transfers))))
    with pytest.raises(PlanError, match="the plan breaks an invariant, after aggregate: graph: cycle"):
        caramel.ARModel(context, 2, plan=joined(made, "a", "b"))
    with pytest.raises(PlanError, match="the gradient of 'b' depends on it in the same step"):
        caramel.ARModel(context, 2, plan=with_transfer(made, "a", window="forward"))


def test_the_proof_says_what_holds(context):
    armodel = caramel.ARModel(context, 3, postponed=["w"])
    text = "\n".join(armodel.plan.proof)
    assert f"no cycle among {len(armodel.graph_def.node):,} nodes" in text
    assert "one order of transfers on all 3 workers" in text
    assert "1 postponed updates use nothing of the step they run in" in text
    assert armodel.plan.digest == replace(armodel.plan, proof=()).digest
    assert {r.purpose for r in armodel.roles.values()} >= {Purpose.COLLECTIVE, Purpose.REPLICA}


def test_differences_are_said(context, plan):
    other = caramel.ARModel(context, 2, batching=False, postponed=["w"], algorithm="ring").plan
    text = plan.diff(other)
    (row,) = (line.split() for line in text.splitlines() if line.startswith("w "))
    assert re.fullmatch(r"w in transfer \d, backward, star x1 in transfer \d, forward, ring x1", " ".join(row))
    assert f"bytes kept for the next step: 0 -> {15 * 4}" in text.splitlines()
    assert max(map(len, text.splitlines())) <= 100
    assert plan.diff(plan) == ""


def test_slices_that_are_added_up_are_a_difference(plan):
    other = replace(plan, transfers=tuple(replace(t, adds_slices=True) for t in plan.transfers))
    assert "slices added up" in plan.diff(other) and plan.diff(plan) == ""


def test_differences_of_many_gradients_are_counted(plan):
    def of(many, algorithm):
        pieces = [Piece(f"g{number}", 0, 1) for number in range(many)]
        return replace(
            plan, transfers=tuple(replace(plan.transfers[0], pieces=(p,), algorithm=algorithm) for p in pieces)
        )

    lines = of(50, "star").diff(of(50, "ring")).splitlines()
    assert lines[-1] == "and 30 more gradients" and sum("star x1" in line for line in lines) == 20
    assert of(2, "star").diff(of(3, "star")).splitlines()[-1].split()[:3] == ["g2", "not", "there"]


def test_a_plan_explains_itself(context):
    armodel = caramel.ARModel(context, 2, postponed=["w"])
    assert "forward window. It was asked to travel in the next step" in armodel.plan.explain("w")
    with pytest.raises(InputError, match="no gradient 'ghost'; it has "):
        armodel.plan.explain("ghost")


def test_a_step_still_runs(context, plan):
    with caramel.ARModel(context, 2, plan=plan).session() as session:
        assert np.isfinite(session.step(np.ones((4, 3), np.float32)).loss)


def sometimes():
    """Of two gradients one is there in every second step only."""
    a, b = tf.Variable(tf.ones([3]), name="a"), tf.Variable(tf.ones([3]), name="b")
    count = tf.Variable(0, name="count")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, a) - 1) ** 2)
        a.assign_sub(0.1 * tape.gradient(loss, a))
        if count % 2 == 0:
            with tf.GradientTape() as tape:
                second = tf.reduce_mean((tf.linalg.matvec(x, b) - 1) ** 2)
            b.assign_sub(0.1 * tape.gradient(second, b))
        count.assign_add(1)
        return loss

    return step


def test_gradients_that_are_not_always_there_together():
    context = caramel.capture(sometimes(), loss_reduction="mean")
    armodel = caramel.ARModel(context, 2)
    assert sorted(t.gradients for t in armodel.plan.transfers) == [("a",), ("b",)]
    with armodel.session() as session:
        for _ in range(4):
            session.step(np.eye(4, 3, dtype=np.float32))
    with pytest.raises(PlanError, match="together that are there under different conditions .always, .* = 1"):
        caramel.ARModel(context, 2, plan=joined(armodel.plan, "a", "b"))
