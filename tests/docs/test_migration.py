"""The programs of the migration pages, as they stand there: after the change, and before it where that runs here.

All train on the same examples as one device does; Horovod is not there, so its programs are only compiled.
"""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGES = ("from-mirrored-strategy.md", "from-horovod.md")

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(page):
    """The common file of a page, and its programs by heading and by whether they are from before the change or after."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    common, *pairs = re.split(r"^## ", text, flags=re.MULTILINE)
    (problem,) = BLOCK.findall(common)
    found = {}
    for pair in pairs:
        title = pair.partition("\n")[0]
        if "### Before" not in pair:
            assert not BLOCK.findall(pair)
            continue
        before, after = pair.split("### After")
        (found[title, "before"],), (found[title, "after"],) = BLOCK.findall(before), BLOCK.findall(after)
    return problem, found


MIRRORED, HOROVOD = (programs(page) for page in PAGES)

RUN = """
import json, runpy, sys
{prepare}
left = runpy.run_path(sys.argv[1])
print(json.dumps([array.tolist() for array in left["model"].get_weights()]))
"""

TWO_DEVICES = """
import tensorflow as tf
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy_of = tf.distribute.MirroredStrategy
tf.distribute.MirroredStrategy = lambda: strategy_of(["CPU:0", "CPU:1"])  # without GPUs it would find one device
"""


@pytest.fixture
def place(tmp_path):
    """Function that puts the files of a program into a directory; the arguments for Python that run it there."""

    def put(page, title, which, prepare=""):
        problem, found = page
        (tmp_path / "problem.py").write_text(problem)
        (tmp_path / "train.py").write_text(found[title, which])
        (tmp_path / "run.py").write_text(RUN.format(prepare=prepare))
        return [str(tmp_path / "run.py"), str(tmp_path / "train.py")]

    return put


def environment(**more):
    root = str(HOW_TO.parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **more}


def values_of(arguments):
    """What a program has learned, by its last line."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(),
        cwd=Path(arguments[0]).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [np.asarray(array) for array in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def problem():
    """The functions of the common file, which is the same on both pages."""
    assert MIRRORED[0] == HOROVOD[0]
    names = {}
    exec(compile(HOROVOD[0], "problem.py", "exec"), names)
    return names


@pytest.fixture(scope="module")
def alone(problem):
    """What one device learns, by Keras' own loop."""
    import keras

    model = problem["network"]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    before = model.get_weights()
    model.fit(*problem["examples"](), batch_size=24, epochs=3, shuffle=False, verbose=0)
    assert not np.allclose(before[0], model.get_weights()[0], atol=0.01)
    return model.get_weights()


def same(found, wanted):
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-6)


KERAS_LIKE = [
    (MIRRORED, "Keras `fit`"),
    (MIRRORED, "A loop of your own"),
    (HOROVOD, "Keras `fit`"),
    (HOROVOD, "A loop with a GradientTape"),
]


@pytest.fixture
def run_here(place, tmp_path, monkeypatch):
    """Function that runs a program in this process; the names that it leaves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "problem", raising=False)
    yield lambda page, title: runpy.run_path(place(page, title, "after")[-1])
    sys.modules.pop("problem", None)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "title"), KERAS_LIKE, ids=["fit", "loop", "horovod-fit", "horovod-loop"])
def test_after(run_here, alone, page, title):
    same(run_here(page, title)["model"].get_weights(), alone)


@pytest.mark.slow
def test_after_with_a_session(run_here, problem, tmp_path):
    import tensorflow.compat.v1 as tf

    found = [run_here(HOROVOD, "A session of TensorFlow 1")["values"]["kernel"]]
    x, y = problem["examples"]()
    kernel, momentum = np.zeros((4, 2)), np.zeros((4, 2))
    for number in range(12):  # the arithmetic of softmax and momentum, by hand
        part = slice(24 * (number % 4), 24 * (number % 4) + 24)
        scores = np.exp(x[part] @ kernel)
        error = scores / scores.sum(axis=1, keepdims=True) - np.eye(2)[y[part]]
        momentum = 0.9 * momentum + x[part].T @ error / 24
        kernel -= 0.1 * momentum
    same(found, [kernel])
    np.testing.assert_allclose(tf.train.load_checkpoint(str(tmp_path / "last")).get_tensor("kernel"), kernel, rtol=1e-4)


TF_CONFIG = {"cluster": {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}}


def of_task(task):
    return {"TF_CONFIG": json.dumps({**TF_CONFIG, "task": {"type": "worker", "index": task}})}


def on_two_tasks(network, arguments):
    """What the program has learned on task 0, while task 1 runs it, too."""
    directory = Path(arguments[0]).parent
    other, first = (
        network.start(*arguments, environment=environment(**of_task(task)), cwd=directory) for task in (1, 0)
    )
    out, err = first.communicate(timeout=300)
    assert first.returncode == 0, (err[-3000:], network.end(other))
    return [np.asarray(array) for array in json.loads(out.splitlines()[-1])]


@pytest.mark.soak  # as the programs with local processes, and as tests of TF_CONFIG
@pytest.mark.processes
def test_after_on_two_tasks(network, place, alone):
    same(on_two_tasks(network, place(MIRRORED, "Several machines with TF_CONFIG", "after")), alone)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.processes
def test_before_on_two_tasks(network, place, alone):
    same(on_two_tasks(network, place(MIRRORED, "Several machines with TF_CONFIG", "before")), alone)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("title", ["Keras `fit`", "A loop of your own"], ids=["fit", "loop"])
def test_before(place, alone, title):
    same(values_of(place(MIRRORED, title, "before", TWO_DEVICES)), alone)


@pytest.mark.parametrize("title", [title for title, which in HOROVOD[1] if which == "before"])
def test_programs_for_horovod_are_python(title):
    tree = ast.parse(HOROVOD[1][title, "before"])
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "hvd"
    }
    assert {"init", "size", "rank"} <= used
    assert used & {"DistributedOptimizer", "DistributedGradientTape"}
