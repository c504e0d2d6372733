"""Programs whose data is a tf.data.Dataset, as the command runs, resumes and exports them."""

import re

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from variants import in_soak

import caramel
from caramel.cli.main import main
from caramel.frontend.program_file import load_program

STEP = """
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 300)).astype(np.float32), rng.normal(size=40).astype(np.float32)

    def data():
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3).batch(9)

    def build():
        w = tf.Variable(tf.zeros([300]), name="w")

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.001 * tape.gradient(loss, w))
            return loss

        return {"step": step, "data": data()}
"""

ITERATOR = """
    import numpy as np
    import tensorflow as tf
    v1 = tf.compat.v1

    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 300)).astype(np.float32), rng.normal(size=40).astype(np.float32)

    def build():
        dataset = v1.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3).batch(9)
        iterator = v1.data.make_initializable_iterator(dataset)
        x, y = iterator.get_next()
        iterator.initializer
        w = v1.get_variable("w", [300], initializer=tf.zeros_initializer())
        error = tf.linalg.matvec(x, w) - y
        v1.train.GradientDescentOptimizer(0.001).minimize(tf.reduce_mean(error ** 2))
        return {"evaluation": {"outputs": {"worst": tf.reduce_max(tf.abs(error))}, "data": {"IteratorGetNext:0": X, y: Y}}}
"""

PLACEHOLDERS = """
    import numpy as np
    import tensorflow as tf
    v1 = tf.compat.v1

    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 300)).astype(np.float32), rng.normal(size=40).astype(np.float32)

    def build():
        dataset = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).shuffle(40, seed=3).batch(9)
        with tf.Graph().as_default():
            x, y = v1.placeholder(tf.float32, [None, 300], "x"), v1.placeholder(tf.float32, [None], "y")
            w = v1.get_variable("w", [300], initializer=tf.zeros_initializer())
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            v1.train.GradientDescentOptimizer(0.001).minimize(loss)
        return {"data": dataset}
"""

FROM_PYTHON = STEP.replace(
    "tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3)",
    "tf.data.Dataset.from_generator(lambda: zip(X, Y), output_signature=(tf.TensorSpec([300]), tf.TensorSpec([])))",
).replace('"step": step,', '"step": step, "inputs": [tf.TensorSpec([None, 300]), tf.TensorSpec([None])],')

NOISE = STEP.replace(".shuffle(40, seed=3)", ".map(lambda x, y: (x + tf.random.normal([300], seed=5), y))")
NOISE = NOISE.replace(".batch(9)", ".batch(2)")  # a pass is longer than what is read ahead

PROGRAMS = {"step": STEP, "iterator": ITERATOR, "placeholders": PLACEHOLDERS, "noise": NOISE}


@pytest.fixture
def train(write):
    """Function that trains on some workers, as the command does."""

    def train_it(text, *options, workers=2, succeeds=True):
        result = CliRunner().invoke(
            main, ["run", f"{write(text)}:build", "--workers", str(workers), *map(str, options)]
        )
        assert (result.exit_code == 0) is succeeds, result.output
        return result.output

    return train_it


def weights(directory, step):
    return tf.train.load_checkpoint(str(directory / f"checkpoint-{step}")).get_tensor("w")


def one_device(steps):
    """The weights after some steps of the single-device program, pass after pass."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 300)).astype(np.float32), rng.normal(size=40).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40, seed=3).batch(9)
    w = np.zeros(300)
    batches = [(a.numpy(), b.numpy()) for _ in range(3) for a, b in dataset]
    for a, b in batches[:steps]:
        w -= 0.001 * 2 * a.T @ (a @ w - b) / len(b)
    return w


@pytest.mark.parametrize("name", ["step", *in_soak("placeholders")])
def test_two_runs_are_one(train, tmp_path, name):
    """The second goes on at the right batch, in the second pass."""
    text = PROGRAMS[name]
    saved = tmp_path / "saved"
    assert "goes through" not in train(text, "--steps", 3, "--checkpoint", saved)
    assert "(step 3)" in train(text, "--steps", 4, "--checkpoint", saved, workers=3)
    np.testing.assert_allclose(weights(saved, 7), one_device(7), rtol=1e-4, atol=1e-7)
    assert not np.allclose(weights(saved, 7), weights(saved, 3), rtol=1e-2)


def test_a_program_with_an_iterator(train, tmp_path):
    """Its initializer shuffles alike each time, so the second pass is as the first; evaluation feeds its outputs."""
    saved = tmp_path / "saved"
    output = train(ITERATOR, "--checkpoint", saved)
    assert "5 steps in" in output
    assert re.search(r"evaluation worst: \d", output)
    np.testing.assert_allclose(weights(saved, 5), one_device(5), rtol=1e-4, atol=1e-7)


def test_one_pass_by_default_and_the_rest_of_it_after_an_interruption(train, tmp_path):
    assert "5 steps in" in train(STEP, "--checkpoint", tmp_path / "whole")
    train(STEP, "--checkpoint", tmp_path / "parts", "--steps", 2)
    assert "3 steps in" in train(STEP, "--checkpoint", tmp_path / "parts")
    np.testing.assert_array_equal(weights(tmp_path / "parts", 5), weights(tmp_path / "whole", 5))
    assert "5 steps in" in train(STEP, "--checkpoint", tmp_path / "parts")


@pytest.mark.soak  # as test_resume.test_save_every
def test_save_every(train, tmp_path):
    train(STEP, "--checkpoint", tmp_path / "saved", "--steps", 7, "--save-every", 2)
    (tmp_path / "saved" / "checkpoint").write_text('model_checkpoint_path: "checkpoint-4"\n')
    train(STEP, "--checkpoint", tmp_path / "saved", "--steps", 3)
    np.testing.assert_allclose(weights(tmp_path / "saved", 7), one_device(7), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("program", ["STEP", *in_soak("FROM_PYTHON")])
def test_several_steps_in_a_run(train, tmp_path, program):
    """A checkpoint that is due within a run is saved after it; what is left over of a pass is run, too."""
    text = globals()[program]
    options = ["--checkpoint", tmp_path / "saved", "--steps", 12, "--save-every", 2, "--steps-per-execution", 3]
    assert "12 steps in" in train(text, *options)
    saved = {int(path.stem.partition("-")[2]) for path in (tmp_path / "saved").glob("*.index")}
    ends = {"STEP": {3, 5, 8, 10, 12}, "FROM_PYTHON": {3, 6, 9, 12}}[program]
    assert saved == ends
    train(text, "--checkpoint", tmp_path / "single", "--steps", 12)
    np.testing.assert_allclose(weights(tmp_path / "saved", 12), weights(tmp_path / "single", 12), rtol=1e-5)


def test_a_pass_after_one_that_was_saved_at_its_last_step(train, tmp_path):
    """The position in that checkpoint is the end of the pass, which the next run begins anew."""
    assert "5 steps in" in train(STEP, "--checkpoint", tmp_path / "saved", "--save-every", 5)
    assert "5 steps in" in train(STEP, "--checkpoint", tmp_path / "saved")
    np.testing.assert_allclose(weights(tmp_path / "saved", 10), one_device(10), rtol=1e-4, atol=1e-7)


def test_no_end(train):
    text = STEP.replace(".batch(9)", ".repeat().batch(9)")
    assert "--steps" in train(text, succeeds=False)
    assert "6 steps in" in train(text, "--steps", 6)


def test_data_from_python_goes_through_the_driver(train, write):
    output = train(FROM_PYTHON)
    assert "5 steps in" in output
    assert "the data goes through this process: op" in output
    assert "runs Python" in output
    assert not load_program(f"{write(FROM_PYTHON, 'again.py')}:build").on_workers


def test_where_the_data_is_read(write):
    for name, text in PROGRAMS.items():
        program = load_program(f"{write(text, f'{name}_program.py')}:build")
        assert program.on_workers
        model = caramel.ARModel(program.context, 2)
        assert model.signature.feeds == ()
        assert model.plan.sharding == "slice"


# -- exports ---------------------------------------------------------------------------------


WITHOUT_CARAMEL = """
import runpy, sys
sys.modules["caramel"] = None
runner, saved = sys.argv[1:]
for options in (["--steps", "9", "--save", saved], ["--steps", "7", "--restore", saved]):
    sys.argv = [runner, "train", *options]
    runpy.run_path(runner, run_name="__main__")
"""
"""Two runs, in one process that loads TensorFlow once."""


def losses(text):
    return [float(value) for value in re.findall(r"loss ([\d.e+-]+)", text)]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("name", ["iterator", *in_soak("step", "noise")])
def test_an_export_runs_the_pipelines(write, python, tmp_path, name):
    program = load_program(f"{write(PROGRAMS[name])}:build")
    armodel = caramel.ARModel(program.context, 3)
    armodel.export(tmp_path / "out")
    with armodel.session() as session:
        expected = [result.loss for result in session.run(steps=16)]
    runner, saved = tmp_path / "out" / "run.py", tmp_path / "saved"
    done = python("-c", WITHOUT_CARAMEL, runner, saved, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(expected, rel=1e-5)  # then the rest of a pass, and the next
    with armodel.session() as session:
        session.restore(saved)  # what the runner saved
        assert [r.loss for r in session.run(steps=7)] == pytest.approx(expected[9:], rel=1e-5)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "from datasets" in readme
    assert "--data" not in readme
