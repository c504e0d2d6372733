"""What every run tests of all combinations."""

import pytest
from variants import each_once, in_soak, mostly_in_soak


@pytest.mark.parametrize("lists", [("abc",), ("abc", "de"), ("ab", "cd", "efg"), ("abcd", "efgh"), ("a", "b")])
def test_every_value_is_in_a_combination_of_every_run(lists):
    made = each_once(*lists)
    in_every_run = [set(values) for values in zip(*(p.values for p in made if not p.marks))]
    assert in_every_run == [set(values) for values in lists]
    assert len([p for p in made if not p.marks]) == max(map(len, lists))


def test_the_others_are_for_the_soak():
    made = each_once([1, 2], "ab")
    assert {p.values: [m.name for m in p.marks] for p in made} == {
        (1, "a"): [],
        (1, "b"): ["soak"],
        (2, "a"): ["soak"],
        (2, "b"): [],
    }


def test_values_and_tuples_of_values_are_marked():
    made = in_soak("ab", (1, 2))
    assert [(p.values, [m.name for m in p.marks]) for p in made] == [(("ab",), ["soak"]), ((1, 2), ["soak"])]


def test_all_but_some_are_marked():
    made = mostly_in_soak(["a", "b", ("c", 1)], "b")
    assert [(*p.values, [m.name for m in p.marks]) for p in made] == [("a", ["soak"]), ("b", []), (("c", 1), ["soak"])]
    with pytest.raises(AssertionError, match="no values of this parameter: .*'d'"):
        mostly_in_soak(["a"], "d")
