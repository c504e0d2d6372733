"""A policy is one row: its name is a policy of ARModel's and of the command, its analyzers are known by name."""

import pytest
from click.testing import CliRunner

from caramel.analyzers import registry
from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.automatic import Policy
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.packing import backward_only
from caramel.cli.main import main
from caramel.errors import InputError
from caramel.facts import Boundaries, Buckets, Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel

NETWORK = Network(CollectiveOptions(network=NetworkModel.from_link_rate(1e9)), 2)
TRACE = Trace("", {}, {}, 0.0, 0.0, 1, 1, None, "")


def all_together():
    """A batching policy: one bucket."""

    def run(boundaries):
        return Buckets((tuple(g.name for g in boundaries.gradients),), ("one is enough",))

    return Analyzer("all together", (Boundaries,), Buckets, run)


@pytest.fixture
def own(monkeypatch):
    row = Policy("together", "everything in one bucket", all_together, backward_only)
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, row.name: row})
    return row


def names(**options):
    return [a.name for a in registry.automatic_analyzers(NETWORK, TRACE, **options)[0]]


def test_a_policy_of_ones_own_is_one_row(own):
    assert "all together" in names(policy="together") and "backward only" in names(policy="together")
    assert "greedy order" in names(policy="together")
    assert "all together" in registry.known()
    assert registry.listed_analyzers("all together")[0].provides is Buckets


@pytest.mark.parametrize("command", ["run", "plan", "export"])
def test_the_command_takes_the_names_of_the_rows(own, command):
    text = CliRunner().invoke(main, [command, "--help"]).output
    assert "[optimal|paper|bytescheduler|p3|together]" in text
    assert "together: everything in one bucket." in " ".join(text.split())
    arguments = [command, "x.py:f", "--workers", "2", *(["--out", "o"] if command == "export" else [])]
    wrong = CliRunner().invoke(main, [*arguments, "--policy", "best"])
    assert wrong.exit_code == 2
    assert "'best' is not one of 'optimal', 'paper', 'bytescheduler', 'p3', 'together'" in " ".join(
        wrong.output.split()
    )


def test_an_unknown_policy():
    with pytest.raises(InputError, match="policy must be 'optimal' or 'paper' or 'bytescheduler' or 'p3', got 'best'"):
        names(policy="best")


def test_switches_take_parts_of_a_policy_away():
    assert "best packing" in names() and "best order" in names()
    assert "best packing" not in names(batching=False) and "each gradient alone" not in names()
    assert "greedy order" in names(serialize=False)


@pytest.mark.parametrize("policy", ["paper", "bytescheduler", "p3"])
def test_rules_that_cannot_be_followed_are_said(policy):
    """Without times nothing can go by them."""
    _, notes = registry.automatic_analyzers(NETWORK, None, policy=policy)
    assert f"policy: without trace= nothing can go by the rules of {policy!r}, so nothing does" in notes
    for trace, name in ((None, "optimal"), (TRACE, policy)):
        _, notes = registry.automatic_analyzers(NETWORK, trace, policy=name)
        assert not any(note.startswith("policy:") for note in notes)
