"""What a program is made of, in so few words that plans and traces keep it: to say what is different in another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caramel.errors import listed

_MOST = 4
"""Names of one kind of difference that are shown."""

_FEW = 3
"""Names that are shown where most are others."""


@dataclass(frozen=True)
class Outline:
    """The parts of a program by which people know it.

    Attributes:
        inputs: each with its element type and shape, by name.
        variables: each with its class, element type and shape, by the name that it has in plans.
        op_counts: number of ops of each type.
        reduction: ``"mean"`` or ``"sum"``: how gradients combine over workers.
    """

    inputs: Mapping[str, str]
    variables: Mapping[str, str]
    op_counts: Mapping[str, int]
    reduction: str


def differences(then: Outline | None, now: Outline) -> str:
    """What is different in a program, for a message.

    >>> then = Outline({"x": "float32 [?, 8]"}, {"dense/kernel": "parameter, float32 [8, 4]"}, {"MatMul": 1}, "mean")
    >>> now = Outline(then.inputs, {"dense/kernel": "parameter, float32 [8, 9]"}, {"MatMul": 1, "Relu": 1}, "mean")
    >>> differences(then, now)
    "variable 'dense/kernel' is parameter, float32 [8, 9], was parameter, float32 [8, 4]; ops of type Relu: 1, were 0"

    Args:
        then: the program of a plan or a trace; None where that does not say.
        now: the one that it is to be used for.
    """
    if then is None:
        return "it does not say what it was made for"
    gone = [repr(name) for name in then.variables if name not in now.variables]
    new = [repr(name) for name in now.variables if name not in then.variables]
    if (gone or new) and _without_names(then) == _without_names(now):
        return f"names: {listed(new, _MOST)} in place of {listed(gone, _MOST)}"
    if then.variables and now.variables and (2 * len(gone) > len(then.variables) or 2 * len(new) > len(now.variables)):
        counts = f"it has {len(now.variables)} variables, that one had {len(then.variables)}"
        return f"it is another model: {counts}; " + "; ".join(
            f"{what} {listed(names, _FEW)}" for what, names in (("new are", new), ("gone are", gone)) if names
        )
    found = [
        *_changes("input", then.inputs, now.inputs),
        *_changes("variable", then.variables, now.variables),
        *_counts(then.op_counts, now.op_counts),
    ]
    if then.reduction != now.reduction:
        found.append(f"the loss is a {now.reduction}, was a {then.reduction}")
    if found:
        return "; ".join(found)
    return "inputs, variables and the numbers of ops are the same: constants, names or connections of ops differ"


def _without_names(outline: Outline) -> tuple[object, ...]:
    return (
        outline.inputs,
        Counter(outline.variables.values()),
        outline.op_counts,
        outline.reduction,
    )


def _changes(what: str, then: Mapping[str, str], now: Mapping[str, str]) -> Iterable[str]:
    new = [f"{name!r} ({now[name]})" for name in now if name not in then]
    gone = [f"{name!r} ({then[name]})" for name in then if name not in now]
    other = [name for name in now if name in then and then[name] != now[name]]
    changed = [f"{what} {name!r} is {now[name]}, was {then[name]}" for name in other]
    many = what + "s"
    return [
        *([f"new {many}: {listed(new, _MOST)}"] if new else []),
        *([f"{many} that are gone: {listed(gone, _MOST)}"] if gone else []),
        *changed[:_MOST],
        *([f"{len(changed) - _MOST} more {many} differ"] if len(changed) > _MOST else []),
    ]


def _counts(then: Mapping[str, int], now: Mapping[str, int]) -> Iterable[str]:
    kinds = sorted(kind for kind in {*then, *now} if then.get(kind, 0) != now.get(kind, 0))
    told = [f"{kind}: {now.get(kind, 0)}, were {then.get(kind, 0)}" for kind in kinds]
    return [f"ops of type {listed(told, _MOST)}"] if told else []
