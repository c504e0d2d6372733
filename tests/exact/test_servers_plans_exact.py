"""Plans with parameter servers: saved, applied, compared, and refused where they are wrong."""

import json
from dataclasses import replace

import pytest
from exact_matrix import FEATURE, batches, program
from exact_servers import NETWORK, assert_bits, reduced, run, traced
from exact_steps import captured
from test_servers_exact import adversaries, examples, large

import caramel
from caramel.errors import PlanError


@pytest.fixture(scope="module")
def context():
    """A program of which one parameter is divided, with an average of all, whose update waits for no gradient."""
    return captured(large("adam"))[1]


@pytest.fixture(scope="module")
def plan(context):
    return caramel.PSModel(context, 3, 2).plan


def data_of(plan):
    return json.loads(plan.to_json())


def edited(plan, change, path=None):
    """The plan after an edit of its JSON, as text or as a file."""
    data = data_of(plan)
    change(data["servers"], data)
    if path is None:
        return caramel.Plan.from_json(json.dumps(data))
    path.write_text(json.dumps(data))
    return path


def home_of(servers, name):
    return next(home for home in servers["homes"] if name in home["variables"])


# -- saved and applied ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"ordering": "none"}, {"ordering": "random", "pulls_in_flight": 4}])
def test_a_plan_is_saved_and_applied_as_it_is(context, options, tmp_path):
    model = caramel.PSModel(context, 3, 2, **options)
    model.plan.save(tmp_path / "plan.json")
    assert caramel.Plan.load(tmp_path / "plan.json") == model.plan
    for given in (model.plan, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        for made in (caramel.PSModel(context, 3, plan=given), caramel.ARModel(context, 3, plan=given)):
            assert made.plan == model.plan and made.plan.digest == model.plan.digest and not made.facts
            assert made.graph_def.SerializeToString(deterministic=True) == model.graph_def.SerializeToString(
                deterministic=True
            )


def test_a_plan_with_times_is_saved_with_its_prediction(context, tmp_path):
    model = caramel.PSModel(context, 3, 2, trace=traced(context), network=NETWORK)
    model.plan.save(tmp_path / "plan.json")
    again = caramel.Plan.load(tmp_path / "plan.json")
    assert again == model.plan and again.servers.prediction == model.plan.servers.prediction
    found = again.servers.prediction
    assert found.lower_bound_s <= found.step_s and found.compute_s > 0 and found.pull_s > 0 and found.push_s > 0
    assert str(found) in " ".join(str(again).split())


@pytest.mark.parametrize("make", [large("adam"), program("adam", "embedding"), adversaries])
def test_a_loaded_plan_has_the_bits_of_its_making(make, tmp_path):
    data = batches(FEATURE["embedding"], steps=4) if "program" in make.__qualname__ else examples(steps=4)
    made, context = captured(make)
    caramel.PSModel(context, 3, 2, deterministic=True).plan.save(tmp_path / "plan.json")
    got = run(made, caramel.PSModel(context, 3, plan=tmp_path / "plan.json"), data)
    assert_bits(got, reduced(make, data, 3))


def test_a_plan_goes_to_other_devices(context, plan):
    workers = [f"/job:trainer/task:{n}" for n in range(3)]
    servers = ["/job:ps/task:0", "/job:ps/task:1"]
    model = caramel.PSModel(context, 3, plan=plan, device_list=workers, server_list=servers)
    assert list(model.plan.devices) == workers and list(model.plan.servers.devices) == servers
    assert {n.device.split("/device")[0] for n in model.graph_def.node if n.device} <= {*workers, *servers}
    moved = replace(plan, devices=model.plan.devices, servers=replace(plan.servers, devices=tuple(servers)))
    assert model.plan == moved
    with pytest.raises(caramel.InputError, match="server_list"):
        caramel.PSModel(context, 3, plan=plan, server_list=servers[:1])


def test_plans_are_compared(context, plan):
    assert plan.diff(plan) == "" and plan.diff(caramel.PSModel(context, 3, 2).plan) == ""
    other = caramel.PSModel(context, 3, 2, ordering="none").plan
    assert "none" in plan.diff(other) and "tic" in plan.diff(other)
    one = caramel.PSModel(context, 3, 1).plan
    assert "server" in plan.diff(one) and plan.digest != one.digest != other.digest
    reduced_plan = caramel.ARModel(context, 3).plan
    assert "servers" in plan.diff(reduced_plan) and "servers" in reduced_plan.diff(plan)


def test_the_same_program_has_the_same_plan():
    plans = [caramel.PSModel(captured(large("adam"))[1], 3, 2).plan for _ in range(2)]
    assert plans[0] == plans[1] and plans[0].to_json() == plans[1].to_json()


def test_plans_without_servers_are_as_before(context):
    assert "servers" not in json.loads(caramel.ARModel(context, 3).plan.to_json())


def test_what_a_plan_says(context, plan):
    text = " ".join(str(plan).split())
    assert "2 parameter servers" in text and "tic" in text and all(device in text for device in plan.servers.devices)
    assert "elements on server 0" in plan.explain("w") and "number" in plan.explain("w")
    assert "on server" in plan.explain("b") and "on each server" in plan.explain("adam/iteration")
    with pytest.raises(caramel.InputError, match="nothing"):
        plan.explain("nothing")


def test_what_if_predicts_a_step_with_servers(context):
    known = {"trace": traced(context), "network": NETWORK}
    predicted = caramel.what_if(context, 3, servers=2, ordering="tac", **known)
    assert predicted.servers == caramel.PSModel(context, 3, 2, ordering="tac", **known).plan.servers


# -- refused -------------------------------------------------------------------------------------


def no_such_server(servers, data):
    home_of(servers, "b")["parts"][0]["server"] = 2


def a_negative_server(servers, data):
    home_of(servers, "b")["parts"][0]["server"] = -1


def a_variable_twice(servers, data):
    servers["homes"].append(home_of(servers, "b"))


def a_variable_in_two_homes(servers, data):
    home_of(servers, "b")["variables"].append("w")


def a_variable_left_out(servers, data):
    servers["homes"].remove(home_of(servers, "b"))


def a_slot_left_out(servers, data):
    home_of(servers, "w")["variables"].remove("adam/w_momentum")


def an_unknown_variable(servers, data):
    home_of(servers, "b")["variables"].append("c")


def no_part(servers, data):
    home_of(servers, "b")["parts"].clear()


def parts_that_do_not_add_up(servers, data):
    home_of(servers, "w")["parts"][0]["elements"] -= 1


def parts_with_less_than_nothing(servers, data):
    parts = home_of(servers, "w")["parts"]
    parts[0]["elements"], parts[1]["elements"] = -16, 160


def two_parts_on_one_server(servers, data):
    home_of(servers, "w")["parts"][0]["server"] = home_of(servers, "w")["parts"][1]["server"]


def a_part_and_a_whole(servers, data):
    home_of(servers, "w")["parts"][0]["elements"] = None


def a_counter_in_parts(servers, data):
    for number, part in enumerate(home_of(servers, "adam/iteration")["parts"]):
        part["elements"] = number


def whole_on_two(servers, data):
    home_of(servers, "b")["parts"] = [{"server": n, "elements": None, "rows": None} for n in (0, 1)]


def pulled_twice(servers, data):
    servers["pulls"].append(servers["pulls"][0])


def an_unknown_pull(servers, data):
    servers["pulls"].append("c")


def a_slot_that_is_pulled(servers, data):
    servers["pulls"].append("adam/w_momentum")


def a_pull_left_out(servers, data):
    servers["pulls"].pop()


def none_in_flight(servers, data):
    servers["in_flight"] = 0


def no_devices(servers, data):
    servers["devices"].clear()


def a_device_too_many(servers, data):
    servers["devices"].append("/job:worker/task:9")


def one_device_twice(servers, data):
    servers["devices"][0] = servers["devices"][1]


def an_unknown_ordering(servers, data):
    servers["ordering"] = "alphabetical"


def local_steps_too(servers, data):
    data["local"] = {"sync_every": 2, "learning_rate": 0.7, "momentum": 0.9, "exchanges": []}


def another_number_of_bytes(servers, data):
    servers["pulled_bytes"] += 8


WRONG = [
    no_such_server,
    a_negative_server,
    a_variable_twice,
    a_variable_in_two_homes,
    a_variable_left_out,
    a_slot_left_out,
    an_unknown_variable,
    no_part,
    parts_that_do_not_add_up,
    parts_with_less_than_nothing,
    two_parts_on_one_server,
    a_part_and_a_whole,
    a_counter_in_parts,
    whole_on_two,
    pulled_twice,
    an_unknown_pull,
    none_in_flight,
    no_devices,
    local_steps_too,
]

WITHOUT_EFFECT = [
    a_slot_that_is_pulled,
    a_pull_left_out,
    a_device_too_many,
    one_device_twice,
    an_unknown_ordering,
    another_number_of_bytes,
]
"""What may be refused, and otherwise changes no bit."""


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
def test_a_wrong_plan_is_refused(context, plan, change, tmp_path):
    with pytest.raises(PlanError):
        caramel.PSModel(context, 3, plan=edited(plan, change, tmp_path / "plan.json"))


@pytest.mark.parametrize("change", WITHOUT_EFFECT, ids=lambda change: change.__name__)
def test_an_odd_plan_is_refused_or_trains_alike(plan, change):
    made, context = captured(large("adam"))
    try:
        model = caramel.PSModel(context, 3, plan=edited(plan, change))
    except PlanError:
        return
    assert_bits(run(made, model, examples()), reduced(large("adam"), examples(), 3))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s, d: s.pop("homes"), "homes"),
        (lambda s, d: s["homes"][0].pop("variables"), "variables"),
        (lambda s, d: s["homes"][0]["parts"][0].update(server="0"), "server"),
        (lambda s, d: s["homes"][0]["parts"][0].update(elements=1.5), "elements"),
        (lambda s, d: s.update(in_flight="2"), "in_flight"),
        (lambda s, d: d.update(servers=[]), "servers"),
        (lambda s, d: s.update(further=1), "further"),
    ],
)
def test_a_damaged_plan_is_refused(context, plan, change, message, tmp_path):
    """With the name of what is damaged."""
    with pytest.raises(PlanError, match=message):
        caramel.PSModel(context, 3, plan=edited(plan, change, tmp_path / "plan.json"))


def test_a_plan_for_something_else_is_refused(context, plan):
    with pytest.raises(PlanError, match="made for 3 workers, not for 2"):
        caramel.PSModel(context, 2, plan=plan)
    with pytest.raises(PlanError, match="made for another program"):
        caramel.PSModel(captured(large("sgd"))[1], 3, plan=plan)
    with pytest.raises(PlanError, match="no parameter servers.*caramel.ARModel"):
        caramel.PSModel(context, 3, plan=caramel.ARModel(context, 3).plan)


def test_a_plan_in_deterministic_mode_divides_nothing_that_may_have_other_bits():
    """A power, say, may round in another way where it is in another place of a vector."""
    _, context = captured(large("ftrl"))
    free, strict = (caramel.PSModel(context, 3, 2, deterministic=flag).plan for flag in (False, True))
    assert free.servers.home_by_variable["w"].is_divided and not strict.servers.home_by_variable["w"].is_divided
    with pytest.raises(PlanError, match="deterministic"):
        caramel.PSModel(context, 3, plan=replace(free, deterministic=True, proof=()))


def test_a_session_takes_a_plan_that_was_edited_well(plan):
    """The whole parameter on server 1, and the other order."""

    def change(servers, data):
        home_of(servers, "w")["parts"] = [{"server": 1, "elements": None, "rows": None}]
        servers["pulls"].reverse()

    made, context = captured(large("adam"))
    model = caramel.PSModel(context, 3, plan=edited(plan, change))
    assert_bits(run(made, model, examples()), reduced(large("adam"), examples(), 3))
