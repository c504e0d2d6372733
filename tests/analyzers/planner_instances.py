"""Steps to plan: random ones by seed, and published networks on published and measured all-reduces."""

import random
from itertools import accumulate

from climbing_oracle import line, measured

from benchmarks.published_data import all_reduce_samples, boundaries_of
from benchmarks.published_layers import googlenet_on_k80, layers_by_network
from caramel.facts import Boundaries, Boundary

KIB, MIB = 2**10, 2**20

STAR_OF_EIGHT = [
    (64, 1.9e-3),
    (4 * KIB, 1.88e-3),
    (16 * KIB, 1.95e-3),
    (64 * KIB, 2.25e-3),
    (256 * KIB, 3.37e-3),
    (1 * MIB, 8.77e-3),
    (4 * MIB, 29.6e-3),
    (16 * MIB, 99.5e-3),
    (32 * MIB, 235e-3),
]
"""(bytes, seconds) of star on eight local processes, from docs/benchmarks/all-reduces.md."""

TEN_GBE_LINE, INFINIBAND_LINE, TEN_GBE_LINE_OF_64 = (
    (5.2303e-4, 8.5707e-10),
    (9.7537e-5, 3.0568e-10),
    (7.04292e-3, 9.6433e-10),
)
"""(seconds, seconds per byte) that MG-WFBP's authors fitted: 10 GbE and 56 Gb InfiniBand at N = 8, 10 GbE at N = 64."""

TEN_GBE_BYTES = (4, KIB, 4 * KIB, 8 * KIB, 12 * KIB, *(2**n for n in range(14, 21)))
"""Sizes of the measured all-reduces over 10 GbE, on both sides of the jump between 8 and 12 KiB."""

PROFILES = ("AlexNet", "VGG-16", "SqueezeNet", "GNMT", "GoogleNet", "ResNet-50", "Inception-v3", "DenseNet-121")

RHOS = (0.25, 0.5, 1, 2, 4)


# -- networks -----------------------------------------------------------------------------------


def ten_gbe(workers):
    """The measured all-reduces over 10 GbE."""
    samples = all_reduce_samples()[workers]
    return measured([(s.size_bytes, s.time_s) for s in samples if s.size_bytes in TEN_GBE_BYTES], workers)


def published_networks():
    """Those of the lower bound, by name."""
    return {
        "10 GbE": line(*TEN_GBE_LINE),
        "InfiniBand": line(*INFINIBAND_LINE),
        "10 GbE of 64": line(*TEN_GBE_LINE_OF_64),
        "10 GbE, measured": ten_gbe(8),
        "star of eight": measured(STAR_OF_EIGHT),
    }


def measured_networks():
    """Those that are no lines, by name."""
    return {"star of eight": measured(STAR_OF_EIGHT), **{f"10 GbE of {n}": ten_gbe(n) for n in (2, 4, 8)}}


def random_curve(rng, total_bytes):
    """A measured network of another shape each time, at sizes that are no powers of two."""
    sizes = sorted({rng.randrange(64, 1024), *(int(total_bytes * 4 ** rng.uniform(-6, 0.5)) for _ in range(7))})
    sizes = [size for n, size in enumerate(sizes) if n == 0 or size > 1.05 * sizes[n - 1]]
    shape = rng.choice(("convex", "concave", "jumps", "noise"))
    slopes = [4 ** rng.uniform(-1, 1) for _ in sizes[1:]]
    if shape in ("convex", "concave"):
        slopes.sort(reverse=shape == "concave")
    start = sum(s * (b - a) for s, a, b in zip(slopes, sizes, sizes[1:])) * 10 ** rng.uniform(-2, -0.5)
    times = [start + t for t in accumulate((s * (b - a) for s, a, b in zip(slopes, sizes, sizes[1:])), initial=0.0)]
    if shape == "jumps":
        at = rng.randrange(1, len(sizes))
        times = [time * (rng.uniform(1.3, 4) if n >= at else 1) for n, time in enumerate(times)]
    if shape == "noise":
        times = [time * rng.uniform(0.7, 1.3) for time in times]
    times[-1] = max(times[-1], 1.05 * max(times[:-1]))
    return measured([(size, 1e-9 * time) for size, time in zip(sizes, times)])


# -- steps --------------------------------------------------------------------------------------


def chain(rng, count, updates=0.0, swaps=0, **others):
    """Layers of random times and sizes of up to 8 MB; some neighbours are read in the other order than in a chain.

    Updates are so large a part of the computation, as their bytes are. Others are functions that make attributes.
    """
    forward = [rng.uniform(0, 4) for _ in range(count)]
    backward = [rng.uniform(0.5, 6) for _ in range(count)]
    sizes = [250_000 * rng.randint(1, 8) for _ in range(count)]  # elements
    reads = [sum(forward[:n]) for n in range(count)]
    for _ in range(swaps):
        n = rng.randrange(count - 1)
        reads[n], reads[n + 1] = reads[n + 1], reads[n]
    compute_s = sum(forward) + sum(backward)
    ready, made = sum(forward), []
    for n in reversed(range(count)):
        ready += backward[n]
        update_s = updates * compute_s * sizes[n] / sum(sizes)
        attributes = {name: make() for name, make in others.items()}
        made.append(Boundary(f"w{n}", "float32", sizes[n], 4.0 * sizes[n], ready, reads[n], update_s, **attributes))
    return Boundaries(tuple(made), compute_s)


def total_bytes(boundaries):
    return sum(g.size_bytes for g in boundaries.gradients)


def random_line(rng, boundaries):
    """A line on which all bytes need between a quarter of the computation and four times as long."""
    needed_s = boundaries.compute_s * 2 ** rng.uniform(-2, 2)
    return line(needed_s * 10 ** rng.uniform(-2.5, -1), needed_s / total_bytes(boundaries))


def scaled_to(boundaries, known, rho):
    """The same step with computation in proportion: all bytes in one transfer take rho times as long."""
    return boundaries.scaled(known.seconds(total_bytes(boundaries)) / rho / boundaries.compute_s)


def swapped_orders(seed):
    """Three to five gradients whose orders of readiness and of reads disagree by one swap."""
    rng = random.Random(seed)
    boundaries = chain(rng, 3 + seed % 3, swaps=1)
    return boundaries, random_line(rng, boundaries)


def long_updates(seed):
    """A chain of three to five layers whose updates are 15 % of the computation."""
    rng = random.Random(seed)
    boundaries = chain(rng, 3 + seed % 3, updates=0.15)
    return boundaries, random_line(rng, boundaries)


def on_a_curve(seed):
    """A chain of three to six layers on a random curve."""
    rng = random.Random(seed)
    boundaries = chain(rng, rng.randint(3, 6))
    known = random_curve(rng, total_bytes(boundaries))
    return scaled_to(boundaries, known, 2 ** rng.uniform(-2, 2)), known


def anything_on_a_curve(seed):
    """Up to six gradients, some of which cannot wait or cannot be cut, in nearly any order, with updates or without."""
    rng = random.Random(seed)
    count = rng.randint(2, 6)
    boundaries = chain(
        rng,
        count,
        updates=rng.choice((0.0, 0.0, rng.uniform(0, 0.3))),
        swaps=rng.randint(0, count) if rng.random() < 0.5 else 0,
        kept_reason=lambda: "it is read in this step" if rng.random() < 0.1 else "",
        divisible=lambda: rng.random() < 0.9,
    )
    known = random_curve(rng, total_bytes(boundaries))
    return scaled_to(boundaries, known, 2 ** rng.uniform(-2, 2)), known


def published(model, known, rho):
    """The gradients of a published network on a network; all bytes need rho times as long as its computation."""
    layers = googlenet_on_k80() if model == "GoogleNet" else layers_by_network()[model]
    return scaled_to(boundaries_of(layers), known, rho)
