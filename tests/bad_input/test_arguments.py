"""Arguments of ARModel, capture, sessions and clusters that make no sense."""

import numpy as np
import pytest
import tensorflow as tf

import caramel


@pytest.fixture
def context(captured, line, minimize):
    return captured(lambda: minimize(line().loss))


@pytest.mark.parametrize("workers", [0, -1, -8, True, False, 2.0, 2.5, "2", None])
def test_number_of_workers(context, refused, workers):
    with refused(caramel.InputError, "number_of_workers", "at least 1", repr(workers)):
        caramel.ARModel(context, workers)


@pytest.mark.parametrize("devices", [["/job:worker/task:0"], [f"/job:worker/task:{r}" for r in range(3)], []])
def test_device_list_of_the_wrong_length(context, refused, devices):
    with refused(caramel.InputError, "device_list", f"{len(devices)} entries", "2 workers"):
        caramel.ARModel(context, 2, device_list=devices)


@pytest.mark.parametrize(
    "devices",
    [
        ["/job:worker/task:0", "/job:worker/task:0"],
        ["/job:worker/task:0/GPU:0", "/job:worker/task:0/device:GPU:0"],
        ["/job:worker/task:0/device:gpu:1", "/task:0/job:worker/GPU:1"],
    ],
    ids=["equal", "short and long", "other order"],
)
def test_device_list_with_one_device_twice(context, refused, devices):
    with refused(caramel.InputError, "device_list", devices[1], "workers 0 and 1", "its own"):
        caramel.ARModel(context, 2, device_list=devices)


@pytest.mark.parametrize(
    "devices, clash",
    [
        (["/job:w/task:0", "/job:w/task:1", "/job:w/task:0/CPU:0"], (0, 2)),
        (["/job:w/task:0/CPU:0", "/job:w/task:0/CPU:1", "/job:w/task:0"], (0, 2)),
        (["/job:w/task:0/CPU:*", "/job:w/task:1/CPU:0", "/job:w/task:0/CPU:1"], (0, 2)),
        (["/job:w/task:0", "/job:w/replica:0/task:0", "/job:w/task:1"], (0, 1)),
        (["/job:w/task:1", "/job:w/task:0/CPU:0", "/job:w/replica:0/task:0/CPU:0"], (1, 2)),
    ],
)
def test_workers_in_one_process_that_do_not_say_where(context, refused, devices, clash):
    first, second = clash
    task = devices[second].replace("/replica:0", "").partition("/CPU")[0]
    words = [f"workers {first} and {second} in one process", f"{task}/device:CPU:0 and {task}/device:CPU:1"]
    with refused(caramel.InputError, "device_list", *words):
        caramel.ARModel(context, 3, device_list=devices)


@pytest.mark.parametrize(
    "devices",
    [["/CPU:0", "/CPU:1"], ["/job:w/task:0/CPU:0", "/job:w/task:0/GPU:0"], ["/job:a/task:0", "/job:b/task:0"]],
)
def test_workers_that_say_where(context, devices):
    assert len(caramel.ARModel(context, 2, device_list=devices).plan.devices) == 2


@pytest.mark.parametrize(
    "bad, part",
    [
        ("worker 1", "worker 1"),
        ("/job:worker/task:one", "/task:"),
        ("/job:worker task:1", " task:1"),
        ("/job:worker/GPU", "/GPU"),
        ("grpc://host:2222", "grpc://host:2222"),
    ],
)
def test_device_list_that_cannot_be_read(context, refused, bad, part):
    with refused(caramel.InputError, "device", repr(bad), part):
        caramel.ARModel(context, 2, device_list=["/job:worker/task:0", bad])


@pytest.mark.parametrize("devices", ["/job:worker/task:0", [None, "/task:1"], [0, 1], 2])
def test_device_list_that_is_no_list_of_strings(context, refused, devices):
    with refused(caramel.InputError, "device_list"):
        caramel.ARModel(context, 2, device_list=devices)


def test_uneven_batches(context, refused):
    with refused(caramel.InputError, "uneven_batches", "'weight'", "'refuse'", "'drop'"):
        caramel.ARModel(context, 2, uneven_batches="drop")


def test_something_that_was_not_captured(refused):
    with refused(caramel.InputError, "caramel.capture", "function"):
        caramel.ARModel(lambda: None, 2)


def test_loss_reduction(refused):
    with refused(caramel.InputError, "loss_reduction", "'mean'", "'sum'", "'average'"):
        caramel.capture(loss_reduction="average")


@pytest.mark.parametrize("program", [7, np.zeros(3)], ids=["number", "array"])
def test_capture_of_something_else(refused, program):
    with refused(caramel.InputError, "capture", "tf.Graph", type(program).__name__):
        caramel.capture(program)


def test_a_step_without_input_specs(refused):
    with refused(caramel.CaptureError, "inputs", "tf.TensorSpec"):
        _ = caramel.capture(lambda x: x).model


def test_inputs_that_are_no_specs(refused):
    with refused(caramel.InputError, "inputs", "tf.TensorSpec", "ndarray"):
        _ = caramel.capture(lambda x: x, inputs=[np.zeros(3)]).model


def test_train_op_with_a_step(refused):
    with refused(caramel.InputError, "train_op", "step"):
        _ = caramel.capture(lambda x: x, inputs=[tf.TensorSpec([None])], train_op="train").model


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_step_timeout(compiled, line, minimize, refused, timeout):
    armodel = compiled(lambda: minimize(line().loss))
    with refused(caramel.InputError, "step_timeout_s", "positive"):
        armodel.session(step_timeout_s=timeout)


@pytest.mark.parametrize("options", [{"base_port": 0}, {"base_port": 65536}, {"base_port": -1}, {"start_timeout_s": 0}])
def test_local_processes(refused, options):
    ((name, value),) = options.items()
    with refused(caramel.InputError, name, str(value)):
        caramel.LocalProcesses(**options)


def test_a_number_of_workers_is_no_permission_for_open_ports(refused):
    """The first thing that one would give a cluster of local processes is how many there are."""
    with pytest.raises(TypeError, match="positional argument"):
        caramel.LocalProcesses(2)
    with refused(caramel.InputError, "allow_open_ports", "2"):
        caramel.LocalProcesses(allow_open_ports=2)
