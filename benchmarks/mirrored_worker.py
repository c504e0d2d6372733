"""One worker of MultiWorkerMirroredStrategy: obeys lines of JSON on standard input."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from caramel.runtime.host.namespaces import die_with_parent

PATTERN = 1009
"""Values of neighbouring elements differ, modulo this, so that misplaced pieces are noticed."""


def _functions(
    tf: Any, strategy: Any, rank: int, elements: int, repeats: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A step with all-reduces that follow each other, and one without."""
    with strategy.scope():
        variable = tf.Variable(tf.fill([elements], 0.0))
    # Each worker has a value of its own; the strategy would otherwise copy the first one's at the start.
    local = variable.values[0] if hasattr(variable, "values") else variable
    local.assign(tf.fill([elements], rank + 1.0) + tf.cast(tf.range(elements) % PATTERN, tf.float32))

    def together() -> Any:
        """All workers have begun the step: what each of them needs to wake up is in the empty step, too."""
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.zeros([1]))

    def reduce() -> Any:
        context = tf.distribute.get_replica_context()
        with tf.control_dependencies([together()]):
            value = tf.identity(local)
        for _ in range(repeats):
            value = context.all_reduce(tf.distribute.ReduceOp.MEAN, value)
        return value

    step = tf.function(lambda: strategy.run(reduce))
    empty = tf.function(lambda: strategy.run(together))
    return step, empty


def main() -> None:
    """``python -m benchmarks.mirrored_worker '["host:port", ...]' RANK``"""
    die_with_parent()
    addresses, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import numpy as np
    import tensorflow as tf

    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    step: Callable[[], Any] | None = None
    empty: Callable[[], Any] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any = 0
        if request["do"] == "load":
            step, empty = _functions(tf, strategy, rank, request["elements"], request["repeats"])
            empty()
            value = step()
            value = value.values[0] if hasattr(value, "values") else value
            elements = request["elements"]
            wanted = (len(addresses) + 1) / 2 + np.arange(elements) % PATTERN
            if not np.allclose(value.numpy(), wanted, rtol=0, atol=PATTERN * 1e-6):
                raise ValueError(f"the all-reduce gave {value.numpy()[:3]} instead of {wanted[:3]}")
        elif request["do"] in ("step", "empty"):
            function = step if request["do"] == "step" else empty
            start = time.perf_counter()
            value = function()  # type: ignore[misc]
            value = value.values[0] if hasattr(value, "values") else value
            value[:1].numpy()  # wait for it
            answer = time.perf_counter() - start
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
