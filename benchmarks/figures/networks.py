"""The papers' networks: published layers, and which layer needs the results of which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

from benchmarks.published_data import batch_times_s, boundaries_of
from benchmarks.published_layers import PARAMETER_BYTES, Layer, googlenet_on_k80, layers_by_network
from caramel.facts import Boundaries

PIPEDREAM = "PipeDream's profile"

_CONVOLUTION = 2
"""Rows of a convolution: itself and its batch normalisation."""

Parts: TypeAlias = "Sequence[int | tuple[Parts, ...] | Side]"
"""Layers in the order of the tables: so many in a row, branches beside each other, or what only the loss needs."""


@dataclass(frozen=True)
class Side:
    """An auxiliary classifier: only the loss needs what it gives.

    Attributes:
        layers: number of its layers, in a row.
    """

    layers: int


@dataclass(frozen=True)
class PaperNetwork:
    """A network of the papers.

    Attributes:
        layers: layers with parameters, in an order of the forward pass.
        inputs: for each of them the positions of the layers whose results it needs directly.
        ends: positions of the layers whose results the loss needs.
        source: origin of the times.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]
    source: str

    @property
    def compute_s(self) -> float:
        """Seconds of a forward and a backward pass."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def users(self) -> list[list[int]]:
        """For each layer the positions of those that need its results directly."""
        found: list[list[int]] = [[] for _ in self.layers]
        for position, inputs in enumerate(self.inputs):
            for given in inputs:
                found[given].append(position)
        return found

    def scaled(self, factor: float) -> PaperNetwork:
        """The same network with all computation so many times as long."""
        return replace(self, layers=tuple(layer.scaled(factor) for layer in self.layers))

    def boundaries(self, orders: Sequence[Sequence[int]] = ()) -> Boundaries:
        """Boundaries of the gradients, where a gradient is ready when the last worker has it.

        Args:
            orders: of each worker, the order of its backward pass, as positions; empty for the tables' order.
        """
        found = boundaries_of(self.layers)
        if not orders:
            return found
        ready_s = [0.0] * len(self.layers)
        for order in orders:
            now_s = sum(layer.forward_s for layer in self.layers)
            for position in order:
                now_s += self.layers[position].backward_s
                ready_s[position] = max(ready_s[position], now_s)
        by_layer = list(reversed(found.gradients))
        moved = [replace(gradient, ready_s=ready) for gradient, ready in zip(by_layer, ready_s)]
        return replace(found, gradients=tuple(reversed(moved)))

    def any_order(self, random: Random) -> list[int]:
        """A backward pass that takes any of the layers that are ready, as positions.

        Args:
            random: source of the choices.
        """
        waits_for, order = [len(users) for users in self.users], list[int]()
        ready = [position for position, count in enumerate(waits_for) if count == 0]
        while ready:
            position = ready.pop(random.randrange(len(ready)))
            order.append(position)
            for given in self.inputs[position]:
                waits_for[given] -= 1
                if waits_for[given] == 0:
                    ready.append(given)
        return order

    def greedy_order(self) -> list[int]:
        """Caramel's order of the backward pass: always the gradient that needs the least further computation.

        Source:
            Caramel, section 4.1, stage 1. Of equals the one goes first that the forward pass has last.
        """
        users, done, order = self.users, set[int](), list[int]()
        while len(order) < len(self.layers):
            left = [p for p in range(len(self.layers)) if p not in done and done.issuperset(users[p])]
            position = min(left, key=lambda p: (self.layers[p].backward_s, -p))
            done.add(position)
            order.append(position)
        return order


def _network(layers: Sequence[Layer], parts: Parts, source: str) -> PaperNetwork:
    inputs: list[tuple[int, ...]] = []
    sides: list[int] = []

    def walk(parts: Parts, before: tuple[int, ...]) -> tuple[int, ...]:
        for part in parts:
            if isinstance(part, tuple):
                after = [given for branch in part for given in walk(branch, before)]
                before = tuple(dict.fromkeys(after))
                continue
            given = before
            for _ in range(part.layers if isinstance(part, Side) else part):
                inputs.append(given)
                given = (len(inputs) - 1,)
            if isinstance(part, Side):
                sides.extend(given)
            else:
                before = given
        return before

    ends = walk(parts, ())
    assert len(inputs) == len(layers), (len(inputs), len(layers))
    return PaperNetwork(tuple(layers), tuple(inputs), (*sides, *ends), source)


def _convolutions(*parts: Any) -> Parts:
    """The same with two rows for each convolution; no auxiliary classifiers."""
    return [
        _CONVOLUTION * part if isinstance(part, int) else tuple(_convolutions(*branch) for branch in part)
        for part in parts
    ]


def _googlenet() -> Parts:
    module = ([1], [2], [2], [1])
    return [3, *[module] * 9, 1]


def _without_sides(layers: Sequence[Layer]) -> list[Layer]:
    """GoogLeNet without its two auxiliary classifiers, of three layers each."""
    first, second = 3 + 3 * 6, 3 + 6 * 6 + 3
    return [*layers[:first], *layers[first + 3 : second], *layers[second + 3 :]]


def _inception_v3() -> Parts:
    a = ([1], [2], [3], [1])
    c = ([1], [3], [5], [1])
    spread = ([1], [1])
    e = ([1], [1, spread], [2, spread], [1])
    modules = _convolutions(5, a, a, a, ([1], [3], []), c, c, c, c)
    return [*modules, Side(2 * _CONVOLUTION + 1), *_convolutions(([2], [4], []), e, e), 1]


def _resnet(blocks: Sequence[int]) -> Parts:
    stages = [([3], [1] if block == 0 else []) for count in blocks for block in range(count)]
    return [*_convolutions(1, *stages), 1]


_RESNET_BLOCKS = {"ResNet-50": (3, 4, 6, 3), "ResNet-101": (3, 4, 23, 3), "ResNet-152": (3, 8, 36, 3)}


def _resnet_152(of: Sequence[Layer]) -> list[Layer]:
    """The layers of ResNet-152: those of ResNet-101, with more of the blocks that are alike."""
    found, rest = list(of[:2]), list(of[2:])
    for there, wanted in zip(_RESNET_BLOCKS["ResNet-101"], _RESNET_BLOCKS["ResNet-152"]):
        first, alike = rest[:8], rest[8 : 8 + 6 * (there - 1)]
        rest = rest[8 + 6 * (there - 1) :]
        found += [*first, *alike, *[_mean(alike[row::6]) for row in range(6)] * (wanted - there)]
    return [*found, *rest]


def _mean(layers: Sequence[Layer]) -> Layer:
    assert len({layer.parameter_bytes for layer in layers}) == 1
    forward_s, backward_s = (
        sum(times) / len(layers) for times in zip(*((layer.forward_s, layer.backward_s) for layer in layers))
    )
    return Layer(layers[0].parameter_bytes, forward_s, backward_s)


_ALEXNET_V2 = (23_296, 307_392, 663_936, 1_327_488, 884_992, 26_218_496, 16_781_312, 4_097_000)
"""Parameters of each layer of AlexNet v2 (Krizhevsky 2014) as TensorFlow's reference implementation has it."""


K80 = "K80"

GOOGLENET_BATCH = 64
"""Examples of a batch of GoogLeNet's published times."""


def paper_networks(processor: str = K80) -> dict[str, PaperNetwork]:
    """The networks of the papers whose times of layers are published, or follow from published ones, by name.

    The shares of the layers are those of the source. All of them together take as long as a published training step.

    Args:
        processor: name of the processor; networks of which no step on it is published are left out.
    """
    profiles = layers_by_network()
    alexnet = [replace(a, parameter_bytes=PARAMETER_BYTES * n) for n, a in zip(_ALEXNET_V2, profiles["AlexNet"])]
    shapes: dict[str, tuple[Sequence[Layer], Parts, str]] = {
        "AlexNet-v2": (alexnet, [8], f"AlexNet in {PIPEDREAM}"),
        "Inception-v3": (profiles["Inception-v3"], _inception_v3(), PIPEDREAM),
        "VGG-16": (profiles["VGG-16"], [16], PIPEDREAM),
        "ResNet-50": (profiles["ResNet-50"], _resnet(_RESNET_BLOCKS["ResNet-50"]), PIPEDREAM),
        "ResNet-152": (
            _resnet_152(profiles["ResNet-101"]),
            _resnet(_RESNET_BLOCKS["ResNet-152"]),
            f"the blocks of ResNet-101 in {PIPEDREAM}, more often",
        ),
    }
    found: dict[str, PaperNetwork] = {}
    for name, (batch, step_s) in batch_times_s(processor).items():
        layers, parts, shares = shapes[name]
        network = _network(layers, parts, f"shares of {shares}; {batch} examples in {step_s * 1e3:.0f} ms, {processor}")
        found[name] = network.scaled(step_s / network.compute_s)
    if processor == K80:
        made = _network(profiles["ResNet-101"], _resnet(_RESNET_BLOCKS["ResNet-101"]), "")
        factor = found["ResNet-152"].compute_s / _network(*shapes["ResNet-152"]).compute_s
        source = f"{PIPEDREAM}; 32 examples, as much longer as ResNet-152"
        found["ResNet-101"] = replace(made.scaled(factor), source=source)
        source = f"the authors of MG-WFBP; {GOOGLENET_BATCH} examples, {processor}, without auxiliary classifiers"
        found["GoogLeNet"] = _network(_without_sides(googlenet_on_k80()), _googlenet(), source)
    return found
