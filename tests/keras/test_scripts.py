"""Plain Keras scripts whose models train on workers, compared with the same scripts on one device."""

import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.frontend.script_file import run_script
from caramel.keras.scripts import ScriptRun, program_of_script

SCRIPTS = sorted((Path(__file__).parent / "scripts_of_users").glob("*.py"))


def on_workers(file, *arguments, workers=2, **options):
    ScriptRun(workers, caramel.InProcess(), 600.0, options).run(str(file), list(map(str, arguments)))


def results(run, file, *arguments):
    """The arrays that a script writes."""
    try:
        run(file, *arguments)
    except SystemExit as error:
        assert not error.code
    with np.load(f"{arguments[0]}.npz") as arrays:
        return [arrays[name] for name in arrays.files]


@pytest.fixture(autouse=True)
def search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
def test_a_script_gives_what_it_gives_on_one_device(file, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("caramel.keras.scripts.fit", lambda *a, **k: calls.append(k["workers"]) or caramel.fit(*a, **k))
    expected = results(lambda *a: run_script(a[0], list(map(str, a[1:]))), file, tmp_path / "one_device")
    got = results(on_workers, file, tmp_path / "workers")
    assert calls and set(calls) == {2}
    assert len(got) == len(expected) > 1
    for number, (mine, theirs) in enumerate(zip(got, expected)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg=f"result {number}")


LOOKS = """
import sys, keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
train = tf.data.Dataset.from_tensor_slices((x, x.sum(1) + 3)).shuffle(60, seed=5{again}).batch(6)
scaled = keras.layers.Normalization()
scaled.adapt(train.map(lambda x, y: x))
for images, labels in train.take(1):
    print(images.shape)
model = keras.Sequential([keras.Input([3]), scaled, keras.layers.Dense(1)])
model.compile("sgd", "mse")
first = model.fit(train, epochs=2, verbose=0)
next(iter(train))
second = model.fit(train, epochs=2, verbose=0)
np.savez(sys.argv[1] + ".npz", first.history["loss"], second.history["loss"], *model.get_weights())
"""


def test_data_that_was_looked_at_before(write, tmp_path):
    """Its shuffles have drawn orders, which the workers' shuffles do not give to the training."""
    script = write(LOOKS.replace("{again}", ""), "looks.py")
    expected = results(lambda *a: run_script(a[0], list(map(str, a[1:]))), script, tmp_path / "one_device")
    got = results(on_workers, script, tmp_path / "workers")
    for mine, theirs in zip(got, expected):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_data_that_cannot_be_found_back_to_is_said(write, tmp_path):
    script = write(LOOKS.replace("{again}", ").repeat(2"), "looks.py")
    with pytest.warns(UserWarning, match="the dataset was read before the training, and its shuffles draw more than"):
        results(on_workers, script, tmp_path / "workers")


def test_arguments_reach_the_script(write, tmp_path):
    before = list(sys.argv)
    script = write(
        """
        import sys, keras, numpy as np
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)
        open(sys.argv[1], "w").write(" ".join([__name__, *sys.argv]))
        """
    )
    on_workers(script, tmp_path / "said", "--x", "a b")
    assert (tmp_path / "said").read_text() == f"__main__ {script} {tmp_path / 'said'} --x a b"
    assert sys.argv == before


MODEL = """
import keras, numpy as np, tensorflow as tf, os
keras.utils.set_random_seed(1); x, y = np.ones([8, 1]), np.ones([8, 1])
def made(kind=keras.Sequential, **options):
    model = kind([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model
"""

REFUSED = {
    "overridden fit": (
        "class Mine(keras.Sequential):\n    def fit(self, *args):\n        return self.train_on_batch(*args)\n"
        "made(Mine).fit(x, y)",
        ["Mine.fit", "train_step"],
    ),
    "overridden fit that calls it": (
        "class Mine(keras.Sequential):\n    def fit(self, *args):\n        return super().fit(*args)\nmade(Mine).fit(x, y)",
        ["Mine.fit"],
    ),
    "train_on_batch": ("made().train_on_batch(x, y)", ["train_on_batch", "sequential"]),
    "eager": ("made(run_eagerly=True).fit(x, y)", ["run_eagerly", "sequential"]),
    "scope": ("with tf.distribute.MirroredStrategy(['CPU:0']).scope():\n    made()", ["MirroredStrategy", "scope"]),
    "fit in a scope": (
        "with tf.distribute.OneDeviceStrategy('CPU:0').scope():\n    made().fit(x, y)",
        ["OneDeviceStrategy"],
    ),
    "nothing is trained": ("made()", ["no Keras model was trained", r"def program\(\):"]),
    "a loop of its own": (
        "with tf.GradientTape() as tape:\n    raise AssertionError('it runs')",
        ["would train in this process, by itself", "tf.TensorSpec"],
    ),
    "no Python": ("def", ["cannot be read", "invalid syntax"]),
    "an error of its own": ("made().fit(x, y[:3])", ["InputError|ValueError|y has", "3"]),
    "an unknown argument": ("made().fit(x, y, workers=3)", ["TypeError", r"fit\(\)", "workers", r"\.py:8"]),
    "it raises": ("{}['key']", ["KeyError", r"\.py:8", "key"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_first_step(name, write, monkeypatch):
    text, said = REFUSED[name]
    monkeypatch.setattr(caramel.Session, "step", lambda *args: pytest.fail("a step was made"))
    with pytest.raises(caramel.CaramelError) as caught:
        on_workers(write(MODEL + text))
    for each in said:
        assert re.search(each, str(caught.value)), str(caught.value)


def test_methods_are_keras_own_afterwards(write):
    names = ("fit", "evaluate", "predict", "train_on_batch", "__init_subclass__")
    before = [getattr(keras.Model, name) for name in names], tf.distribute.Strategy.scope
    script = write(
        MODEL
        + "class Mine(keras.Sequential):\n    def fit(self, *args):\n        return 'mine'\n"
        + "keep = Mine\nkeras.Kept = Mine\nmade().fit(x, y, verbose=0)\n"
    )
    try:
        on_workers(script)
        assert keras.Kept([keras.Input([1])]).fit() == "mine"
    finally:
        del keras.Kept
    after = [getattr(keras.Model, name) for name in names], tf.distribute.Strategy.scope
    assert before[0][:-1] == after[0][:-1] and before[1] is after[1]
    assert "fit" not in vars(keras.Model)


def test_in_a_forked_process_methods_are_keras_own(write):
    """Only the driver distributes: a process of a data loader, for one, does what it always did."""
    script = write(
        MODEL
        + "model = made()\nmodel.fit(x, y, verbose=0)\n"
        + "child = os.fork()\n"
        + "if child == 0:\n    try:\n        model.fit(x, y, epochs='two')\n"
        + "    except Exception as error:\n        os._exit(7 if type(error).__module__.startswith('caramel') else 8)\n"
        + "    os._exit(9)\n"
        + "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8\n"
    )
    on_workers(script)


def test_an_evaluation_that_workers_cannot_do_is_done_here(write, tmp_path):
    script = write(
        MODEL
        + "class Mine(keras.Sequential):\n    def test_step(self, data):\n        x, y = data\n"
        + "        return {'odd': tf.py_function(lambda value: value, [tf.reduce_mean(self(x))], tf.float32)}\n"
        + "model = made(Mine)\nvalue = model.evaluate(x, y, verbose=0)\n"
        + f"np.save({str(tmp_path / 'got')!r}, np.asarray(list(value.values()) if isinstance(value, dict) else value))\n"
    )
    with pytest.warns(UserWarning, match="evaluate runs in this process"):
        on_workers(script)
    expected = tmp_path / "got.npy"
    got = np.load(expected)
    run_script(str(script))
    np.testing.assert_allclose(got, np.load(expected))


STEPS_FOR_HERE = {
    "evaluate": """
    count = keras.metrics.Sum()
    def test_step(self, data):
        counted = tf.py_function(lambda each: each, [tf.reduce_sum(tf.ones_like(data[0]))], tf.float64)
        self.count.update_state(tf.ensure_shape(counted, []))
        return {"examples": self.count.result()}
""",
    "predict": """
    def predict_step(self, data):
        return tf.ensure_shape(tf.py_function(lambda each: each, [self(data[0])], tf.float32), [None, 1])
""",
}


@pytest.mark.parametrize("method", STEPS_FOR_HERE)
def test_what_is_done_here_instead_has_all_batches_of_a_generator(method, write, tmp_path):
    """Those, too, that were read to see what they are like."""
    script = write(
        f"{MODEL}class Mine(keras.Sequential):{STEPS_FOR_HERE[method]}\n"
        f"value = made(Mine).{method}(((x[n : n + 2], y[n : n + 2]) for n in range(0, 8, 2)), verbose=0)\n"
        f"np.save({str(tmp_path / 'got')!r}, value)\n"
    )
    with pytest.warns(UserWarning, match=f"{method} runs in this process"):
        on_workers(script)
    got = np.load(tmp_path / "got.npy")
    assert np.sum(got) == 8 if method == "evaluate" else len(got) == 8


def test_the_first_fit_is_what_is_planned(write):
    """The script ends there, whatever it would catch; the model is captured for so many workers."""
    script = write(
        MODEL + "model = made()\nmodel.evaluate(x, y, verbose=0)\n"
        "try:\n    model.fit(x, y)\nexcept Exception:\n    pass\nraise SystemError('not here')\n"
    )
    program = program_of_script(str(script), [], 2, {})
    assert program.on_workers and [g.size_bytes for g in program.context.model_for(2).gradients] == [4, 4]
    with pytest.raises(caramel.ProgramError, match="without a call of fit"):
        program_of_script(str(write(MODEL, "other.py")), [], 2, {})


def test_a_plan_of_a_script_serves_its_run(write, tmp_path):
    script = write(MODEL + "model = made()\nhistory = model.fit(x, y, verbose=0)\nkeras.seen = history.plan.digest\n")
    program = program_of_script(str(script), [], 2, {})
    plan = caramel.ARModel(program.context, 2, algorithm="star").plan
    plan.save(tmp_path / "plan.json")
    try:
        on_workers(script, plan=str(tmp_path / "plan.json"))
        assert keras.seen == plan.digest
    finally:
        del keras.seen


def test_a_script_that_is_not_there():
    with pytest.raises(caramel.ProgramError, match=r"no script 'nowhere\.py'"):
        on_workers("nowhere.py")


def test_a_script_that_ends_by_exit_without_training(write):
    script = write("import sys\nsys.exit(0)\n")
    with pytest.raises(caramel.ProgramError, match="no Keras model was trained"):
        on_workers(script)
    with pytest.raises(caramel.ProgramError, match="without a call of fit"):
        program_of_script(str(script), [], 2, {})
    for run in (on_workers, lambda file, *arguments: program_of_script(str(file), arguments, 2, {})):
        with pytest.raises(SystemExit):
            run(script, "--help")
        with pytest.raises(SystemExit, match="3"):
            run(write("import sys\nsys.exit(3)\n", "other.py"))


def test_what_follows_the_planned_fit_does_not_matter(write):
    """Neither what a script does at the end in any case, nor a second try."""
    script = write(
        MODEL + "for number in range(2):\n    try:\n        history = made().fit(x, y)\n    except:\n        pass\n"
        "try:\n    made().fit(x, y)\nfinally:\n    print(history.history)\n"
    )
    assert len(program_of_script(str(script), [], 2, {}).context.model_for(2).gradients) == 2


def test_why_a_fit_cannot_be_planned_is_said_although_the_script_goes_on(write):
    script = write(MODEL + "try:\n    made().fit(x, y[:3])\nexcept Exception:\n    raise SystemExit(0)\n")
    with pytest.raises(caramel.InputError, match="3"):
        program_of_script(str(script), [], 2, {})


def test_classes_that_register_their_subclasses(write):
    """What a class makes of its subclasses is done for models, too, with the options of the class."""
    script = write(
        MODEL + "class Known:\n    names = []\n    def __init_subclass__(cls, label=None, **options):\n"
        "        super().__init_subclass__(**options)\n        Known.names.append(label)\n"
        "class Mine(keras.Sequential, Known, label='mine'):\n    pass\n"
        "made(Mine).fit(x, y, verbose=0)\nassert Known.names == ['mine'], Known.names\n"
    )
    on_workers(script)


def test_paths_of_a_script(write, tmp_path, monkeypatch):
    """It finds files beside it after a change of directory, and its own name as it was given."""
    monkeypatch.chdir(tmp_path)
    write("here", "data.txt")
    (tmp_path / "elsewhere").mkdir()
    script = write(
        """
        import os, sys
        os.chdir("elsewhere")
        assert open(os.path.join(os.path.dirname(__file__), "data.txt")).read() == "here"
        assert sys.argv == ["my_program.py"] and sys.modules["__main__"].__file__ == __file__
        """
    )
    before = sys.modules["__main__"]
    run_script(script.name)
    assert sys.modules["__main__"] is before


def test_devices_are_those_of_all_methods(write, monkeypatch):
    devices = [f"/job:worker/task:0/device:CPU:{number}" for number in range(2)]
    got = []
    for name in ("evaluate", "predict"):
        method = getattr(caramel, name)
        monkeypatch.setattr(
            f"caramel.keras.scripts.{name}", lambda *a, of=method, **k: got.append(k.get("device_list")) or of(*a, **k)
        )
    on_workers(
        write(MODEL + "m = made()\nm.fit(x, y, verbose=0)\nm.evaluate(x, y, verbose=0)\nm.predict(x, verbose=0)\n"),
        device_list=devices,
    )
    assert got == [devices, devices]


@pytest.mark.parametrize(
    "before", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\nname = '\xe9'\n"], ids=["mark", "latin"]
)
def test_encodings_of_python(before, tmp_path):
    script = tmp_path / "train.py"
    script.write_bytes(before + MODEL.encode() + b"made().fit(x, y, verbose=0)\n")
    on_workers(script)


def test_a_model_that_runs_eagerly_is_evaluated_here(write):
    script = write(MODEL + "m = made(run_eagerly=True)\nm.evaluate(x, y, verbose=0)\nm.predict(x, verbose=0)\n")
    with pytest.warns(UserWarning, match="runs in this process: .*eagerly"):
        on_workers(script)


def test_a_plan_for_another_model_says_what_scripts_of_several_models_take(write, tmp_path):
    script = write(MODEL + "made().fit(x, y, verbose=0)\nwide = np.ones([8, 2])\n"
                   "model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
                   "model.fit(wide, y, verbose=0)\n")  # fmt: skip
    program = program_of_script(str(script), [], 2, {})
    caramel.ARModel(program.context, 2).plan.save(tmp_path / "plan.json")
    with pytest.raises(caramel.PlanError, match="another program.*takes --network FILE.json in place of --plan"):
        on_workers(script, plan=str(tmp_path / "plan.json"))
