"""Device strings: parsing, merging, and placement in one process."""

import pytest

from caramel.errors import InputError, UnsupportedError
from caramel.graph.devices import Device, cpu_count, default_devices, in_process_mapping, merge


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("/CPU:0", "/device:CPU:0"),
        ("/gpu:1", "/device:GPU:1"),
        ("/job:worker/task:3", "/job:worker/task:3"),
        ("/job:worker/replica:0/task:1/device:GPU:0", "/job:worker/replica:0/task:1/device:GPU:0"),
        ("/device:CPU:*", "/device:CPU:*"),
    ],
)
def test_parse_and_print(text, canonical):
    assert str(Device.parse(text)) == canonical
    assert Device.parse(canonical) == Device.parse(text)


@pytest.mark.parametrize("text", ["GPU:0", "/job", "/task:x", "/job:worker/"])
def test_what_is_no_device(text):
    with pytest.raises(InputError, match="device"):
        Device.parse(text)


@pytest.mark.parametrize(
    ("user", "replica", "merged"),
    [
        ("", "/job:worker/task:1", "/job:worker/task:1"),
        ("/GPU:0", "/job:worker/task:1", "/job:worker/task:1/device:GPU:0"),
        ("/GPU:0", "/job:worker/task:1/GPU:2", "/job:worker/task:1/device:GPU:2"),
        ("/CPU:0", "/job:worker/task:1/GPU:2", "/job:worker/task:1/device:CPU:0"),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "/job:worker/task:1", "/job:worker/task:1/device:CPU:0"),
        ("/GPU:0", "/GPU:1", "/device:GPU:1"),
    ],
)
def test_merge_keeps_the_kind_and_takes_the_process(user, replica, merged):
    assert merge(user, Device.parse(replica), "op") == merged


@pytest.mark.parametrize("user", ["/job:ps/task:0", "/task:1"])
def test_another_process_is_refused_by_op(user):
    with pytest.raises(UnsupportedError, match=r"op 'scope/op' is pinned"):
        merge(user, Device.parse("/job:worker/task:0"), "scope/op")


def test_each_worker_has_its_own_virtual_cpu():
    placement = in_process_mapping(default_devices(3), local_gpus=0)
    assert placement.cpu_count == 3
    assert placement.place("/job:worker/task:2") == "/device:CPU:2"
    assert placement.place("/job:worker/task:2/device:CPU:0") == "/device:CPU:2"
    assert placement.place("/job:worker/task:1/device:GPU:0") == "/device:CPU:1"  # no GPU here


def test_workers_take_turns_on_the_gpus_that_are_there():
    placement = in_process_mapping([f"/job:worker/task:{r}/GPU:0" for r in range(4)], local_gpus=2)
    assert [placement.place(f"/job:worker/task:{r}/GPU:0") for r in range(4)] == [
        f"/device:GPU:{r % 2}" for r in range(4)
    ]


def test_devices_without_a_task_are_taken_as_they_are():
    placement = in_process_mapping(["/CPU:0", "/CPU:1"], local_gpus=0)
    assert placement.cpu_count == 2
    assert placement.place("/device:CPU:1") == "/device:CPU:1"


def test_workers_that_share_a_task_have_a_virtual_cpu_each():
    devices = [f"/job:worker/task:{task}/device:CPU:{index}" for task in (0, 1) for index in (0, 1)]
    placement = in_process_mapping(devices, local_gpus=0)
    assert placement.cpu_count == 4
    assert [placement.place(d) for d in devices] == [f"/device:CPU:{n}" for n in range(4)]
    assert placement.place("/job:worker/replica:0/task:1/device:CPU:1") == "/device:CPU:3"
    assert placement.place("/job:worker/task:1/device:GPU:0") == "/device:CPU:2"  # the first of its process


def test_gpus_that_share_a_task():
    devices = [f"/job:worker/task:{task}/device:GPU:{index}" for task in (0, 1) for index in (0, 1)]
    there = in_process_mapping(devices, local_gpus=4)
    assert [there.place(d) for d in devices] == [f"/device:GPU:{n}" for n in range(4)]
    elsewhere = in_process_mapping(devices, local_gpus=0)
    assert [elsewhere.place(d) for d in devices] == [f"/device:CPU:{n}" for n in range(4)]
    bare = in_process_mapping(["/GPU:0", "/GPU:1"], local_gpus=0)
    assert [bare.place(d) for d in ("/device:GPU:0", "/device:GPU:1")] == ["/device:CPU:0", "/device:CPU:1"]


@pytest.mark.parametrize(("task", "count"), [(0, 3), (1, 1), (2, 1), (3, 1)])
def test_cpu_devices_of_a_process(task, count):
    devices = ["/job:w/task:0/CPU:2", "/job:w/task:0/CPU:0", "/job:w/task:1", "/job:w/task:2/GPU:5"]
    assert cpu_count(devices, ("w", task)) == count
