"""Tables as text for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), rule: bool = False) -> str:
    """Rows with their columns below each other, two spaces apart.

    Args:
        rows: cells of each row, at least one; all rows have as many cells as the first, which is the head.
        right: numbers of the columns that are aligned to the right.
        rule: whether to draw a line below the head.

    >>> print(aligned([("name", "bytes"), ("first", "8"), ("w", "1024")], right={1}, rule=True))
    name   bytes
    -----  -----
    first      8
    w       1024
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    if rule:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
