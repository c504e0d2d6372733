"""Device strings: parsing, merging, and placement in one process."""

import pytest

from caramel.errors import InputError, UnsupportedError
from caramel.graph.devices import Device, default_devices, in_process_mapping, merge


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
