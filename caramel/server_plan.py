"""Servers: the part of a plan that is about parameter servers, as frozen data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from caramel.errors import listed
from caramel.util.units import format_ms


@dataclass(frozen=True)
class ServerPart:
    """What one server has of some variables.

    Attributes:
        server: number of the server.
        elements: number of elements that it has of each, where they are divided by elements: those of the parts before
            it come first. Else None.
        rows: number of rows that it has of each, where they are tables that are divided by rows: of K parts the one in
            place k has the rows k, k + K, k + 2 K and so on. Else None.
    """

    server: int
    elements: int | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Home:
    """The servers of some variables that are kept together: a parameter with its slots, say.

    Attributes:
        variables: names of the variables.
        parts: what each server has. Where several have all, each counts by itself what all count alike.
        pulled_bytes: bytes of those of the variables that a worker pulls in a step.
    """

    variables: tuple[str, ...]
    parts: tuple[ServerPart, ...]
    pulled_bytes: int = 0

    @property
    def servers(self) -> tuple[int, ...]:
        """Numbers of the servers."""
        return tuple(part.server for part in self.parts)

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of the servers from which a worker gets all of a variable: one, or each its part."""
        return self.servers if self.is_divided else self.servers[:1]

    def bytes_from(self, server: int) -> float:
        """Bytes that a worker pulls of these variables from one server in a step.

        Args:
            server: number of the server.
        """
        if not self.sizes:
            return self.pulled_bytes if server in self.sources else 0
        return self.pulled_bytes * dict(zip(self.servers, self.sizes)).get(server, 0) / sum(self.sizes)

    @property
    def is_divided(self) -> bool:
        """Whether each server has its own elements, or its own rows."""
        return bool(self.sizes or self.rows)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each variable on each server, where it is divided by elements; else empty."""
        return tuple(part.elements for part in self.parts if part.elements is not None)

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each variable on each server, where it is divided by rows; else empty."""
        return tuple(part.rows for part in self.parts if part.rows is not None)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of rows or elements of each variable on each server, where it is divided; else empty."""
        return self.rows or self.sizes

    @property
    def shares(self) -> str:
        """The same in words."""
        what = "rows" if self.rows else "elements"
        return ", ".join(f"{number} {what} on server {server}" for server, number in zip(self.servers, self.counts))


@dataclass(frozen=True)
class ServedSpan:
    """When something happens in the predicted step of a worker with parameter servers.

    Attributes:
        kind: ``"compute"``, ``"pull"``, ``"push"`` or ``"update"``: what a server adds up and updates.
        what: name of the parameter that is pulled, or of the gradient; empty for what the worker computes.
        server: number of the server; None for what the worker computes.
        start_s: from the start of the step.
        end_s: likewise.
    """

    kind: str
    what: str
    server: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True)
class ServedStep:
    """The predicted step with parameter servers.

    Attributes:
        step_s: seconds of the step.
        compute_s: seconds that a worker computes.
        pull_s: seconds of all pulls of a worker on the busiest channel.
        push_s: the same of pushes.
        lower_bound_s: seconds below which no order of pulls is.
        basis: origin of the times.
        unordered_s: seconds of the step with pulls in no order: the median of random ones.
        spans: what happens when, on one worker and on the servers.
    """

    step_s: float
    compute_s: float
    pull_s: float
    push_s: float
    lower_bound_s: float
    basis: str
    unordered_s: float = 0.0
    spans: tuple[ServedSpan, ...] = ()

    def as_dict(self) -> dict[str, float]:
        """The figures, for programs."""
        return {
            "predicted_iteration_s": self.step_s,
            "compute_s": self.compute_s,
            "pull_s": self.pull_s,
            "push_s": self.push_s,
            "lower_bound_s": self.lower_bound_s,
            "unordered_iteration_s": self.unordered_s,
        }

    def __str__(self) -> str:
        return (
            f"predicted: {format_ms(self.step_s)} per step: {format_ms(self.compute_s)} of computation, "
            f"{format_ms(self.pull_s)} of pulls and {format_ms(self.push_s)} of pushes; no order takes less than "
            f"{format_ms(self.lower_bound_s)}, and with pulls in no order it would take {format_ms(self.unordered_s)}; "
            f"from {self.basis}"
        )


@dataclass(frozen=True)
class ParameterServers:
    """The parameter servers of a plan: workers pull parameters from them, and push gradients to them.

    Attributes:
        devices: device string of each server.
        homes: servers of all variables that a step writes alike for all workers.
        ordering: name of the rule by which parameters are pulled in an order; ``"none"`` for no order.
        pulls: names of the parameters in the order in which each server sends them; empty for no order.
        in_flight: number of pulls of one worker from one server that may be under way at once, where they are in an
            order.
        pulled_bytes: bytes of whole parameters that each worker pulls in a step; rows of tables come on top.
        pushed_bytes: bytes of dense gradients that each worker pushes in a step; rows of tables come on top.
        prediction: predicted step; None without a trace or a network model.
    """

    devices: tuple[str, ...]
    homes: tuple[Home, ...]
    ordering: str = "none"
    pulls: tuple[str, ...] = ()
    in_flight: int = 1
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    prediction: ServedStep | None = None

    @cached_property
    def home_by_variable(self) -> Mapping[str, Home]:
        """Home of each variable, by its name."""
        return {name: home for home in self.homes for name in home.variables}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """What each server has, as rows of a table, the first of which says what is in which column."""
        yield "server", "device", "variables", "bytes pulled", "in parts"
        for server, device in enumerate(self.devices):
            homes = [home for home in self.homes if server in home.servers]
            size_bytes = sum(home.bytes_from(server) for home in homes)
            divided = sum(len(home.variables) for home in homes if home.is_divided)
            yield str(server), device, str(sum(len(h.variables) for h in homes)), f"{size_bytes:,.0f}", str(divided)

    def diff(self, other: ParameterServers) -> list[str]:
        """What is otherwise in another plan's servers, one line each.

        Args:
            other: those of the other plan.
        """
        names = dict.fromkeys((*self.home_by_variable, *other.home_by_variable))
        there = ((name, self._place(name), other._place(name)) for name in names)
        lines = [f"{name}: {mine} -> {theirs}" for name, mine, theirs in there if mine != theirs]
        for name in ("devices", "ordering", "in_flight"):
            if getattr(self, name) != getattr(other, name):
                lines.append(f"servers, {name}: {getattr(self, name)} -> {getattr(other, name)}")
        if self.pulls != other.pulls:
            moved = [name for name, place in _turns(self.pulls).items() if _turns(other.pulls).get(name) != place]
            lines.append(f"order of pulls: {len(moved)} parameters in other places ({listed(moved, 4)})")
        mine_s, theirs_s = (s.prediction.step_s if s.prediction is not None else None for s in (self, other))
        if mine_s != theirs_s:
            mine, theirs = ("unknown" if each is None else format_ms(each) for each in (mine_s, theirs_s))
            lines.append(f"predicted step: {mine} -> {theirs}")
        return lines

    def _place(self, variable: str) -> str:
        home = self.home_by_variable.get(variable)
        if home is None:
            return "not there"
        if home.is_divided:
            return home.shares
        return f"on server {listed(map(str, home.servers))}"

    def explain(self, variable: str) -> str:
        """Where a variable is, and when workers get it.

        Args:
            variable: its name.
        """
        home = self.home_by_variable[variable]
        others = [name for name in home.variables if name != variable]
        beside = f" beside {listed(others, 4)}" if others else ""
        if home.is_divided:
            where = f"in parts{beside}: {home.shares}"
        elif len(home.parts) > 1:
            where = f"on each server{beside}, as it follows from no gradient"
        else:
            where = f"on server {home.servers[0]}{beside}"
        text = f"{variable}: {where}."
        if variable in self.pulls:
            turn = self.pulls.index(variable) + 1
            text += (
                f" Workers get it as number {turn} of {len(self.pulls)} ({self.ordering}), {self.in_flight} at a time."
            )
        elif home.pulled_bytes and not self.pulls:
            text += " Workers get it in no particular order."
        return text

    def __str__(self) -> str:
        count = len(self.devices)
        number = len(self.home_by_variable)
        divided = sum(len(home.variables) for home in self.homes if home.is_divided)
        servers = "the parameter server has" if count == 1 else f"{count} parameter servers have"
        also = f", {divided} of them in parts" if divided else ""
        return (
            f"{servers} {number} {'variable' if number == 1 else 'variables'}{also}; in every step each worker pulls "
            f"{self.pulled_bytes:,} bytes of parameters and pushes {self.pushed_bytes:,} bytes of gradients"
        )


def _turns(pulls: Sequence[str]) -> dict[str, int]:
    return {name: turn for turn, name in enumerate(pulls)}
