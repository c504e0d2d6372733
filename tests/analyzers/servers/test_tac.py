"""TAC: the papers' figures, its comparator over all pairs, and brute force over all orders."""

from functools import cmp_to_key

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pull_problems import (
    KINDS,
    figure_1a,
    figure_4a,
    figure_4b,
    least_makespan_s,
    no_minimum,
    random_step,
    steps,
)
from pull_properties import op_properties

from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.outstanding import OutstandingPulls
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.tac import tac, unpreceded
from caramel.analyzers.servers.tic import tic


def before_by_equation_6(found, a, b):
    """Whether A comes before B; None if neither does."""
    m, p = found.communication_s, found.compute_load_s
    a_first, b_first = min(p[b], m[a]), min(p[a], m[b])
    return None if a_first == b_first else a_first < b_first


def before_as_printed(found, a, b):
    """The function Comparator of Algorithm 3."""
    m, p, m_plus = found.communication_s, found.compute_load_s, found.impending_s
    of_a, of_b = min(p[a], m[b]), min(p[b], m[a])
    return of_a < of_b if of_a != of_b else m_plus[a] < m_plus[b]


def test_figure_1a():
    # All times 1. recv1 first: op1 runs beside recv2, 3 s. recv2 first: nothing runs beside anything, 4 s.
    problem = figure_1a()
    assert tac(problem) == ("recv1", "recv2")
    assert makespan_s(problem, ("recv1", "recv2")) == 3
    assert makespan_s(problem, ("recv2", "recv1")) == 4


def test_the_printed_comparator_picks_the_bad_order_of_figure_1a():
    # A = recv1: min(P_A, M_B) = min(1, 1) = 1, min(P_B, M_A) = min(0, 1) = 0, and 1 < 0 is false.
    found = op_properties(figure_1a())
    assert before_as_printed(found, "recv2", "recv1")
    assert not before_as_printed(found, "recv1", "recv2")
    assert before_by_equation_6(found, "recv1", "recv2")


@pytest.mark.parametrize(
    ("times_s", "order"),
    [
        # A, op1, B, op2: min(P_B, M_A) < min(P_A, M_B) puts A first.
        ((1, 4, 2, 4), ("A", "B")),  # min(4, 1) < min(4, 2)
        ((3, 4, 2, 4), ("B", "A")),  # min(4, 3) > min(4, 2)
        ((5, 1, 5, 3), ("B", "A")),  # min(3, 5) > min(1, 5)
        ((5, 3, 5, 1), ("A", "B")),  # min(1, 5) < min(3, 5)
        ((2, 2, 3, 2), ("A", "B")),  # min(2, 2) == min(2, 3), one M+: by name
    ],
)
def test_figure_4a(times_s, order):
    problem = figure_4a(*(float(time_s) for time_s in times_s))
    assert tac(problem) == order
    assert makespan_s(problem, order) == least_makespan_s(problem)


def test_figure_4b():
    # P is 0 for all, M+ 12, 12, 14, 15. After A, B has P = 1, and so on.
    assert tac(figure_4b()) == ("A", "B", "C", "D")


def test_comparisons_that_run_in_a_circle():
    found = op_properties(no_minimum())
    m_plus = found.impending_s
    assert before_by_equation_6(found, "A", "B")
    assert before_by_equation_6(found, "B", "J") is None and m_plus["B"] < m_plus["J"]
    assert before_by_equation_6(found, "J", "A") is None and m_plus["J"] < m_plus["A"]
    # A precedes B, nothing A or J, of which J has the lesser M+. With J taken A precedes B, and B what is left. W, Y
    # and Z then have P = 1 < M, which ties, and no M+: by name.
    assert tac(no_minimum()) == ("J", "A", "B", "W", "Y", "Z")


@given(steps(channels=2))
def test_each_pull_is_a_minimum_of_those_that_are_left_if_there_is_one(problem):
    order = tac(problem)
    for n, name in enumerate(order):
        left = order[n:]
        found = op_properties(problem, left)

        def comes_before(a, b, found=found):
            by_times = before_by_equation_6(found, a, b)
            m_plus = found.impending_s
            return by_times if by_times is not None else (m_plus[a], a) < (m_plus[b], b)

        minima = [a for a in left if all(comes_before(a, b) for b in left if b != a)]
        assert minima in ([], [name])
        assert not any(before_by_equation_6(found, other, name) for other in left)


@given(steps(most_pulls=8), st.data())
def test_what_no_other_pull_precedes(problem, data):
    state = OutstandingPulls(problem)
    left = set(problem.position_of)
    for name in data.draw(st.permutations(sorted(left))):
        found = op_properties(problem, left)
        wanted = {a for a in left if not any(before_by_equation_6(found, b, a) for b in left)}
        assert {problem.pulls[n].name for n in np.flatnonzero(unpreceded(state))} == wanted != set()
        state.take(problem.position_of[name])
        left.remove(name)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=7))
def test_pulls_with_ops_of_their_own_are_in_johnsons_order(times_s):
    pulls = tuple(Pull(f"p{n}", float(m)) for n, (m, _) in enumerate(times_s))
    ops = tuple(ComputeOp(f"o{n}", float(p), (f"p{n}",)) for n, (_, p) in enumerate(times_s))
    problem = PullProblem(ops, pulls)

    def compare(a, b):
        (m_a, p_a), (m_b, p_b) = times_s[int(a[1:])], times_s[int(b[1:])]
        return min(p_b, m_a) - min(p_a, m_b)

    order = tac(problem)
    pairs = [(a, b) for n, a in enumerate(order) for b in order[n + 1 :]]
    assert all(cmp_to_key(compare)(a) <= cmp_to_key(compare)(b) for a, b in pairs)
    assert makespan_s(problem, order) == least_makespan_s(problem)


# Of 120 steps of each kind, the share in which TAC was seen to find a shortest step, and that in which TIC was shorter.
SEEN = {
    "layers": (0.99, 0.0),
    "sparse": (0.94, 0.034),
    "dense": (0.90, 0.025),
    "pairs": (0.95, 0.0),
    "sets": (0.81, 0.05),
}


@pytest.mark.parametrize("kind", KINDS)
def test_how_often_it_is_best(kind):
    rng = np.random.default_rng(7)
    problems = [random_step(rng, kind) for _ in range(120)]
    best_s = np.array([least_makespan_s(problem) for problem in problems])
    tac_s = np.array([makespan_s(problem, tac(problem)) for problem in problems])
    tic_s = np.array([makespan_s(problem, tic(problem)) for problem in problems])
    share, share_of_tic_being_shorter = SEEN[kind]
    assert (tac_s >= best_s).all() and (tac_s <= 1.22 * best_s).all()
    assert (tac_s == best_s).mean() >= share > (tic_s == best_s).mean()
    assert (tic_s < tac_s).mean() <= share_of_tic_being_shorter


def test_it_can_be_worse_than_tic():
    # P is 1 for A, 0 for B and C: by equation 6 A is first, and the long op begins at 12. By M+ B and C are first (2
    # each; none for A), and the long op begins at 2.
    ops = ComputeOp("short", 1.0, ("A",)), ComputeOp("long", 100.0, ("B", "C"))
    problem = PullProblem(ops, (Pull("A", 10.0), Pull("B", 1.0), Pull("C", 1.0)))
    assert tac(problem) == ("A", "B", "C")
    assert tic(problem) == ("B", "C", "A")
    assert makespan_s(problem, ("A", "B", "C")) == 112
    assert makespan_s(problem, ("B", "C", "A")) == 103
