"""Reference variables rewritten as resource variables: the same values as TensorFlow's own on the graph as it was."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import op_def_registry
from variants import mostly_in_soak

from caramel.errors import UnsupportedError
from caramel.frontend.rewrites.references import refuse_reference, replace_references
from caramel.frontend.rewrites.resource_ops import counterpart
from caramel.graph import ops
from caramel.graph.graph import Graph
from caramel.graph.verify import verify_structure

v1 = tf.compat.v1
SHAPE = (4, 3)


def variable(name, value, trainable=True):
    value = np.asarray(value)
    return v1.get_variable(
        name, value.shape, value.dtype, v1.constant_initializer(value), use_resource=False, trainable=trainable
    )


def constant(value, dtype=None):
    """A constant that waits for nothing: TensorFlow's optimizer drops what a constant waits for, order included."""
    with tf.control_dependencies(None):
        return tf.constant(value, dtype)


def nodes_of(graph):
    return Graph.from_graph_def(graph.as_graph_def(add_shapes=True))


def session(graph, optimize):
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
    return v1.Session(graph=graph, config=config)


def run(graph, initializers, fetches, optimize=False, feeds=None):
    """The fetches, and after that every variable."""
    variables = [op.name for op in graph.get_operations() if op.type in (ops.VARIABLE, *ops.REFERENCE_VARIABLES)]
    with session(graph, optimize) as running:
        running.run(initializers)
        values = running.run(fetches, feeds)
        after = running.run([f"{name}/read:0" for name in variables], feeds)
    return [*values, *after]


def imported(nodes):
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(nodes.to_graph_def(), name="")
    return graph


def rewritten(graph, fetches):
    """The graph without references, checked, and the fetches in it."""
    nodes = nodes_of(graph)
    before = nodes.to_bytes()
    new, values = replace_references(nodes, fetches)
    assert nodes.to_bytes() == before
    assert not [n.name for n in new if ops.is_reference_op(n)]
    assert set(nodes.nodes) <= set(new.nodes)
    verify_structure(new, "rewriting")
    assert shapes(new) == shapes(nodes_of(imported(new)))
    assert_same_order(nodes, new)
    return new, values


def assert_same_order(old, new):
    """What ran after a write runs after that write."""
    writes = {n.name for n in new if ops.is_variable_write(n)}
    assert writes or not [n.name for n in old if n.op.startswith(("Assign", "Apply", "Scatter"))]
    for node in old:
        assert old.ancestors([node.name]) & writes == new.ancestors([node.name]) & writes


def shapes(nodes):
    return {n.name: [s.SerializeToString() for s in n.attr["_output_shapes"].list.shape] for n in nodes}


def assert_same_values(graph, fetches, feeds=None):
    """TensorFlow's own values of the graph as it is are those of the rewritten graph."""
    with graph.as_default():
        initializers = [v.initializer.name for v in v1.global_variables()]
    new, values = rewritten(graph, fetches)
    want = run(graph, initializers, fetches, feeds=feeds)
    for optimize in (False, True):
        got = run(imported(new), initializers, list(values), optimize, feeds)
        assert len(got) == len(want)
        for number, (mine, theirs) in enumerate(zip(got, want)):
            assert np.asarray(mine).dtype == np.asarray(theirs).dtype
            np.testing.assert_array_equal(mine, theirs, err_msg=str([*fetches, "variables"][min(number, len(fetches))]))
    return want


# -- each op ---------------------------------------------------------------------------------


def ops_on_references():
    every = op_def_pb2.OpList()
    every.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return sorted(op.name for op in every.op if any(a.is_ref for a in (*op.input_arg, *op.output_arg)))


WRITES = [
    op
    for op in ops_on_references()
    if op.startswith(("Apply", "SparseApply", "Scatter", "Assign", "StridedSliceAssign", "CountUpTo"))
]


def argument(op, name):
    """A value for an argument of one of these ops."""
    rng = np.random.default_rng(len(op) + len(name))
    if op == "StridedSliceAssign":
        return {"begin": [1, 0], "end": [3, 2], "strides": [1, 1]}.get(name, rng.uniform(1, 2, (2, 2)))
    if name == "indices":
        return np.array([[1], [3]], np.int32) if op.startswith("ScatterNd") else np.array([1, 3], np.int32)
    if name in ("grad", "delta", "value", "updates"):
        rows = 2 if op.startswith(("Sparse", "Scatter")) else SHAPE[0]
        return rng.uniform(0.5, 1.5, (rows, SHAPE[1]))
    if name == "global_step":
        return np.int64(3)
    return -0.5 if name == "lr_power" else rng.uniform(0.1, 0.9)


@pytest.mark.parametrize("op", WRITES)
def test_every_op_that_writes(op):
    definition = op_def_registry.get(op)
    with tf.Graph().as_default() as graph:
        arguments, attributes = {}, {"limit": 10} if op == "CountUpTo" else {}
        for number, a in enumerate(definition.input_arg):
            if a.is_ref:
                start = np.int32(7) if op == "CountUpTo" else np.linspace(0.1 + number, 1, 12).reshape(SHAPE)
                arguments[a.name] = variable(a.name, start)._ref()
            else:
                arguments[a.name] = argument(op, a.name)
        written = getattr(tf.raw_ops, op)(**arguments, **attributes)
        fetch = tf.convert_to_tensor(written) + tf.ones([], written.dtype.base_dtype)
        values = assert_same_values(graph, [written.name, fetch.name])
    assert counterpart(op) is not None
    assert not np.array_equal(values[2], start)  # it did write


def test_the_ops_without_a_counterpart_are_those_that_have_nothing_to_do_with_variables():
    without = {op for op in ops_on_references() if counterpart(op) is None}
    prefixes = (
        *("Accumulator", "Barrier", "ConditionalAccumulator", "FIFOQueue", "FakeQueue", "FixedLength", "HashTable"),
        *("IdentityReader", "InitializeTable", "LMDBReader", "LookupTable", "MutableDense", "MutableHash"),
        *("PaddingFIFO", "PriorityQueue", "Queue", "RandomShuffle", "Reader", "Stack", "TFRecord", "TensorArray"),
        *("SparseAccumulator", "SparseConditional", "TextLine", "WholeFile", "NegTrain", "Sdca"),
    )
    for_tests_of_tensorflow = {op for op in without if op.startswith(("RefIn", "RefOut", "TwoRefs", "DebugGradient"))}
    left = {op for op in without - for_tests_of_tensorflow if not op.startswith(prefixes)}
    plain = {"RefIdentity", "RefSwitch", "RefMerge", "Variable", "VariableV2"}
    refused = {"RefEnter", "RefExit", "RefNextIteration", "RefSelect", "TemporaryVariable", "DestroyTemporaryVariable"}
    assert left == plain | refused


def test_attributes_are_kept():
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        w, m = variable("w", np.ones(SHAPE)), variable("m", np.zeros(SHAPE))
        rate = tf.constant(0.5, tf.float64)
        tf.raw_ops.ApplyMomentum(
            var=w._ref(), accum=m._ref(), lr=rate, grad=np.ones(SHAPE), momentum=rate, use_nesterov=True,
            use_locking=True, name="update",
        )  # fmt: skip
        new, _ = rewritten(graph, [])
    update = new["update"]
    assert update.op == "ResourceApplyMomentum"
    assert update.attr["use_nesterov"].b and update.attr["use_locking"].b
    assert update.device == new["w"].device == "/device:CPU:0"
    assert new["w"].attr["_class"].list.s == [b"loc:@w"]


# -- order -----------------------------------------------------------------------------------


class Program:
    """A random program whose statements all run one after the other, so that its values are determined."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.variables = [variable(f"v{n}", self.rng.normal(size=SHAPE)) for n in range(3)]
        self.counter = variable("counter", np.int64(0), trainable=False)
        self.shared = [v.value() for v in self.variables]  # may change later without being read again
        self.fetches = []
        self.last = tf.constant(1.0, tf.float64)

    def some(self, values):
        return values[self.rng.integers(len(values))]

    def number(self, rows=SHAPE[0]):
        return constant(self.rng.normal(size=(rows, SHAPE[1])))

    def write(self):
        v, w = self.some(self.variables), self.some(self.variables)
        kind = self.rng.integers(8)
        if kind == 0:
            return v1.assign(v, self.number())
        if kind == 1:
            return v1.assign_add(v, self.number())
        if kind == 2:
            return v1.assign_sub(v, self.some(self.shared) * 0.5)
        if kind == 3:
            return v1.scatter_update(v, constant([0, 2]), self.number(2))
        if kind == 4:
            return v1.scatter_nd_add(v, constant([[1]]), self.number(1))
        if kind == 5:  # a reference to what was written
            return v1.assign_sub(v1.assign(v, self.number()), self.number())
        if kind == 6:
            return tf.raw_ops.ApplyMomentum(
                var=v._ref(), accum=self.some([u for u in self.variables if u is not v])._ref(),
                lr=constant(0.1, tf.float64), grad=self.some(self.shared) * 2.0,
                momentum=constant(0.9, tf.float64),
            )  # fmt: skip
        return v1.assign(v, w)

    def read(self):
        v = self.some(self.variables)
        look = self.some(
            [
                tf.identity,
                tf.stop_gradient,
                lambda x: x.read_value(),
                lambda x: tf.reshape(tf.reshape(x, constant([3, 4])), constant(SHAPE)),
                lambda x: tf.squeeze(tf.expand_dims(x, 0), [0]),
                lambda x: tf.identity(tf.identity_n([constant(1.0), x])[1]),
                lambda x: tf.debugging.check_numerics(x, "a value"),
                lambda x: tf.raw_ops.RefIdentity(input=x._ref()),
            ]
        )
        self.shared.append(look(v))
        return self.shared[-1]

    def statement(self):
        kind = self.rng.integers(5)
        if kind == 4:  # after the last statement by data, not by control
            result = self.some(self.shared) + tf.cast(tf.reduce_sum(self.last), tf.float64)
            self.fetches.append(result)
            return result
        with tf.control_dependencies([self.last]):
            if kind == 0:
                self.fetches.append(v1.count_up_to(self.counter, 1000))
                return self.fetches[-1]
            if kind == 1:
                return self.read()
            if kind == 2:
                self.fetches.append(self.some(self.shared) - self.some([*self.shared, *self.variables]))
                return self.fetches[-1]
            written = self.write()
            self.fetches.append(written + 1.0)
            with tf.control_dependencies([self.fetches[-1]]):
                return tf.identity(written)

    def build(self, statements):
        for _ in range(statements):
            self.last = self.statement()
        return [t.name for t in self.fetches]


@pytest.mark.parametrize("seed", mostly_in_soak(range(40), *range(10)))
def test_a_program_in_order_has_tensorflows_own_values(seed):
    with tf.Graph().as_default() as graph:
        fetches = Program(seed).build(25)
        assert_same_values(graph, fetches)


def test_a_read_before_a_write_gives_the_new_value_to_what_runs_after_it():
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0, 2.0])
        old = tf.identity(w)
        kept = old * 1.0
        with tf.control_dependencies([old, kept]):
            written = v1.assign_add(w, [10.0, 10.0])
        with tf.control_dependencies([written]):
            after = tf.reshape(old, [2, 1]) * 2.0
        values = assert_same_values(graph, [kept.name, after.name])
    np.testing.assert_array_equal(values[0], [1, 2])
    np.testing.assert_array_equal(values[1], [[22], [24]])


def test_readers_that_nothing_orders_share_one_read():
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0, 2.0])
        for name in ("first", "second"):
            tf.multiply(w, 2.0, name=name)
        new, _ = rewritten(graph, [])
    assert new["first"].input[0] == new["second"].input[0] == "w/read"
    assert [n.name for n in new if n.op == "ReadVariableOp"] == ["w/read"]


def test_a_reference_waits_for_what_it_was_made_to_wait_for():
    """with_dependencies gives a RefIdentity."""
    with tf.Graph().as_default() as graph:
        w, u = variable("w", [1.0]), variable("u", [1.0])
        waits = tf.raw_ops.RefIdentity(input=w._ref())
        waits.op._add_control_input(v1.assign(u, [5.0]).op)
        value = v1.assign_add(waits, u)
        values = assert_same_values(graph, [value.name])
    np.testing.assert_array_equal(values[0], [6])


def test_what_a_read_waits_for_comes_before_what_takes_the_read():
    with tf.Graph().as_default() as graph:
        w, u = variable("w", [1.0]), variable("u", [0.0])
        first, apart = v1.assign(u, [5.0]), v1.assign(w, [2.0])
        with tf.control_dependencies([first]):
            value = tf.identity(w)
        second = v1.assign(u, value)
        second.op._add_control_input(apart.op)
        values = assert_same_values(graph, [second.name])
    assert values[0] == 2


def test_a_fetch_of_a_reference_is_a_fetch_of_its_value():
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0, 2.0])
        written = v1.assign_add(w, [1.0, 1.0])
        new, values = rewritten(graph, ["w:0", written.name, "w/read:0"])
        fetched = run(graph, [w.initializer.name], [written.name])
    assert [new[v.partition(":")[0]].op for v in values] == ["ReadVariableOp"] * 3
    np.testing.assert_array_equal(fetched[0], [2, 3])
    assert list(new[values[1].partition(":")[0]].input) == ["w", "^" + written.op.name]


def test_a_graph_without_references_stays_the_same_object():
    with tf.Graph().as_default() as graph:
        v1.get_variable("w", [2], use_resource=True)
        nodes = nodes_of(graph)
    assert replace_references(nodes, ["w/Read/ReadVariableOp:0"]) == (nodes, ("w/Read/ReadVariableOp:0",))


def test_whether_a_variable_is_initialized():
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0])
        asked = v1.is_variable_initialized(w)
        new, _ = rewritten(graph, [])
        with session(imported(new), False) as running:
            assert not running.run(asked.name)
            running.run(w.initializer.name)
            assert running.run(asked.name)


def test_a_saver_of_the_rewritten_graph(tmp_path):
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0, 2.0])
        saver = v1.train.Saver([w])
        new, _ = rewritten(graph, [])
        with session(graph, False) as running:
            running.run(w.initializer)
            path = saver.save(running, str(tmp_path / "one"))
        definition = saver.as_saver_def()
    with session(imported(new), False) as running:
        running.run(definition.restore_op_name, {definition.filename_tensor_name: path})
        np.testing.assert_array_equal(running.run("w/read:0"), [1, 2])


@pytest.mark.parametrize("chosen", [True, False])
def test_functions_take_values(chosen):
    with tf.Graph().as_default() as graph:
        w, choice = variable("w", [1.0, 2.0]), v1.placeholder(tf.bool, [], "choice")
        written = v1.assign_add(w, [1.0, 1.0])
        with tf.control_dependencies([written]):
            called = tf.function(lambda x: x * 2.0)(w)
            either = v1.cond(choice, lambda: w * 3.0, lambda: w * 4.0)
        values = assert_same_values(graph, [called.name, either.name], {"choice:0": chosen})
    np.testing.assert_array_equal(values[0], [4, 6])
    np.testing.assert_array_equal(values[1], [6, 9] if chosen else [8, 12])


# -- branches of TensorFlow 1 ----------------------------------------------------------------


def written_in_branches(w, u, chosen):
    """Values of several kinds of branches that write or read."""

    def write_then_read():
        with tf.control_dependencies([v1.assign_add(w, [1.0, 1.0])]):
            return w * 3.0

    def write_before_a_kept_value():
        kept = tf.reshape(w, [2, 1])
        with tf.control_dependencies([v1.assign_sub(w, [5.0, 6.0])]):
            return kept * 2.0

    first = v1.cond(chosen, write_then_read, lambda: w * 2.0, name="first")
    with tf.control_dependencies([first]):
        after = w * 1.0
        second = v1.cond(chosen, lambda: v1.assign(u, [7.0, 7.0]), lambda: v1.assign(u, w), name="second")
        third = v1.assign_add(second, [1.0, 2.0])
    with tf.control_dependencies([after, third]):
        fourth = v1.cond(chosen, lambda: tf.identity(u), lambda: u._ref(), name="fourth") * 1.0
    with tf.control_dependencies([fourth]):
        fifth = v1.cond(chosen, lambda: w + u, write_before_a_kept_value, name="fifth")
    return [first, after, third * 1.0, fourth, fifth]


@pytest.mark.parametrize("chosen", [True, False])
def test_variables_in_branches(chosen, old_control_flow):
    with tf.Graph().as_default() as graph:
        w, u = variable("w", [1.0, 2.0]), variable("u", [3.0, 4.0])
        choice = v1.placeholder(tf.bool, [], "choice")
        fetches = [t.name for t in written_in_branches(w, u, choice)]
        kinds = {op.type for op in graph.get_operations()}
        assert {"RefSwitch", "RefMerge", "Switch", "Merge"} <= kinds
        assert_same_values(graph, fetches, {"choice:0": chosen})


def test_a_branch_that_is_not_taken_writes_nothing(old_control_flow):
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0])
        choice = v1.placeholder(tf.bool, [], "choice")
        nested = v1.cond(
            choice, lambda: v1.cond(choice, lambda: v1.assign(w, [2.0]), lambda: v1.assign(w, [3.0])), lambda: w + 4.0
        )
        for chosen, want in ((True, 2), (False, 5)):
            values = assert_same_values(graph, [nested.name], {"choice:0": chosen})
            assert values[0] == want


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("look", [lambda a: a, tf.identity], ids=["a reference", "a value"])
def test_where_branches_meet_each_has_its_own_value(chosen, look):
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0])
        branches = tf.raw_ops.RefSwitch(data=w._ref(), pred=v1.placeholder(tf.bool, [], "choice"))
        one, other = v1.assign_add(branches.output_false, [1.0]), v1.assign_add(branches.output_true, [2.0])
        met = tf.raw_ops.Merge(inputs=[look(one), other * 1.0]).output * 1.0
        (value, _) = assert_same_values(graph, [met.name], {"choice:0": chosen})
    assert value == (3 if chosen else 2)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_value_from_a_branch_stays_in_the_branch(chosen):
    """Where nothing else keeps its reader there."""
    with tf.Graph().as_default() as graph:
        w, u = variable("w", [1.0]), variable("u", [0.0])
        choice = v1.placeholder(tf.bool, [], "choice")
        written = v1.assign_add(w, [1.0])
        taken = v1.assign(u, tf.raw_ops.Switch(data=w.value(), pred=choice).output_true)
        taken.op._add_control_input(written.op)
        otherwise = tf.raw_ops.Switch(data=constant([9.0], tf.float64), pred=choice).output_false
        met = tf.raw_ops.Merge(inputs=[taken, otherwise]).output * 1.0
        values = assert_same_values(graph, [met.name, written.name], {"choice:0": chosen})
    assert [value[0] for value in values] == ([2, 2, 2, 2] if chosen else [9, 2, 2, 0])


def test_a_loop_of_tensorflow_1_keeps_its_ops(old_control_flow):
    """They are refused by name where a step needs them; another part of the graph may have them."""
    with tf.Graph().as_default() as graph:
        w = variable("w", [1.0])
        v1.while_loop(lambda i: i < 3, lambda i: i + tf.cast(v1.assign_add(w, [1.0])[0], tf.int32), [0], name="loop")
        doubled = w * 2.0
        new, _ = replace_references(nodes_of(graph))
    part = new.pruned([doubled.op.name])
    assert not [n.name for n in part if ops.is_reference_op(n)]
    assert {"RefEnter", "NextIteration"} <= {n.op for n in new}


# -- what stays ------------------------------------------------------------------------------


def between_variables(w, u):
    return v1.assign(tf.raw_ops.RefSelect(index=0, inputs=[w._ref(), u._ref()], name="which"), [1.0])


def in_a_temporary(w, u):
    temporary = tf.raw_ops.TemporaryVariable(shape=[1], dtype=tf.float32, var_name="t", name="temporary")
    return tf.raw_ops.DestroyTemporaryVariable(ref=v1.assign_add(temporary, w), var_name="t")


def in_an_accumulator(w, u):
    gathers = tf.raw_ops.ConditionalAccumulator(dtype=tf.float32, shape=[1], name="gathers")
    return tf.raw_ops.AccumulatorTakeGradient(handle=gathers, num_required=1, dtype=tf.float32)


REFUSED = {
    "between variables": (between_variables, "which", "RefSelect", "values"),
    "an accumulator": (in_an_accumulator, "gathers", "ConditionalAccumulator", "out of the training step"),
    "a temporary": (in_a_temporary, "temporary", "TemporaryVariable", "tf.add_n"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_counterpart_is_left_and_refused_by_name(what):
    build, name, op, hint = REFUSED[what]
    with tf.Graph().as_default() as graph:
        build(variable("w", np.ones(1, np.float32)), variable("u", np.ones(1, np.float32)))
        new, _ = replace_references(nodes_of(graph))
    left = [n for n in new if ops.is_reference_op(n)]
    assert left[0].name == name
    with pytest.raises(UnsupportedError, match=rf"'{name}' \({op}\).*{hint}"):
        refuse_reference(left[0], f"op {left[0].name!r} ({left[0].op})")
