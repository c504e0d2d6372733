"""Sparse gradients whose rows no example chooses: every worker has the same slices, which are added up.

On one device such a gradient (of a table of positions, say) has one slice for each row, summed over the batch. If
the slices of all workers were gathered, each row would be there N times. What optimizers do with slices is not
linear (Adam adds up the squares of slices), so N workers would not train as one device does. Where examples choose
the rows, one device has a slice for each example, too: those are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from caramel.frontend.batch.domain import is_everywhere
from caramel.frontend.captured import RawProgram
from caramel.frontend.roles.divergence import Locality
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph, behind_identities, data_texts, node_of, tensor_name
from caramel.graph.shapes import static_shape
from caramel.model import Gradient, Input


@dataclass(frozen=True)
class _Slices:
    """Slices of a sparse gradient.

    Attributes:
        values: tensor with the values.
        indices: tensor with their rows.
        consumers: names of the nodes that read both tensors as the gradient; empty for all readers.
        is_shared: whether every worker has the same rows.
    """

    values: str
    indices: str
    consumers: tuple[str, ...]
    is_shared: bool


def with_shared_rows(
    raw: RawProgram, gradients: Sequence[Gradient], inputs: Sequence[Input], local: Collection[str]
) -> tuple[Gradient, ...]:
    """The gradients; a sparse one whose rows are the same on every worker is aggregated slice by slice.

    Where the number of its slices is static, the values are an ordinary dense gradient, and each worker goes on
    with its own rows. A gradient that is put together of some slices of this kind and some that examples choose
    (a table that is looked up in two ways) becomes several gradients.

    Args:
        raw: the captured program.
        gradients: gradients to aggregate.
        inputs: inputs of the program.
        local: handle nodes of the variables that have a value of their own on each worker.
    """
    if not any(g.is_sparse for g in gradients):
        return tuple(gradients)
    reductions = Reductions(raw.graph, inputs, dict.fromkeys(local, "local"), raw.row_constants, raw.dealing)
    differing = Locality(raw.graph, raw.library).differing(local, by_shape=False)

    def is_shared(indices: str) -> bool:
        return node_of(indices) not in differing and is_everywhere(reductions.value_of(indices))

    names = {g.name for g in gradients}
    result: list[Gradient] = []
    for gradient in gradients:
        if gradient.indices is None:
            result.append(gradient)
            continue
        whole = _Slices(gradient.tensor, gradient.indices, gradient.consumers, is_shared(gradient.indices))
        parts = [whole] if whole.is_shared else _parts(raw.graph, whole, is_shared)
        if not any(part.is_shared for part in parts):
            parts = [whole]
        for number, part in enumerate(parts):
            name = gradient.name if number == 0 else _free_name(gradient.name.partition("#")[0], names)
            result.append(_gradient(raw.graph, replace(gradient, name=name), part))
    return tuple(result)


def _parts(graph: Graph, slices: _Slices, is_shared: Callable[[str], bool]) -> list[_Slices]:
    """The slices of which a gradient is put together, those of one lookup each."""
    values, indices = (graph[node_of(behind_identities(graph, t))] for t in (slices.values, slices.indices))
    if values.op != "ConcatV2" or indices.op != "ConcatV2":
        return [slices]
    value_texts, index_texts = data_texts(values)[:-1], data_texts(indices)[:-1]
    if len(value_texts) != len(index_texts):
        return [slices]
    consumers = tuple(dict.fromkeys([values.name, indices.name]))
    parts: list[_Slices] = []
    for value, index in zip(value_texts, index_texts):
        part = _Slices(tensor_name(value), tensor_name(index), consumers, is_shared(index))
        parts += [part] if part.is_shared else _parts(graph, part, is_shared)
    return parts


def _free_name(parameter: str, names: set[str]) -> str:
    number = 2
    while f"{parameter}#{number}" in names:
        number += 1
    names.add(f"{parameter}#{number}")
    return f"{parameter}#{number}"


def _gradient(graph: Graph, gradient: Gradient, part: _Slices) -> Gradient:
    """The gradient of one part of the slices."""
    gradient = replace(gradient, tensor=part.values, indices=part.indices, consumers=part.consumers)
    if not part.is_shared:
        return gradient
    shape = static_shape(graph, part.values)
    if shape is None or None in shape:
        return replace(gradient, shared_rows=True)
    sizes = tuple(size for size in shape if size is not None)
    return replace(gradient, shape=sizes, indices=None, index_dtype=None, rows=part.indices)
