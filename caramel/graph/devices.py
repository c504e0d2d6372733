"""Device strings: parse, merge the user's with a replica's, and place workers in one process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from caramel.errors import InputError, UnsupportedError
from caramel.util.arguments import shown

_DEVICE_PART = re.compile(r"/(?:(job|replica|task):([A-Za-z0-9_*.-]+)|(?:device:)?([A-Za-z_]+):(\d+|\*))")


@dataclass(frozen=True)
class Device:
    """A full or partial TensorFlow device name, such as ``/job:worker/task:1/device:GPU:0``."""

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    type: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> Device:
        """Read a device string.

        Raises:
            InputError: the text is not a device string.
        """
        fields: dict[str, str | int | None] = {}
        position = 0
        while position < len(text):
            match = _DEVICE_PART.match(text, position)
            if match is None:
                raise InputError(
                    f"device {text!r}: cannot read {text[position:]!r}; "
                    "expected parts such as /job:worker, /task:0 or /GPU:0"
                )
            key, value, kind, index = match.groups()
            if key == "job":
                fields["job"] = value
            elif key:
                if not value.isdigit():
                    raise InputError(f"device {text!r}: /{key}: needs a number, got {value!r}")
                fields[key] = int(value)
            else:
                fields["type"] = kind.upper()
                fields["index"] = None if index == "*" else int(index)
            position = match.end()
        return cls(**fields)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = []
        if self.job is not None:
            parts.append(f"/job:{self.job}")
        if self.replica is not None:
            parts.append(f"/replica:{self.replica}")
        if self.task is not None:
            parts.append(f"/task:{self.task}")
        if self.type is not None:
            parts.append(f"/device:{self.type}:{'*' if self.index is None else self.index}")
        return "".join(parts)

    @property
    def process(self) -> tuple[str | None, int | None]:
        """Job and task of the process that the device belongs to; several workers may share one."""
        return self.job, self.task


def merge(user: str, replica: Device, node: str) -> str:
    """Device of a replica's op: the replica's process, and the user's kind of device.

    A user's ``/CPU:0`` stays on the host's CPU; a user's ``/GPU:0`` becomes the replica's own GPU
    where the replica names one.

    Raises:
        UnsupportedError: the op is pinned to another process than the single device's.
    """
    if not user:
        return str(replica)
    pinned = Device.parse(user)
    if pinned.job not in (None, "localhost") or pinned.task not in (None, 0):
        raise UnsupportedError(
            f"op {node!r} is pinned to {user!r}: a program for one device cannot name another job or task; "
            "remove that part of the device string"
        )
    if pinned.type is None or pinned.type == replica.type:
        return str(replica)
    return str(replace(replica, type=pinned.type, index=pinned.index))


def parse_devices(
    device_list: Sequence[str], number: int, name: str = "device_list", kind: str = "worker"
) -> tuple[str, ...]:
    """Check a list of device strings.

    Args:
        device_list: the list.
        number: number of devices that it must have.
        name: name of the argument, for errors.
        kind: noun for what is on each device, for errors.

    Raises:
        InputError: wrong length, two ranks on one device, or not a device string.

    Several ranks may be on one task, if each names a device of its own there.
    """
    if (
        isinstance(device_list, str)
        or not isinstance(device_list, Sequence)
        or not all(isinstance(text, str) for text in device_list)
    ):
        raise InputError(f"{name} must be a list of device strings, one for each {kind}, got {shown(device_list)}")
    if len(device_list) != number:
        raise InputError(f"{name} has {len(device_list)} entries for {number} {kind}s: give one device for each {kind}")
    canonical = [str(Device.parse(text)) for text in device_list]
    for rank, text in enumerate(canonical):
        if text in canonical[:rank]:
            raise InputError(
                f"{name} names {device_list[rank]!r} for {kind}s {canonical.index(text)} and {rank}: give each "
                f"{kind} its own"
            )
    _check_shared_tasks(canonical, name, kind)
    return tuple(canonical)


def _check_shared_tasks(devices: Sequence[str], name: str, kind: str) -> None:
    """Refuse a worker on "any" device of a process where another one is, or two on the same one."""
    seen: dict[Device, dict[Device, int]] = {}
    for rank, text in enumerate(devices):
        device = replace(Device.parse(text), replica=Device.parse(text).replica or 0)
        others = seen.setdefault(replace(device, type=None, index=None), {})
        first = next(iter(others), device)
        is_any = others and (device.index is None or first.index is None)
        clash = others.get(first if is_any else device)
        if clash is not None:
            examples = (str(replace(device, replica=None, type="CPU", index=n)) for n in range(2))
            raise InputError(
                f"{name} has {kind}s {clash} and {rank} in one process, {devices[clash]!r} and {text!r}: "
                f"give each a device of its own there, such as {' and '.join(examples)}"
            )
        others[device] = rank


def task_name(job: str, task: int) -> str:
    """The full name of a process, as TensorFlow writes it."""
    return str(Device(job, 0, task))


def host_of(device: Device) -> Device:
    """The CPU of the process that a device belongs to."""
    index = device.index or 0 if device.type == "CPU" else 0
    return Device(device.job, device.replica, device.task, "CPU", index)


WORKER_JOB = "worker"
"""Job of all tasks, whatever a cluster calls them."""


def default_devices(number_of_workers: int) -> tuple[str, ...]:
    """One task of the job ``worker`` for each worker."""
    return tuple(f"/job:worker/task:{rank}" for rank in range(number_of_workers))


def devices_on_servers(workers: Sequence[int]) -> tuple[str, ...]:
    """The device of each worker, server after server; those that share one have a virtual CPU each.

    Args:
        workers: number of workers of each server.

    >>> devices_on_servers([1, 2])
    ('/job:worker/task:0', '/job:worker/task:1/device:CPU:0', '/job:worker/task:1/device:CPU:1')
    """
    return tuple(
        f"/job:worker/task:{task}" + (f"/device:CPU:{index}" if count > 1 else "")
        for task, count in enumerate(workers)
        for index in range(count)
    )


def other_than_default(known: tuple[str, ...], workers: int) -> tuple[str, ...] | None:
    """The devices of so many workers, where they are others than the default ones; else None.

    Args:
        known: device of each worker for which there is room; empty if that is not known.
        workers: number of workers.

    >>> other_than_default(("/job:worker/task:0/device:CPU:0", "/job:worker/task:0/device:CPU:1"), 1)
    ('/job:worker/task:0/device:CPU:0',)
    >>> other_than_default(("/job:worker/task:0", "/job:worker/task:1"), 2) is None
    True
    """
    is_usual = workers > len(known) or known[:workers] == default_devices(workers)
    return None if is_usual else known[:workers]


def in_process_mapping(devices: Sequence[str], local_gpus: int) -> InProcessPlacement:
    """The place of each worker when all of them are virtual devices of this process.

    Args:
        devices: device string of each rank.
        local_gpus: number of GPUs that this process sees.
    """
    parsed = [Device.parse(text) for text in devices]
    named = dict.fromkeys(
        replace(device, replica=None)
        for device in parsed
        if device.process != (None, None) or (device.type == "GPU" and not local_gpus)
    )
    direct = max((d.index or 0 for d in parsed if d.process == (None, None) and d.type == "CPU"), default=-1) + 1
    slots = {device: direct + position for position, device in enumerate(named)}
    return InProcessPlacement(slots, max(direct + len(named), 1), local_gpus)


@dataclass(frozen=True)
class InProcessPlacement:
    """The virtual CPU device of each worker, for a cluster inside one process.

    Attributes:
        slots: index of the virtual CPU device, by the worker's device.
        cpu_count: number of virtual CPU devices of this process.
        local_gpus: number of GPUs that this process sees.
    """

    slots: Mapping[Device, int]
    cpu_count: int
    local_gpus: int

    @cached_property
    def _first_slots(self) -> Mapping[tuple[str | None, int | None], int]:
        """The first slot of each worker's process."""
        first_slots: dict[tuple[str | None, int | None], int] = {}
        for device, slot in self.slots.items():
            first_slots.setdefault(device.process, slot)
        return first_slots

    def place(self, text: str) -> str:
        """The device of this process for a device string of the distributed graph."""
        device = Device.parse(text)
        kind, index = device.type or "CPU", device.index or 0
        own = self.slots.get(replace(device, replica=None))
        slot = self._first_slots.get(device.process, 0) if own is None else own
        if kind == "GPU" and self.local_gpus:
            if not self.slots:
                return f"/device:GPU:{index}"
            return f"/device:GPU:{(slot + index if own is None else own) % self.local_gpus}"
        if device.process == (None, None) and kind == "CPU":
            return f"/device:CPU:{index}"
        # Another device that no worker has, or that is not here: a virtual CPU of its process does the work.
        return f"/device:CPU:{slot}"


def cpu_count(devices: Sequence[str], process: tuple[str | None, int | None]) -> int:
    """The number of CPU devices that a process needs, at least one.

    Args:
        devices: device string of each rank.
        process: its job and task.
    """
    parsed = [Device.parse(text) for text in devices]
    return max((d.index or 0 for d in parsed if d.process == process and d.type == "CPU"), default=0) + 1
