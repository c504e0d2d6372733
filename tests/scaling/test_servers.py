"""Answers about parameter servers, against plans and formulas."""

import pytest
from click.testing import CliRunner
from small_programs import STEP
from three_layers import three_layers

import caramel
from caramel.cli.main import main
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.scaling.answers import answers
from caramel.scaling.batches import TracedBatches
from caramel.scaling.policies import OnServers, servers_named
from caramel.scaling.question import Link, Question
from caramel.scaling.stragglers import Stragglers

RATE = 12.5e6
SLOW = Link("100Mbit/s", caramel.NetworkModel.from_link_rate(RATE, 0.0), RATE)


@pytest.fixture(scope="module")
def captured():
    return three_layers(40)


@pytest.fixture(scope="module")
def trace(captured):
    op_s = {node.name: 1e-3 if node.op == "MatMul" else 1e-9 for node in captured.model.graph}
    return Trace(captured.model.digest, op_s, {}, 9e-3, 9e-3, 3, 1, 8, "by hand")


def asked(captured, trace, policies, workers=(4,), **more):
    return list(answers(captured, TracedBatches([trace]), Question(workers, [SLOW], policies, **more)))


@pytest.mark.parametrize("ordering", ["none", "tic", "best"])
@pytest.mark.parametrize("servers", [1, 3])
def test_an_answer_is_the_prediction_of_the_plan(captured, trace, servers, ordering):
    (answer,) = asked(captured, trace, [OnServers(servers, ordering)])
    options = {"servers": servers, "ordering": ordering, "network": SLOW.network, "trace": trace}
    step = caramel.what_if(captured, 4, **options).servers.prediction
    assert (answer.step_s, answer.compute_s) == pytest.approx((step.step_s, step.compute_s))
    assert answer.low_s is None and answer.refused == "" and answer.basis == "given"
    assert answer.speed_up == pytest.approx(4 * 9e-3 / step.step_s)


def test_many_workers_wait_for_the_links_of_servers(captured, trace):
    """All parameters to each worker and all gradients back go through them, one way after the other."""
    size_bytes = sum(gradient.size_bytes for gradient in captured.model.gradients)
    found = {a.workers: a for a in asked(captured, trace, [OnServers(1)], (8, 10_000))}
    assert found[10_000].communication_s == pytest.approx(2 * 10_000 * size_bytes / RATE, rel=1e-3)
    assert found[8].communication_s == pytest.approx(2 * 8 * size_bytes / RATE, rel=1e-3)


def test_workers_of_one_host_share_its_link(captured, trace):
    apart, shared = (asked(captured, trace, [OnServers(3)], workers_on_host=count)[0] for count in (1, 4))
    assert shared.communication_s == pytest.approx(3 * apart.communication_s)  # 12 messages at once instead of 4


def test_stragglers_compute_for_longer(captured, trace):
    plain, slower = (
        asked(captured, trace, [OnServers(2)], stragglers=who)[0]
        for who in (Stragglers(), Stragglers(rank=1, factor=3.0))
    )
    assert slower.compute_s == pytest.approx(3 * plain.compute_s) and slower.step_s > plain.step_s


def test_there_are_at_most_as_many_servers_as_variables(captured, trace):
    few, many = asked(captured, trace, servers_named("N"), (2, 5000))
    assert few.policy == many.policy == "N servers, best"
    assert few.step_s is not None and many.step_s is None and "some would have nothing to do" in many.refused


def test_lists_of_servers():
    assert servers_named("2, N", "tic,none") == [
        *(OnServers(2, "tic"), OnServers(2, "none")),
        *(OnServers(None, "tic"), OnServers(None, "none")),
    ]
    for text, orderings, why in (
        ("two", "best", "cannot read 'two'"),
        ("0", "best", "number of servers must be a whole number of at least 1"),
        ("2,2", "best", "named twice"),
        ("2", "best,best", "named twice"),
        ("2", "fast", "order of pulls"),
    ):
        with pytest.raises(InputError, match=why):
            servers_named(text, orderings)


@pytest.mark.slow
def test_the_command_compares_them_with_all_reduces(write, tmp_path):
    program, table = f"{write(STEP)}:build", tmp_path / "found.csv"
    asking = ["scale", program, "--workers", "2,4", "--link-rate", "1Gbit/s", "--policy", "optimal"]
    done = CliRunner().invoke(main, [*asking, "--servers", "1", "--ordering", "none,best", "--csv", str(table)])
    assert done.exit_code == 0, done.output
    assert table.read_text().count("1 server, best") == table.read_text().count("1 server, none") == 2
    done = CliRunner().invoke(main, [*asking, "--ordering", "tac"])
    assert done.exit_code == 2 and "--ordering belongs to --servers" in done.output
