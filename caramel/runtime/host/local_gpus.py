"""The GPUs that a session of this process has: those of `tf.config`, logical ones one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


@dataclass(frozen=True)
class LocalGpus:
    """GPUs of this process.

    Attributes:
        count: number of them, each logical one counted.
        are_parts: whether several may be parts of one GPU.
        options: GPUOptions with which a session has the same ones; None where there are none.
    """

    count: int
    are_parts: bool = False
    options: Any = None

    @classmethod
    def of_this_process(cls) -> LocalGpus:
        """What `tf.config` says.

        A session does not ask it: it makes one device of each GPU, and ops that name another one run elsewhere
        without a word.
        """
        gpus, visible = tf.config.list_physical_devices("GPU"), tf.config.get_visible_devices("GPU")
        parts = [tf.config.get_logical_device_configuration(gpu) for gpu in visible]
        if not any(parts):
            return cls(len(gpus))
        options = v1.GPUOptions(visible_device_list=",".join(str(gpus.index(gpu)) for gpu in visible))
        for each in parts:
            options.experimental.virtual_devices.add(memory_limit_mb=[part.memory_limit for part in each or ()])
        return cls(sum(len(each) if each else 1 for each in parts), True, options)
