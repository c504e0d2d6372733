"""Datasets made ready for the workers: arrays beside the graph, one seed for all, resources of their own."""

import runpy
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from caramel.data.dataset import training_data, why_not_on_workers
from caramel.data.source import SEED

Dataset = tf.data.Dataset


def source(dataset, workers=2):
    (found,) = training_data(dataset).sources(workers)
    return found


def only(found, op):
    """The one node of this type (the beginning of its name)."""
    (node,) = [n for n in found.graph if n.op.startswith(op)]
    return node


@pytest.fixture(autouse=True)
def _no_global_seed():
    tf.random.set_seed(None)


# -- constants -------------------------------------------------------------------------------


def test_large_arrays_become_variables():
    large = np.arange(1000, dtype=np.float64)
    small = np.arange(1000 // 8, dtype=np.int8)[:8]
    found = source(Dataset.from_tensors((large, small)))
    (constant,) = found.constants
    np.testing.assert_array_equal(constant.value, large)
    assert found.graph[constant.node].op == "VarHandleOp"
    assert constant.dtype == "float64"
    assert len(found.graph.to_bytes()) < 4000
    assert large[:4].tobytes() not in found.graph.to_bytes()


def test_equal_arrays_have_one_key():
    values = np.arange(1000)
    found = source(Dataset.zip((Dataset.from_tensor_slices(values), Dataset.from_tensor_slices(values.copy()))))
    assert len({c.key for c in found.constants}) == 1
    other = source(Dataset.from_tensor_slices(values + 1))
    assert found.constants[0].key != other.constants[0].key


def test_strings_and_booleans():
    names = [f"a quite long name of a file, number {n}" for n in range(100)]
    found = source(Dataset.from_tensor_slices((names, np.arange(2000).reshape(100, 20) % 3 == 0)))
    by_dtype = {c.dtype: c.value for c in found.constants}
    assert by_dtype["string"].tolist() == [name.encode() for name in names]
    np.testing.assert_array_equal(by_dtype["bool"], np.arange(2000).reshape(100, 20) % 3 == 0)


# -- seeds -----------------------------------------------------------------------------------


def test_a_shuffle_without_a_seed_takes_the_common_one():
    found = source(Dataset.range(9).shuffle(3).shuffle(4))
    shuffles = [n for n in found.graph if n.op == "ShuffleDatasetV3"]
    assert [n.input[2] for n in shuffles] == [SEED, SEED]
    assert shuffles[0].input[3] != shuffles[1].input[3]
    assert found.graph[SEED].op == "Placeholder"


def test_a_seed_of_the_user_s_stays():
    found = source(Dataset.range(9).shuffle(3, seed=77))
    node = only(found, "ShuffleDatasetV3")
    values = [list(found.graph[text].attr["value"].tensor.int64_val) for text in node.input[2:4]]
    assert [77] in values
    assert SEED not in node.input


def test_a_global_seed_is_the_user_s():
    tf.random.set_seed(5)
    assert SEED not in only(source(Dataset.range(9).shuffle(3)), "ShuffleDatasetV3").input


def test_random_and_sampled_datasets():
    found = source(Dataset.sample_from_datasets([Dataset.range(3), Dataset.random().take(2)]))
    drawing = [n for n in found.graph if n.op.startswith("RandomDataset")]
    assert len(drawing) == 2
    assert all(SEED in n.input for n in drawing)


@pytest.mark.parametrize(
    "dataset, draws",
    [
        (Dataset.range(9).batch(2), "never"),
        (Dataset.range(9).shuffle(3), "once"),
        (Dataset.range(9).repeat(2).shuffle(3), "once"),
        (Dataset.range(9).shuffle(3, seed=1).repeat(2), "often"),
        (Dataset.range(9).shuffle(3).batch(2).repeat(), "often"),
    ],
)
def test_how_often_a_pass_draws(dataset, draws):
    assert source(dataset).draws == draws


# -- resources and order ---------------------------------------------------------------------


def test_resources_are_the_worker_s_own():
    found = source(Dataset.range(9).cache().shuffle(3))
    assert only(found, "DummyMemoryCache")
    assert only(found, "DummySeedGenerator")
    assert not any(n.op == "Const" and n.attr["dtype"].type == tf.resource.as_datatype_enum for n in found.graph)


def any_order(dataset):
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 3
    return dataset.with_options(options)


def test_order_is_not_left_to_chance():
    dataset = Dataset.range(9).map(lambda x: x, num_parallel_calls=2, deterministic=False)
    dataset = dataset.flat_map(lambda x: Dataset.range(x).map(lambda y: y, num_parallel_calls=2, deterministic=False))
    found = source(any_order(dataset))
    assert only(found, "ParallelMapDataset").attr["deterministic"].s == b"true"
    inner = [n for f in found.graph.library.function for n in f.node_def if n.op.startswith("ParallelMapDataset")]
    assert [n.attr["deterministic"].s for n in inner] == [b"true"]
    options = tf.data.Options()
    options._from_proto(_options(found))
    assert options.deterministic is True
    assert options.threading.private_threadpool_size == 3  # the others stay
    assert len(found.notes) == 1
    alone = source(any_order(dataset), workers=1)
    assert only(alone, "ParallelMapDataset").attr["deterministic"].s == b"false"
    assert alone.notes == ()


def _options(found):
    from tensorflow.core.framework import dataset_options_pb2

    return dataset_options_pb2.Options.FromString(only(found, "OptionsDataset").attr["serialized_options"].s)


# -- the same bytes --------------------------------------------------------------------------

DIGEST = """
import tensorflow as tf
from caramel.data.dataset import training_data
def double(x):
    return tf.cond(x > 3, lambda: 2 * x, lambda: x)
dataset = tf.data.Dataset.range(9).map(double).shuffle(4).batch(2)
digest = training_data(dataset).sources(2)[0].digest
print(digest)
"""


@pytest.mark.slow
@pytest.mark.soak
def test_other_processes_make_the_same_graph(tmp_path):
    """A position that one process saved must fit in the next one, whatever they have traced before."""
    program = tmp_path / "digest.py"
    program.write_text(DIGEST)
    tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([]))
    Dataset.range(3).map(lambda x: x * 2)
    here = runpy.run_path(str(program))["digest"]
    other = subprocess.run([sys.executable, program], check=True, stdout=subprocess.PIPE, text=True)
    assert other.stdout.strip() == here
    assert len(here) == 64


def test_the_digest_follows_the_pipeline_and_not_its_data():
    def digest(values, size=2):
        return source(Dataset.from_tensor_slices(values).batch(size)).digest

    assert digest(np.arange(1000)) == digest(np.arange(1000) + 1)
    assert digest(np.arange(1000)) != digest(np.arange(1000), size=3)


# -- where a dataset is read -----------------------------------------------------------------


def test_why_a_dataset_must_be_read_here():
    assert why_not_on_workers(Dataset.range(9).shuffle(3)) is None
    generated = Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32))
    assert "PyFunc" in why_not_on_workers(generated)
    assert "seed" in why_not_on_workers(Dataset.range(9).flat_map(lambda n: Dataset.range(n).shuffle(3)))


def test_a_dataset_of_a_graph():
    with tf.Graph().as_default():
        dataset = tf.compat.v1.data.Dataset.from_tensor_slices(np.arange(1000.0)).shuffle(4).batch(2)
        found = source(dataset)
    assert found.cardinality == 500
    assert len(found.constants) == 1
    assert SEED in only(found, "ShuffleDataset").input
