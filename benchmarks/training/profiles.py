"""Networks whose computation others have measured: blocks that take these times on an accelerator.

A block is a few layers. It waits for what it reads, takes its time, and gives its gradients at the end of its backward
pass. Sizes and times of all networks are scaled to the same totals, and so links of one rate make one rho for all:
what is left of a published profile is how bytes and time are spread over the network.

Profiles say nothing of branches. Those of Inception-v3 are known from its paper; the other networks are chains, as
their layers were measured one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from benchmarks.published_layers import PARAMETER_BYTES, Layer, layers_by_network
from benchmarks.training.accelerators import Sleep, marked, slept
from benchmarks.training.layers import Layers
from benchmarks.training.workloads import Workload

COMPUTATION_S = 0.8
"""Of a step of any network."""

TOTAL_BYTES = 8e6
"""Of the parameters of any network: so few that moving them takes little processor time."""

_FEWEST_BYTES = 64
"""Of a tensor, in whole items."""

_LEAST_S = 0.002
"""Of a pass of a block: a shorter one has its time with others."""

_MOST_BLOCKS = 14

_BRANCHES = {
    "Inception-v3": (
        *[(2,)] * 5,
        *[(2, 4, 6, 2)] * 3,
        (2, 6),
        *[(2, 6, 10, 2)] * 4,
        (5, 4, 8),  # the first one is the auxiliary classifier
        (2, 6, 8, 2),
        (2, 6, 8, 3),  # and the last layer, which takes next to no time
    )
}
"""For each module the number of layers in each of its branches, in the order of the published times: convolutions and
their normalisations are layers (Szegedy et al. 2015, "Rethinking the Inception Architecture", table 1)."""

_LEARNED = 6.0
"""Learning rate of all tensors together: then the first losses of a wrong sum are not those of the right one."""

_LESS = 1e-3
"""By which part of it a tensor counts less than the one before, in a block."""

_CLASSES = 8
_EXAMPLES = 64


@dataclass(frozen=True)
class Block:
    """Layers that are computed together.

    Attributes:
        sizes: number of items of each layer's parameters.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
    """

    sizes: tuple[int, ...]
    forward_s: float
    backward_s: float

    @property
    def time_s(self) -> float:
        """Seconds of both passes."""
        return self.forward_s + self.backward_s

    def __add__(self, later: Block) -> Block:
        """This block and one behind it as one."""
        times_s = self.forward_s + later.forward_s, self.backward_s + later.backward_s
        return Block(self.sizes + later.sizes, *times_s)


Module = tuple[Block, ...]
"""Blocks side by side: branches, whose sum is what follows."""


def modules_of(profile: str) -> tuple[Module, ...]:
    """A network's blocks in the order of the forward pass, scaled to the totals.

    Args:
        profile: name of a network in the published times.
    """
    layers = layers_by_network()[profile]
    if profile not in _BRANCHES:
        return tuple((block,) for block in blocks_of(layers))
    rest = iter(_scaled(layers))
    return tuple(tuple(_together(rest, count) for count in counts) for counts in _BRANCHES[profile])


def _together(layers: Iterator[Block], count: int) -> Block:
    """The next layers as one block."""
    first, *others = islice(layers, count)
    for each in others:
        first += each
    return first


def blocks_of(layers: Sequence[Layer]) -> tuple[Block, ...]:
    """The blocks of a chain, scaled to the totals.

    While there are too many, or a pass is too short, the two neighbours that take the least time together, or the one
    with the short pass and its shorter neighbour, become one.

    Args:
        layers: in the order of the forward pass.
    """
    groups = _scaled(layers)
    while len(groups) > 1:
        shortest = min(groups, key=lambda group: min(group.forward_s, group.backward_s))
        is_short = min(shortest.forward_s, shortest.backward_s) < _LEAST_S
        if not is_short and len(groups) <= _MOST_BLOCKS:
            break
        place = groups.index(shortest)
        pairs = range(max(place - 1, 0), min(place + 1, len(groups) - 1)) if is_short else range(len(groups) - 1)
        first = min(pairs, key=lambda pair: groups[pair].time_s + groups[pair + 1].time_s)
        groups[first : first + 2] = [groups[first] + groups[first + 1]]
    return tuple(groups)


def _scaled(layers: Sequence[Layer]) -> list[Block]:
    """Each layer as a block."""
    in_time = COMPUTATION_S / sum(layer.forward_s + layer.backward_s for layer in layers)
    in_size = TOTAL_BYTES / sum(layer.parameter_bytes for layer in layers)
    sizes = (max(round(layer.parameter_bytes * in_size), _FEWEST_BYTES) // PARAMETER_BYTES for layer in layers)
    return [Block((size,), layer.forward_s * in_time, layer.backward_s * in_time) for layer, size in zip(layers, sizes)]


@dataclass(frozen=True)
class Blocks:
    """A network of blocks, as `Workload.network`.

    Attributes:
        modules: in the order of the forward pass.
        sleep: what stands for the computation of a block.
    """

    modules: tuple[Module, ...]
    sleep: Sleep = marked

    def __call__(self, layers: Layers, x: Any) -> Any:
        """Logits: those of the examples, to which each block adds what its parameters say of each class."""
        tf = layers.tf
        weights = tf.range(1.0, _CLASSES + 1.0) / _CLASSES
        for number, module in enumerate(self.modules):
            branches = []
            for place, block in enumerate(module):
                names = (f"module{number}/branch{place}/layer{n}" for n in range(len(block.sizes)))
                parameters = [tf.convert_to_tensor(layers.flat(name, n)) for name, n in zip(names, block.sizes)]
                branches.append(self._block(tf, x, weights, parameters, block, len(module) == 1))
            x = tf.add_n(branches) - (len(branches) - 1) * x if len(branches) > 1 else branches[0]
        return x

    def _block(self, tf: Any, x: Any, weights: Any, parameters: Sequence[Any], block: Block, is_alone: bool) -> Any:
        """What follows on a block; its gradients are those that TensorFlow would find, when they are due.

        Those of two tensors differ: of equal ones, an optimizer of graphs would have only one sent.
        """
        parts = [(1 - _LESS * place) / size**0.5 for place, size in enumerate(block.sizes)]

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def computed(x: Any, *parameters: Any) -> Any:
            total = tf.add_n([part * tf.reduce_sum(each) for each, part in zip(parameters, parts)])

            def gradient(upstream: Any) -> tuple[Any, ...]:
                known = self._later(tf, upstream, block.backward_s, is_alone)
                of_total = tf.reduce_sum(known * weights)
                return known, *(tf.fill([size], part * of_total) for size, part in zip(block.sizes, parts))

            return self._later(tf, x + total * weights, block.forward_s, is_alone), gradient

        return computed(x, *parameters)

    def _later(self, tf: Any, value: Any, time_s: float, is_alone: bool) -> Any:
        with tf.control_dependencies([self.sleep(tf, tf.reshape(value, [-1])[0], time_s, is_alone)]):
            return tf.identity(value)


def sleeping(workload: Workload) -> Workload:
    """The workload for peers that start no graph on `Accelerated` hosts: with sleeping ops instead of marks.

    Args:
        workload: what is trained; one without such blocks stays as it is.
    """
    network = workload.network
    return replace(workload, network=replace(network, sleep=slept)) if isinstance(network, Blocks) else workload


def _emulated(profile: str) -> Workload:
    modules = modules_of(profile)
    tensors = sum(len(block.sizes) for module in modules for block in module)
    return Workload(
        re.sub(r"\W", "", profile).lower(),
        f"{profile}, emulated",
        _EXAMPLES,
        _CLASSES,
        (_CLASSES,),
        "float32",
        Blocks(modules),
        learning_rate=_LEARNED / tensors,
    )


PROFILES = ("VGG-16", "ResNet-50", "ResNet-101", "Inception-v3", "DenseNet-121", "GNMT")
"""Names of networks in the published times."""

EMULATED: Mapping[str, Workload] = {made.name: made for made in map(_emulated, PROFILES)}
"""Networks on accelerators that are emulated, by name."""
