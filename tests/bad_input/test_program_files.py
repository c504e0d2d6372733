"""Program files that cannot be loaded, raise, exit, or break the contract of their entry."""

import pytest
import tensorflow as tf

import caramel
from caramel.frontend.program_file import load_program

STEP = """
    import tensorflow as tf

    def build():
        w = tf.Variable(tf.zeros([3]), name="w")

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([None])]
        return {"step": step, "inputs": specs}
"""

GRAPH = """
    import tensorflow.compat.v1 as tf

    def build():
        x = tf.placeholder(tf.float32, [None, 3], "x")
        w = tf.get_variable("w", [3])
        loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"loss": loss, "train_op": train}
"""


def line_of(path, text):
    """``file:line`` of the line with this text."""
    number = next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if text in line)
    return f"{path}:{number}"


# -- the file --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [STEP, GRAPH], ids=["step", "graph"])
def test_a_good_file(write, text):
    loaded = load_program(f"{write(text)}:build")
    assert caramel.ARModel(loaded.context, 2).plan.reduction == "mean"


@pytest.mark.parametrize("spec", ["program.py", "program.py:", ":build", "", "program.py build"])
def test_something_else_than_file_and_entry(refused, spec):
    with refused(caramel.ProgramError, repr(spec), "FILE.py:ENTRY", "train.py:build"):
        load_program(spec)


def test_no_such_file(refused, tmp_path):
    with refused(caramel.ProgramError, "no program file", str(tmp_path / "nothing.py")):
        load_program(f"{tmp_path / 'nothing.py'}:build")


def test_a_directory(refused, tmp_path):
    with refused(caramel.ProgramError, "no program file", str(tmp_path)):
        load_program(f"{tmp_path}:build")


def test_a_file_of_another_kind(write, refused):
    path = write("key: value", "settings.yaml")
    with refused(caramel.ProgramError, str(path), "Python"):
        load_program(f"{path}:build")


def test_a_syntax_error(write, refused):
    path = write("x = 1\ndef build(:\n    pass\n")
    with refused(caramel.ProgramError, str(path), "SyntaxError", "line 2"):
        load_program(f"{path}:build")


def test_a_file_with_a_missing_import(write, refused):
    path = write("import surely_not_there\n\ndef build():\n    pass\n")
    with refused(caramel.ProgramError, f"{path}:1", "ModuleNotFoundError", "surely_not_there"):
        load_program(f"{path}:build")


def test_a_file_that_raises(write, refused):
    path = write("x = 1\nraise ValueError('no data today')\n")
    with refused(caramel.ProgramError, f"{path}:2", "ValueError", "no data today"):
        load_program(f"{path}:build")


def test_a_file_that_raises_in_a_function_of_its_own(write, refused):
    path = write("def read():\n    return {}['missing']\n\nread()\n")
    with refused(caramel.ProgramError, f"{path}:2", "KeyError", "missing"):
        load_program(f"{path}:build")


@pytest.mark.parametrize("exit", ["sys.exit()", "sys.exit(3)", "raise SystemExit('bye')"])
def test_a_file_that_exits(write, refused, exit):
    path = write(f"import sys\n\ndef build():\n    pass\n\n{exit}\n")
    with refused(caramel.ProgramError, str(path), "exits", "__main__"):
        load_program(f"{path}:build")


# -- the entry -------------------------------------------------------------------------------


def test_no_such_entry(write, refused):
    path = write(STEP + "\n    def other():\n        pass\n")
    with refused(caramel.ProgramError, str(path), "no function 'missing'", "build, other"):
        load_program(f"{path}:missing")


def test_an_entry_that_is_no_function(write, refused):
    path = write("build = 3\n")
    with refused(caramel.ProgramError, str(path), "no function 'build'", "no function of its own"):
        load_program(f"{path}:build")


def test_an_entry_that_wants_arguments(write, refused):
    path = write("def build(batch):\n    pass\n")
    with refused(caramel.ProgramError, f"{path}:build", "TypeError", "batch"):
        load_program(f"{path}:build")


@pytest.mark.parametrize("error", ["ValueError('no data today')", "RuntimeError('no data today')"])
def test_an_entry_that_raises(write, refused, error):
    path = write(f"def build():\n    raise {error}\n")
    with refused(caramel.ProgramError, f"{path}:build", f"{path}:2", error.partition("(")[0], "no data today"):
        load_program(f"{path}:build")


def test_an_entry_that_raises_inside_a_library(write, refused):
    path = write("import numpy as np\n\ndef build():\n    return np.linalg.inv(np.zeros([2, 2]))\n")
    with refused(caramel.ProgramError, f"{path}:4", "LinAlgError", "Singular"):
        load_program(f"{path}:build")


@pytest.mark.parametrize("exit", ["sys.exit()", "sys.exit(3)"])
def test_an_entry_that_exits(write, refused, exit):
    path = write(f"import sys\n\ndef build():\n    {exit}\n")
    with refused(caramel.ProgramError, f"{path}:build", "exits"):
        load_program(f"{path}:build")


def test_a_graph_entry_that_raises(write, refused):
    path = write(GRAPH.replace("x = tf.placeholder", "raise ValueError('x')\n        x = tf.placeholder"))
    with refused(caramel.ProgramError, line_of(path, "raise"), "ValueError"):
        load_program(f"{path}:build")


def test_a_graph_entry_that_raises_after_its_placeholders(write, refused):
    path = write(GRAPH.replace("return {", "raise ValueError('late')\n        return {"))
    with refused(caramel.ProgramError, line_of(path, "raise"), "ValueError", "late"):
        load_program(f"{path}:build")


def test_an_entry_that_runs_a_session(write, refused):
    path = write(GRAPH.replace("return {", "tf.Session().run(train)\n        return {"))
    with refused(caramel.CaptureError, line_of(path, "Session().run"), "Session", "__main__"):
        load_program(f"{path}:build")


def test_an_entry_that_builds_nothing(write, refused):
    path = write("def build():\n    pass\n")
    with refused(caramel.CaptureError, "no training program", "optimizer", "step"):
        _ = load_program(f"{path}:build").context.model


# -- what the entry returns ------------------------------------------------------------------


@pytest.mark.parametrize("returned", ["(lambda x: x, [])", "[1, 2]", "'model'"])
def test_an_entry_that_returns_something_else(write, refused, returned):
    path = write(f"def build():\n    return {returned}\n")
    with refused(caramel.ProgramError, f"{path}:build", "'step'", "program-files.md"):
        load_program(f"{path}:build")


def test_an_entry_that_returns_a_keras_model(write, refused):
    path = write(
        """
        import keras

        def build():
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
            model.compile("adam", "mse")
            return model
        """
    )
    with refused(caramel.ProgramError, "returns Sequential", "caramel.fit"):
        load_program(f"{path}:build")


@pytest.mark.parametrize("text", [STEP, GRAPH], ids=["step", "graph"])
def test_an_unknown_key(write, refused, text):
    path = write(text.replace("return {", 'return {"epochs": 3, '))
    with refused(caramel.ProgramError, f"{path}:build", "'epochs'", "evaluation", "inputs", "train_op"):
        load_program(f"{path}:build")


@pytest.mark.parametrize("text", [STEP, GRAPH], ids=["step", "graph"])
def test_an_unknown_key_of_the_evaluation(write, refused, text):
    path = write(text.replace("return {", 'return {"evaluation": {"metric": 3}, '))
    with refused(caramel.ProgramError, f"{path}:build", "'evaluation'", "'metric'", "data, function, inputs, outputs"):
        load_program(f"{path}:build")


def test_an_evaluation_that_is_no_dict(write, refused):
    path = write(STEP.replace("return {", 'return {"evaluation": step, '))
    with refused(caramel.ProgramError, f"{path}:build", "'evaluation'", "dict"):
        load_program(f"{path}:build")


@pytest.mark.parametrize("text, part", [(STEP, "outputs"), (GRAPH, "function")], ids=["step", "graph"])
def test_an_evaluation_of_the_other_kind(write, refused, text, part):
    path = write(text.replace("return {", f'return {{"evaluation": {{"{part}": tf.zeros([])}}, '))
    with refused(caramel.ProgramError, f"{path}:build", "'evaluation'", "'outputs'", "'function'"):
        load_program(f"{path}:build")


def test_inputs_without_a_step(write, refused):
    path = write(GRAPH.replace("return {", 'return {"inputs": [], '))
    with refused(caramel.ProgramError, f"{path}:build", "'inputs'", "'step'"):
        load_program(f"{path}:build")


def test_a_step_without_inputs(write, refused):
    path = write(STEP.replace(', "inputs": specs', ""))
    with refused(caramel.CaptureError, "inputs", "tf.TensorSpec"):
        _ = load_program(f"{path}:build").context.model


def test_a_step_with_a_train_op(write, refused):
    path = write(STEP.replace("return {", 'return {"train_op": step, '))
    with refused(caramel.ProgramError, f"{path}:build", "'train_op'", "'step'"):
        load_program(f"{path}:build")


@pytest.mark.parametrize("text, kind", [(STEP, caramel.ProgramError), (GRAPH, caramel.CaptureError)])
def test_a_bad_loss_reduction(write, refused, text, kind):
    path = write(text.replace("return {", 'return {"loss_reduction": "average", '))
    with refused(kind, "loss_reduction", "'mean'", "'sum'", "'average'"):
        _ = load_program(f"{path}:build").context.model


# -- its data --------------------------------------------------------------------------------


def batches(write, data, steps):
    path = write(STEP.replace("return {", f"return {{{data}"))
    return list(load_program(f"{path}:build").batches(steps))


def test_no_data(write, refused):
    with refused(caramel.ProgramError, "no data", "'data'"):
        batches(write, "", 3)


def test_empty_data(write, refused):
    with refused(caramel.ProgramError, "no batch", "0 of 3 steps"):
        batches(write, '"data": [], ', 3)


def test_data_that_ends(write, refused):
    with refused(caramel.ProgramError, "second time", "list or a function", "2 of 3 steps"):
        batches(write, '"data": iter([(1, 2), (3, 4)]), ', 3)


def test_data_that_can_start_over(write):
    assert batches(write, '"data": [(1, 2), (3, 4)], ', 3) == [(1, 2), (3, 4), (1, 2)]
    assert batches(write, '"data": lambda: iter([(1, 2)]), ', 2) == [(1, 2), (1, 2)]
    assert batches(write, '"data": iter([(1, 2)]), ', None) == [(1, 2)]


@pytest.mark.parametrize("data", ['"data": 3, ', '"data": lambda: 3, '])
def test_data_that_is_no_data(write, refused, data):
    with refused(caramel.ProgramError, "data", "int"):
        batches(write, data, 1)


def test_data_that_raises(write, refused):
    text = "\n    def read():\n        yield 1, 2\n        raise OSError('the disk is gone')\n" + STEP
    path = write(text.replace("return {", 'return {"data": read, '))
    loaded = load_program(f"{path}:build")
    with refused(caramel.ProgramError, "data", line_of(path, "raise"), "OSError", "the disk is gone"):
        list(loaded.batches(3))


def test_data_that_raises_after_the_last_step(write):
    """No batch is taken that no step will use."""
    text = "\n    def read():\n        yield 1, 2\n        raise OSError('the disk is gone')\n" + STEP
    path = write(text.replace("return {", 'return {"data": read, '))
    loaded = load_program(f"{path}:build")
    assert list(loaded.batches(1)) == [(1, 2)]
    assert list(loaded.batches(0)) == []


def test_data_that_cannot_be_iterated_over(write, refused):
    text = STEP.replace(
        "    def build",
        "    class Closed(list):\n        def __iter__(self):\n            raise OSError('closed')\n\n    def build",
    )
    path = write(text.replace("return {", 'return {"data": Closed(), '))
    with refused(caramel.ProgramError, "data", line_of(path, "raise"), "OSError", "closed"):
        list(load_program(f"{path}:build").batches(1))


FROM_PYTHON = "tf.data.Dataset.from_generator(lambda: [[0.0] * 3], output_signature=tf.TensorSpec([3])).batch(2)"


def test_a_dataset_of_a_graph_that_the_workers_cannot_run(write, refused):
    """Nor can it be read here, as datasets can where TensorFlow runs eagerly."""
    path = write(GRAPH.replace("return {", f'return {{"data": {FROM_PYTHON}, '))
    with tf.Graph().as_default(), refused(caramel.ProgramError, "'data'", "runs Python", "eagerly", "a function"):
        load_program(f"{path}:build")
