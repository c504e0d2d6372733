"""Dealt rows: how many rows of a table each of its owners has."""

from __future__ import annotations


def rows_of_owners(rows: int, owners: int) -> tuple[int, ...]:
    """The number of rows that each owner has: the one in place k has the rows k, k + K, k + 2 K and so on.

    Numbers of words often go by how frequent they are; so frequent rows are at all owners alike.

    Args:
        rows: number of rows of the table.
        owners: number of owners, K.

    >>> rows_of_owners(10, 4)
    (3, 3, 2, 2)
    """
    return tuple(len(range(place, rows, owners)) for place in range(owners))
