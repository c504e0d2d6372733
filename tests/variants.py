"""Which combinations of parameters every run tests, and which only `make soak`."""

import itertools

import pytest


def each_once(*lists, first=None):
    """All combinations of values, one list for each parameter, of which most are marked for `make soak`.

    Not marked are as many as the longest list has values: with the n-th of these comes the n-th value of each other
    list, which begins again at its end. So every value is tested in every run, if not with every other.

    Args:
        lists: values of each parameter.
        first: those values of the first parameter that are tested in every run; None for all.
    """
    in_every_run = {tuple(n % len(values) for values in lists) for n in range(max(map(len, lists)))}
    if first is not None:
        in_every_run = {indices for indices in in_every_run if lists[0][indices[0]] in first}
    return [
        pytest.param(
            *(values[at] for values, at in zip(lists, indices)),
            marks=() if indices in in_every_run else pytest.mark.soak,
        )
        for indices in itertools.product(*(range(len(values)) for values in lists))
    ]


def mostly_in_soak(values, *in_every_run):
    """Values of a parameter in their order; all but some are marked for `make soak`."""
    missing = [value for value in in_every_run if value not in values]
    assert not missing, f"no values of this parameter: {missing}"
    return [pytest.param(v, marks=() if v in in_every_run else pytest.mark.soak) for v in values]


def in_soak(*values):
    """Values of a parameter, or tuples of several parameters' values, that are marked for `make soak`."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.soak) for value in values
    ]
