"""Figures of the papers: their networks are those that were published, and the record keeps what formulas say."""

import itertools
import json
import math
from dataclasses import asdict
from random import Random

import pytest
from click.testing import CliRunner

from benchmarks import papers
from benchmarks.figures import bytescheduler, caramel, tictac
from benchmarks.figures.networks import paper_networks
from benchmarks.figures.servers import ROUNDS, worker_step
from benchmarks.publish import RESULTS, ROOT
from benchmarks.published_data import batch_times_s
from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.pull_orders import ORDERINGS

RECORD = json.loads((RESULTS / "papers.json").read_text(encoding="utf-8"))

NETWORKS = paper_networks()

MEBIBYTES = {
    # Caramel, section 6, and TicTac, table 1; GoogLeNet has biases here that TicTac's Inception-v1 does not have.
    "AlexNet-v2": 191.9,
    "Inception-v3": 103.5,
    "ResNet-50": 97.4,
    "ResNet-101": 169.7,
    "ResNet-152": 229.5,
    "VGG-16": 527.8,
}


def near(found, record):
    """Whether two records are the same but for rounding."""
    if isinstance(found, dict):
        assert found.keys() == record.keys()
        for key, value in found.items():
            near(value, record[key])
    elif isinstance(found, list | tuple):
        for one, other in zip(found, record, strict=True):
            near(one, other)
    else:
        assert found == (pytest.approx(record, rel=1e-9) if isinstance(found, float) else record)


# -- the networks ------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_papers():
    for name, mebibytes in MEBIBYTES.items():
        assert NETWORKS[name].size_bytes / 2**20 == pytest.approx(mebibytes, abs=0.3)
    assert NETWORKS["GoogLeNet"].size_bytes / 2**20 == pytest.approx(25.24, rel=0.06)


@pytest.mark.parametrize("processor", ["K80", "P100"])
def test_steps_are_those_that_were_published(processor):
    found = paper_networks(processor)
    for name, (_, step_s) in batch_times_s(processor).items():
        assert found[name].compute_s == pytest.approx(step_s)
    assert batch_times_s("K80")["VGG-16"] == (32, pytest.approx(32 / 35.4))


@pytest.mark.parametrize("name", ["Inception-v3", "ResNet-50", "ResNet-101", "ResNet-152"])
def test_channels_agree_with_the_branches(name):
    """What goes into a convolution is what comes out of those before it, added up where branches are joined."""
    network, kernels = NETWORKS[name], {1, 3, 7, 9, 25, 49}
    joins_by_sum, is_inception = name.startswith("ResNet"), name == "Inception-v3"
    dense = [144, 193] if is_inception else [len(network.layers) - 1]
    starts = [0, *(position + 1 for position in dense)]
    outputs = {}
    for position in [n for start, end in zip(starts, dense) for n in range(start, end, 2)]:
        size, normalisation = network.layers[position].parameter_bytes, network.layers[position + 1]
        out = normalisation.parameter_bytes // 8  # a scale and an offset for each channel
        came = [outputs[before] for before in network.inputs[position]]
        given = 3 if not came else max(came) if joins_by_sum else sum(came)
        assert size == 4 * out * given * (size // (4 * out) // given) and size // (4 * out) // given in kernels, (
            position
        )
        outputs[position] = outputs[position + 1] = out
    assert len(outputs) == len(network.layers) - len(dense)


def test_orders_of_the_backward_pass():
    """Every order takes a layer after all that use it, and the greedy one is no chance."""
    for network in NETWORKS.values():
        users = network.users
        for order in (network.greedy_order(), network.any_order(Random(1)), network.any_order(Random(2))):
            place = {position: n for n, position in enumerate(order)}
            assert sorted(order) == list(range(len(network.layers)))
            assert all(place[user] < place[position] for position in place for user in users[position])
        compute_s = network.boundaries([network.greedy_order()]).compute_s
        assert compute_s == pytest.approx(network.compute_s)
    assert NETWORKS["VGG-16"].greedy_order() == list(range(15, -1, -1))


def test_a_gradient_is_ready_when_the_last_worker_has_it():
    network, random = NETWORKS["GoogLeNet"], Random(3)
    orders = [network.any_order(random) for _ in range(3)]
    alone = [network.boundaries([order]).by_name for order in orders]
    for gradient in network.boundaries(orders).gradients:
        assert gradient.ready_s == max(each[gradient.name].ready_s for each in alone)


# -- Caramel -----------------------------------------------------------------------------------------

STEPS = [caramel.Step(**row) for key in ("iterations", "ablation") for row in RECORD["caramel"][key]]


def test_utilisation_is_that_of_alpha_and_rho():
    for step in STEPS:
        if step.alpha is not None:
            assert caramel.utilisation(step.rho, step.alpha) == pytest.approx(step.compute_s / step.step_s)
            assert step.alpha <= 1 + 1e-9 and step.rho > 0


def test_no_step_is_below_its_bound():
    bounds = {(s.model, s.workers, s.links): s.step_s for s in STEPS if s.policy == caramel.BOUND}
    for step in STEPS:
        assert step.step_s >= max(step.compute_s, 0.999999 * bounds[step.model, step.workers, step.links]) * (1 - 1e-9)
        if step.policy == caramel.OURS:
            others = [s for s in STEPS if (s.model, s.workers, s.links) == (step.model, step.workers, step.links)]
            assert step.step_s <= 1.005001 * min(s.step_s for s in others if s.policy in caramel.POLICIES)


def test_reductions_are_those_of_the_formulas():
    """Figure 14: 2 (N - 1) messages of a ring, 2 log2(N) of halving and doubling, and N - 1 parts to add."""
    alpha, beta, gamma = 45.25e-6, 1.2 / (9 * 2**30 / 8), 160 / (16e9 * 4)
    for row in RECORD["caramel"]["reductions"]:
        n, size = row["workers"], row["size_bytes"]
        messages = 2 * math.log2(n) if row["algorithm"] == "halving_doubling" else 2 * (n - 1)
        part = (n - 1) / n * size
        assert row["time_s"] == pytest.approx(messages * alpha + part * (2 * beta + gamma), rel=2e-3)


def test_some_steps_of_the_record():
    record = {(r["model"], r["workers"], r["policy"], r["links"]): r for r in RECORD["caramel"]["iterations"]}
    networks = {name: NETWORKS[name] for name in caramel.MODELS}
    for model in ("AlexNet-v2", "VGG-16"):
        for step in caramel._of_policies(model, networks[model], 8, caramel.LINKS):
            near(asdict(step), record[step.model, step.workers, step.policy, step.links])


# -- TicTac ------------------------------------------------------------------------------------------


def test_the_best_order_is_no_worse_than_the_others():
    for row in RECORD["tictac"]["orders"]:
        steps_s = row["steps_s"]
        assert steps_s["best"] <= min(steps_s.values()) * (1 + 1e-9)
        assert steps_s["best"] >= row["lower_s"] * (1 - 1e-9)
        assert row["potential"] == pytest.approx((row["upper_s"] - row["lower_s"]) / row["lower_s"])
        assert all(-1e-9 <= each <= 1 + 1e-9 for each in row["efficiencies"].values())
        if row["workload"] == tictac.INFERENCE:
            part = (row["upper_s"] - steps_s["best"]) / (row["upper_s"] - row["lower_s"])
            assert row["efficiencies"]["best"] == pytest.approx(part)


def test_the_rules_against_all_orders_of_a_small_network():
    """The first module of GoogLeNet: no rule is better than the best of all orders, and the best one is it."""
    whole = NETWORKS["GoogLeNet"]
    network = type(whole)(whole.layers[:7], whole.inputs[:7], (6,), "")
    for workers in (1, 4):
        problem = worker_step(network, workers, 2, is_training=False).problem
        names = [pull.name for pull in problem.pulls]
        least_s = min(makespan_s(problem, order) for order in itertools.permutations(names))
        for name in ("tic", "tac", "best"):
            assert makespan_s(problem, ORDERINGS[name](problem)) >= least_s - 1e-12
        assert makespan_s(problem, ORDERINGS["best"](problem)) == pytest.approx(least_s)


def test_some_orders_of_the_record():
    record = {tuple(row[key] for key in ("model", "workload", "workers", "servers", "batch")): row for row in
              RECORD["tictac"]["orders"]}  # fmt: skip
    assert len(record) == len(tictac.MODELS) * 2 * len(tictac.cases()) and ROUNDS == 20
    for model, workload, scale in (("VGG-16", tictac.TRAINING, (4, 1)), ("Inception-v1", tictac.INFERENCE, (8, 2))):
        found = tictac.ordered(model, tictac.at_paper_batch(NETWORKS, model), workload, *scale)
        near(asdict(found), record[(model, workload, *scale, 1.0)])


# -- ByteScheduler -----------------------------------------------------------------------------------


def test_speeds_keep_what_formulas_say():
    for row in RECORD["bytescheduler"]["speeds"]:
        steps_s, network = row["steps_s"], bytescheduler.network_of(row["rate_bit_per_s"])
        size = next(n.size_bytes for name, n in paper_networks("P100").items() if name == row["model"])
        bytes_s = 2 * 3 / 4 * size / (row["rate_bit_per_s"] / 8)
        assert all(step_s >= max(row["compute_s"], bytes_s) * (1 - 1e-9) for step_s in steps_s.values())
        assert steps_s[bytescheduler.TUNED] <= min(steps_s[bytescheduler.FIXED], steps_s[bytescheduler.P3])
        assert (row["partition_bytes"], row["credit_bytes"]) in bytescheduler.grid()
        assert network.time_s(0) == pytest.approx(300e-6)


def test_some_sweeps_of_the_record():
    network = paper_networks("P100")["VGG-16"]
    found, record = bytescheduler.sweeps(network), RECORD["bytescheduler"]["sweeps"]
    near(found, record)
    steps = list(record["partitions"]["1e+10"].values())
    assert steps == sorted(steps, reverse=True)  # in their order, larger pieces only save overhead


# -- the command -------------------------------------------------------------------------------------


def test_the_command_writes_a_record(monkeypatch, tmp_path):
    monkeypatch.setattr(papers, "record_of_all", lambda: RECORD)
    done = CliRunner().invoke(papers.main, ["--json", str(tmp_path / "papers.json"), "--plots", str(tmp_path)])
    assert done.exit_code == 0, repr(done.exception)
    assert json.loads((tmp_path / "papers.json").read_text()) == RECORD
    assert all(f"\n{name}\n" in f"\n{done.stdout}" for name in papers.TABLES)
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in papers.PLOTS)


# -- the pages ---------------------------------------------------------------------------------------


def page(name):
    return " ".join((ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8").split())


def test_what_the_page_of_caramel_says():
    text, record = page("caramel"), RECORD["caramel"]
    first, second = (caramel.most_gain(record, caramel.ALONE, links) for links in caramel.NETWORKS)
    assert first[1:] == ("AlexNet-v2", 8) and second[1:] == ("VGG-16", 16)
    assert f"at most {first[0]:.2f} with the first network (AlexNet-v2 on 8 workers) and {second[0]:.2f} with" in text
    ours = [s for s in STEPS if (s.model, s.policy, s.links) == ("VGG-16", caramel.OURS, caramel.MEASURED)]
    (eight,) = [s for s in ours if s.workers == 8]
    assert f"VGG-16 sends for {eight.rho:.1f} times as long as it computes" in text
    orders = {s.model: s.utilisation for s in STEPS if s.policy == "+ one order on all workers" and s.workers == 8}
    before = {s.model: s.utilisation for s in STEPS if s.policy == "+ batching" and s.workers == 8}
    assert all(orders[model] == pytest.approx(before[model], abs=2e-3) for model in caramel.MODELS)


def test_what_the_page_of_tictac_says():
    text, rows = page("tictac"), [tictac.Ordered(**row) for row in RECORD["tictac"]["orders"]]
    shown = [row for row in rows if row.batch == 1]
    most = [
        max(row.gain("best") for row in shown if row.workload == workload)
        for workload in (tictac.TRAINING, tictac.INFERENCE)
    ]
    assert f"up to {100 * most[0]:.1f} % and {100 * most[1]:.1f} %" in text
    assert all(abs(row.gain("tac") - row.gain("tic")) < 5e-4 for row in rows if row.model != "Inception-v3")
    assert 0.015 < max(row.gain("tac") - row.gain("tic") for row in rows) < 0.025
    (vgg,) = [r for r in shown if (r.model, r.workload, r.workers) == ("VGG-16", tictac.TRAINING, 4)]
    assert f"In training VGG-16 has {vgg.efficiencies['best']:.2f}" in text
    assert RECORD["tictac"]["spread"]["orders"] == tictac.SPREAD_ORDERS == 1000


def test_what_the_page_of_bytescheduler_says():
    text, rows = page("bytescheduler"), [bytescheduler.Speed(**row) for row in RECORD["bytescheduler"]["speeds"]]
    gains = {
        model: [
            100 * (r.steps_s[bytescheduler.FIFO] / r.steps_s[bytescheduler.TUNED] - 1) for r in rows if r.model == model
        ]
        for model in bytescheduler.MODELS
    }
    vgg, resnet = gains.values()
    assert (
        f"Here it is {min(vgg):.0f} to {max(vgg):.0f} % for VGG-16 and up to {max(resnet):.0f} % for ResNet-50" in text
    )
    assert all(r.steps_s[bytescheduler.P3] > r.steps_s[bytescheduler.FIFO] for r in rows)
    worse = [r for r in rows if r.steps_s[bytescheduler.FIXED] > bytescheduler.NEAR * r.steps_s[bytescheduler.TUNED]]
    assert [(r.model, r.rate_bit_per_s) for r in worse] == [("VGG-16", 25e9)]
    layers = paper_networks("P100")["VGG-16"].layers
    pieces = sum(math.ceil(layer.parameter_bytes / (160 * 2**10)) for layer in layers)
    assert f"VGG-16 has {pieces:,} pieces of 160 KiB" in text
