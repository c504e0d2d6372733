"""Parameter servers that do not fit: each error names the argument."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import InputError
from caramel.facts import Trace


@pytest.fixture(scope="module")
def context():
    """A step with two parameters and a counter."""
    w, b = tf.Variable(np.ones([4, 3]), name="w"), tf.Variable(np.zeros(3), name="b")
    count = tf.Variable(0, name="count", trainable=False)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w + b - 1.0) ** 2)
        for variable, gradient in zip((w, b), tape.gradient(loss, (w, b))):
            variable.assign_sub(0.1 * gradient)
        count.assign_add(1)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 4], tf.float64)])


def trace_of(context):
    op_s = {node.name: 1e-6 for node in context.model.graph}
    return Trace(context.model.digest, op_s, {}, 1e-3, 1e-3, 2, 1, None, "by hand")


NETWORK = caramel.NetworkModel.from_costs(1e-4, 1e-8)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, [1]])
def test_a_number_of_servers_that_is_none(context, value):
    with pytest.raises(InputError, match="servers"):
        caramel.PSModel(context, 2, value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", None])
def test_a_number_of_workers_that_is_none(context, value):
    with pytest.raises(InputError, match="workers"):
        caramel.PSModel(context, value, 1)


@pytest.mark.parametrize("value", [0, -2, 1.5, "2", float("nan")])
def test_a_number_of_pulls_in_flight_that_is_none(context, value):
    with pytest.raises(InputError, match="pulls_in_flight"):
        caramel.PSModel(context, 2, pulls_in_flight=value)


@pytest.mark.parametrize("value", ["TAC", "alphabetical", "", 3, ["tac"], True])
def test_an_ordering_that_is_none(context, value):
    with pytest.raises(InputError, match="ordering.*tac.*tic.*tao.*tio.*none"):
        caramel.PSModel(context, 2, ordering=value)


def test_more_servers_than_variables(context):
    with pytest.raises(InputError, match=r"servers=9.*variables.*take at most \d"):
        caramel.PSModel(context, 2, 9)


@pytest.mark.parametrize("option", [{"policy": "p3"}, {"wire": "bfloat16"}, {"depth": 2}, {"algorithm": "star"}])
def test_options_of_all_reduces(context, option):
    (name,) = option
    with pytest.raises(InputError, match=f"leave out {name}="):
        caramel.PSModel(context, 2, **option)


def test_an_option_that_there_is_not(context):
    with pytest.raises(InputError, match=r"PSModel\(\) has no argument 'orderin': did you mean 'ordering'"):
        caramel.PSModel(context, 2, orderin="tic")


@pytest.mark.parametrize("servers", [2, 3, 4, 5, 6])
def test_a_server_that_has_nothing_to_do_is_named(servers):
    """Either each server has a parameter, or part of one, or the plan says which have none."""
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse")
    model.optimizer.build(model.trainable_variables)
    specs = [tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])]
    context = caramel.capture(tf.function(lambda x, y: model.train_step((x, y))), specs)
    plan = caramel.PSModel(context, 2, servers).plan
    homes = [home for home in plan.servers.homes if len(home.parts) < servers or home.is_divided]
    idle = set(range(servers)) - {server for home in homes for server in home.servers}
    said = [note for note in plan.notes if note.startswith("no parameter is left for")]
    assert len(said) == bool(idle) and all(f"server {each}" in said[0] for each in idle)


@pytest.mark.parametrize("ordering", ["tac", "tao", "best"])
def test_an_order_by_times_that_are_not_known(context, ordering):
    for given, missing in (
        ({}, "trace= and network="),
        ({"trace": trace_of(context)}, "network="),
        ({"network": NETWORK}, "trace="),
    ):
        with pytest.raises(InputError, match=f"ordering='{ordering}'.*{missing}"):
            caramel.PSModel(context, 2, ordering=ordering, **given)


@pytest.mark.parametrize(
    "devices, message",
    [
        (["/job:ps/task:0"], "server_list"),
        ([f"/job:ps/task:{n}" for n in range(3)], "server_list"),
        ([], "server_list"),
        ("/job:ps/task:0", "server_list"),
        (["nowhere", "/job:ps/task:1"], "nowhere"),
        (["/job:ps/task:0", 1], "server_list"),
        (["/job:ps/task:0", "/job:ps/task:0"], "server_list"),
    ],
)
def test_a_list_of_servers_that_does_not_fit(context, devices, message):
    with pytest.raises(InputError, match=message):
        caramel.PSModel(context, 2, 2, server_list=devices)


def test_a_list_of_workers_that_does_not_fit(context):
    with pytest.raises(InputError, match="device_list"):
        caramel.PSModel(context, 2, 2, device_list=["/job:worker/task:0"])


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "ring"},
        {"depth": 2},
        {"wire": "bfloat16"},
        {"shard_updates": True},
        {"shard_updates": "auto"},
        {"shard_embeddings": True},
        {"postponed": ["w"]},
        {"policy": "paper"},
        {"policy": "p3"},
        {"analyzers": []},
        {"scheduling": False},
        {"batching": False},
        {"serialization": False},
        {"sync_every": 2},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_options_of_all_reduces_beside_servers(context, options):
    (name,) = options
    with pytest.raises(InputError, match=f"(?s)servers=.*{name}=|{name}=.*servers="):
        caramel.ARModel(context, 2, servers=1, **options)


@pytest.mark.parametrize(
    "options", [{"ordering": "tic"}, {"pulls_in_flight": 3}, {"server_list": ["/job:ps/task:0"]}], ids=str
)
def test_options_of_servers_without_servers(context, options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name}=.*servers="):
        caramel.ARModel(context, 2, **options)


@pytest.mark.parametrize("options", [{"servers": 2}, {"ordering": "tic"}, {"pulls_in_flight": 3}], ids=str)
def test_options_beside_a_plan(context, options):
    (name,) = options
    plan = caramel.PSModel(context, 2).plan
    with pytest.raises(InputError, match=f"{name}="):
        caramel.ARModel(context, 2, plan=plan, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"servers": 2},
        {"ordering": "tic"},
        {"pulls_in_flight": 3},
        {"deterministic": True},
        {"statistics": "mean"},
        {"uneven_batches": "refuse"},
        {"network": NETWORK},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_psmodel_beside_a_plan_are_not_ignored(context, options):
    """What a plan decides is refused beside it, as in ARModel: nothing is silently left out."""
    (name,) = options
    plan = caramel.PSModel(context, 2).plan
    with pytest.raises(InputError, match=f"{name}="):
        caramel.PSModel(context, 2, plan=plan, **options)


@pytest.mark.parametrize("wrong", [None, "context", 3])
def test_a_context_that_is_none(wrong):
    with pytest.raises(InputError, match="caramel.capture"):
        caramel.PSModel(wrong, 2)


def test_a_trace_of_another_program(context):
    other = trace_of(context)
    other = Trace("0" * 64, *[getattr(other, f) for f in other.__dataclass_fields__][1:])
    with pytest.raises(caramel.TraceError):
        caramel.PSModel(context, 2, trace=other, network=NETWORK)
    with pytest.raises(InputError, match="trace"):
        caramel.PSModel(context, 2, trace=3)
    with pytest.raises(InputError, match="network"):
        caramel.PSModel(context, 2, network=3)


def test_uneven_batches_that_are_refused(context):
    model = caramel.PSModel(context, 2, uneven_batches="refuse")
    with model.session() as session, pytest.raises(InputError, match="3 examples|uneven|evenly"):
        session.step(np.ones([3, 4]))
