"""Programs in files: MetaGraphDefs and GraphDefs train as the graph that was written."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from variants import each_once, in_soak

import caramel

v1 = tf.compat.v1


def build(use_resource=True, sparse=False):
    """A graph with Adam; its training op, its loss, its gradients, and a fetch."""
    x = v1.placeholder(tf.float64, [None, 3], "x")
    y = v1.placeholder(tf.float64, [None], "y")
    with v1.variable_scope("", use_resource=use_resource):
        w = v1.get_variable("w", [3], tf.float64, initializer=v1.constant_initializer([1, -1, 0.5]))
        b = v1.get_variable("b", [], tf.float64, initializer=v1.zeros_initializer())
        prediction = tf.linalg.matvec(tf.tanh(x), w) + b
        if sparse:
            rows = v1.placeholder(tf.int32, [None], "rows")
            table = v1.get_variable("table", [5, 3], tf.float64, initializer=v1.ones_initializer())
            prediction += tf.reduce_sum(tf.nn.embedding_lookup(table, rows), 1)
        loss = tf.reduce_mean(tf.square(prediction - y), name="the_loss")
        step = v1.train.get_or_create_global_step()
        optimizer = v1.train.AdamOptimizer(0.05)
        pairs = optimizer.compute_gradients(loss)
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
        train = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs]), step, name="train")
    return train, loss, pairs


def feeds(sparse=False, steps=4):
    rng = np.random.default_rng(1)
    each = {"x": lambda: rng.normal(size=(12, 3)), "y": lambda: rng.normal(size=12)}
    if sparse:
        each["rows"] = lambda: rng.integers(0, 4, 12).astype(np.int32)
    return [{name: make() for name, make in each.items()} for _ in range(steps)]


def written(tmp_path, kind, **options):
    """(path, what one device gets, names of the gradients) of a graph in a file."""
    sparse = options.get("sparse", False)
    with tf.Graph().as_default() as graph:
        _, loss, pairs = build(**options)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver()
            saver.save(session, str(tmp_path / "start"), write_meta_graph=False)
            for batch in feeds(sparse):
                session.run("train", {f"{k}:0": v for k, v in batch.items()})
            want = {v.op.name: session.run(v) for v in v1.global_variables()}
        meta = v1.train.export_meta_graph(as_text=False)
        names = {
            v.op.name: (g.values.name, g.indices.name) if isinstance(g, tf.IndexedSlices) else g.name for g, v in pairs
        }
    proto = meta if kind.startswith("meta") else graph.as_graph_def()
    path = tmp_path / f"program.{kind}"
    if kind.endswith("txt"):
        path.write_text(text_format.MessageToString(proto))
    else:
        path.write_bytes(proto.SerializeToString())
    return path, want, names


def trained(context, sparse=False, workers=3):
    with caramel.ARModel(context, workers).session() as session:
        for batch in feeds(sparse):
            session.step(batch)
        return session.values()


def assert_same(got, want):
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-8, err_msg=name)


ROLES = {"train_op": "train", "loss": "the_loss:0"}


@pytest.mark.parametrize(
    "kind, options", each_once(["meta", "meta.txt", "pb", "pb.txt"], [{}, {"use_resource": False}, {"sparse": True}])
)
def test_a_file(tmp_path, kind, options):
    path, want, _ = written(tmp_path, kind, **options)
    roles = {} if kind.startswith("meta") else ROLES
    sparse = options.get("sparse", False)
    context = caramel.capture(path, **roles)
    assert_same(trained(context, sparse), want)
    kinds = {t.algorithm for t in caramel.ARModel(context, 2).plan.transfers}
    assert ("all_gather" in kinds) == sparse


@pytest.mark.parametrize("sparse", [*in_soak(False), True])
def test_named_gradients_and_given_values(tmp_path, sparse):
    path, want, names = written(tmp_path, "pb", sparse=sparse)
    for values in (tmp_path / "start", caramel_values(tmp_path / "start")):
        context = caramel.capture(path, gradients=names, values=values, **ROLES)
        assert_same(trained(context, sparse), want)


def caramel_values(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_without_initializers(tmp_path):
    path, want, _ = written(tmp_path, "pb")
    graph_def = v1.GraphDef.FromString(path.read_bytes())
    kept = tf.compat.v1.graph_util.extract_sub_graph(graph_def, ["train", "the_loss"])
    with pytest.raises(caramel.CaptureError, match="no initializer.*values="):
        trained(caramel.capture(kept, **ROLES))
    assert_same(trained(caramel.capture(kept, values=tmp_path / "start", **ROLES)), want)


def test_evaluation_of_a_file(tmp_path):
    path, want, _ = written(tmp_path, "meta")
    context = caramel.capture(path, evaluation="the_loss:0")
    batch = feeds()[0]
    with caramel.ARModel(context, 2).session() as session:
        error = np.tanh(batch["x"]) @ [1, -1, 0.5] - batch["y"]
        np.testing.assert_allclose(session.evaluate(batch), np.mean(error**2), rtol=1e-8)


# -- bad input -------------------------------------------------------------------------------


def refused(kind, *words):
    return pytest.raises(kind, match="(?s)" + ".*".join(words))


def test_bad_files(tmp_path):
    with refused(caramel.InputError, "missing.pb", "cannot be read"):
        caramel.capture(tmp_path / "missing.pb")
    with refused(caramel.InputError, "directory", "export_meta_graph"):
        caramel.capture(str(tmp_path))
    for content in (b"", b"nothing of the kind", b"\x00\x01\x02" * 50):
        (tmp_path / "bad.pb").write_bytes(content)
        with refused(caramel.InputError, "bad.pb", "neither a GraphDef nor a MetaGraphDef"):
            caramel.capture(tmp_path / "bad.pb")


def test_a_graph_def_without_roles(tmp_path):
    path, _, _ = written(tmp_path, "pb")
    with refused(caramel.CaptureError, "train_op="):
        caramel.capture(path).model  # noqa: B018
    with refused(caramel.CaptureError, "loss="):
        caramel.capture(path, train_op="train").model  # noqa: B018
    with refused(caramel.CaptureError, "'nothing'", "train_op="):
        caramel.capture(path, train_op="nothing", loss="the_loss").model  # noqa: B018


@pytest.mark.parametrize(
    "gradients, words",
    [
        ({}, ["gradients= is empty"]),
        ({"v": "the_loss:0"}, ["'v'", "no variable"]),
        ({"w": "nothing:0"}, ["'w'", "nothing:0"]),
        ({"w": ("a:0", "b:0", "c:0")}, ["'w'", "values, rows"]),
        ({"w": ()}, ["'w'", "values, rows"]),
        ({"w": "train"}, ["'w'", "'train'", "without a result"]),
    ],
)
def test_bad_gradients(tmp_path, gradients, words):
    path, _, _ = written(tmp_path, "pb")
    with refused(caramel.CaptureError, *words):
        caramel.capture(path, gradients=gradients, **ROLES).model  # noqa: B018


def test_bad_values(tmp_path):
    path, _, _ = written(tmp_path, "pb")
    with refused(caramel.CheckpointError, "no checkpoint", "elsewhere"):
        trained(caramel.capture(path, values=str(tmp_path / "elsewhere"), **ROLES))
    with refused(caramel.InputError, "no value", "beta1_power"):
        trained(caramel.capture(path, values={"w": np.zeros(3)}, **ROLES))
    with refused(caramel.InputError, "values=", "step function"):
        caramel.capture(lambda x: x, [tf.TensorSpec([])], values={})


# -- initialisers run here -------------------------------------------------------------------


def started_by(value, tmp_path, kind="meta"):
    """The path of a graph's file whose variable starts with what a function builds."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None], "x")
        w = v1.get_variable("w", initializer=value, use_resource=True)
        loss = tf.reduce_mean(x * tf.reduce_sum(w), name="the_loss")
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        proto = v1.train.export_meta_graph() if kind == "meta" else graph.as_graph_def()
    path = tmp_path / f"program.{kind}"
    path.write_bytes(proto.SerializeToString())
    return path


def with_effect(effect):
    """An initial value that has an effect first."""

    def value():
        with tf.control_dependencies([effect()]):
            return tf.identity([1.0, 2.0])

    return value


def in_branch(place):
    """The effect is in a function of the graph."""

    @tf.function
    def write():
        tf.io.write_file(str(place), "written")
        return tf.constant([1.0, 2.0])

    return lambda: tf.cond(tf.constant(True), write, lambda: tf.constant([1.0, 2.0]))


@pytest.mark.parametrize("kind", ["meta", "pb"])
@pytest.mark.parametrize("what", ["write", "read", "find", "print", "restore", "python", "function"])
def test_initialisers_that_touch_files_or_python_are_refused(what, kind, tmp_path):
    place = tmp_path / "touched"
    keys = {"tensor_names": ["w"], "shape_and_slices": [""], "dtypes": [tf.float32]}
    values = {
        "write": with_effect(lambda: tf.io.write_file(str(place), "written")),
        "read": with_effect(lambda: tf.io.read_file("/etc/hostname")),
        "find": with_effect(lambda: tf.io.matching_files("/etc/*")),
        "print": with_effect(lambda: tf.print("written", output_stream=f"file://{place}")),
        "restore": lambda: tf.raw_ops.RestoreV2(prefix=str(place), **keys)[0],
        "python": lambda: tf.numpy_function(lambda: place.write_text("written"), [], tf.float32),
        "function": in_branch(place),
    }
    path = started_by(lambda: tf.ensure_shape(values[what](), [2]), tmp_path, kind)
    options = {"train_op": "train", "loss": "the_loss:0", "loss_reduction": "mean"}
    with pytest.raises(
        caramel.UnsupportedError, match="initialiser of the graph's file runs op .*values= a checkpoint"
    ):
        caramel.capture(path, **options).model.values.load()
    assert not place.exists()
    # With values of the caller's own nothing of it runs.
    context = caramel.capture(path, values={"w": np.array([3.0, 4.0], np.float32)}, **options)
    np.testing.assert_array_equal(context.model.values.load()["w"], [3.0, 4.0])
    assert not place.exists()


def test_a_vocabulary_is_an_asset(tmp_path):
    """What initialises a table reads the file of its vocabulary, and a variable may start from the table."""
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("a\nb\nc\n")
    line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER

    def value():
        source = tf.lookup.TextFileInitializer(str(vocabulary), tf.string, line, tf.int64, number)
        table = tf.lookup.StaticHashTable(source, -1)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)):
            return tf.cast(table.lookup(tf.constant(["c", "a"])), tf.float32)

    path = started_by(value, tmp_path)
    context = caramel.capture(path, loss_reduction="mean")
    np.testing.assert_array_equal(context.model.values.load()["w"], [2.0, 0.0])
