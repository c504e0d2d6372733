"""Layers of networks whose times others have published; `benchmarks/data/README.md` names the sources.

The peers' processes read this file, too: in their environments there may be nothing but TensorFlow and NumPy.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

DATA = Path(__file__).parent / "data"

PARAMETER_BYTES = 4
"""Bytes of a float32, which all of these networks have."""


@dataclass(frozen=True)
class Layer:
    """A layer with parameters, which are one gradient.

    Attributes:
        parameter_bytes: bytes of its parameters.
        forward_s: seconds of its forward pass.
        backward_s: seconds of its backward pass.
    """

    parameter_bytes: int
    forward_s: float
    backward_s: float

    def scaled(self, factor: float) -> Layer:
        """The same layer on a processor that takes so many times as long."""
        return replace(self, forward_s=self.forward_s * factor, backward_s=self.backward_s * factor)


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """The rows of a table of published numbers.

    Args:
        name: name of its file.
    """
    with (DATA / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def googlenet_on_k80() -> list[Layer]:
    """The layers of GoogleNet with parameters, in the order of the forward pass."""
    found = []
    for row in rows_of("googlenet_k80.csv"):
        backward_s = float(row["backward_us"]) * 1e-6
        found.append(Layer(PARAMETER_BYTES * int(row["parameters"]), backward_s / 2, backward_s))
    return found


def layers_by_network() -> dict[str, list[Layer]]:
    """The layers with parameters of the nine networks that PipeDream's authors measured, by the network's name.

    Those of each network are in the order of the forward pass.
    """
    found: dict[str, list[Layer]] = {}
    for row in rows_of("layer_times.csv"):
        times_s = (float(row[f"{way}_us"]) * 1e-6 for way in ("forward", "backward"))
        found.setdefault(row["network"], []).append(Layer(int(row["parameter_bytes"]), *times_s))
    return found
