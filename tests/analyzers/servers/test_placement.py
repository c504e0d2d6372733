"""Which server has which variables: by hand, and invariants of random groups."""

from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from server_programs import clipped, model_of, momentum_step

from caramel.analyzers.servers.placement import LARGEST_SHARE, VariableGroup, node_servers, place, variable_groups
from caramel.analyzers.servers.split import split_step


def groups_of(*arguments, **options):
    return {
        tuple(v.name for v in g.variables): g for g in variable_groups(model_of(momentum_step(*arguments)), **options)
    }


def test_slots_are_with_their_parameters():
    assert set(groups_of()) == {("first", "first_momentum"), ("second", "second_momentum"), ("count",)}


def test_a_norm_over_all_gradients_does_not_join_them():
    assert set(groups_of(clipped)) == {("first", "first_momentum"), ("second", "second_momentum"), ("count",)}


def test_only_what_workers_read_is_traffic():
    found = groups_of()
    assert [g.read_bytes for g in found.values()] == [32, 32, 0]
    assert [g.follows_gradients for g in found.values()] == [True, True, False]


def test_a_norm_keeps_updates_whole():
    assert all(group.update is not None for names, group in groups_of().items() if names != ("count",))
    assert all(group.update is None and group.whole_reason for group in groups_of(clipped).values())


def group(name, size, can_be_divided=False, follows=True):
    variable = SimpleNamespace(plan_name=name, size=size)
    return VariableGroup((variable,), 8 * size, 8 * size, follows, object() if can_be_divided else None)


groups = st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.booleans()), min_size=1, max_size=12).map(
    lambda each: [group(str(n), size, divided, follows) for n, (size, divided, follows) in enumerate(each)]
)


@given(groups, st.integers(1, 6))
def test_every_element_has_one_server(made, servers):
    assume(servers <= len(made))
    homes = place(made, servers)
    assert [home.variables for home in homes] == [(g.variables[0].plan_name,) for g in made]
    for home, each in zip(homes, made):
        assert set(home.servers) <= set(range(servers)) and len(set(home.servers)) == len(home.servers)
        if not each.follows_gradients:
            assert home.servers == tuple(range(servers)) and not home.is_divided
        elif home.is_divided:
            assert each.update is not None and len(home.parts) > 1
            assert sum(part.elements for part in home.parts) == each.variables[0].size
            assert all(part.elements % 64 == 0 for part in home.parts[:-1])
        else:
            assert len(home.parts) == 1


@given(groups, st.integers(1, 6))
def test_loads_are_balanced(made, servers):
    """No server has more than its part, and the largest group that was not, or could not be, divided."""
    assume(servers <= len(made))
    counted = [g for g in made if g.follows_gradients]
    loads = [
        sum(home.bytes_from(k) for home, g in zip(place(made, servers), made) if g.follows_gradients)
        for k in range(servers)
    ]
    total = sum(g.read_bytes for g in counted)
    assert sum(loads) == pytest.approx(total)
    whole = [g.read_bytes for g, home in zip(made, place(made, servers)) if g.follows_gradients and not home.is_divided]
    uneven = 64 * 8 * len(counted)  # parts are cut at multiples of 64 elements
    assert max(loads) <= total / servers + max(whole, default=0) + uneven


def test_a_large_variable_is_divided():
    small, large = group("small", 64, True), group("large", 6400, True)
    homes = place([small, large], 2)
    assert not homes[0].is_divided and homes[1].is_divided
    assert LARGEST_SHARE * 8 * 6464 / 2 >= 8 * 64


@pytest.mark.parametrize("scale", [lambda gradients: gradients, clipped])
def test_nodes_are_where_their_variables_are(scale):
    model = model_of(momentum_step(scale))
    homes = place(variable_groups(model), 3)
    places, split = node_servers(model, homes), split_step(model)
    by_name = {name: home for home in homes for name in home.variables}
    assert set(places) == set(split.nodes)
    for handle, variable in split.variables.items():
        assert places[handle] == by_name[variable.plan_name].servers
        for reader, _ in model.graph.consumers[handle]:
            if reader in places:
                assert set(places[reader]) <= set(places[handle])
