"""`caramel export`: a directory that is complete, and trains where Caramel cannot be imported."""

import inspect
import json
import re
import runpy
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from tensorflow.python.framework import op_def_registry

import caramel
from caramel.cli.main import main

v1 = tf.compat.v1

EXAMPLES = {"digits_keras.py": "program", "digits_tf1.py": "build"}
STEPS = 3
LARGEST_CONSTANT_BYTES = 4096

WITHOUT_CARAMEL = """
import itertools, runpy, sys
sys.modules["caramel"] = None
runner, *given = sys.argv[1:]
for is_separator, arguments in itertools.groupby(given, "then".__eq__):
    if not is_separator:
        sys.argv = [runner, *arguments]
        runpy.run_path(runner, run_name="__main__")
"""
"""Each run's arguments are behind a `then`; the process loads TensorFlow only once."""


def own_losses(program, exported, batch, steps):
    """Losses of the library's own session from the exported values, always on the same batch."""
    import numpy as np

    import caramel
    from caramel.frontend.program_file import load_program

    armodel = caramel.ARModel(load_program(program).context, 2)
    with np.load(batch) as arrays, armodel.session() as session:
        session.restore(f"{exported}/initial")
        return [session.step(dict(arrays)).loss for _ in range(steps)]


def losses(text):
    return [float(value) for value in re.findall(r"loss ([\d.e+-]+)", text)]


# -- without Caramel -------------------------------------------------------------------------


def needs_a_process(program):
    """The graph example disables TensorFlow 2 in its process."""
    return "digits_tf1.py" in program


@pytest.fixture(
    scope="module", params=[pytest.param(p, marks=pytest.mark.soak) if needs_a_process(p) else p for p in EXAMPLES]
)
def exported(request, command, examples, importable, tmp_path_factory):
    """An exported example for 2 workers: its directory, the program, and a batch to train on."""
    program = f"{examples / request.param}:{EXAMPLES[request.param]}"
    directory = tmp_path_factory.mktemp("export")
    importable.syspath_prepend(str(examples))
    arguments = ["export", program, "--workers", 2, "--out", directory / "out"]
    if needs_a_process(program):
        result = command(*arguments)
        assert result.returncode == 0, result.stderr
    else:
        keras.utils.clear_session(free_memory=False)  # names are counted
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
    assert "README.md" in result.stdout
    rng = np.random.default_rng(0)
    batch = directory / "batch.npz"
    images = rng.random([7, 8, 8, 1], np.float32)  # 4 and 3 examples: weighted
    np.savez(batch, images=images, labels=rng.integers(0, 10, [7]))
    return directory / "out", program, batch


@pytest.fixture(scope="module")
def importable():
    """The search path, as before afterwards: what is run in this process puts its directory there."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def expected(exported, python):
    directory, program, batch = exported
    if needs_a_process(program):
        call = f"print(own_losses({program!r}, {str(directory)!r}, {str(batch)!r}, {STEPS}))"
        result = python("-c", f"{inspect.getsource(own_losses)}\n{call}")
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
    else:
        keras.utils.clear_session(free_memory=False)
        found = own_losses(program, directory, batch, STEPS)
    assert len(found) == STEPS
    assert found[-1] < found[0]
    return found


@pytest.mark.slow
def test_in_one_process(exported, expected, python, tmp_path):
    directory, _, batch = exported
    runner = directory / "run.py"
    saved = tmp_path / "saved"
    train = ["train", "--data", batch]
    first, second = [*train, "--steps", STEPS - 1, "--save", saved], [*train, "--restore", saved]
    result = python("-c", WITHOUT_CARAMEL, runner, *first, "then", *second, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert losses(result.stdout) == pytest.approx(expected, rel=1e-5)
    names = json.loads((directory / "signature.json").read_text())["checkpoint_names"]
    assert sorted(tf.train.load_checkpoint(str(saved)).get_variable_to_shape_map()) == sorted([*names, "caramel/steps"])


@pytest.mark.slow
def test_the_exported_examples(exported):
    check_directory(exported[0])


# -- contents --------------------------------------------------------------------------------


def check_directory(directory):
    """What must hold for every export."""
    graph_def, signature = read(directory)
    check_constants(graph_def)
    check_ops(graph_def)
    check_names(graph_def, signature)
    check_values(directory, signature)


def read(directory):
    assert {path.name for path in directory.iterdir()} == {
        "graph.pb",
        "initial.index",
        "initial.data-00000-of-00001",
        "signature.json",
        "plan.json",
        "README.md",
        "run.py",
        "export.json",
    }
    graph_def = v1.GraphDef.FromString((directory / "graph.pb").read_bytes())
    return graph_def, json.loads((directory / "signature.json").read_text())


def all_nodes(graph_def):
    return [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]


def check_constants(graph_def):
    large = {
        node.name: node.ByteSize()
        for node in all_nodes(graph_def)
        if node.op == "Const" and node.ByteSize() > LARGEST_CONSTANT_BYTES
    }
    assert large == {}


def check_ops(graph_def):
    functions = {function.signature.name for function in graph_def.library.function}
    unknown = {node.op for node in all_nodes(graph_def) if op_def_registry.get(node.op) is None} - functions
    assert unknown == set()
    python = {node.op for node in all_nodes(graph_def) if "PyFunc" in node.op}
    assert python == set()
    assert "caramel" not in {key.strip("_").partition("_")[0] for node in graph_def.node for key in node.attr}


def check_names(graph_def, signature):
    workers = signature["workers"]
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    tensors = [*signature["losses"], *signature["weights"], signature["restore_prefix"], signature["save_prefix"]]
    for feed in signature["feeds"]:
        assert len(feed["placeholders"]) == workers
        for name in feed["placeholders"]:
            placeholder = graph.get_tensor_by_name(name)
            assert placeholder.op.type.startswith("Placeholder")
            assert placeholder.dtype.name == feed["dtype"]
            assert placeholder.shape.as_list() == feed["shape"]
    for name in tensors:
        graph.get_tensor_by_name(name)
    ops = [
        *signature["step"],
        *signature["restore"],
        signature["restore_unsaved"],
        signature["restore_local"],
        signature["save"],
        *signature["flush"],
    ]
    for name in ops:
        graph.get_operation_by_name(name)
    assert len(signature["losses"]) == len(signature["step"]) == len(signature["devices"]) == workers
    assert len(signature["weights"]) in (0, workers)
    fed = {name.partition(":")[0] for feed in signature["feeds"] for name in feed["placeholders"]}
    behind = v1.graph_util.extract_sub_graph(graph_def, list(signature["step"]))
    needed = {node.name for node in behind.node if node.op in ("Placeholder", "PlaceholderV2")}
    assert needed <= fed  # whoever feeds what the signature names can run a step
    if signature["evaluation"] is not None:
        for _, name in signature["evaluation"]["fetches"]:
            graph.get_tensor_by_name(name)


def check_values(directory, signature):
    reader = tf.train.load_checkpoint(str(directory / "initial"))
    shapes = reader.get_variable_to_shape_map()
    assert set(signature["checkpoint_names"]) <= shapes.keys()
    for name in shapes:
        assert list(reader.get_tensor(name).shape) == shapes[name]


@pytest.fixture
def small(tmp_path):
    """A model with values, statistics, a local variable, a replicated input and an evaluation, exported."""
    with caramel.capture(replicated=["scale"], loss_reduction="mean") as context:
        x = v1.placeholder(tf.float32, [None, 600], "x")
        scale = v1.placeholder(tf.float32, [600], "scale")
        w = v1.get_variable("w", [600, 7], initializer=tf.random_normal_initializer(seed=1))
        seen = v1.get_variable("seen", [], trainable=False, initializer=tf.zeros_initializer())
        v1.get_variable(
            "unsaved",
            [3],
            initializer=tf.ones_initializer(),
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
        )
        loss = tf.reduce_mean(tf.matmul(x * scale, w) ** 2)
        with tf.control_dependencies([v1.assign_add(seen, tf.reduce_sum(x))]):
            v1.train.AdamOptimizer(0.1).minimize(loss)
        context.evaluation = {"norm": tf.norm(w)}
    armodel = caramel.ARModel(context, 3, device_list=[f"/job:w/task:{r}/device:GPU:0" for r in range(3)])
    armodel.export(tmp_path / "out")
    return armodel, tmp_path / "out"


def test_contents(small):
    check_directory(small[1])


def test_the_graph_is_the_model_s(small):
    armodel, directory = small
    assert (directory / "graph.pb").read_bytes() == armodel.graph_def.SerializeToString(deterministic=True)
    devices = {node.device for node in armodel.graph_def.node}
    assert devices >= {f"/job:w/task:{r}/device:GPU:0" for r in range(3)}


def test_values_do_not_travel_in_the_graph(small):
    _, directory = small
    values = (directory / "initial.data-00000-of-00001").stat().st_size
    graph = (directory / "graph.pb").stat().st_size
    assert values > 3 * 600 * 7 * 4  # w and its two slots
    w = tf.train.load_checkpoint(str(directory / "initial")).get_tensor("w")
    assert w[:2].tobytes() not in (directory / "graph.pb").read_bytes()
    assert graph < 1_000_000


def test_initial_values_are_the_program_s(small):
    _, directory = small
    reader = tf.train.load_checkpoint(str(directory / "initial"))
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [600, 7], initializer=tf.random_normal_initializer(seed=1))
        session.run(w.initializer)
        assert reader.get_tensor("w").shape == (600, 7)
        np.testing.assert_array_equal(reader.get_tensor("w"), session.run(w))
    np.testing.assert_array_equal(reader.get_tensor("unsaved"), np.ones(3))  # a start needs it, a checkpoint does not
    assert reader.get_tensor("beta1_power") == pytest.approx(0.9)


def test_signature(small):
    armodel, directory = small
    signature = json.loads((directory / "signature.json").read_text())
    assert json.loads(armodel.signature.to_json()) == signature
    feeds = {feed["name"]: feed for feed in signature["feeds"]}
    assert (feeds["x"]["split"], feeds["x"]["shape"], feeds["x"]["dtype"]) == (True, [None, 600], "float32")
    assert (feeds["scale"]["split"], feeds["scale"]["shape"]) == (False, [600])
    assert signature["flush"] == []
    assert "unsaved" not in signature["checkpoint_names"]
    assert {"w", "w/Adam", "w/Adam_1", "beta1_power", "beta2_power", "seen"} <= set(signature["checkpoint_names"])


def test_the_evaluation_has_the_user_s_names(small):
    signature = json.loads((small[1] / "signature.json").read_text())
    assert [name for name, _ in signature["evaluation"]["fetches"]] == ["norm"]


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"x": (4, 600)}, ["scale"]),
        ({"x": (0, 600), "scale": (600,)}, ["at least one example"]),
        ({"x": (6, 600), "y": (4,), "scale": (600,)}, ["y", "4", "6"]),
    ],
    ids=["one missing", "no example", "different numbers of examples"],
)
def test_the_runner_refuses_data_that_does_not_fit(small, arrays, words):
    """As the library does: one line instead of an error from the middle of the graph."""
    runner = runpy.run_path(str(small[1] / "run.py"))
    signature = json.loads((small[1] / "signature.json").read_text())
    x = signature["feeds"][0]
    assert x["name"] == "x"
    signature["feeds"] += [{**x, "name": "y", "shape": [None], "optional": True}]
    with pytest.raises(SystemExit) as caught:
        runner["feeds_for"](signature, {name: np.zeros(shape, np.float32) for name, shape in arrays.items()})
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_runner_of_one_worker_takes_other_numbers_of_examples(small):
    runner = runpy.run_path(str(small[1] / "run.py"))
    signature = json.loads((small[1] / "signature.json").read_text())
    first = signature["feeds"][0]
    x, y = ({**first, "name": name, "placeholders": [f"{name}:0"]} for name in "xy")
    given = {"x": np.zeros((6, 600), np.float32), "y": np.zeros((4, 600), np.float32)}
    feeds, shares = runner["feeds_for"]({**signature, "workers": 1, "feeds": [x, y]}, given)
    assert {name: len(array) for name, array in feeds.items()} == {"x:0": 6, "y:0": 4} and shares == [6]


def test_the_runner_feeds_texts(small):
    runner = runpy.run_path(str(small[1] / "run.py"))
    signature = json.loads((small[1] / "signature.json").read_text())
    signature["feeds"] = [{**signature["feeds"][0], "dtype": "string", "shape": [None]}]
    feeds, shares = runner["feeds_for"](signature, {"x": np.array(["a", "bc", "def"])})  # as np.load gives them
    assert [part.tolist() for part in feeds.values()] == [["a"], ["bc"], ["def"]]
    assert {part.dtype for part in feeds.values()} == {np.dtype(object)}
    assert shares == [1, 1, 1]


# With and without a step counter of the program's own, and with one that counts every step twice.
@pytest.mark.parametrize("counted", [True, False, "twice"])
def test_two_runs_of_the_runner_are_one(tmp_path, monkeypatch, counted):
    """The second goes on with the number of steps, and with what is local to each worker."""
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None], "x")
        w, seen = (
            v1.get_variable(n, [], initializer=tf.zeros_initializer(), trainable=n == "w") for n in ("w", "seen")
        )
        with tf.control_dependencies([v1.assign(seen, 0.5 * seen + tf.reduce_max(x))]):
            loss = tf.reduce_mean((w - x) ** 2)
        count = v1.train.get_or_create_global_step() if counted else None
        with tf.control_dependencies([v1.assign_add(count, 1)] if counted == "twice" else []):
            v1.train.GradientDescentOptimizer(0.1).minimize(tf.identity(loss), count)
    caramel.ARModel(context, 2).export(tmp_path / "out")
    np.savez(tmp_path / "batch.npz", x=np.arange(4, dtype=np.float32))

    def train(steps, save, *options):
        arguments = ["train", "--data", tmp_path / "batch.npz", "--steps", steps, "--save", tmp_path / save, *options]
        monkeypatch.setattr("sys.argv", ["run.py", *map(str, arguments)])
        runpy.run_path(str(tmp_path / "out" / "run.py"), run_name="__main__")
        reader = tf.train.load_checkpoint(str(tmp_path / save))
        return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}

    first = train(2, "first")
    assert first["seen"] != first["caramel/worker_1/seen"]
    assert first["caramel/steps"] == 2
    assert train(3, "second", "--restore", tmp_path / "first") == train(5, "whole")


WORKERS = ["host1:2222", "host2:2222"]


def config(cluster, *task):
    """What an orchestrator would set TF_CONFIG to."""
    found = {"cluster": cluster, **({"task": dict(zip(("type", "index"), task))} if task else {})}
    return json.dumps(found)


@pytest.fixture(scope="module")
def runner():
    """The exported runner's functions."""
    return runpy.run_path(str(Path(caramel.__file__).parent / "export" / "templates" / "run.py"))


@pytest.mark.parametrize(
    "text, expected",
    [
        (config({"worker": WORKERS}), (WORKERS, None)),
        (config({"worker": WORKERS}, "worker", 1), (WORKERS, 1)),
        (config({"worker": WORKERS, "chief": ["host0:2222"]}, "worker", "1"), (["host0:2222", *WORKERS], 2)),
        (config({"worker": WORKERS, "master": ["host0:2222"]}, "master", 0), (["host0:2222", *WORKERS], 0)),
        (config({"worker": {"1": WORKERS[1], "0": WORKERS[0]}, "ps": ["p:1"]}, "worker", 0), (WORKERS, 0)),
    ],
)
def test_the_runner_reads_tf_config_as_the_command_does(runner, text, expected):
    assert runner["from_tf_config"](text, 0) == expected
    there = caramel.Servers.from_tf_config(text)
    assert (list(there.addresses), there.task) == expected


@pytest.mark.parametrize("task", [(), ("worker", 1), ("ps", 0), ("ps", 1), ("chief", 0)])
def test_the_runner_finds_parameter_servers_as_the_command_does(runner, task):
    text = config({"worker": WORKERS, "ps": ["p:1", "q:1"], "chief": ["host0:2222"]}, *task)
    there = caramel.Servers.from_tf_config(text, with_ps=True)
    assert runner["from_tf_config"](text, 2) == (list(there.addresses), there.task)
    assert there.addresses[-2:] == ("p:1", "q:1") and there.parameter_servers == 2


def test_the_runner_leaves_parameter_servers_that_the_export_does_not_have(runner):
    jobs = {"worker": WORKERS, "ps": ["p:1", "q:1"]}
    assert runner["from_tf_config"](config(jobs, "ps", 0), 1) == ([*WORKERS, "p:1"], 2)
    with pytest.raises(SystemExit, match="makes this process a ps, which takes no part"):
        runner["from_tf_config"](config(jobs, "ps", 1), 1)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", ["not set", '"cluster"']),
        ("{", ["not as in"]),
        ("[]", ["not as in"]),
        (config({"worker": "host1:2222"}), ["no list of addresses"]),
        (config({"worker": ["host1"]}), ["host:port"]),
        (config({"worker": {"1": "host1:2222"}}), ["not as in"]),
        (config({}), ["needs workers"]),
        (config({"ps": ["host1:2222"]}), ["needs workers"]),
        (config({"worker": WORKERS, "coordinator": ["host0:2222"]}), ["no other job"]),
        (config({"worker": WORKERS, "chief": WORKERS[:1]}), ["each address once"]),
        (config({"worker": WORKERS, "chief": ["a:1", "b:1"]}), ["at most one chief"]),
        (config({"worker": WORKERS}, "worker", 2), ["task 2", "'worker'"]),
        (config({"worker": WORKERS}, "worker", "first"), ["not as in"]),
        (config({"worker": WORKERS}, "chief", 0), ["task 0", "'chief'"]),
        (config({"worker": WORKERS, "ps": ["p:1"]}, "ps", 0), ["ps", "start nothing"]),
    ],
)
def test_the_runner_refuses_a_tf_config_that_is_none(runner, text, words):
    with pytest.raises(SystemExit) as caught:
        runner["from_tf_config"](text, 0)
    assert [word for word in words if word not in str(caught.value)] == []
    with pytest.raises(caramel.InputError):  # as the command does
        caramel.Servers.from_tf_config(text)


@pytest.mark.parametrize(
    "options, task, words",
    [
        (["train", "--cluster", "tf-config"], ("worker", 1), ["task 1", "serve here"]),
        (["serve", "--cluster", "tf-config"], (), ["--task", "TF_CONFIG"]),
        (["serve", "--cluster", "tf-config", "--task", "0"], ("worker", 0), ["--task", "TF_CONFIG"]),
        (["serve", "--cluster", "tf-config"], ("worker", 0), ["3 addresses, got 2"]),
        (["serve", "--cluster", "a:1,b:1,c:1"], (), ["--task"]),
        (["serve", "--cluster", "a:1,b:1,c:1", "--task", "3"], (), ["between 0 and 2", "3"]),
    ],
)
def test_the_runner_refuses_options_that_do_not_fit(small, monkeypatch, options, task, words):
    monkeypatch.setenv("TF_CONFIG", config({"worker": WORKERS}, *task))
    monkeypatch.setattr("sys.argv", ["run.py", *options])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(small[1] / "run.py"), run_name="__main__")
    assert [word for word in words if word not in str(caught.value)] == []


def test_plan(small):
    armodel, directory = small
    plan = caramel.Plan.from_json((directory / "plan.json").read_text())
    assert plan == armodel.plan
    assert plan.digest == armodel.plan.digest


def test_readme(small):
    armodel, directory = small
    text = (directory / "README.md").read_text()
    for path in directory.iterdir():
        assert path.name in text or path.suffix.startswith(".data") or path.name == "README.md"
    for word in ("`x`", "`scale`", "/job:w/task:2/device:GPU:0", "HOST2:2222", "run.py train", tf.__version__):
        assert word in text
    assert armodel.plan.table() in text
    assert "feed `N * b / B` to the `weights`" in text
    assert "$" not in text


def test_the_weights_of_a_sum_in_the_readme(tmp_path):
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None], "x")
        w = v1.get_variable("w", [], initializer=tf.zeros_initializer())
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum((w - x) ** 2))
    caramel.ARModel(context, 2).export(tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "feed 1, or 0 if b is 0," in text
    assert "N * b / B" not in text


def test_the_same_model_gives_the_same_files(small, tmp_path):
    armodel, directory = small
    armodel.export(tmp_path / "again")
    for name in ("graph.pb", "signature.json", "plan.json", "README.md", "run.py", "export.json"):
        assert (tmp_path / "again" / name).read_bytes() == (directory / name).read_bytes()


def test_device_options_reach_the_graph(write, tmp_path):
    program = write(
        """
        import tensorflow.compat.v1 as tf

        def build():
            x = tf.placeholder(tf.float32, [None, 3], "x")
            w = tf.get_variable("w", [3])
            tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(x, w) ** 2))
        """
    )
    options = ["--device", "/job:a/task:0/GPU:0", "--device", "/job:b/task:1"]
    arguments = ["export", f"{program}:build", "--workers", "2", "--out", str(tmp_path / "out"), *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    _, signature = read(tmp_path / "out")
    assert signature["devices"] == ["/job:a/task:0/device:GPU:0", "/job:b/task:1"]


SHARED = [f"/job:worker/task:{task}/device:CPU:{index}" for task in (0, 1) for index in (0, 1)]


@pytest.fixture
def shared(tmp_path):
    """Four workers on two tasks, with TensorFlow's own all-reduce, which needs a device for each; and its losses."""
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        w = v1.get_variable("w", [3], initializer=tf.ones_initializer())
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(x, w) ** 2))
    armodel = caramel.ARModel(context, 4, device_list=SHARED, algorithm="native")
    armodel.export(tmp_path / "out")
    batch = {"x": np.random.default_rng(0).normal(size=[10, 3]).astype(np.float32)}
    np.savez(tmp_path / "batch.npz", **batch)
    with armodel.session() as session:
        expected = [session.step(batch).loss for _ in range(STEPS)]
    return tmp_path / "out", ["--data", tmp_path / "batch.npz", "--steps", STEPS], expected


@pytest.mark.soak  # as where every machine runs one command
@pytest.mark.slow
def test_workers_that_share_a_task_in_one_process(shared, python):
    directory, options, expected = shared
    result = python("-c", WITHOUT_CARAMEL, directory / "run.py", "train", *options)
    assert result.returncode == 0, result.stderr
    assert losses(result.stdout) == pytest.approx(expected, rel=1e-5)


@pytest.mark.soak  # as where every machine runs one command
@pytest.mark.slow
@pytest.mark.processes
def test_workers_that_share_a_server(shared, network, tmp_path):
    directory, options, expected = shared
    assert "HOST0:2222,HOST1:2222 " in (directory / "README.md").read_text()
    cluster = ["--cluster", "127.0.0.1:2222,127.0.0.1:2223"]
    runner = ["-c", WITHOUT_CARAMEL, directory / "run.py"]
    servers = [network.start(*runner, "serve", *cluster, "--task", task) for task in (0, 1)]
    for server in servers:
        assert network.line_of(server).startswith("serving")
    result = network.run(*runner, "train", *cluster, *options, "--save", tmp_path / "saved")
    assert result.returncode == 0, result.stderr
    assert losses(result.stdout) == pytest.approx(expected, rel=1e-5)
    assert (tmp_path / "saved.index").is_file()
    left = subprocess.run(["pgrep", "-f", str(directory / "run.py")], capture_output=True, text=True)
    assert {int(number) for number in left.stdout.split()} == {server.pid for server in servers}


@pytest.mark.slow
@pytest.mark.processes
def test_every_machine_runs_one_command_with_tf_config(shared, network):
    """The first one trains, on a server of its own; its end leaves the other serving."""
    directory, options, expected = shared
    runner = ["-c", WITHOUT_CARAMEL, directory / "run.py"]
    cluster = {"chief": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]}
    other = {"TF_CONFIG": config(cluster, "worker", 0)}
    server = network.start(*runner, "serve", "--cluster", "tf-config", environment=other)
    assert network.line_of(server).startswith("serving")
    chief = {"TF_CONFIG": config(cluster, "chief", 0)}
    result = network.run(*runner, "train", "--cluster", "tf-config", *options, environment=chief)
    assert result.returncode == 0, result.stderr
    assert losses(result.stdout) == pytest.approx(expected, rel=1e-5)
    assert server.poll() is None
