"""Where ops are: what is said of a log of TensorFlow, and that it is TensorFlow's."""

import ctypes
from types import SimpleNamespace

import pytest

from benchmarks.placements import captured_output, placements
from caramel.errors import CaramelError

HERE = "/job:localhost/replica:0/task:0/device"


def graph(*nodes):
    return SimpleNamespace(node=[SimpleNamespace(name=n, op=op, device=device) for n, op, device in nodes])


ASKED = graph(
    ("worker_0/x", "MatMul", "/device:GPU:0"),
    ("worker_1/x", "MatMul", "/device:GPU:1"),
    ("worker_1/text", "StringJoin", "/device:GPU:1"),
    ("worker_1/host", "Identity", "/device:CPU:0"),
    ("anywhere", "NoOp", ""),
)


def log(**places):
    kinds = {"x0": "worker_0/x: (MatMul)", "x1": "worker_1/x: (MatMul)", "text": "worker_1/text: (StringJoin)"}
    kinds |= {"host": "worker_1/host: (Identity)", "nowhere": "anywhere: (NoOp)"}
    return "".join(f"{kinds[name]}: {HERE}:{device}\n" for name, device in places.items())


AS_ASKED = {"x0": "GPU:0", "x1": "GPU:1", "text": "GPU:1", "host": "CPU:0", "nowhere": "CPU:0"}


def test_all_where_they_should_be():
    found = placements(ASKED, "Device mapping:\n" + log(**AS_ASKED))
    assert (found.ops, found.kinds) == (5, 4)
    assert (found.on_host, found.elsewhere, found.unplaced, found.failures) == ({}, [], [], [])


def test_what_has_no_kernel_is_on_the_host_and_named():
    found = placements(ASKED, log(**{**AS_ASKED, "text": "CPU:0"}))
    assert found.on_host == {"StringJoin": 1}
    assert found.failures == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x1": "GPU:0"}, f"worker_1/x (MatMul) is on {HERE}:GPU:0, not on /device:GPU:1"),
        ({"host": "GPU:0"}, f"worker_1/host (Identity) is on {HERE}:GPU:0, not on /device:CPU:0"),
        ({"host": "CPU:1"}, f"worker_1/host (Identity) is on {HERE}:CPU:1, not on /device:CPU:0"),
    ],
)
def test_what_is_elsewhere_is_wrong(changed, said):
    assert placements(ASKED, log(**{**AS_ASKED, **changed})).failures == [said]


def test_kinds_of_which_nothing_is_said_are_wrong():
    found = placements(ASKED, log(x0="GPU:0", x1="GPU:1", nowhere="CPU:0"))
    assert found.failures == ["nothing is known of the kinds Identity, StringJoin"]


def test_the_last_word_counts():
    assert placements(ASKED, log(**{**AS_ASKED, "x1": "GPU:0"}) + log(x1="GPU:1")).failures == []


def test_a_log_that_says_nothing_is_no_good_news():
    with pytest.raises(CaramelError, match="no placement"):
        placements(ASKED, "2026: all is well\n")


def test_output_of_c_is_captured(capfd):
    """C keeps it in a buffer, which is to be empty before and after."""
    c = ctypes.CDLL(None)
    c.puts(b"before")
    with captured_output() as texts:
        c.puts(b"meanwhile")
    c.puts(b"and then")
    c.fflush(None)
    assert texts == ["meanwhile\n"]
    assert capfd.readouterr().out == "before\nand then\n"


@pytest.mark.slow
@pytest.mark.parametrize("there", [4, 2])
def test_ops_of_a_real_graph(there):
    """Where only two of four devices are there, TensorFlow puts the others' ops on the first without a word."""
    import tensorflow as tf

    import caramel
    from benchmarks.placements import logging_options, placements_of

    w = tf.Variable([0.0, 0.0], name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    devices = [f"/CPU:{rank}" for rank in range(4)]
    context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])
    model = caramel.ARModel(context, 4, device_list=devices)
    logging = logging_options()

    class Fewer(type(logging)):
        def config(self, cpu_devices=1, group_leader=""):
            return super().config(min(cpu_devices, there), group_leader)

    found = placements_of(model.graph_def, devices, caramel.InProcess(Fewer(optimize_graph=False)), 60.0)
    assert found.ops == len(model.graph_def.node) > 100
    assert found.kinds == len({node.op for node in model.graph_def.node}) > 20
    if there == 4:
        assert found.failures == []
    else:
        ranks = {line.partition("/")[0] for line in found.elsewhere}
        assert ranks <= {"worker_2", "worker_3"} and ranks
        assert "is on /job:localhost/replica:0/task:0/device:CPU:0, not on /device:CPU:" in found.failures[0]
