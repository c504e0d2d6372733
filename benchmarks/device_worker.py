"""One process of ``python -m benchmarks.device``: a network on some logical devices of this process.

How TensorFlow divides a device, and whether its kernels add in one order, is decided once in a process. So what is
checked and what is timed are in processes of their own.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.device_checks import check_bits, check_placement, check_weights
from benchmarks.device_programs import Sizes, divide
from benchmarks.device_times import measure
from benchmarks.device_traces import check_trace, recorded, traced
from caramel.runtime.host.namespaces import die_with_parent
from caramel.util.text_files import write_whole

CHECKS, TIMES = "checks", "times"
STAGES = (CHECKS, TIMES)
"""What a process does."""


Say = Callable[[str, Any], None]
"""Tells the caller what was found."""


def _checks(name: str, sizes: Sizes, devices: list[str], say: Say, file: str | None) -> None:
    def trace() -> dict[str, Any]:
        metadata, asked = traced(name, sizes, devices)
        if file is not None:
            write_whole(Path(file), recorded(metadata))
        return check_trace(metadata, asked, devices)

    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "weights": partial(check_weights, name, sizes, devices),
        "bits": partial(check_bits, name, sizes, devices),
        "placement": partial(check_placement, name, sizes, devices),
        "trace": trace,
    }
    for what, check in checks.items():
        begin_s = time.perf_counter()
        try:
            found = check()
        except Exception as error:  # whatever it is, the other checks still say something
            traceback.print_exc()
            found = {"failures": [f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"]}
        say(what, {**found, "took_s": time.perf_counter() - begin_s})


def _hardware(platform: str) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    (device, *_) = tf.config.list_physical_devices(platform.upper())
    details = tf.config.experimental.get_device_details(device)
    return {
        "platform": platform,
        "device": details.get("device_name", platform.upper()),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }


def main() -> None:
    """``python -m benchmarks.device_worker REQUEST``: says a line of JSON of each thing that it has found."""
    die_with_parent()
    request = json.loads(sys.argv[1])
    sizes, platform = Sizes(**request["sizes"]), request["platform"]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what TensorFlow and Keras print is no answer

    def say(what: str, found: Any) -> None:
        out.write(json.dumps({"what": what, "found": found}) + "\n")
        out.flush()

    import tensorflow as tf

    is_check = request["stage"] == CHECKS
    if is_check:
        tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(False)
        # Kernels for the host's processors add in an order of their own where they divide an op among threads.
        tf.config.threading.set_intra_op_parallelism_threads(1 if platform == "cpu" else 0)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    devices = divide(platform, sizes)
    say("hardware", _hardware(platform))
    if is_check:
        _checks(request["network"], sizes, devices, say, request["record_trace"])
    else:
        times = measure(request["network"], sizes, devices, request["contenders"], lambda text: say("progress", text))
        say("times", times)


if __name__ == "__main__":
    main()
