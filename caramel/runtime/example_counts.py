"""Checks of the example counts that the workers' pipelines report of an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from caramel.data.template import ELEMENT_INDEX, FIRST_ROWS, OWN_EXAMPLES
from caramel.errors import DataError
from caramel.signature import NONE, Signature


def checked_shares(signature: Signature, counts: Sequence[np.ndarray], batch: str) -> tuple[int, ...]:
    """The number of examples of each worker; all 0 where no input is split.

    Args:
        signature: signature of the step, with its inputs.
        counts: counts of each worker's element, in the layout of `caramel.data.template`.
        batch: noun for the element in messages.

    Raises:
        DataError: the step cannot take the element.
    """
    data = signature.data
    assert data is not None
    if not data.split:
        return (0,) * signature.workers
    if signature.workers > 1:  # else they may differ, as on one device
        _check_same_numbers(data.split, counts, batch)
    shares = tuple(int(counts_of_worker[OWN_EXAMPLES]) for counts_of_worker in counts)
    rows = {int(counts_of_worker[FIRST_ROWS]) for counts_of_worker in counts}
    if data.sharding == "slice" and len(rows) > 1:
        raise DataError(f"the workers read different data: {batch} has {sorted(rows)} examples on different workers")
    if sum(counts_of_worker[FIRST_ROWS] for counts_of_worker in counts) == 0:
        raise DataError(f"{batch} has no example")
    _check_dealing(signature, counts, batch)
    for number, (name, size) in enumerate(zip(data.split, data.rows)):
        own = shares if signature.workers > 1 else (int(counts[0][FIRST_ROWS + number]),)
        if size is not None and any(share != size for share in own):
            raise DataError(
                f"input {name!r} takes exactly {size} examples on each worker, but {batch} gives {list(own)}: "
                "use batches of one size (drop_remainder=True)"
            )
    _check_weights(signature, shares, batch)
    return shares


def _check_dealing(signature: Signature, counts: Sequence[np.ndarray], batch: str) -> None:
    """Check that a step which cuts its batch into micro-batches can do so."""
    data, dealing = signature.data, signature.dealing
    is_cut_here = data is not None and data.sharding != "slice"  # by each worker, on its own element
    for counts_of_worker in counts if signature.workers > 1 and dealing.micro_batches > 1 else ():
        if counts_of_worker[ELEMENT_INDEX] < 0:
            continue
        rows = int(counts_of_worker[FIRST_ROWS])
        refusal = replace(dealing, leaves_remainder=not is_cut_here and dealing.leaves_remainder).refusal(rows)
        if refusal:
            raise DataError(f"{batch} has {rows} example{'s' * (rows != 1)}: {refusal} (drop_remainder=True)")


def _check_same_numbers(names: Sequence[str], counts: Sequence[np.ndarray], batch: str) -> None:
    """Check that an element has as many examples in each input, on every worker that has got one."""
    for rank, counts_of_worker in enumerate(counts):
        rows = counts_of_worker[FIRST_ROWS:].tolist()
        if counts_of_worker[ELEMENT_INDEX] >= 0 and len(set(rows)) > 1:
            sizes = ", ".join(f"{name!r} {number}" for name, number in zip(names, rows))
            raise DataError(f"{batch} has different numbers of examples on worker {rank}: {sizes}")


def _check_weights(signature: Signature, shares: Sequence[int], batch: str) -> None:
    if signature.weights or signature.workers == 1 or signature.reduction == NONE:
        return
    if min(shares) == 0 or (signature.reduction == "mean" and len(set(shares)) > 1):
        raise DataError(
            f"{batch} gives the workers {list(shares)} examples: use batches of one size that divide evenly "
            "(drop_remainder=True), or make the model with uneven_batches='weight'"
        )
