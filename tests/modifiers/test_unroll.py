"""Unrolled steps: what is copied, what waits for what, and what is checked."""

import pytest
import tensorflow as tf

import caramel
from caramel.errors import InvariantError, PlanError
from caramel.graph.graph import Graph, copied, node_of
from caramel.modifiers.emission import Purpose, Role
from caramel.modifiers.proof import agreed_order
from caramel.modifiers.unroll import Unrolling


def distributed(workers=3, data=None, **options):
    w, v = tf.Variable([0.0, 0.0], name="w"), tf.Variable(0.0, name="v")
    mean = tf.Variable([0.0, 0.0], name="mean", trainable=False)

    def step(x, y):
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x - mean, w) + v - y) ** 2)
        for variable, gradient in zip((w, v), tape.gradient(loss, [w, v])):
            variable.assign_sub(0.1 * gradient)
        return loss

    specs = [tf.TensorSpec([None, 2]), tf.TensorSpec([None])]
    context = caramel.capture(step, data=data) if data is not None else caramel.capture(step, specs)
    return caramel.ARModel(context, workers, **options).distributed


def unrolling(**options):
    made = distributed(**options)
    return made, Unrolling(made.emission, made.signature)


def whole(made, unrolled):
    return Graph([*made.emission.graph, *unrolled.nodes], made.emission.graph.library)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_has_state_waits_for_the_step_before(workers):
    """Every read and write of a worker in a step comes after every one in the step before; handles are shared."""
    made, unrolling_of = unrolling(workers=workers)
    unrolled = unrolling_of.steps(3)
    graph = whole(made, unrolled)
    stateful = [n.name for n in unrolled.nodes if n.op in ("ReadVariableOp", "AssignVariableOp", "AssignSubVariableOp")]
    assert len(stateful) % 3 == 0 and len(stateful) >= 3 * workers * 6
    assert not [n.name for n in unrolled.nodes if n.op == "VarHandleOp"]
    for number in (1, 2):
        mine = [name for name in stateful if f"step_{number}_of_3/" in name]
        for name in mine:
            handle = node_of(graph[name].input[0])
            before = graph.ancestors([name])
            theirs = [n for n in stateful if f"step_{number - 1}_of_3/" in n and node_of(graph[n].input[0]) == handle]
            assert theirs and before >= set(theirs), name


def test_what_only_the_loss_reads_comes_before_the_next_step():
    """It reads what the step has written; nothing in the step waits for it, but the next write does."""
    v1 = tf.compat.v1
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None], "x")
        w = v1.get_variable("w", [], initializer=tf.ones_initializer())
        count = v1.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False)
        counted = count.assign_add(1.0, read_value=False)
        with tf.control_dependencies([counted]):
            loss = tf.reduce_mean((w * x) ** 2) + count.read_value()
        tf.group(v1.train.GradientDescentOptimizer(0.1).minimize(loss), counted)
    made = caramel.ARModel(context, 2).distributed
    unrolled = Unrolling(made.emission, made.signature).steps(3)
    graph = whole(made, unrolled)

    def of_count(op, number, rank):
        return [
            node.name
            for node in unrolled.nodes
            if node.op == op and node.input[0] == f"worker_{rank}/count" and f"step_{number}_of_3/" in node.name
        ]

    for number, rank in ((1, 0), (1, 1), (2, 0), (2, 1)):
        (write,) = of_count("AssignAddVariableOp", number, rank)
        (read,) = of_count("ReadVariableOp", number - 1, rank)
        assert read in graph.ancestors([write])


def test_steps_that_may_be_run_alone_need_nothing_of_later_ones():
    made, unrolling_of = unrolling()
    unrolled = unrolling_of.steps(4)
    graph = whole(made, unrolled)
    for number, signature in enumerate(unrolled.signatures):
        needed = graph.ancestors([*signature.step, *(node_of(t) for t in signature.losses)])
        assert {n for n in range(4) if any(f"step_{n}_of_4/" in name for name in needed)} == set(range(number + 1))
        own = {
            name for name in needed if made.emission.roles.get(name, Role(Purpose.STATE, 0)).purpose is Purpose.REPLICA
        }
        assert all(graph[name].op == "VarHandleOp" for name in own)


def test_names_in_signatures_exist_and_differ():
    data = tf.data.Dataset.from_tensors(([[1.0, 2.0]], [3.0])).repeat()
    for options in ({}, {"data": data}):
        made, unrolling_of = unrolling(**options)
        unrolled = unrolling_of.steps(2)
        graph = whole(made, unrolled)
        names = []
        for signature in unrolled.signatures:
            fed = [name for feed in signature.feeds for name in feed.placeholders]
            names += map(node_of, (*fed, *signature.weights, *signature.losses, *signature.step))
        if unrolled.elements is not None:
            elements, workers = unrolled.elements, len(made.signature.devices)
            assert [len(step) for step in elements.move] == [workers] * 2  # no element of this data can fail
            names += [*elements.advance, *elements.advance_ahead, *map(node_of, elements.counts)]
            names += [name for step in elements.move for name in step]
        assert (unrolled.elements is None) == (not options)
        assert set(names) <= set(graph.nodes) and len(set(names)) == len(names)


@pytest.mark.parametrize(
    "options, reason",
    [({}, None), ({"algorithm": "native"}, "all-reduces"), ({"workers": 1, "algorithm": "native"}, None)],
)
def test_reasons(options, reason):
    found = unrolling(**options)[1].reason
    assert found is None if reason is None else reason in found


def test_a_copy_that_waits_for_a_later_step_is_found(monkeypatch):
    """A cycle between workers, which would hang."""
    made, unrolling_of = unrolling(workers=2)
    copies = unrolling_of._copies

    def broken(place):
        nodes = copies(place)
        if place.number == 0:
            first = next(node for node in nodes if node.op == "ReadVariableOp")
            changed = copied(first)
            changed.input.append("^caramel/worker_1/step_1_of_2")
            nodes[nodes.index(first)] = changed
        return nodes

    monkeypatch.setattr(unrolling_of, "_copies", broken)
    with pytest.raises(InvariantError, match="after unroll: .*cycle"):
        unrolling_of.steps(2)


def test_transfers_of_steps_that_workers_could_not_keep_in_order():
    """A transfer of a step that waits for one of the next."""
    made, unrolling_of = unrolling(workers=2, batching=False)
    unrolled = unrolling_of.steps(2)
    order = [f"transfer {number}" for number in range(4)]
    graph, roles = whole(made, unrolled), dict(made.emission.roles)
    for node in unrolled.nodes:
        step = 0 if "step_0_of_2" in node.name else 1
        role = made.emission.roles.get(node.name.partition(f"step_{step}_of_2/")[2])
        later_first = None if role is None or role.transfer is None else (1 - step) * 2 + role.transfer
        roles[node.name] = (
            Role(Purpose.REPLICA, 0) if later_first is None else Role(role.purpose, role.rank, later_first)
        )
    with pytest.raises(PlanError, match="cannot begin before"):
        agreed_order(graph.pruned(unrolled.signatures[1].step), roles, order)
