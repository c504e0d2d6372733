"""The emitted graph: what each modifier promises, and that the verifier finds what breaks it."""

from collections import Counter
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.analyzers.analyzer import analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.transfers import adaptive_depth
from caramel.errors import InvariantError
from caramel.facts import InFlight, Schedule
from caramel.graph.devices import Device
from caramel.graph.graph import copied, parse_input
from caramel.graph.guards import guards_of
from caramel.model import Variable, VariableClass
from caramel.modifiers.aggregate import verify_aggregated
from caramel.modifiers.emission import Purpose
from caramel.modifiers.postpone import verify_postponed
from caramel.modifiers.save_restore import random_state_offset
from caramel.netmodel.choice import CollectiveOptions
from caramel.plan import Plan, Transfers

v1 = tf.compat.v1


def build(dropout_seed=7):
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    w = v1.get_variable("w", [3, 5], initializer=v1.zeros_initializer())
    b = v1.get_variable("b", [5], initializer=v1.zeros_initializer())
    hidden = tf.nn.dropout(tf.matmul(x, w) + b, 0.5, seed=dropout_seed)
    loss = tf.reduce_mean(tf.square(hidden - 1.0))
    return v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


@pytest.fixture(scope="module")
def context():
    with caramel.capture() as captured:
        build()
    return captured


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_only_collectives_and_state_cross_workers(context, workers):
    armodel = caramel.ARModel(context, workers, batching=False, algorithm="shuffle")
    crossing = Counter()
    for node in armodel.graph_def.node:
        for text in node.input:
            source, here = armodel.roles[parse_input(text)[0]], armodel.roles[node.name]
            if source.rank != here.rank:
                crossing[here.purpose] += 1
    assert set(crossing) <= {Purpose.COLLECTIVE, Purpose.STATE}
    # Each rank reads N-1 foreign shards to add, and N-1 foreign sums to join; w and b have 5 or more elements.
    assert crossing[Purpose.COLLECTIVE] == 2 * 2 * workers * (workers - 1)


@pytest.mark.parametrize("algorithm", ["shuffle", "star", "ring", "halving_doubling", "chain", "native"])
def test_nothing_leaves_a_worker_before_its_turn(context, algorithm):
    """With one transfer under way at once, on every worker and whoever reads it."""
    plan = caramel.ARModel(context, 3, batching=False, algorithm=algorithm).plan
    armodel = caramel.ARModel(context, 3, plan=replace(plan, in_flight=InFlight(backward=1)))
    nodes = {n.name: n for n in armodel.graph_def.node}
    second = plan.transfers[1].gradients[0]
    (tensor,) = (g.tensor for g in context.model.gradients if g.name == second)
    results = {rank: [] for rank in range(3)}
    for name, role in armodel.roles.items():
        if role.purpose is Purpose.COLLECTIVE and role.transfer == 0:
            results[role.rank].append(name)
    waiting = set()
    for node in nodes.values():  # producers come first within a transfer
        role = armodel.roles[node.name]
        if role.purpose is not Purpose.COLLECTIVE or role.transfer != 1:
            continue
        for text in node.input:
            source = armodel.roles[parse_input(text)[0]]
            if source.purpose is Purpose.REPLICA or parse_input(text)[0] in waiting:
                # A reshaped or packed gradient has not left its worker yet; anything else waits there.
                is_held = any(i[1:] in results[source.rank] for i in node.input if i.startswith("^"))
                assert role.rank == source.rank, (node.name, text)
                if not is_held:
                    assert node.op in ("Reshape", "ConcatV2"), node.name
                    waiting.add(node.name)
    assert tensor and all(results.values())


@pytest.mark.parametrize(
    ("postponed", "asked", "chosen"),
    [
        ([], None, InFlight()),
        (["w"], None, InFlight(forward=1, backward=2)),
        (["w"], 3, InFlight(forward=3, backward=3)),
        ([], 3, InFlight(forward=3, backward=3)),
    ],
)
def test_order_is_kept_where_something_is_postponed(context, postponed, asked, chosen):
    facts = caramel.ARModel(context, 2, postponed=postponed).facts
    known = [context.model, facts[Schedule], Network(CollectiveOptions(), 2)]
    assert analyse([adaptive_depth(asked)], known, [Transfers])[Transfers].in_flight == chosen


@pytest.mark.parametrize("postponed", [[], ["w", "b"]])
@pytest.mark.parametrize(
    "in_flight", [InFlight(), InFlight(forward=1), InFlight(backward=1), InFlight(1, 1), InFlight(1, None, 80)]
)
def test_each_window_has_its_own_limit(context, postponed, in_flight):
    plan = caramel.ARModel(context, 2, batching=False, postponed=postponed).plan
    armodel = caramel.ARModel(context, 2, plan=replace(plan, in_flight=in_flight))
    first, waits = set(), False
    for node in armodel.graph_def.node:
        role = armodel.roles[node.name]
        if role.purpose is Purpose.COLLECTIVE and role.transfer == 0:
            first.add(node.name)
    for node in armodel.graph_def.node:
        role = armodel.roles[node.name]
        if role.purpose is Purpose.COLLECTIVE and role.transfer == 1:
            waits |= any(text.startswith("^") and text[1:] in first for text in node.input)
    assert waits == ((in_flight.forward if postponed else in_flight.backward) == 1)


@pytest.mark.parametrize("wire", [None, "bfloat16"])
@pytest.mark.parametrize("credit_bytes", [20, 39, 40, 59, 60, 79, 80])
def test_a_credit_is_of_bytes_on_the_wire(context, credit_bytes, wire):
    """Of b with 20 bytes and then w with 60, or 10 and 30: w waits where both are more than the credit."""
    plan = caramel.ARModel(context, 2, batching=False, wire=wire).plan
    assert [t.size_bytes for t in plan.transfers] == [20, 60]
    armodel = caramel.ARModel(context, 2, plan=replace(plan, in_flight=InFlight(credit_bytes=credit_bytes)))
    first = {n for n, role in armodel.roles.items() if role.purpose is Purpose.COLLECTIVE and role.transfer == 0}
    waiting = {
        armodel.roles[node.name].rank
        for node in armodel.graph_def.node
        if armodel.roles[node.name].purpose is Purpose.COLLECTIVE and armodel.roles[node.name].transfer == 1
        for text in node.input
        if text.startswith("^") and text[1:] in first
    }
    assert waiting == (set() if credit_bytes >= (40 if wire else 80) else {0, 1})


def test_native_transfers_of_the_second_window_run_in_the_first_step(context):
    """On GPUs they are in one order; what is pending is not, in the first step, and would take the others with it."""
    devices = [f"/job:worker/task:{rank}/device:GPU:0" for rank in range(2)]
    armodel = caramel.ARModel(
        context, 2, batching=False, algorithm="native", postponed=["w"], device_list=devices, uneven_batches="refuse"
    )
    assert [t.window for t in armodel.plan.transfers] == ["forward", "backward"]
    graph = armodel.distributed.emission.graph
    guards = guards_of(graph).by_node
    for rank in range(2):
        forward, backward = (f"caramel/transfer_{number}/reduce/result_{rank}" for number in range(2))
        assert guards[forward] and not guards[backward] and not guards[f"caramel/worker_{rank}/step"]
        assert forward in graph.ancestors([backward])


def test_nodes_are_on_the_device_of_their_worker(context):
    armodel = caramel.ARModel(context, 3)
    for node in armodel.graph_def.node:
        assert Device.parse(node.device).task == armodel.roles[node.name].rank


def test_variables_have_names_of_their_own(context):
    armodel = caramel.ARModel(context, 3)
    names = [n.attr["shared_name"].s.decode() for n in armodel.graph_def.node if n.op == "VarHandleOp"]
    assert len(names) == len(set(names)) == 3 * 4
    assert "worker_0/w" in names and "worker_2/b/Momentum" in names


def test_seeds_of_stateful_random_ops_are_offset_by_rank(context):
    armodel = caramel.ARModel(context, 3)
    nodes = [n for n in armodel.graph_def.node if n.op == "RandomUniform"]
    seeds = {armodel.roles[n.name].rank: n.attr["seed2"].i for n in nodes}
    assert len(seeds) == 3
    original = next(n.attr["seed2"].i for n in context.model.graph if n.op == "RandomUniform")
    assert seeds == {r: original + r * 0x9E3779B9 for r in range(3)}


def test_no_seed_stays_no_seed():
    with caramel.capture() as captured:
        build(dropout_seed=None)
    nodes = [n for n in caramel.ARModel(captured, 2).graph_def.node if n.op == "RandomUniform"]
    assert {(n.attr["seed"].i, n.attr["seed2"].i) for n in nodes} == {(0, 0)}


def test_same_program_same_bytes():
    graphs = []
    for _ in range(2):
        with caramel.capture() as captured:
            build()
        armodel = caramel.ARModel(captured, 3)
        graphs.append((armodel.graph_def.SerializeToString(deterministic=True), armodel.plan.to_json()))
    assert graphs[0] == graphs[1]


def test_local_gradient_in_an_update_is_found(context):
    armodel = caramel.ARModel(context, 2)
    emission = armodel.distributed.emission
    gradient = context.model.gradients[0]
    local = "worker_1/" + gradient.tensor.partition(":")[0]
    update = dict(context.model.updates)[gradient.parameter][0]
    changed = type(emission.graph["worker_1/" + update])()
    changed.CopyFrom(emission.graph["worker_1/" + update])
    position = next(n for n, text in enumerate(changed.input) if text.startswith("caramel/transfer"))
    changed.input[position] = local
    broken = emission.extended([], {changed.name: changed})
    with pytest.raises(
        InvariantError, match=r"update 'worker_1/.*' of '.*' reads gradient '.*' of its own worker only"
    ):
        verify_aggregated(broken)


@pytest.mark.parametrize("control", [False, True])
def test_an_edge_across_workers_outside_collectives_is_found(context, control):
    armodel = caramel.ARModel(context, 2)
    emission = armodel.distributed.emission
    name = "worker_1/" + context.model.loss.partition(":")[0]
    changed = type(emission.graph[name])()
    changed.CopyFrom(emission.graph[name])
    foreign = changed.input[0].replace("worker_1/", "worker_0/", 1)
    if control:
        changed.input.append("^" + parse_input(foreign)[0])
    else:
        changed.input[0] = foreign
    with pytest.raises(InvariantError, match=r"reads '.*worker_0/.*' of worker 0"):
        broken = emission.extended([], {name: changed})
        verify_aggregated(broken)


def test_a_control_edge_across_workers_in_a_collective_is_found(context):
    armodel = caramel.ARModel(context, 2)
    emission = armodel.distributed.emission
    name = next(n for n, r in emission.roles.items() if r.purpose is Purpose.COLLECTIVE and r.rank == 1)
    changed = type(emission.graph[name])()
    changed.CopyFrom(emission.graph[name])
    changed.input.append("^worker_0/" + context.model.loss.partition(":")[0])
    with pytest.raises(InvariantError, match="control edge .* crosses workers"):
        broken = emission.extended([], {name: changed})
        verify_aggregated(broken)


def test_plan_survives_json(context):
    plan = caramel.ARModel(context, 2).plan
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.digest == plan.digest
    assert "credit_bytes" not in plan.to_json()  # so that plans without one are what they were
    limited = replace(plan, in_flight=InFlight(credit_bytes=4096))
    again = Plan.from_json(limited.to_json())
    assert again == limited and again.digest == limited.digest != plan.digest
    assert "at most 4,096 bytes of each window are under way at once" in again.table()
    assert "transfer 0" in plan.explain("w")
    with pytest.raises(caramel.InputError, match="no gradient 'ghost'; it has b, w"):
        plan.explain("ghost")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 99}', '{"version": 1}', '{"version": 1, "transfers": 3}']
)
def test_what_is_no_plan(text):
    with pytest.raises(caramel.InputError, match="plan"):
        Plan.from_json(text)


def test_switches_without_effect_are_said(context):
    notes = " ".join(caramel.ARModel(context, 2).plan.notes)
    assert "serialization: without trace= nothing is known about which order is good" in notes
    assert "scheduling: without trace= and network= nothing is known about the windows" in notes
    quiet = " ".join(caramel.ARModel(context, 2, serialization=False, scheduling=False).plan.notes)
    assert "serialization" not in quiet and "scheduling" not in quiet


def test_random_state_offsets():
    seed = Variable("s", "s", "uint32", (2,), VariableClass.RANDOM_STATE, 4)
    np.testing.assert_array_equal(random_state_offset(seed, 3), np.array([3 * 0x9E3779B9 % 2**32, 0], np.uint32))
    signed = Variable("s", "s", "int32", (2,), VariableClass.RANDOM_STATE, 4)
    np.testing.assert_array_equal(random_state_offset(signed, 1), np.array([0x9E3779B9 - 2**32, 0], np.int32))
    generator = Variable("g", "g", "int64", (3,), VariableClass.RANDOM_STATE, 8)
    np.testing.assert_array_equal(random_state_offset(generator, 2), np.array([0, 0, 2 * 0x9E3779B9 % 2**32], np.int64))
    assert not random_state_offset(seed, 0).any()


def test_user_scopes_cannot_clash_with_our_names():
    def clash():
        with v1.name_scope("caramel/"), v1.name_scope("transfer_0"):
            x = v1.placeholder(tf.float32, [None, 3], name="flat_0")
        with v1.variable_scope("worker_0"):
            w = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.matmul(x, w)))

    with caramel.capture() as captured:
        clash()
    with caramel.ARModel(captured, 2).session() as session:
        assert session.step(np.ones((4, 3))).loss == pytest.approx(3.0)
        assert session.step(np.ones((4, 3))).loss == pytest.approx(2.7)


def test_values_are_not_in_the_graph():
    table = tf.Variable(tf.random.normal([1000, 1000]), name="table")
    optimizer = keras.optimizers.Adam()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ table))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    armodel = caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None, 1000])]), 8)
    assert sum(v.size_bytes for v in armodel.model.variables) > 12_000_000
    assert armodel.graph_def.ByteSize() < 200_000


@pytest.mark.soak
def test_vgg16_with_adam_on_8_workers_stays_small():
    model = keras.applications.VGG16(weights=None)
    optimizer = keras.optimizers.Adam()
    loss_function = keras.losses.SparseCategoricalCrossentropy()

    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    specs = [tf.TensorSpec([None, 224, 224, 3]), tf.TensorSpec([None], tf.int64)]
    armodel = caramel.ARModel(caramel.capture(step, specs), 8)
    values = sum(v.size_bytes for v in armodel.model.variables)
    assert values > 1_600_000_000
    assert armodel.graph_def.ByteSize() < 8_000_000
    keras.backend.clear_session(free_memory=False)


def test_a_postponed_update_that_uses_its_own_step_is_found():
    x = tf.TensorSpec([None, 3], name="x")
    w = tf.Variable(tf.ones([3]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    context = caramel.capture(tf.function(step), [x])
    armodel = caramel.ARModel(context, 2, postponed=["w"])
    found = armodel.distributed.emission.postponement
    emission = armodel.distributed.emission
    verify_postponed(emission)
    (name,) = [n for n in found.moved if context.model.graph[n].op == "AssignSubVariableOp"]
    other = copied(emission.graph[f"worker_1/{name}"])
    other.input.append("^worker_1/x")
    with pytest.raises(InvariantError, match="uses 'worker_1/x' of worker 1 in the step after its own"):
        verify_postponed(emission.extended([], {other.name: other}))


def test_a_plan_as_a_digraph_has_what_travels_where(context):
    plan = caramel.ARModel(context, 2, batching=False, postponed=["w"], algorithm="ring").plan
    found = plan.to_networkx()
    transfers = {number: data for number, data in found.nodes(data=True) if data["kind"] == "transfer"}
    assert [(d["window"], d["bytes"], d["algorithm"]) for d in transfers.values()] == [
        (t.window, t.size_bytes, "ring") for t in plan.transfers
    ]
    edges = {(u, v): data.get("elements") for u, v, data in found.edges(data=True) if isinstance(u, str)}
    assert edges == {(p.gradient, n): p.elements for n, t in enumerate(plan.transfers) for p in t.pieces}
    assert not [(u, v) for u, v in found.edges if isinstance(u, int)]  # one transfer in each window
    both = caramel.ARModel(context, 2, batching=False).plan.to_networkx()
    assert [(u, v) for u, v in both.edges if isinstance(u, int)] == [(0, 1)]
