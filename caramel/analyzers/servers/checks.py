"""What must be so of a plan's parameter servers."""

from __future__ import annotations

from caramel.analyzers.servers.placement import VariableGroup, pulled_variables, variable_groups
from caramel.analyzers.servers.pull_orders import NO_ORDER, ORDERINGS
from caramel.collectives.dealt_rows import rows_of_owners
from caramel.errors import InputError, PlanError, listed
from caramel.graph.devices import parse_devices
from caramel.model import Model
from caramel.plan import Plan
from caramel.server_plan import Home, ParameterServers


def check_servers(plan: Plan, servers: ParameterServers, model: Model) -> None:
    """Check that each variable has a home, all of it, on servers that exist, and that only what can be divided is.

    Args:
        plan: the plan.
        servers: its servers.
        model: the single-device step.

    Raises:
        PlanError: something of it is not so.
    """
    if plan.transfers or plan.sharded or plan.edges or plan.local is not None:
        raise PlanError("the plan has parameter servers, and all-reduces of gradients: make it anew")
    groups = {group.variables: group for group in variable_groups(model, exact_bits=plan.deterministic)}
    wanted = {tuple(v.plan_name for v in variables): group for variables, group in groups.items()}
    names = [home.variables for home in servers.homes]
    if sorted(names) != sorted(wanted):
        raise PlanError("the plan's servers have other variables, or other ones together, than the step: make it anew")
    for home in servers.homes:
        _check_home(home, wanted[home.variables], servers, plan.deterministic)
    if servers.pulled_bytes != sum(home.pulled_bytes for home in servers.homes):
        raise PlanError(f"the plan says that workers pull {servers.pulled_bytes} bytes in all: make it anew")
    _check_pulls(servers, model)
    try:
        parse_devices(servers.devices, len(servers.devices), "the plan's list of servers", "server")
    except InputError as error:
        raise PlanError(str(error)) from error


def _check_pulls(servers: ParameterServers, model: Model) -> None:
    """The order of pulls has each parameter that workers pull once, or there is none."""
    if servers.ordering not in (*ORDERINGS, NO_ORDER):
        raise PlanError(f"there is no order of pulls {servers.ordering!r}: there are {', '.join(ORDERINGS)}")
    unknown = sorted({*servers.pulls} - servers.home_by_variable.keys())
    if unknown or len({*servers.pulls}) < len(servers.pulls):
        raise PlanError(f"the order of pulls has {listed(unknown or servers.pulls, 3)}, which no server has, or twice")
    other = {*servers.pulls} ^ {*pulled_variables(model)}
    if servers.pulls and other:
        raise PlanError(f"the order of pulls has not each parameter that workers pull: {listed(sorted(other), 3)}")
    if servers.in_flight < 1:
        raise PlanError(f"{servers.in_flight} pulls may be under way at once: it must be at least 1")


def _check_home(home: Home, group: VariableGroup, servers: ParameterServers, is_deterministic: bool) -> None:
    """Some variables are on servers that exist, all of them."""
    what = listed(home.variables, 2)
    if not home.parts or any(not 0 <= server < len(servers.devices) for server in home.servers):
        raise PlanError(f"{what} has no server, or one that does not exist: there are {len(servers.devices)}")
    if len(set(home.servers)) < len(home.servers):
        raise PlanError(f"{what} has two parts on one server")
    if home.is_divided:
        if group.update is None:
            mode = " in deterministic mode" if is_deterministic else ""
            raise PlanError(f"{what} cannot be divided between servers{mode}: {group.whole_reason}")
        if group.rows:
            if home.sizes or home.rows != rows_of_owners(group.rows, len(home.parts)) or min(home.rows) < 1:
                raise PlanError(f"the parts of {what} are not all of its {group.rows} rows, dealt out one by one")
        elif home.rows or len(home.sizes) < len(home.parts) or min(home.sizes) < 1:
            raise PlanError(f"each part of {what} has a number of elements, of at least 1")
        elif sum(home.sizes) != group.variables[0].size:
            raise PlanError(f"the parts of {what} are not all of its {group.variables[0].size} elements")
    elif len(home.parts) > 1 and group.follows_gradients:
        raise PlanError(f"{what} follows from gradients, so that one server has it, or each a part")
    if home.pulled_bytes != group.pulled_bytes:
        raise PlanError(f"workers pull {group.pulled_bytes} bytes of {what}, the plan says {home.pulled_bytes}")
