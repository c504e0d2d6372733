"""A network model as one JSON file."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from caramel.collectives.algorithms import is_all_reduce
from caramel.errors import InputError
from caramel.netmodel.contention import Contention
from caramel.netmodel.costs import Cost
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.util.arguments import MOST_CHUNKS, MOST_PREDICTED_WORKERS, shown
from caramel.util.json_files import JsonFormat, number, only_keys, text, whole
from caramel.util.text_files import write_text

FORMAT = JsonFormat(
    "network model", 1, InputError, "caramel netbench", "measure anew (caramel netbench)", "caramel network model"
)

_MOST_BYTES = 2**60
"""Upper bound of any number of bytes in a file."""

_KEYS = ("description", "curves", "gamma_s_per_byte", "given", "contentions", "costs", "warnings")
_CURVE_KEYS = ("workers", "algorithm", "depth", "samples", "line", "residuals", "valid_bytes")
_CONTENTION_KEYS = tuple(field.name for field in fields(Contention))


def to_json(network: NetworkModel) -> str:
    """The model as JSON; the same model always gives the same text.

    Lines, residuals and costs across numbers of workers are written for the reader; a loaded model
    fits them anew from the samples.
    """
    if network.workers_on_host != 1:
        raise InputError("a network whose links workers share is for questions only, and is not saved")
    curves = [
        {
            "workers": c.workers,
            "algorithm": c.algorithm,
            "depth": c.depth,
            "samples": [[s.size_bytes, s.time_s] for s in c.samples],
            "line": {"a_s": c.line.a_s, "b_s_per_byte": c.line.b_s_per_byte},
            "residuals": list(c.residuals),
            "valid_bytes": list(c.valid_bytes),
        }
        for c in network.curves
    ]
    content = {
        "description": network.description,
        "curves": curves,
        "gamma_s_per_byte": network.gamma_s_per_byte,
        "given": None if network.given is None else vars(network.given),
        "contentions": [vars(c) for c in network.contentions],
        "costs": [{"algorithm": a, "depth": d, **vars(cost)} for (a, d), cost in sorted(network.costs.items())],
        "warnings": list(network.warnings),
    }
    return FORMAT.write(content, sort_keys=False) + "\n"


def from_json(document: str, name: str = "this") -> NetworkModel:
    """Read what `to_json` wrote.

    Args:
        document: JSON text.
        name: noun for it in messages, such as ``"the network model net.json"``.

    Raises:
        InputError: it is damaged, something else, or of another version.
    """
    data = FORMAT.read(document, name)
    with FORMAT.reading(name):
        only_keys(data, _KEYS)
        given = data["given"]
        return _checked(
            NetworkModel(
                description=text(data["description"]),
                curves=tuple(_curve(c) for c in _list(data["curves"])),
                gamma_s_per_byte=number(data["gamma_s_per_byte"]),
                given=None if given is None else _cost(given),
                contentions=tuple(_contention(c) for c in _list(data.get("contentions", []))),  # not in older files
            )
        )


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{shown(data)} should be a list")
    return data


def _cost(data: Any) -> Cost:
    known = only_keys(data, [field.name for field in fields(Cost)], "given")
    return Cost(**{field.name: number(known[field.name]) for field in fields(Cost)})


def _sample(data: Any) -> Sample:
    if not isinstance(data, list) or len(data) != 2:
        raise ValueError(f"{shown(data)} should be a size and a time")
    return Sample(whole(data[0], 0, _MOST_BYTES), number(data[1]))


def _curve(data: Any) -> Curve:
    only_keys(data, _CURVE_KEYS, "a curve")
    samples = tuple(_sample(sample) for sample in _list(data["samples"]))
    workers = whole(data["workers"], 1, MOST_PREDICTED_WORKERS)
    return Curve.fitted(workers, _algorithm(data), whole(data["depth"], 1, MOST_CHUNKS), samples)


def _contention(data: Any) -> Contention:
    only_keys(data, _CONTENTION_KEYS, "a contention")
    share, slowdown = number(data["processor_share"]), number(data["slowdown"])
    if share >= 1 or slowdown < 1:
        raise ValueError(f"a processor share of {share} or a slowdown of {slowdown} cannot be")
    workers, depth = whole(data["workers"], 2, MOST_PREDICTED_WORKERS), whole(data["depth"], 1, MOST_CHUNKS)
    size_bytes = whole(data["size_bytes"], 1, _MOST_BYTES)
    occupancy_data = data.get("occupancy")  # not in older files
    occupancy = None if occupancy_data is None else number(occupancy_data)
    if occupancy == 0:
        raise ValueError("an occupancy of 0 cannot be")
    return Contention(workers, _algorithm(data), depth, size_bytes, share, slowdown, occupancy)


def _algorithm(data: Any) -> str:
    algorithm = text(data["algorithm"])
    if not is_all_reduce(algorithm):
        raise ValueError(f"there is no all-reduce algorithm {algorithm!r}")
    return algorithm


def _checked(network: NetworkModel) -> NetworkModel:
    if not network.curves and network.given is None:
        raise ValueError("it has no measurement")
    if network.given is not None:
        NetworkModel.from_costs(**vars(network.given))  # raises where it is of no use
    network.costs  # noqa: B018 - raises where it cannot be fitted
    keys = [(c.workers, c.algorithm, c.depth) for c in network.curves]
    beside = [(c.workers, c.algorithm, c.depth, c.size_bytes) for c in network.contentions]
    if len(set(keys)) != len(keys) or len(set(beside)) != len(beside):
        raise ValueError("something was measured twice")
    # What all-reduces lose beside computation are parts of the time that they take by themselves.
    if network.given is None and (unknown := [key for *key, _ in beside if tuple(key) not in keys]):
        workers, algorithm, depth = unknown[0]
        raise ValueError(f"{algorithm} at depth {depth} on {workers} workers was measured beside computation only")
    return network


def save(network: NetworkModel, path: str | os.PathLike[str]) -> None:
    """Write the model to a file; what was there is replaced only once all is written.

    Raises:
        InputError: it cannot be written.
    """
    write_text(path, to_json(network), "the network model", InputError)


def load(path: str | os.PathLike[str]) -> NetworkModel:
    """Read a model from a file.

    Raises:
        InputError: no such file, or it is damaged, something else, or of another version.
    """
    return from_json(FORMAT.text_of(path), f"the network model {os.fspath(path)!r}")


def as_network(network: NetworkModel | str | os.PathLike[str] | None) -> NetworkModel | None:
    """What a caller gave as a network: a model, or the file of one, which is read.

    Raises:
        InputError: no such file, or it is damaged, something else, or of another version.
    """
    if network is None or isinstance(network, NetworkModel):
        return network
    if not isinstance(network, (str, os.PathLike)):
        raise InputError(f"network is a caramel.NetworkModel, or the path of a file with one, got {shown(network)}")
    return load(network)
