"""Static analysis: the order of analyzers, and lists that do not fit together."""

from dataclasses import dataclass

import pytest

from caramel.analyzers.analyzer import Analyzer, analyse, ordered
from caramel.errors import AnalysisError, InputError


@dataclass(frozen=True)
class Given:
    value: int = 1


@dataclass(frozen=True)
class One:
    value: int


@dataclass(frozen=True)
class Two:
    value: int


@dataclass(frozen=True)
class Three:
    value: int


def one(name="one"):
    return Analyzer(name, (Given,), One, lambda given: One(given.value + 1))


def two():
    return Analyzer("two", (One, Given), Two, lambda first, given: Two(10 * first.value + given.value))


def three():
    return Analyzer("three", (Two, One), Three, lambda second, first: Three(second.value - first.value))


def test_each_runs_once_after_what_it_needs():
    runs = []

    def counted(analyzer):
        def run(*facts):
            runs.append(analyzer.name)
            return analyzer.run(*facts)

        return Analyzer(analyzer.name, analyzer.requires, analyzer.provides, run)

    facts = analyse([counted(three()), counted(two()), counted(one())], [Given(4)], [Three])
    assert runs == ["one", "two", "three"]
    assert facts == {Given: Given(4), One: One(5), Two: Two(54), Three: Three(49)}


def test_ties_keep_the_order_of_the_list():
    many = [Analyzer(name, (), type(name, (), {}), int) for name in ("d", "b", "c", "a")]
    assert [a.name for a in ordered(many)] == ["d", "b", "c", "a"]


def test_a_missing_provider_is_named_with_who_needs_it():
    with pytest.raises(InputError, match="analyzer 'two' needs One, which no analyzer of the list provides.*has two"):
        analyse([two()], [Given()], [])
    with pytest.raises(InputError, match="the plan needs Three, which no analyzer.*has one, two"):
        analyse([one(), two()], [Given()], [Three])
    with pytest.raises(InputError, match="the list has none"):
        analyse([], [Given()], [One])


def test_two_providers_are_named():
    with pytest.raises(InputError, match="analyzers 'one' and 'another' both provide One: leave one out"):
        analyse([one(), one("another")], [Given()], [])
    twice = one()
    with pytest.raises(InputError, match="analyzers 'one' and 'one' both provide One"):
        analyse([twice, twice], [Given()], [])
    with pytest.raises(InputError, match="One is given, but analyzer 'one' provides it, too"):
        analyse([one()], [Given(), One(3)], [])


def test_a_circle_is_named():
    back = Analyzer("back", (Three,), One, lambda third: One(third.value))
    with pytest.raises(
        InputError, match=r"in a circle: 'two' \(Two\) needs 'back' \(One\) needs 'three' \(Three\) needs 'two'"
    ):
        analyse([two(), three(), back], [Given()], [])
    own = Analyzer("own", (One,), One, lambda first: first)
    with pytest.raises(InputError, match=r"in a circle: 'own' \(One\) needs 'own' \(One\)"):
        analyse([own], [], [])


def test_one_that_fails_half_way():
    def fail(given):
        raise ZeroDivisionError("no bandwidth")

    with pytest.raises(
        AnalysisError, match="analyzer 'broken' failed: ZeroDivisionError: no bandwidth; nothing was planned"
    ):
        analyse([Analyzer("broken", (Given,), One, fail)], [Given()], [One])


def test_the_libraries_own_errors_stay_what_they_are():
    def refuse(given):
        raise InputError("say something else")

    with pytest.raises(InputError, match="^say something else$"):
        analyse([Analyzer("strict", (Given,), One, refuse)], [Given()], [One])


def test_one_that_returns_something_else():
    wrong = Analyzer("wrong", (Given,), One, lambda given: Two(1))
    with pytest.raises(AnalysisError, match="analyzer 'wrong' says that it provides One, but returned Two"):
        analyse([wrong], [Given()], [One])


def test_what_is_no_analyzer():
    with pytest.raises(InputError, match="takes caramel.Analyzer objects, got 'greedy'"):
        analyse(["greedy"], [], [])
    with pytest.raises(InputError, match="analyzer 'odd' must name the facts"):
        analyse([Analyzer("odd", ("One",), One, int)], [], [])
