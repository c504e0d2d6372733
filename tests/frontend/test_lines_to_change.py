"""The four lines for a script that is no program file: they are Python, of the script's own names, and they work."""

import ast
import textwrap
from pathlib import Path

import pytest

import caramel
from caramel.frontend.lines_to_change import ScriptParts, lines_to_change, script_parts
from caramel.frontend.program_file import load_program

LOOP = """
    import tensorflow as tf

    def batches(size=4):
        for number in range(3):
            yield tf.fill([size, 3], float(number)), tf.zeros([size])

    w = tf.Variable(tf.ones([3]), name="w")

    @tf.function
    def adapt(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(images, w) - labels) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    for batch in batches():
        adapt(*batch)
"""

GRAPH = """
    import tensorflow.compat.v1 as tf
    x = tf.placeholder(tf.float32, [None, 3], "x")
    train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(x * tf.get_variable("w", [3])))
    with tf.Session() as session:
        session.run(train)
"""

METHOD = """
    class Mine(keras.Model):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                pass
"""


def code_of(message):
    """The four lines of a message."""
    return textwrap.dedent("\n".join(line for line in message.splitlines() if line.startswith("  ")))


def test_the_parts_of_a_loop():
    parts = script_parts(textwrap.dedent(LOOP))
    assert parts == ScriptParts(("batches",), "adapt", ("images", "labels"), differentiates=True, has_loop=True)


def test_the_parts_of_a_graph():
    assert script_parts(textwrap.dedent(GRAPH)) == ScriptParts(builds_graph=True)


def test_a_method_is_no_step():
    assert script_parts(textwrap.dedent(METHOD)) == ScriptParts(differentiates=True)


def test_a_step_inside_a_function():
    source = "def main(epochs):\n    tape = 0\n" + textwrap.indent(textwrap.dedent(LOOP), "    ")
    expected = ScriptParts((), "adapt", ("images", "labels"), differentiates=True, has_loop=True)
    assert script_parts(source) == expected


def test_nothing_of_a_training():
    assert script_parts("print(1)") == ScriptParts()


@pytest.mark.parametrize("source", [LOOP, GRAPH, METHOD, "print(1)"])
def test_four_lines_of_python(source):
    message = lines_to_change(Path("train.py"), script_parts(textwrap.dedent(source)))
    code = code_of(message)
    assert len(code.splitlines()) == 4
    ast.parse(code)
    assert "caramel run train.py:program" in message and '"Program files" in the documentation' in message


def test_names_of_the_script():
    message = lines_to_change(Path("train.py"), script_parts(textwrap.dedent(LOOP)))
    assert '"step": adapt, "inputs": [tf.TensorSpec([None, ...]), tf.TensorSpec([None, ...])]' in message
    assert "for each of images, labels" in message
    assert "if batches returns the program already, say train.py:batches instead" in message
    several = lines_to_change(Path("train.py"), script_parts("def data(): pass\ndef build(): pass"))
    assert "if one of data, build returns the program already, say train.py:ENTRY instead" in several
    graph = lines_to_change(Path("old.py"), script_parts(textwrap.dedent(GRAPH)))
    assert '{"data": batches}' in graph and "TensorSpec" not in graph and "placeholders" in graph


def test_a_script_that_has_the_four_lines_is_a_program_file(write):
    """The lines as they are shown, but for the shapes, which they leave open."""
    lines = code_of(lines_to_change(Path("loop.py"), script_parts(textwrap.dedent(LOOP)))).splitlines()
    lines[1] = lines[1].replace("[None, ...]", "[None, 3]", 1).replace("[None, ...]", "[None]")
    before, loop = textwrap.dedent(LOOP).split("w = ")
    body, loop = loop.split("for batch in")
    changed = "\n".join(
        [before, lines[0], textwrap.indent(f"w = {body}", "    "), *lines[1:], '    parts["step"](*next(batches()))']
    )
    program = load_program(f"{write(changed, 'loop.py')}:program")
    assert caramel.ARModel(program.context, 2).plan.reduction == "mean"
    assert len(list(program.batches(None))) == 3


KERAS_OWN = {
    "a train_step, which fit calls": METHOD + "\n    import helper\n    helper.train(Mine())\n",
    "a session of the web": "import requests, helper\nrequests.Session().get('x')\nhelper.train()\n",
    "another minimize": "from scipy.optimize import minimize\nimport helper\nhelper.train(minimize)\n",
}


@pytest.mark.parametrize("name", KERAS_OWN)
def test_training_by_a_module_of_its_own_is_not_refused(name):
    assert not script_parts(textwrap.dedent(KERAS_OWN[name])).trains_by_itself


OWN_STEP = (
    METHOD
    + """
    for batch in ():
        Mine().train_step(batch)
"""
)


@pytest.mark.parametrize(
    "source",
    [
        LOOP,
        GRAPH,
        LOOP + METHOD,
        OWN_STEP,
        METHOD.replace("(keras.Model)", ""),
        "from tensorflow.compat.v1 import Session\nSession()",
    ],
)
def test_what_trains_by_itself(source):
    assert script_parts(textwrap.dedent(source)).trains_by_itself
