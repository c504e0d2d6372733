"""`caramel plan`: what it prints and writes, what its options change, and what runs with it."""

import json
from dataclasses import replace

import keras
import pytest
from click.testing import CliRunner

import caramel
from caramel.cli.main import main
from caramel.facts import Trace
from caramel.util.tables import wrapped_lines

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def build():
        tf.keras.utils.set_random_seed(1)
        layers = [tf.keras.layers.Dense(n, "relu", name=f"dense_{n}") for n in (300, 200, 10)]
        network = tf.keras.Sequential([tf.keras.Input((100,)), *layers], name="net")
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((network(x, training=True) - 1.0) ** 2)
            trained = network.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
            return loss

        data = np.random.default_rng(0).normal(size=(64, 100)).astype(np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 100], name="x")], "data": [data] * 4}
"""

OWN = """
    from __future__ import annotations
    from dataclasses import dataclass, replace

    from caramel import Analyzer
    from caramel.analyzers.policies.order import order_of
    from caramel.facts import BACKWARD, Boundaries, Buckets, ControlEdges, Dependencies, Piece, Schedule, Scheduled
    from caramel.facts import UpdateOrder
    from caramel.model import Model

    def by_pairs(boundaries):
        names = [g.name for g in boundaries.gradients]
        pairs = tuple(tuple(names[n:n + 2]) for n in range(0, len(names), 2))
        return Buckets(pairs, ("two at a time",) * len(pairs))

    pairs = Analyzer("pairs", (Boundaries,), Buckets, by_pairs)

    def broken():
        def fail(boundaries):
            raise RuntimeError("no idea")
        return Analyzer("broken", (Boundaries,), Buckets, fail)

    number = 3

    @dataclass(frozen=True)
    class Halves:
        names: tuple[str, ...]

    halves = Analyzer("halves", (Boundaries,), Halves, lambda found: Halves(tuple(g.name for g in found.gradients)))

    def by_halves(halves):
        middle = len(halves.names) // 2
        return Buckets((halves.names[:middle], halves.names[middle:]), ("first half", "second half"))

    of_halves = Analyzer("of halves", (Halves,), Buckets, by_halves)

    def last_first(model, found):
        return order_of(model, found, found.gradients[::-1], "the last first")

    reverse = Analyzer("reverse", (Model, Dependencies), UpdateOrder, last_first)

    def alone(boundaries):
        whole = [Piece(g.name, 0, g.elements) for g in boundaries.gradients]
        return Schedule(tuple(Scheduled((piece,), BACKWARD, "mine") for piece in whole), "each alone")

    schedule = Analyzer("my schedule", (Boundaries,), Schedule, alone)

    def wrong(fact, *values):
        return lambda: Analyzer("wrong", (), fact, lambda: fact(*values))

    no_reasons = wrong(Buckets, (("ghost",),), ())
    ghosts = wrong(Buckets, (("ghost",),), ("why",))
    no_ops = wrong(ControlEdges, (("here", "there"),), "total", "why")
    short = wrong(UpdateOrder, ("ghost",), ((),), "why")
    nobody = wrong(Schedule, (Scheduled((Piece("ghost", 0, 1),), BACKWARD, "why"),), "why")

    def around(model):
        first, last = model.gradients[0].tensor.split(":")[0], model.loss.split(":")[0]
        return ControlEdges(((first, last), (last, first)), "total", "a circle")

    circle = Analyzer("circle", (Model,), ControlEdges, around)

    def twice(boundaries):
        found = alone(boundaries)
        return replace(found, transfers=(*found.transfers, found.transfers[0]))

    overlap = Analyzer("overlap", (Boundaries,), Schedule, twice)
"""

LIST = "dependencies, trace, greedy order, serialization, boundaries, {}, backward only, adaptive depth"
KEYS = {
    *(
        "predicted_iteration_s",
        "low_s",
        "high_s",
        "compute_s",
        "communication_s",
        "exposed_s",
        "alpha",
        "rho",
        "utilisation",
    ),
    *("lower_bound_s", "gap"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the program, a network, and a trace."""
    from textwrap import dedent

    from caramel.frontend.program_file import load_program
    from caramel.measure.trace_file import save_trace
    from caramel.netmodel.file import save

    there = tmp_path_factory.mktemp("plan")
    (there / "program.py").write_text(dedent(PROGRAM))
    (there / "own.py").write_text(dedent(OWN))
    save(caramel.NetworkModel.from_link_rate(150e6, latency_s=5e-6), there / "network.json")
    keras.backend.clear_session(free_memory=False)
    model = load_program(f"{there}/program.py:build").context.model
    # Times that do not depend on this machine's load: products take all of a step of 4 ms.
    op_s = {node.name: 1e-3 if node.op == "MatMul" else 1e-9 for node in model.graph}
    save_trace(Trace(model.digest, op_s, {}, 4e-3, 4e-3, 3, 1, 16, "by hand"), there / "trace.json")
    return there


@pytest.fixture
def call(place):
    """Function that calls the command in this process on the program, with trace and network."""

    def run(name, *arguments, network=True, trace=True):
        keras.backend.clear_session(free_memory=False)  # names begin anew, as in a process of its own
        given = [name, f"{place}/program.py:build", "--workers", "4"]
        given += ["--network", f"{place}/network.json"] if network else []
        given += ["--trace", f"{place}/trace.json"] if trace else []
        return CliRunner().invoke(main, [*given, *map(str, arguments)])

    return run


@pytest.fixture(scope="module")
def whole(place):
    """File of the plan that the command makes with no other options, which takes it a while."""
    keras.backend.clear_session(free_memory=False)
    given = [f"{place}/program.py:build", "--workers", "4", "--network", f"{place}/network.json"]
    done = CliRunner().invoke(main, ["plan", *given, "--trace", f"{place}/trace.json", "--out", f"{place}/plan.json"])
    assert done.exit_code == 0, done.output
    return place / "plan.json"


def test_a_plan_is_checked(call):
    found = call("plan", "--check")
    assert found.exit_code == 0
    assert "checked: the lower bound, " in found.output and " is not above the step, " in found.output
    assert "send every gradient once" in found.output


def test_a_bound_above_the_step_is_an_error_when_checked_and_withdrawn_else(call, monkeypatch):
    monkeypatch.setattr("caramel.analyzers.optimal.prediction.step_bound_s", lambda *_: 1.0)
    quick = ("plan", "--analyzers", LIST.format("each gradient alone"))
    found = call(*quick, "--check")
    assert found.exit_code == 1 and "is above the step of the plan" in found.output
    found = call(*quick)
    text = " ".join(found.output.split())
    assert found.exit_code == 0 and "it is withdrawn" in text and "no plan takes less" not in text
    assert not {"gap", "lower_bound_s"} & json.loads(call(*quick, "--json").output).keys()


def test_a_plan(call, whole, tmp_path):
    again = ("--diff", whole, "--explain", "net/dense_300/kernel")
    done = call("plan", "--out", tmp_path / "plan.json", *again)
    assert done.exit_code == 0, done.output
    plan = caramel.Plan.load(tmp_path / "plan.json")
    assert plan.table() in done.stdout
    assert wrapped_lines(plan.explain("net/dense_300/kernel")) in done.stdout
    assert "predicted: " in done.stdout and "no plan takes less than" in done.stdout
    assert "checked: one order of transfers on all 4 workers" in done.stdout
    assert f"no difference from {whole}" in done.stdout
    assert (tmp_path / "plan.json").read_bytes() == whole.read_bytes()


def test_an_unknown_gradient_is_refused_before_anything_is_written(call, tmp_path):
    done = call("plan", "--out", tmp_path / "plan.json", "--explain", "nothing")
    assert done.exit_code != 0 and "the plan has no gradient 'nothing'" in " ".join(done.output.split())
    assert not (tmp_path / "plan.json").exists()


def test_for_machines(call, tmp_path):
    done = call("plan", "--json", "--out", tmp_path / "plan.json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found) == KEYS
    assert found == caramel.Plan.load(tmp_path / "plan.json").prediction.as_dict()
    t, c, n = (found[key] for key in ("predicted_iteration_s", "compute_s", "communication_s"))
    assert found["exposed_s"] == pytest.approx(t - c)
    assert found["rho"] == pytest.approx(n / c)
    u = 1 / (1 + found["rho"] - found["alpha"] * min(found["rho"], 1))
    assert found["utilisation"] == pytest.approx(u) == pytest.approx(c / t)
    assert found["gap"] == pytest.approx(t / found["lower_bound_s"] - 1)


def test_what_is_written_runs_and_is_exported(call, whole, tmp_path):
    given = ("--plan", whole)
    done = call("run", *given, "--steps", 2, network=False, trace=False)
    assert done.exit_code == 0, done.output
    assert caramel.Plan.load(whole).digest[:12] in done.stdout
    done = call("export", *given, "--out", tmp_path / "out", network=False, trace=False)
    assert done.exit_code == 0, done.output
    exported = caramel.Plan.load(tmp_path / "out" / "plan.json")
    assert exported == caramel.Plan.load(whole)


def test_the_program_is_traced_where_no_trace_is_given(call):
    done = call("plan", "--json", "--analyzers", LIST.format("each gradient alone"), trace=False)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["compute_s"] > 0


def test_local_steps_are_planned_without_a_trace(call, tmp_path):
    done = call("plan", "--sync-every", 3, "--outer-momentum", 0.5, "--out", tmp_path / "local.json", trace=False)
    assert done.exit_code == 0, done.output
    plan = caramel.Plan.load(tmp_path / "local.json")
    assert (plan.local.sync_every, plan.local.momentum, plan.local.learning_rate) == (3, 0.5, 0.7)
    assert "not the training of one device" in " ".join(done.stdout.split()) and "exchange is predicted" in done.stdout
    done = call("run", "--plan", tmp_path / "local.json", "--steps", 4, network=False, trace=False)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "options, message",
    [
        (("--outer-momentum", 0.5), "give --sync-every"),
        (("--sync-every", 2, "--no-scheduling"), "leave out --scheduling"),
        (("--sync-every", 2, "--measure"), "--sync-every does not go with --measure"),
        (("--sync-every", 2, "--json"), "nothing is predicted with --sync-every"),
        (("--sync-every", 2, "--timeline", "step.json"), "shows the predicted step, and nothing is predicted with"),
    ],
)
def test_what_local_steps_have_no_use_for(call, options, message, tmp_path):
    out = tmp_path / "plan.json"
    done = call("plan", *options, "--out", out, network="--measure" not in options, trace=False)
    assert done.exit_code != 0 and message in " ".join(done.stderr.split())
    assert not out.exists()


def test_without_a_network_nothing_is_predicted(call):
    done = call("plan", network=False)
    assert done.exit_code == 0, done.output
    assert "predicted:" not in done.stdout and "scheduling: without network= nothing is known" in done.stdout
    done = call("plan", "--json", network=False)
    assert done.exit_code == 1
    assert "nothing can be predicted without a network model: give --network FILE.json" in done.stderr


def measured_with_others(place, tmp_path):
    """A file of a network that was measured with 2 and 8 workers, with the costs of the given one; and these costs."""
    from caramel.netmodel.file import load, save
    from caramel.netmodel.line import Curve, Sample

    cost = load(place / "network.json").given
    curves = []
    for workers in (2, 8):
        times = [Sample(size, cost.time_s("ring", workers, 1, size)) for size in (64, 2**12, 2**18, 2**22)]
        curves.append(Curve.fitted(workers, "ring", 1, times))
    save(caramel.NetworkModel("measured elsewhere", tuple(curves)), tmp_path / "others.json")
    return tmp_path / "others.json", cost


def test_workers_that_were_not_measured_are_predicted(call, place, tmp_path):
    file, cost = measured_with_others(place, tmp_path)
    given = ("--network", file, "--analyzers", LIST.format("each gradient alone"))
    done = call("plan", *given, "--json", "--workers", 32, network=False)
    assert done.exit_code == 0, done.output
    times_s = [cost.time_s("ring", 32, 1, 4 * n) for n in (100 * 300, 300, 300 * 200, 200, 200 * 10, 10)]
    assert json.loads(done.stdout)["communication_s"] == pytest.approx(sum(times_s), rel=1e-3)
    done = call("plan", *given, network=False)  # 4 are between those that were measured
    assert done.exit_code == 0 and "network: extrapolated outside what was measured: 6 transfers" in done.stdout


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("plan", ("--out", "plan.json"), "--out is for plans that can run. With 4 workers a step is only predicted"),
        ("plan", ("--check",), "--check is for plans that can run"),
        ("plan", ("--workers", 33), "predicts steps of up to 32 (4 times as many), not of 33"),
        ("run", (), "was measured with 2, 8 workers, not with 4: measure that too"),
        ("export", ("--out", "there"), "was measured with 2, 8 workers, not with 4: measure that too"),
    ],
)
def test_nothing_but_predictions_goes_beyond_what_was_measured(name, options, message, call, place, tmp_path):
    file, _ = measured_with_others(place, tmp_path)
    done = call(name, "--network", file, *options, network=False)
    assert done.exit_code == 1 and message in " ".join(done.output.split())


def test_more_workers_than_a_graph_can_have_are_predicted(call):
    quick = ("--analyzers", LIST.format("each gradient alone"))
    done = call("plan", *quick, "--json", "--workers", 800)
    assert done.exit_code == 0 and json.loads(done.stdout)["rho"] > 1
    done = call("plan", *quick, "--workers", 10_001)
    assert done.exit_code == 1 and "at most 10000" in done.output.replace(",", "")


def plan_of(call, tmp_path, *arguments):
    done = call("plan", "--out", tmp_path / "plan.json", *arguments)
    assert done.exit_code == 0, done.output
    return caramel.Plan.load(tmp_path / "plan.json")


def test_ablation(call, whole, tmp_path):
    """Each switch takes one thing away."""
    whole = caramel.Plan.load(whole)
    assert whole.edges and whole.postponed
    assert any(len(t.gradients) > 1 for t in whole.transfers)
    free = plan_of(call, tmp_path, "--no-serialization")
    assert not free.edges and free.postponed
    alone = plan_of(call, tmp_path, "--no-batching")
    assert all(len(t.pieces) == 1 for t in alone.transfers) and alone.edges
    backward = plan_of(call, tmp_path, "--no-scheduling")
    assert not backward.postponed and backward.edges
    paper = plan_of(call, tmp_path, "--policy", "paper")
    assert "Caramel's packing" in paper.analyzers and "Caramel's batching" in paper.analyzers
    assert all(len(pieces) == 1 for pieces in paper.pieces.values())
    for other in (alone, backward, paper):
        assert other.prediction.timeline.iteration_s >= whole.prediction.timeline.iteration_s - 1e-12


def test_analyzers_by_name(call, place, whole, tmp_path):
    whole = caramel.Plan.load(whole)
    same = plan_of(call, tmp_path, "--analyzers", ", ".join(whole.analyzers))
    assert same.to_json() == whole.to_json()
    own = plan_of(call, tmp_path, "--analyzers", LIST.format(f"{place}/own.py:pairs"))
    assert [len(t.gradients) for t in own.transfers] == [2, 2, 2]
    assert "two at a time" in own.transfers[0].reason and "pairs" in own.analyzers


def test_a_policy_a_schedule_and_an_order_of_ones_own(call, place, tmp_path):
    own = f"{place}/own.py"
    halves = plan_of(call, tmp_path, "--analyzers", LIST.format(f"{own}:halves, {own}:of_halves"))
    assert [t.reason.partition(";")[2].partition(";")[0].strip() for t in halves.transfers] == [
        "first half",
        "second half",
    ]
    alone = plan_of(call, tmp_path, "--analyzers", LIST.replace("{}, backward only", f"{own}:schedule"))
    assert len(alone.transfers) == 6 and "my schedule" in alone.analyzers and alone.prediction is not None
    reverse = plan_of(
        call, tmp_path, "--analyzers", LIST.replace("greedy order", f"{own}:reverse").format("buckets of 25 MiB")
    )
    # The last gradient of the model is that of the last layer's bias, as in the greedy order; what it needs is as well.
    assert reverse.order == tuple(g for g, _ in reverse.variable_classes if g in reverse.pieces)[::-1]
    assert reverse.edges and "the last first" in reverse.order_reason


def test_names_of_plans_without_measured_times(call, tmp_path):
    plan = plan_of(call, tmp_path, "--no-batching", "--no-scheduling", "--no-serialization")
    same = plan_of(call, tmp_path, "--analyzers", ", ".join(plan.analyzers))
    assert replace(same, notes=()).to_json() == replace(plan, notes=()).to_json()


ORDERED = "dependencies, trace, {}, {}, boundaries, each gradient alone, {}, adaptive depth"


@pytest.mark.parametrize(
    ("analyzers", "message"),
    [
        (
            LIST.format("own.py:no_reasons"),
            "analyzer 'wrong' provided is no Buckets of this program: there are 0 reasons",
        ),
        (LIST.format("own.py:ghosts"), "other names than the program's gradients, 'ghost'; it leaves out 'net/"),
        (ORDERED.format("own.py:short", "serialization", "backward only"), "no UpdateOrder of this program: it has"),
        (ORDERED.format("greedy order", "own.py:no_ops", "backward only"), "the program has no op 'here'"),
        (ORDERED.format("greedy order", "own.py:circle", "backward only"), "its analyzers were given by the caller"),
        (ORDERED.format("greedy order", "serialization", "own.py:nobody"), "is no Schedule of this program: it has"),
        (ORDERED.format("greedy order", "serialization", "own.py:overlap"), "do not follow element"),
    ],
)
def test_facts_that_are_wrong(call, place, analyzers, message):
    done = call("plan", "--analyzers", analyzers.replace("own.py", f"{place}/own.py"))
    assert done.exit_code == 1
    assert message in done.stderr


def test_options_that_would_have_no_effect(call, place, whole):
    done = call("plan", "--analyzers", LIST.format("each gradient alone"), "--no-batching", "--policy", "paper")
    assert done.exit_code == 1 and "with --analyzers leave out --batching, --policy" in done.stderr
    arguments = [f"{place}/program.py:build", "--workers", "4", "--plan", str(whole)]
    done = CliRunner().invoke(main, ["run", *arguments, "--steps", "1", "--algorithm", "ring", "--depth", "2"])
    assert done.exit_code == 1 and "with --plan leave out --algorithm, --depth" in done.stderr


@pytest.mark.parametrize(
    ("analyzers", "message"),
    [
        ("", "the list of analyzers is empty"),
        ("dependencies, ghost", "there is no analyzer 'ghost'; there are dependencies, "),
        ("dependencies", "the plan needs Transfers, which no analyzer of the list provides"),
        (LIST.format("backward only"), "analyzers 'backward only' and 'backward only' both provide Schedule"),
        (LIST.format("{place}/own.py:broken"), "analyzer 'broken' failed: RuntimeError: no idea; nothing was planned"),
        (LIST.format("{place}/own.py:number"), "cannot be made: TypeError"),
        (LIST.format("{place}/own.py:ghost"), "cannot be made: AttributeError"),
        (LIST.format("{place}/none.py:ghost"), "there is no Python file"),
    ],
)
def test_lists_that_do_not_fit(call, place, tmp_path, analyzers, message):
    done = call("plan", "--out", tmp_path / "plan.json", "--analyzers", analyzers.replace("{place}", str(place)))
    assert done.exit_code == 1
    assert message in done.stderr
    assert not (tmp_path / "plan.json").exists()


def test_a_trace_or_plan_of_another_program(place, whole, tmp_path):
    other = tmp_path / "other.py"
    other.write_text((place / "program.py").read_text().replace("(300, 200, 10)", "(300, 100, 10)"))
    for option, file in (("--trace", place / "trace.json"), ("--plan", whole)):
        keras.backend.clear_session(free_memory=False)
        arguments = ["run", f"{other}:build", "--workers", "4", option, str(file), "--steps", "1"]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 1
        assert "another program" in done.stderr


# -- explain ------------------------------------------------------------------------------------


def explained(*arguments):
    return CliRunner().invoke(main, ["explain", *map(str, arguments)])


def test_a_saved_plan_is_shown_and_explained(whole):
    plan = caramel.Plan.load(whole)
    assert explained(whole).stdout == plan.table() + "\n"
    said = explained(whole, "dense_300/kernel", "dense_10/bias").stdout
    assert said == "\n\n".join(wrapped_lines(plan.explain(n)) for n in ("dense_300/kernel", "dense_10/bias")) + "\n"
    facts = json.loads(explained(whole, "dense_10/bias", "--json").stdout)
    assert facts["explanations"] == {"dense_10/bias": plan.explain("dense_10/bias")}
    assert facts["digest"] == plan.digest and facts["predicted_iteration_s"] > 0


def test_a_saved_plan_against_another(whole, tmp_path):
    other = tmp_path / "other.json"
    replace(caramel.Plan.load(whole), notes=()).save(other)
    assert f"no difference from {whole}" in explained(whole, "--diff", whole).stdout
    assert f"{other} -> {whole}:" in explained(whole, "--diff", other).stdout
    assert json.loads(explained(whole, "--diff", other, "--json").stdout)["differences"]


@pytest.mark.parametrize("arguments, said", [(["nothing"], "has no gradient 'nothing'"), ([], "cannot be read")])
def test_what_cannot_be_explained(whole, tmp_path, arguments, said):
    result = explained(whole if arguments else tmp_path / "none.json", *arguments)
    assert result.exit_code == 1 and said in result.output
