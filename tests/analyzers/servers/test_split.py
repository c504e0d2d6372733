"""Which nodes of a step run on servers, against what is said of small steps by hand."""

import tensorflow as tf
from server_programs import clipped, model_of, momentum_step, variable

from caramel.analyzers.servers.split import split_step


def named(split):
    return {v.name for v in split.variables.values()}


def there(model, split, op):
    """Names of the variables that ops of a kind take on servers."""
    handles = {v.node: v.name for v in model.variables}
    nodes = [model.graph[name] for name in split.only_there if model.graph[name].op == op]
    return sorted(handles[node.input[0]] for node in nodes)


def test_servers_have_what_a_step_writes_alike_for_all():
    split = split_step(model_of(momentum_step()))
    assert named(split) == {"first", "second", "first_momentum", "second_momentum", "count"}


def test_workers_keep_what_differs_between_them():
    model = model_of(momentum_step())
    split = split_step(model)
    differing = {"x", "y", model.loss.partition(":")[0], *(g.tensor.partition(":")[0] for g in model.gradients)}
    assert differing.isdisjoint(split.members)
    (largest,) = (v for v in model.variables if v.name == "largest")
    assert not any(reader in split.members for reader, _ in model.graph.consumers[largest.node])


def test_every_write_of_a_server_s_variable_is_there():
    model = model_of(momentum_step())
    split = split_step(model)
    written = {name: writers for name, writers in model.updates if name in named(split)}
    assert set(written) == named(split)
    assert all(writer in split.only_there for writers in written.values() for writer in writers)


def test_what_is_never_written_is_on_both_sides():
    model = model_of(momentum_step())
    split = split_step(model)
    (rate,) = (v for v in model.variables if v.name == "rate")
    assert rate.node in split.members and rate.node not in split.only_there


def test_masks_say_from_which_gradients_a_node_follows():
    for scale, wanted in ((lambda gradients: gradients, {0b01, 0b10}), (clipped, {0b11})):
        model = model_of(momentum_step(scale))
        split, writers = split_step(model), dict(model.updates)
        found = {split.masks[w] for name in ("first", "second") for w in writers[name]}
        assert found == wanted
        assert all(split.masks[w] == 0 for w in writers["count"])


def test_lookups_and_handles():
    table, whole, ones = variable("table", [5, 3]), variable("whole", [3]), variable("ones", [4])

    def step(x, y):
        rows = tf.cast(tf.abs(x[:, 0]), tf.int32) % 5
        with tf.GradientTape() as tape:
            total = tf.while_loop(lambda n, t: n < 2, lambda n, t: (n + 1, t + tf.reduce_sum(ones)), [0, x[0, 0]])[1]
            loss = tf.reduce_mean((tf.reduce_sum(tf.gather(table, rows) * whole, 1) + total - y) ** 2)
        for v, gradient in zip((table, whole, ones), tape.gradient(loss, (table, whole, ones))):
            v.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    model = model_of(step)
    split = split_step(model)
    assert [model.graph[lookup.node].op for lookup in split.lookups] == ["ResourceGather"]
    assert [lookup.taker for lookup in split.lookups] == [lookup.node for lookup in split.lookups]
    assert {model.graph[name].op for name, _ in split.holders} <= {"While", "StatelessWhile"}
    assert "whole" in there(model, split, "ReadVariableOp")


def test_a_second_part_that_reads_what_the_first_has_updated():
    """The second gradient differs between workers, and follows from the first update."""
    first, second = variable("first", [4]), variable("second", [4])

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, first) - y) ** 2)
        first.assign_sub(0.1 * tape.gradient(loss, first))
        with tf.GradientTape() as tape:
            later = tf.reduce_mean((tf.linalg.matvec(x, first * second) - y) ** 2)
        second.assign_sub(0.1 * tape.gradient(later, second))
        return loss + later

    model = model_of(step)
    split, writers = split_step(model), dict(model.updates)
    assert [split.masks[w] for w in writers["first"]] == [0b01]
    assert all(split.masks[w] & 0b10 for w in writers["second"])
    assert all(g.tensor.partition(":")[0] not in split.members for g in model.gradients)
