"""PSModel: from a captured program to a distributed, verified graph with parameter servers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from caramel.armodel import ARModel
from caramel.compiler.options import OPTION_NAMES
from caramel.errors import PlanError
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan
from caramel.util.arguments import refuse_unknown


class PSModel(ARModel):
    """A training program compiled for N workers and K parameter servers.

    Servers have the parameters and make their updates. In each step, workers pull parameters and push gradients, which
    the servers add up in rank order. The steps are those of one device, as with `caramel.ARModel`.

    Args:
        context: captured program, as `caramel.capture` returned it.
        workers: number of workers N, at least 1.
        servers: number of servers K, at least 1 and at most the number of variables that they can have; default: 1, or
            as many as the plan has.
        ordering: order in which each worker gets the parameters: ``"tac"`` and ``"tao"`` go by times of ops and
            transfers, ``"tic"``, ``"tio"`` and ``"read"`` (by first reads) by the graph alone; ``"best"``
            simulates steps; ``"random"`` and ``"reverse"`` are there to compare with; ``"none"`` enforces no order
            (`docs/explanation/parameter-servers.md`). Default: ``"best"`` where a trace and a network are given, else
            ``"tic"``.
        pulls_in_flight: number of parameters that may be on the way from one server to one worker at once, where they
            are in an order; default: 2.
        device_list: device string of each worker; default ``/job:worker/task:r``.
        server_list: device string of each server; default: tasks of their own, after those of the
            workers. A server beside a worker has that worker's device.
        sharding: see `caramel.ARModel`.
        uneven_batches: see `caramel.ARModel`.
        statistics: see `caramel.ARModel`.
        deterministic: whether no variable is divided between servers whose parts might have other bits than the whole.
            Gradients are added in rank order in any case.
        network: `caramel.NetworkModel`, or the file of one, to predict steps.
        trace: measured times of the program's ops (`caramel.trace`), or the file of some.
        plan: finished Plan with servers, or the file of one, to apply as it is; of the options above only the device
            lists and ``sharding`` go with it.
        options: further options of `caramel.ARModel`. Those about all-reduces are refused.

    Raises:
        InputError: an argument does not fit.
        CaptureError: the program cannot be captured or replicated.
        PlanError: the plan was made for something else, or breaks an invariant.
        TraceError: the trace is of another program.
        InvariantError: the emitted graph is wrong (a defect of this library).

    Source:
        TicTac, sections 2.1 and 4.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> w = tf.Variable([0.0, 0.0], name="w")
        >>> def step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        ...     w.assign_sub(0.1 * tape.gradient(loss, w))
        ...     return loss
        >>> context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])

        >>> model = caramel.PSModel(context, 2, servers=1)
        >>> with model.session() as session:
        ...     result = session.step([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
        ...     values = session.values()
        >>> result.loss
        2.5
        >>> values["w"]
        array([0.1, 0.2], dtype=float32)
    """

    def __init__(
        self,
        context: Context,
        workers: int,
        servers: int | None = None,
        *,
        ordering: str | None = None,
        pulls_in_flight: int | None = None,
        device_list: Sequence[str] | None = None,
        server_list: Sequence[str] | None = None,
        sharding: str | None = None,
        uneven_batches: str = "weight",
        statistics: str = "local",
        deterministic: bool = False,
        network: NetworkModel | str | os.PathLike[str] | None = None,
        trace: Trace | str | os.PathLike[str] | None = None,
        plan: Plan | str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        refuse_unknown(PSModel, options, OPTION_NAMES)
        super().__init__(
            context,
            workers,
            servers=1 if servers is None and plan is None else servers,
            ordering=ordering,
            pulls_in_flight=pulls_in_flight,
            device_list=device_list,
            server_list=server_list,
            sharding=sharding,
            uneven_batches=uneven_batches,
            statistics=statistics,
            deterministic=deterministic,
            network=network,
            trace=trace,
            plan=plan,
            **options,
        )
        if self.plan.servers is None:
            raise PlanError("the plan has no parameter servers: it is one for caramel.ARModel")
