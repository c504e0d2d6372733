"""Measurements that others have published, as this library's facts; `benchmarks/data/README.md` names the sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.published_layers import PARAMETER_BYTES, Layer, rows_of
from caramel.facts import Boundaries, Boundary
from caramel.netmodel.line import Line, Sample
from caramel.netmodel.model import NetworkModel

FIGURE_9_NETWORK = NetworkModel.from_costs(45.25e-6, 1.2 / (9 * 2**30 / 8), 160 / (16e9 * 4))
"""The ring over 10 Gbit/s Ethernet of MG-WFBP's figure 9: alpha, beta and gamma of its authors' simulator."""


@dataclass(frozen=True)
class FittedNetwork:
    """A line that others fitted to the times of all-reduces on a network of theirs.

    Attributes:
        name: what links it has.
        workers: number of workers.
        line: line of the seconds of an all-reduce.
    """

    name: str
    workers: int
    line: Line

    def model(self) -> NetworkModel:
        """The network on which a ring of so many workers takes the line's time."""
        steps = 2 * (self.workers - 1)  # messages of a ring, each with one part in `workers` of all bytes
        return NetworkModel.from_costs(self.line.a_s / steps, self.line.b_s_per_byte * self.workers / steps)


FITTED_NETWORKS = (
    FittedNetwork("10 Gbit/s Ethernet", 8, Line(5.2303e-4, 8.5707e-10)),
    FittedNetwork("10 Gbit/s Ethernet", 16, Line(9.0810e-4, 7.3957e-10)),
    FittedNetwork("56 Gbit/s InfiniBand", 8, Line(9.7537e-5, 3.0568e-10)),
    FittedNetwork("56 Gbit/s InfiniBand", 64, Line(8.0632e-4, 5.88834e-10)),
)
"""From the tables in the programs of MG-WFBP's authors (`distributed_optimizer.py` of github.com/HKBU-HPML/MG-WFBP and
of their programs after it, which have 64 workers). The last one they scaled by hand from fewer workers."""


def batch_times_s(processor: str) -> dict[str, tuple[int, float]]:
    """Examples of a batch, and seconds of a training step on one processor without communication, by network.

    Args:
        processor: name of the processor.
    """
    return {
        row["network"]: (int(row["batch"]), int(row["batch"]) / float(row["images_per_s"]))
        for row in rows_of("training_rates.csv")
        if row["processor"] == processor
    }


def all_reduce_samples() -> dict[int, list[Sample]]:
    """Times of an MPI all-reduce over 10 Gbit/s Ethernet by number of workers, in ascending order of size."""
    found: dict[int, list[Sample]] = {}
    for row in rows_of("allreduce_10gbe_mpi.csv"):
        found.setdefault(int(row["workers"]), []).append(Sample(int(row["bytes"]), float(row["latency_us"]) * 1e-6))
    return found


def boundaries_of(layers: Sequence[Layer]) -> Boundaries:
    """The boundaries of a chain of layers: the forward pass, then the backward pass from the last layer on.

    A layer's parameters are read when its forward pass begins; its gradient is ready when its backward pass ends.

    Args:
        layers: layers in the order of the forward pass.
    """
    starts_s = [0.0, *accumulate(layer.forward_s for layer in layers)]
    now_s, found = starts_s.pop(), list[Boundary]()
    for number, (layer, read_s) in reversed(list(enumerate(zip(layers, starts_s), 1))):
        now_s += layer.backward_s
        elements = layer.parameter_bytes // PARAMETER_BYTES
        found.append(Boundary(f"layer{number}", "float32", elements, float(layer.parameter_bytes), now_s, read_s))
    return Boundaries(tuple(found), now_s)
