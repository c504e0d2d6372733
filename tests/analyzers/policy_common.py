"""What the tests of policies share: networks that are lines, and boundaries in whole numbers."""

from hypothesis import strategies as st

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.cost.network import Network
from caramel.facts import Boundaries, Boundary, Buckets
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel

UNKNOWN = Network(CollectiveOptions(), 4)


def line(a_s, b_s_per_byte):
    """A network in which a transfer takes a + b * bytes: the ring of two workers sends two messages and all bytes."""
    return Network(CollectiveOptions("ring", 1, network=NetworkModel.from_costs(a_s / 2, b_s_per_byte)), 2)


def gradient(name, ready_s, read_s=0, size_bytes=4, **others):
    """A gradient of float32 elements that take a byte each, so that bytes are as good as elements."""
    values = {"dtype": "float32", "elements": size_bytes, **others}
    return Boundary(name=name, size_bytes=float(size_bytes), ready_s=float(ready_s), read_s=float(read_s), **values)


def boundaries(*gradients, compute_s=None):
    return Boundaries(tuple(gradients), float(gradients[-1].ready_s if compute_s is None else compute_s))


def buckets_of(policy, found, network=UNKNOWN):
    return analyse([policy], [found, network], [Buckets])[Buckets]


@st.composite
def chains(draw, most=7, update_s=0):
    """A model of layers: read in their order, and ready in the opposite one."""
    count = draw(st.integers(1, most))
    forward = [draw(st.integers(0, 4)) for _ in range(count)]
    backward = [draw(st.integers(0, 6)) for _ in range(count)]
    now, found = sum(forward), []
    for layer in reversed(range(count)):
        now += backward[layer]
        size = draw(st.integers(0, 9))
        found.append(gradient(f"w{layer}", now, sum(forward[:layer]), size, update_s=float(update_s)))
    return boundaries(*found)


@st.composite
def anything(draw, most=8):
    """Gradients of several kinds, in any order of reads."""
    now, level, found = draw(st.integers(0, 4)), 0, []
    for number in range(draw(st.integers(0, most))):
        now += draw(st.integers(0, 4))
        level += draw(st.sampled_from([0, 0, 0, 1]))  # what waits for others in the same step is ready after them
        others = {
            "dtype": draw(st.sampled_from(["float32", "float32", "float16"])),
            "level": level,
            "kept_reason": draw(st.sampled_from(["", "", "it is kept"])),
            "divisible": draw(st.booleans()),
        }
        size = draw(st.integers(0, 9))
        if draw(st.integers(0, 5)) == 0:
            others.update(elements=None, kept_reason="it is sparse")
        found.append(gradient(f"g{number}", now, draw(st.integers(0, 12)), size, **others))
    return boundaries(*found, compute_s=now + draw(st.integers(0, 4)))
