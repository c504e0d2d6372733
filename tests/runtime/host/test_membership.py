"""Who is in a cluster, from TF_CONFIG and from TensorFlow's resolvers."""

import json
from types import SimpleNamespace

import pytest
import tensorflow as tf

import caramel
from caramel.errors import ClusterError, InputError
from caramel.runtime.clusters.driver_server import OwnServer
from caramel.runtime.host.membership import from_jobs, from_tf_config

resolvers = tf.distribute.cluster_resolver

WORKERS = ["a:1", "b:2", "c:3"]


def config(cluster, task=("worker", 0)):
    described = {"cluster": cluster}
    if task is not None:
        described["task"] = {"type": task[0], "index": task[1]}
    return json.dumps(described)


@pytest.mark.parametrize(
    ("cluster", "task", "addresses", "rank"),
    [
        ({"worker": WORKERS}, ("worker", 0), WORKERS, 0),
        ({"worker": WORKERS}, ("worker", 2), WORKERS, 2),
        ({"worker": WORKERS}, ("worker", "1"), WORKERS, 1),  # some launchers write text
        ({"worker": WORKERS}, None, WORKERS, None),
        ({"worker": WORKERS[1:], "chief": ["a:1"]}, ("chief", 0), WORKERS, 0),
        ({"worker": WORKERS[1:], "chief": ["a:1"]}, ("worker", 0), WORKERS, 1),
        ({"chief": ["a:1"], "worker": WORKERS[1:]}, ("worker", 1), WORKERS, 2),
        ({"master": ["a:1"], "worker": WORKERS[1:]}, ("master", 0), WORKERS, 0),
        ({"chief": ["a:1"]}, ("chief", 0), ["a:1"], 0),
        ({"chief": [], "worker": WORKERS}, ("worker", 1), WORKERS, 1),
        ({"worker": {"2": "c:3", "0": "a:1", "1": "b:2"}}, ("worker", 2), WORKERS, 2),
        ({"worker": ["[::1]:5", "x.y.svc:65535"]}, ("worker", 0), ["[::1]:5", "x.y.svc:65535"], 0),
    ],
)
def test_forms(cluster, task, addresses, rank):
    found = caramel.Servers.from_tf_config(config(cluster, task))
    assert (list(found.addresses), found.task, found.notes) == (addresses, rank, ())


def test_other_keys_do_not_matter():
    described = {**json.loads(config({"worker": WORKERS})), "environment": "cloud", "rpc_layer": "grpc"}
    assert from_tf_config(json.dumps(described)).task == 0


def test_the_environment_is_read_only_if_no_text_is_given(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config({"worker": ["here:1"]}))
    assert from_tf_config().addresses == ("here:1",)
    assert from_tf_config(config({"worker": ["there:1"]})).addresses == ("there:1",)
    with pytest.raises(InputError, match="is no JSON"):
        from_tf_config("")


@pytest.mark.parametrize("value", [None, "", "  "])
def test_no_tf_config(monkeypatch, value):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("TF_CONFIG", value)
    with pytest.raises(InputError, match=r'TF_CONFIG is not set: set it to \{"cluster": \{"worker": \["host0:2222"'):
        caramel.Servers.from_tf_config()


@pytest.mark.parametrize("job", ["ps", "evaluator"])
def test_what_takes_no_part_is_noted(job):
    found = caramel.Servers.from_tf_config(config({"worker": WORKERS, job: ["d:4", "e:5"]}))
    assert list(found.addresses) == WORKERS
    (note,) = found.notes
    assert "TF_CONFIG" in note and repr(job) in note and "d:4, e:5" in note and "takes no part" in note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"cluster": {"worker": ["a:1"]', ["is no JSON", "line 1, column 31", "near", "It looks like"]),
        ('{"cluster":\n {"worker": [a:1]}}', ["is no JSON", "line 2", "[a:1]"]),
        ("[]", ["has no 'cluster'", "it looks like"]),
        ("{}", ["has no 'cluster'", "it looks like"]),
        ('{"task": {"type": "worker", "index": 0}}', ["has no 'cluster'"]),
        ('{"cluster": ["a:1"]}', ["needs an object as its 'cluster'"]),
        ('{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}', ["'worker' twice", "join"]),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', ['{"type": "worker"}', "'index'"]),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}', ["'type' and 'index'"]),
        ('{"cluster": {"worker": ["a:1"]}, "task": "worker"}', ["'type' and 'index'"]),
        (config({}), ["no workers", "only nothing", "'worker'"]),
        (config({"worker": []}), ["no workers", "only 'worker'"]),
        (config({"ps": ["a:1"]}, ("ps", 0)), ["no workers", "only 'ps'"]),
        (config({"trainer": ["a:1"]}), ["job 'trainer'", "'worker'", "'chief'"]),
        (config({"worker": "a:1"}), ["'a:1' as the job 'worker'", "a list of addresses"]),
        (config({"worker": ["a:1", 5]}), ["the job 'worker'", "a list of addresses"]),
        (config({"worker": ["a"]}), ["TF_CONFIG", "'a' is no address", "host:port"]),
        (config({"worker": ["grpc://a:1"]}), ["'grpc://a:1' is no address"]),
        (config({"worker": ["a:1", " b:1"]}), ["' b:1' is no address"]),
        (config({"worker": {"0": "a:1", "2": "c:1"}}), ["tasks 0, 2", "without a gap"]),
        (config({"worker": ["a:1", "b:1", "a:1"]}), ["TF_CONFIG", "twice", "'a:1'"]),
        (config({"chief": ["a:1"], "worker": ["b:1", "a:1"]}), ["twice", "'a:1'"]),
        (config({"chief": ["a:1", "b:1"], "worker": ["c:1"]}), ["2 chiefs (a:1, b:1)"]),
        (config({"chief": ["a:1"], "master": ["b:1"]}), ["2 chiefs"]),
        (config({"worker": WORKERS}, ("worker", 3)), ["task 3", "numbers 0 to 2", "correct the index"]),
        (config({"worker": WORKERS}, ("worker", -1)), ["task -1", "numbers 0 to 2"]),
        (config({"worker": WORKERS}, ("worker", 1.5)), ["task 1.5"]),
        (config({"worker": WORKERS}, ("worker", None)), ["task None"]),
        (config({"worker": WORKERS}, ("worker", True)), ["task True"]),
        (config({"worker": WORKERS}, ("chief", 0)), ["a 'chief'", "only 'worker'"]),
        (config({"chief": ["a:1"], "worker": ["b:1"]}, ("chief", 1)), ["task 1 of the job 'chief'"]),
        (config({"worker": WORKERS}, ("driver", 0)), ["a 'driver'", "only 'worker'"]),
        (config({"worker": WORKERS}, ("evaluator", 0)), ["job 'evaluator'", "takes no part", "Start nothing"]),
        (config({"worker": WORKERS, "ps": ["d:4"]}, ("ps", 0)), ["job 'ps'", "takes no part"]),
    ],
)
def test_what_is_wrong(text, words):
    with pytest.raises(InputError) as caught:
        caramel.Servers.from_tf_config(text)
    message = str(caught.value)
    assert message.startswith("TF_CONFIG")
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("depth", [100, 900, 100_000])
@pytest.mark.parametrize(
    "place",
    ["{}", '{{"cluster": {}}}', '{{"cluster": {{"worker": {}}}}}', '{{"cluster": {{"worker": ["a:1"]}}, "task": {}}}'],
)
def test_what_is_nested_deeply(place, depth):
    with pytest.raises(InputError, match="^TF_CONFIG") as caught:
        caramel.Servers.from_tf_config(place.format("[" * depth + "]" * depth))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("digits", [20, 4_000, 5_000])
@pytest.mark.parametrize(
    "place",
    [
        "{}",
        '{{"cluster": {{"worker": [{}]}}}}',
        '{{"cluster": {{"worker": ["a:1"]}}, "task": {{"type": "worker", "index": {}}}}}',
    ],
)
def test_numbers_of_many_digits(place, digits):
    with pytest.raises(InputError, match="^TF_CONFIG") as caught:
        caramel.Servers.from_tf_config(place.format("9" * digits))
    assert len(str(caught.value)) < 500


def test_a_port_of_many_digits():
    with pytest.raises(InputError, match="is no address of a server"):
        caramel.Servers(["host:" + "9" * 5_000])


def test_tf_config_is_text():
    with pytest.raises(InputError, match=r"is JSON text, got dict: .*json\.dumps"):
        caramel.Servers.from_tf_config({"cluster": {"worker": WORKERS}})


# -- resolvers -------------------------------------------------------------------------------


def test_tensorflows_own_resolver_of_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config({"chief": ["a:1"], "worker": WORKERS[1:]}, ("worker", 1)))
    found = caramel.Servers.from_resolver(resolvers.TFConfigClusterResolver())
    assert (list(found.addresses), found.task) == (WORKERS, 2)
    assert found == caramel.Servers.from_tf_config()


@pytest.mark.parametrize(("task", "rank"), [({}, None), ({"task_type": "worker", "task_id": 1}, 1)])
def test_a_simple_resolver(task, rank):
    spec = tf.train.ClusterSpec({"worker": WORKERS})
    found = caramel.Servers.from_resolver(resolvers.SimpleClusterResolver(spec, **task))
    assert (list(found.addresses), found.task) == (WORKERS, rank)


def test_slurm(monkeypatch):
    """Two nodes with two tasks each; this is the third task."""
    variables = {
        "SLURM_PROCID": "2",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "node[7-8]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # On nodes without GPUs TensorFlow's resolver must be told of as many as there are tasks, and not to hand them out.
    resolver = resolvers.SlurmClusterResolver(port_base=9000, gpus_per_node=2, gpus_per_task=1, auto_set_gpu=False)
    found = caramel.Servers.from_resolver(resolver)
    assert found.addresses == ("node7:9000", "node7:9001", "node8:9000", "node8:9001")
    assert found.task == 2


def pod(name, address, phase="Running"):
    return SimpleNamespace(metadata=SimpleNamespace(name=name), status=SimpleNamespace(phase=phase, host_ip=address))


def kubernetes(*pods):
    client = SimpleNamespace(list_pod_for_all_namespaces=lambda label_selector: SimpleNamespace(items=list(pods)))
    return resolvers.KubernetesClusterResolver({"worker": ["job=x"]}, tf_server_port=2222, override_client=client)


def test_kubernetes_does_not_know_the_task():
    resolver = kubernetes(pod("w-1", "10.0.0.2"), pod("w-0", "10.0.0.1"))
    assert caramel.Servers.from_resolver(resolver).task is None
    resolver.task_type, resolver.task_id = "worker", 1
    found = caramel.Servers.from_resolver(resolver)
    assert (found.addresses, found.task) == (("10.0.0.1:2222", "10.0.0.2:2222"), 1)


def test_a_resolver_that_fails():
    with pytest.raises(InputError, match='KubernetesClusterResolver finds no cluster: RuntimeError: Pod "w-0"'):
        caramel.Servers.from_resolver(kubernetes(pod("w-0", "10.0.0.1", "Pending")))


@pytest.mark.parametrize("wrong", [None, "slurm", resolvers.SimpleClusterResolver])
def test_what_is_no_resolver(wrong):
    with pytest.raises(InputError, match=r"has no cluster_spec\(\): give a resolver such as"):
        caramel.Servers.from_resolver(wrong)


def test_a_resolver_without_a_cluster():
    with pytest.raises(InputError, match="SimpleNamespace.cluster_spec\\(\\) gave None"):
        caramel.Servers.from_resolver(SimpleNamespace(cluster_spec=lambda: None))
    empty = resolvers.SimpleClusterResolver(tf.train.ClusterSpec({}))
    with pytest.raises(InputError, match="SimpleClusterResolver has no workers"):
        caramel.Servers.from_resolver(empty)


def test_a_spec_with_a_gap():
    spec = tf.train.ClusterSpec({"worker": {0: "a:1", 2: "c:1"}})
    with pytest.raises(InputError, match="tasks 0, 2 of the job 'worker'"):
        from_jobs(spec.as_dict(), None, None, "a resolver")


# -- who drives ------------------------------------------------------------------------------


def test_only_task_0_drives(compiled):
    servers = caramel.Servers.from_tf_config(config({"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, ("worker", 1)))
    with pytest.raises(InputError, match=r"task 1 of the cluster \(127\.0\.0\.1:2\), and task 0 .*`caramel worker`"):
        compiled().session(servers)


def test_a_task_that_is_not_there():
    with pytest.raises(InputError, match="task must be between 0 and 2, got 3"):
        caramel.Servers(WORKERS, task=3)


def test_serving_needs_a_task():
    with pytest.raises(InputError, match="which server to run"):
        caramel.Servers(WORKERS).serve()
    with pytest.raises(InputError, match="devices must be a whole number of at least 1, got 0"):
        caramel.Servers(WORKERS, task=1).serve(0)


def test_the_drivers_server_may_take_longer_to_start_than_a_step(compiled, monkeypatch):
    """It loads TensorFlow, which no step does."""
    seen = []

    def awaited(process, settings, log, address, timeout_s):
        seen.append(timeout_s)
        raise ClusterError("enough")

    monkeypatch.setattr(OwnServer, "_await", staticmethod(awaited))
    with pytest.raises(ClusterError, match="enough"):
        compiled(workers=1).session(caramel.Servers(["127.0.0.1:1"], task=0), step_timeout_s=0.5)
    assert seen == [120.0]


PS = {"worker": WORKERS, "ps": ["d:4", "e:5"]}


@pytest.mark.parametrize(("task", "number"), [(("worker", 1), 1), (("ps", 0), 3), (("ps", 1), 4), (None, None)])
def test_parameter_servers_are_the_last_tasks(task, number):
    found = from_tf_config(config(PS, task), with_ps=True)
    assert found.addresses == (*WORKERS, "d:4", "e:5") and found.task == number
    assert found.parameter_servers == 2 and found.notes == ()


def test_a_chief_is_before_all_others():
    jobs = {"chief": ["a:1"], "worker": WORKERS[1:], "ps": ["d:4"]}
    assert from_tf_config(config(jobs, ("ps", 0)), with_ps=True).addresses == (*WORKERS, "d:4")
    assert caramel.Servers.from_tf_config(config(jobs, ("worker", 1)), with_ps=True).task == 2


def test_without_being_asked_for_they_take_no_part():
    found = from_tf_config(config(PS))
    assert found.addresses == tuple(WORKERS) and found.parameter_servers == 0
    assert any("--servers K" in note for note in found.notes)


def test_a_parameter_server_that_does_not_exist():
    with pytest.raises(InputError, match="task 2 of the job 'ps', whose 2 tasks"):
        from_tf_config(config(PS, ("ps", 2)), with_ps=True)


def test_an_evaluator_never_takes_part():
    with pytest.raises(InputError, match="takes no part"):
        from_tf_config(config({**PS, "evaluator": ["f:6"]}, ("evaluator", 0)), with_ps=True)
