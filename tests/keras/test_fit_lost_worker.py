"""What the model has after a training that loses a worker."""

import os
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
from fit_common import arrays, compiled

import caramel

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def servers_of(process):
    """The processes beneath one that have no others beneath them: its servers."""
    children = [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [server for child in children for server in servers_of(child) or [child]]


class Loses(keras.callbacks.Callback):
    """Ends a server in the third epoch, and keeps the values that the model had before."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            self.values = self.model.get_weights()
            os.kill(servers_of(os.getpid())[-1], signal.SIGKILL)


def test_values_of_the_epoch_before_and_the_next_call_goes_on_from_them():
    x, y = arrays(60)
    options = {"batch_size": 12, "shuffle": False, "verbose": 0, "workers": 2}
    lost, model = Loses(), compiled()
    with pytest.raises(caramel.ClusterError, match="worker"):
        caramel.fit(model, x, y, epochs=4, callbacks=[lost], cluster=caramel.LocalProcesses(), **options)
    alone = compiled()
    alone.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    for found, then, wanted in zip(model.get_weights(), lost.values, alone.get_weights()):
        np.testing.assert_array_equal(found, then)
        np.testing.assert_allclose(found, wanted, rtol=1e-8)
    caramel.fit(model, x, y, epochs=4, initial_epoch=2, cluster=caramel.LocalProcesses(), **options)
    alone.fit(x, y, batch_size=12, epochs=4, initial_epoch=2, shuffle=False, verbose=0)
    for found, wanted in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(found, wanted, rtol=1e-8)
