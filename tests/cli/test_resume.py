"""Going on from a checkpoint, and saving on the way, with a program that is quick to run."""

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

from caramel.cli.main import main
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
