"""The 1,797 handwritten digits that ship with scikit-learn."""

import numpy as np
from sklearn.datasets import load_digits

TEST = 360


def load():
    """The digits, shuffled: (training images, labels), (test images, labels)."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    return (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])


def batches(images, labels, size):
    """Batches of one epoch after the other, forever, each epoch in an order of its own."""
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield images[chosen], labels[chosen]
