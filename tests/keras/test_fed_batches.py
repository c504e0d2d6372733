"""Batches that the user's code makes in this process, several of which are one run."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from caramel.errors import EndOfData
from caramel.keras.fed_batches import FedBatches


class Session:
    """What trains on batches."""

    def __init__(self):
        self.trained = []

    def waiting_for_data(self):
        return nullcontext()

    def step(self, *batch):
        self.trained.append(float(batch[0][0]))

    def steps_together(self, steps, batches):
        assert steps == len(batches)
        return [self.step(*batch) for batch in batches]


def of(batches):
    session = Session()
    fed = FedBatches(session, SimpleNamespace(new_pass=lambda: iter(batches)))
    fed.begin()
    return session, fed


def failing_after(count):
    for number in range(count):
        yield (np.array([number]),)
    raise ValueError("a file is damaged")


@pytest.mark.parametrize("count", [0, 2, 3])
def test_what_was_made_before_a_failure_is_trained_on(count):
    """The error is the user's own, and comes when the batches before it are done."""
    session, fed = of(failing_after(count))
    with pytest.raises(ValueError, match="a file is damaged"):
        for _ in range(count + 1):
            fed.steps(2)
    assert session.trained == [*range(count)]
    with pytest.raises(EndOfData):
        fed.steps(2)


def test_the_end():
    session, fed = of([(np.array([number]),) for number in range(3)])
    fed.steps(2)
    fed.steps(2)
    with pytest.raises(EndOfData):
        fed.steps(2)
    assert session.trained == [0, 1, 2]
