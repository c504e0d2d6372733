"""A driver that trains until it loses a worker, over and over: ``python -m benchmarks.lost_driver KIND MODE``.

It begins with each line on standard input, and says on standard output, as JSON: ``runs`` once steps are made, and
``lost`` with the time on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import caramel

KINDS = ("servers", "tf_config", "processes")
"""Where the workers are: servers that run already, those of TF_CONFIG, and processes of the driver."""

MODES = ("session", "fit")
"""What trains."""

WORKERS = 3
"""Number of workers."""

_EXAMPLES = 6
_STEPS_BEFORE = 3


def say(**values: Any) -> None:
    """Tell whoever has started this process."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def cluster_of(kind: str) -> caramel.Cluster:
    """The cluster of a kind; addresses and TF_CONFIG are in the environment."""
    if kind == "servers":
        return caramel.Servers(tuple(os.environ["ADDRESSES"].split(",")))
    return caramel.Servers.from_tf_config() if kind == "tf_config" else caramel.LocalProcesses()


def trained_by_session(cluster: caramel.Cluster, model: caramel.ARModel) -> None:
    """Make steps until one fails."""
    with model.session(cluster) as session:
        for number in range(10**9):
            session.step(np.ones([_EXAMPLES, 2], np.float32), np.ones([_EXAMPLES, 1], np.float32))
            if number == _STEPS_BEFORE:
                say(runs=True)


class _Says(keras.callbacks.Callback):  # type: ignore[misc]  # no types
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == _STEPS_BEFORE:
            say(runs=True)


def trained_by_fit(cluster: caramel.Cluster, model: Any) -> None:
    """Train with `caramel.fit` until a step fails."""
    x, y = np.ones([_EXAMPLES * 10**5, 2], np.float32), np.ones([_EXAMPLES * 10**5, 1], np.float32)
    caramel.fit(model, x, y, workers=WORKERS, batch_size=_EXAMPLES, cluster=cluster, verbose=0, callbacks=[_Says()])


def training(mode: str) -> Callable[[caramel.Cluster], None]:
    """A function that trains on a cluster until it loses a worker."""
    network = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    network.compile("sgd", "mse")
    if mode == "fit":
        return lambda cluster: trained_by_fit(cluster, network)
    specs = [tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])]
    context = caramel.capture(lambda x, y: network.train_step((x, y)), specs)
    model = caramel.ARModel(context, WORKERS)
    return lambda cluster: trained_by_session(cluster, model)


def main(kind: str, mode: str) -> None:
    """Train as often as asked to."""
    train = training(mode)
    say(ready=True)
    for _ in sys.stdin:
        try:
            train(cluster_of(kind))
        except caramel.ClusterError as error:
            say(lost=time.monotonic(), message=str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
