"""Tables that are divided by rows: which rank has which, and that lookups and slices find them."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.collectives.dealt_rows import rows_of_owners
from caramel.collectives.rows import lower_lookup, lower_slices_to_owners
from caramel.graph.graph import Graph
from caramel.graph.nodes import constant, variable


@given(st.integers(0, 5000), st.integers(1, 12))
def test_each_row_is_on_one_rank(rows, workers):
    counts = rows_of_owners(rows, workers)
    assert len(counts) == workers and sum(counts) == rows and max(counts) - min(counts) <= 1
    assert list(counts) == [sum(row % workers == rank for row in range(rows)) for rank in range(workers)]


def run(nodes, wanted, values):
    """The values of tensors of some nodes, once variables have theirs."""
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(Graph(nodes, None).to_graph_def(), name="")
        for name, value in values.items():
            handle = graph.get_tensor_by_name(f"{name}:0")
            graph.add_to_collection("assign", tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value)))
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(graph.get_collection("assign"))
        return session.run([f"{name}:0" for name in wanted])


@settings(deadline=None, max_examples=12)
@given(
    st.integers(1, 300),
    st.sampled_from([(), (1,), (5,), (3, 2)]),
    st.integers(2, 4),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from(["int32", "int64"]),
    st.lists(st.lists(st.integers(0, 2**31), max_size=12), min_size=4, max_size=4),
)
def test_lookups_and_slices(rows, tail, workers, apart, index_dtype, drawn):
    """Against numpy: what each rank looks up, and what each owner adds to its rows; ranks may ask for nothing.

    Owners are the ranks that ask, or so many others.
    """
    rng = np.random.default_rng(rows)
    table = rng.normal(size=(rows, *tail)).astype(np.float32)
    indices = [np.array(each, np.int64).astype(index_dtype) % rows for each in drawn[:workers]]
    slices = [rng.normal(size=(len(each), *tail)).astype(np.float32) for each in indices]
    owners = range(workers) if apart is None else range(workers, workers + apart)
    own = [np.arange(place, rows, len(owners)) for place in range(len(owners))]
    devices = ["/device:CPU:0"] * (workers + (apart or 0))
    nodes = [constant(f"indices_{r}", indices[r], index_dtype, devices[r]) for r in range(workers)]
    nodes += [constant(f"slices_{r}", slices[r], "float32", devices[r]) for r in range(workers)]
    nodes += [variable(f"part_{k}", "float32", (len(each), *tail), devices[0]) for k, each in enumerate(own)]
    common = {"devices": devices, "dtype": "float32", "index_dtype": index_dtype}
    common |= {} if apart is None else {"owners": owners}
    names = [f"indices_{r}" for r in range(workers)]
    handles = [f"part_{k}" for k in range(len(owners))]
    found = lower_lookup(prefix="lookup", indices=names, handles=handles, **common)
    sent = lower_slices_to_owners(
        prefix="sent", values=[f"slices_{r}" for r in range(workers)], indices=names, mean=False, **common
    )
    nodes += [node for node, _ in (*found.nodes, *sent.nodes)]
    parts = {f"part_{k}": table[each] for k, each in enumerate(own)}
    results = run(nodes, [*found.rows, *sent.values, *sent.indices], parts)
    for rank in range(workers):
        np.testing.assert_array_equal(results[rank], table[indices[rank]])
    everything, values = np.concatenate(indices), np.concatenate(slices)
    for place in range(len(owners)):
        mine = everything % len(owners) == place
        np.testing.assert_array_equal(results[workers + place], values[mine])
        np.testing.assert_array_equal(results[workers + len(owners) + place], everything[mine] // len(owners))


@pytest.mark.parametrize("index", [-1, 10])
def test_rows_that_are_not_there(index):
    nodes = [
        constant("indices_0", np.array([index], np.int32), "int32", ""),
        variable("part_0", "float32", (5, 64), ""),
    ]
    nodes += [constant("indices_1", np.array([3], np.int32), "int32", ""), variable("part_1", "float32", (5, 64), "")]
    names, handles = ["indices_0", "indices_1"], ["part_0", "part_1"]
    found = lower_lookup(
        prefix="x",
        indices=names,
        handles=handles,
        devices=["", ""],
        dtype="float32",
        index_dtype="int32",
    )
    values = dict.fromkeys(handles, np.zeros([5, 64], np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        run([*nodes, *(node for node, _ in found.nodes)], found.rows, values)
