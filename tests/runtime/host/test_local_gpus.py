"""Which GPUs a session has: those that `tf.config` says, asked of a machine that has others."""

import pytest
import tensorflow as tf

import caramel
from caramel.runtime.clusters import in_process as cluster_module
from caramel.runtime.host.local_gpus import LocalGpus


@pytest.fixture
def machine(monkeypatch):
    """Function that says which GPUs there are, which are visible, and of how many parts each is."""

    def make(there, visible, parts):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: there if kind == "GPU" else ["CPU"])
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: visible)
        limits = {gpu: [tf.config.LogicalDeviceConfiguration(mib) for mib in mibs] for gpu, mibs in parts.items()}
        monkeypatch.setattr(tf.config, "get_logical_device_configuration", limits.get)

    return make


def limits_of(options):
    return [list(each.memory_limit_mb) for each in options.experimental.virtual_devices]


def test_whole_gpus_are_those_of_a_session_anyway(machine):
    machine(["a", "b"], ["a", "b"], {})
    assert LocalGpus.of_this_process() == LocalGpus(2)
    machine([], [], {})
    assert LocalGpus.of_this_process() == LocalGpus(0)


def test_parts_of_a_gpu_are_told_to_the_session(machine):
    machine(["a", "b"], ["a", "b"], {"a": [1000, 2000]})
    found = LocalGpus.of_this_process()
    assert (found.count, found.are_parts) == (3, True)
    assert limits_of(found.options) == [[1000, 2000], []]  # none: all memory
    assert found.options.visible_device_list == "0,1"


def test_what_is_not_visible_is_no_part(machine):
    machine(["a", "b", "c"], ["c"], {"c": [500] * 4})
    found = LocalGpus.of_this_process()
    assert (found.count, found.options.visible_device_list) == (4, "2")
    assert limits_of(found.options) == [[500] * 4]


def test_sessions_of_this_process_have_them(machine, monkeypatch):
    machine(["a"], ["a"], {"a": [700] * 4})
    made = []
    monkeypatch.setattr(cluster_module, "InProcessExecutor", lambda *call: made.append(call))
    devices = [f"/job:worker/task:{rank}/device:GPU:0" for rank in range(4)]
    caramel.InProcess().start(tf.compat.v1.GraphDef(), tuple(devices), 1.0)
    ((_, placement, config),) = made
    assert limits_of(config.gpu_options) == [[700] * 4]
    assert [placement.place(device) for device in devices] == [f"/device:GPU:{rank}" for rank in range(4)]
