"""Cut: gradients that travel in several pieces are taken apart, and put together again for their updates."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.collectives.lower import Emitter
from caramel.facts import Piece
from caramel.graph.graph import NodeDef
from caramel.model import Gradient
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name
from caramel.modifiers.weigh import redirect, replica_tensor


def cut(emission: Emission) -> Emission:
    """Take gradients apart where the plan sends them in pieces.

    Args:
        emission: the emission with weighed gradients, none of which is aggregated yet.

    Returns:
        The emission with the pieces, and a graph in which the readers of such a gradient read its pieces, joined.
        Those of postponed gradients are joined by `postpone`.
    """
    plan, tensors = emission.plan, emission.gradients
    pieces: dict[tuple[int, Piece], str] = {}
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    postponed = set(plan.postponed)
    for number, gradient in enumerate(emission.model.gradients):
        parts = [piece for piece, _ in plan.pieces[gradient.name]]
        if len(parts) == 1:
            pieces.update(((rank, parts[0]), tensors[rank, gradient.name]) for rank in range(plan.workers))
            continue
        emitter = Emitter(f"caramel/cut_{number}", plan.devices, gradient.dtype)
        for rank in range(plan.workers):
            piece_tensors = _taken_apart(emitter, rank, tensors[rank, gradient.name], gradient, parts)
            pieces.update(((rank, part), tensor) for part, tensor in zip(parts, piece_tensors))
            if gradient.name not in postponed:
                joined = joined_pieces(emitter, rank, piece_tensors, gradient)
                readers = [replica_name(rank, name) for name in gradient.consumers]
                tensor = replica_tensor(rank, gradient.tensor)
                redirect(emission, tensor, readers, joined, changed, own_name(rank, ""))
        added += [(node, Role(Purpose.REPLICA, rank)) for node, rank in emitter.out.nodes]
    return emission.extended(added, changed, pieces=pieces)


def _taken_apart(emitter: Emitter, rank: int, tensor: str, gradient: Gradient, parts: Sequence[Piece]) -> Sequence[str]:
    flat = tensor if len(gradient.shape) == 1 else emitter.reshape(rank, f"flat_{rank}", tensor, (gradient.size,))
    return emitter.parted(rank, f"pieces_{rank}", flat, [part.elements or 0 for part in parts])


def piece_shape(piece: Piece, gradient: Gradient) -> tuple[int, ...]:
    """The shape of the tensor of a piece of a dense gradient."""
    return gradient.shape if piece.elements == gradient.size else (piece.elements or 0,)


def joined_pieces(emitter: Emitter, rank: int, parts: Sequence[str], gradient: Gradient) -> str:
    """The pieces of a gradient as one tensor of its shape.

    Args:
        emitter: collector of the new nodes.
        rank: rank of the worker.
        parts: names of the flat tensors of the pieces, in the order of the gradient's elements.
        gradient: the dense gradient that the pieces make up.
    """
    joined = emitter.joined(rank, f"joined_{rank}", parts)
    return joined if len(gradient.shape) == 1 else emitter.reshape(rank, f"shaped_{rank}", joined, gradient.shape)
