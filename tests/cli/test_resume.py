"""Going on from a checkpoint, and saving on the way, with a program that is quick to run."""

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from variants import mostly_in_soak

from caramel.cli.main import main
from caramel.runtime import variable_state
from caramel.runtime.held_directory import held_directory
from caramel.runtime.session import Session

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def build():
        w = tf.Variable(tf.zeros([3]), name="w")
        count = tf.Variable(0, trainable=False, dtype=tf.int64, name="iteration")

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            count.assign_add(1)
            return loss

        batch = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]], np.ones(5, np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 3]), tf.TensorSpec([None])], "data": [batch]}
"""

WITHOUT_COUNTER = PROGRAM.replace("            count.assign_add(1)\n", "").replace(
    "        count = tf", "        _ = tf"
)


@pytest.fixture
def train(write):
    """Function that trains some steps on 2 workers in a directory."""

    def train_it(steps, directory, *options, text=PROGRAM, workers=2):
        arguments = ["run", f"{write(text)}:build", "--workers", workers, "--checkpoint", directory, *options]
        arguments += ["--steps", steps] if steps is not None else []
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    return train_it


def weights(directory, step):
    return tf.train.load_checkpoint(str(directory / f"checkpoint-{step}")).get_tensor("w")


@pytest.mark.parametrize("text", [PROGRAM, WITHOUT_COUNTER], ids=["with a counter", "without a counter"])
def test_two_runs_are_one(train, tmp_path, text):
    train(5, tmp_path / "whole", text=text)
    first = train(3, tmp_path / "parts", text=text)
    assert "restored" not in first
    second = train(2, tmp_path / "parts", text=text)
    assert f"restored {tmp_path / 'parts' / 'checkpoint-3'} (step 3)" in second
    assert f"saved {tmp_path / 'parts' / 'checkpoint-5'}" in second
    np.testing.assert_array_equal(weights(tmp_path / "parts", 5), weights(tmp_path / "whole", 5))
    assert not np.array_equal(weights(tmp_path / "parts", 3), weights(tmp_path / "parts", 5))


def test_another_number_of_workers_goes_on(train, tmp_path):
    train(3, tmp_path / "saved", workers=2)
    assert "(step 3)" in train(2, tmp_path / "saved", workers=4)
    train(5, tmp_path / "whole", workers=1)
    np.testing.assert_allclose(weights(tmp_path / "saved", 5), weights(tmp_path / "whole", 5), rtol=1e-6)


def test_save_every(train, tmp_path):
    train(5, tmp_path / "saved", "--save-every", 2)
    saved = {path.stem for path in (tmp_path / "saved").glob("*.index")}
    assert saved == {"checkpoint-2", "checkpoint-4", "checkpoint-5"}
    assert not np.array_equal(weights(tmp_path / "saved", 2), weights(tmp_path / "saved", 4))


@pytest.mark.parametrize("steps, expected", [(4, [2, 4]), (3, [2, 3]), (0, [0])])
def test_what_is_saved_already_is_not_saved_again(train, tmp_path, monkeypatch, steps, expected):
    saved, save = [], Session.save

    def counted(session, path):
        saved.append(session.step_count)
        save(session, path)

    monkeypatch.setattr(Session, "save", counted)
    output = train(steps, tmp_path / "saved", "--save-every", 2)
    assert saved == expected
    assert f"saved {tmp_path / 'saved' / f'checkpoint-{steps}'}\n" in output


@pytest.mark.parametrize(
    "evaluation",
    [
        '{"function": lambda x: tf.reduce_sum(x), "inputs": [tf.TensorSpec([None, 3])], "data": (np.zeros([2, 4]),)}',
        '{"function": lambda x: tf.gather(w, x), "inputs": [tf.TensorSpec([], tf.int32)], "data": (7,)}',
    ],
    ids=["a batch that does not fit", "an op that fails"],
)
def test_an_evaluation_that_fails_loses_no_training(write, tmp_path, evaluation):
    text = PROGRAM.replace('"data": [batch]}', f'"data": [batch], "evaluation": {evaluation}}}')
    arguments = [f"{write(text)}:build", "--workers", "2", "--steps", "3", "--checkpoint", str(tmp_path / "saved")]
    result = CliRunner().invoke(main, ["run", *arguments])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.output
    assert tf.train.latest_checkpoint(str(tmp_path / "saved")) == str(tmp_path / "saved" / "checkpoint-3")


def test_a_relative_directory(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(2, "saved")
    assert "(step 2)" in train(1, "saved")
    assert tf.train.latest_checkpoint("saved") is not None


def test_one_pass_over_the_data_by_default(train, tmp_path):
    assert "\n1 step" in train(None, tmp_path / "saved")


def test_a_checkpoint_of_the_single_device_program(train, tmp_path):
    w = np.array([0.5, 0.25, 0.125], np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {
            "w": tf.compat.v1.Variable(w, name="w"),
            "iteration": tf.compat.v1.Variable(np.int64(40), name="iteration"),
        }
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(variables)
        saver.save(session, str(tmp_path / "model"), global_step=40, write_meta_graph=False)
    assert "model-40 (step 40)" in train(0, tmp_path)
    np.testing.assert_array_equal(weights(tmp_path, 40), w)


# -- batches of the driver -------------------------------------------------------------------


OF_BATCHES = PROGRAM.replace("def build():", "KIND\n\n    def build():").replace('"data": [batch]', '"data": DATA')
BATCHES = "[(np.full([4, 3], n, np.float32), np.full(4, 2 + n % 3, np.float32)) for n in range(5)]"
KINDS = {
    "a list": (f"DATA = {BATCHES}", "DATA"),
    "a function": (f"def make():\n        yield from {BATCHES}", "make"),
    "a dataset that stays here": (
        "def load(n):\n        return np.full([4, 3], n, np.float32), np.full(4, 2 + n % 3, np.float32)\n",
        "tf.data.Dataset.range(5).map(lambda n: tf.numpy_function(load, [n], [tf.float32, tf.float32]))",
    ),
    "an endless iterator": (
        f"import itertools\n\n    ENDLESS = itertools.cycle({BATCHES})",
        "ENDLESS",
    ),
}


def one_device(steps):
    """The weights after some steps on the batches, pass after pass."""
    w = np.zeros(3)
    for step in range(steps):
        n = step % 5
        x, y = np.full([4, 3], n), np.full(4, 2 + n % 3)
        w -= 0.1 / 20 * 2 * x.T @ (x @ w - y) / 4
    return w


@pytest.mark.parametrize("kind", mostly_in_soak(KINDS, "a dataset that stays here", "an endless iterator"))
def test_the_data_goes_on_where_it_was(train, tmp_path, kind):
    """In the first pass, and in a later one; every batch is another one."""
    define, data = KINDS[kind]
    text = OF_BATCHES.replace("KIND", define).replace("DATA}", f"{data}}}").replace("0.1 *", "0.1 / 20 *")
    saved = tmp_path / "saved"
    assert "goes on" not in train(3, saved, text=text)
    assert "the data goes on after the 3 batches of the steps so far" in train(4, saved, text=text)
    np.testing.assert_allclose(weights(saved, 7), one_device(7), rtol=1e-5)
    train(6, saved, text=text)
    np.testing.assert_allclose(weights(saved, 13), one_device(13), rtol=1e-5)
    if "endless" not in kind:
        assert "\n2 steps" in train(None, saved, text=text)  # what is left of the third pass
        assert "\n5 steps" in train(None, saved, text=text)
        np.testing.assert_allclose(weights(saved, 20), one_device(20), rtol=1e-5)


def test_data_that_ends_before_it_was_left(train, write, tmp_path):
    text = OF_BATCHES.replace("KIND", f"ONCE = iter({BATCHES})").replace("DATA}", "ONCE}")
    train(4, tmp_path / "saved", text=text)
    shorter = text.replace("range(5)", "range(2)")
    arguments = ["run", f"{write(shorter)}:build", "--workers", "2", "--checkpoint", str(tmp_path / "saved")]
    for options in (["--steps", "3"], []):
        result = CliRunner().invoke(main, [*arguments, *options])
        assert result.exit_code == 1, result.output
        assert "gives no batch a second time" in result.stderr and "after 4 earlier ones" in result.stderr


# -- a directory that is no good -------------------------------------------------------------


@pytest.fixture
def refuses(write):
    """Function that sees a run fail before anything is trained."""

    def run(directory, *words):
        arguments = ["run", f"{write(PROGRAM)}:build", "--workers", "2", "--checkpoint", str(directory)]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, result.output
        assert "steps in" not in result.output
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert [word for word in words if word not in line] == []

    return run


def test_a_directory_that_cannot_be_written(refuses, tmp_path):
    (tmp_path / "file").write_text("precious")
    refuses(tmp_path / "file" / "saved", str(tmp_path / "file" / "saved"))


def test_an_address(refuses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses("gs://bucket/run", "gs://bucket/run", "address")
    assert not (tmp_path / "gs:").exists()


def test_a_directory_of_a_run_that_goes_on(refuses, tmp_path):
    with held_directory(tmp_path / "saved"):
        refuses(tmp_path / "saved", "another run", str(tmp_path / "saved"))


def test_a_worker_0_that_sees_another_directory_of_that_name(refuses, tmp_path, monkeypatch):
    (tmp_path / "another").mkdir()
    real = variable_state.checkpoint.fed_path
    monkeypatch.setattr(
        variable_state.checkpoint,
        "fed_path",
        lambda path: real(tmp_path / "another" / "file" if "saved" in str(path) else path),
    )
    refuses(tmp_path / "saved", "worker 0", str(tmp_path / "saved"), "one path")
    assert not (tmp_path / "saved").exists()


def test_a_list_that_is_gone_is_said(train, write, tmp_path):
    train(3, tmp_path / "saved")
    (tmp_path / "saved" / "checkpoint").unlink()
    arguments = ["run", f"{write(PROGRAM)}:build", "--workers", "2", "--checkpoint", str(tmp_path / "saved")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "is missing" in result.stderr
    assert "(step 3)" in result.stdout


def test_a_damaged_checkpoint_says_how_to_go_on(train, refuses, tmp_path):
    train(3, tmp_path / "saved")
    train(1, tmp_path / "saved")
    (tmp_path / "saved" / "checkpoint-4.index").write_bytes(b"")
    refuses(tmp_path / "saved", "checkpoint-4", f"'{tmp_path / 'saved' / 'checkpoint-3'}', is whole")
