"""ARModel: from a captured program to one distributed, verified graph; `what_if`: to no more than its plan."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from caramel.compiler.distributed_model import compile_model, predict_model
from caramel.compiler.options import OPTION_NAMES, CompileOptions
from caramel.data.pipeline import Pipeline
from caramel.errors import ExportError
from caramel.export.writer import export
from caramel.facts import Trace
from caramel.frontend.context import Context, check_context
from caramel.measure.trace_file import as_trace
from caramel.model import Evaluation, Model
from caramel.modifiers.emission import Role
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.clusters.in_process import cluster_or_default
from caramel.runtime.session import Session
from caramel.signature import Signature
from caramel.util.arguments import known_arguments_only, refuse_unknown
from caramel.util.text_files import path_text

_logger = logging.getLogger(__name__)


class ARModel:
    """A training program compiled for N workers.

    Args:
        context: captured program, as `caramel.capture` returned it.
        number_of_workers: number of workers N, at least 1.
        serialization: whether to enforce one order of computation; needs a trace.
        batching: whether to send small gradients together.
        scheduling: whether to send part of the gradients in the next forward pass; needs a trace and a network model.
        analyzers: list of `caramel.Analyzer` to use instead of the automatic ones
            (`caramel.analyzers.automatic_analyzers` returns those).
        device_list: device string of each worker; default ``/job:worker/task:r``. Parts such as
            ``/GPU:0`` are kept.
        sharding: division of a dataset given at capture. ``"slice"``: every batch is split over the
            workers, so a step is that of one device on the same dataset. ``"batches"``: a step takes N
            batches, one for each worker, so it is that of one device on the N batches joined. Default:
            ``"slice"``; of no use where each worker has a dataset of its own, and refused there.
        uneven_batches: ``"weight"`` to weight gradients by each worker's share of the examples where
            a batch does not divide evenly, ``"refuse"`` to refuse such batches (saves one
            multiplication per gradient).
        statistics: value in checkpoints and evaluations of the statistics that each worker keeps of its own
            examples (of batch normalisation): ``"local"``, those of worker 0, or ``"mean"``, the mean over
            all workers.
        network: `caramel.NetworkModel`, or the file of one, to choose algorithms and depths by. It must
            have been measured with this number of workers, or given by hand.
        algorithm: all-reduce algorithm for all gradients instead: ``"shuffle"``, ``"star"``,
            ``"ring"``, ``"halving_doubling"``, ``"chain"``, ``"native"``, or ``"hierarchy_K"`` for hosts of K workers,
            such as ``"hierarchy_4"``.
        depth: number of chunks of every all-reduce instead.
        deterministic: whether to add gradients in rank order only, so that the bits of the result do not depend on
            how gradients are bucketed, cut and scheduled.
        wire: ``"bfloat16"`` or ``"float16"``, the dtype of rounded gradients to send.
        postponed: names of gradients that travel, and whose updates are made, at the start of the next step,
            chosen by hand instead of by scheduling.
        shard_updates: whether each worker makes only its part of the updates that work on one element at a time, and
            has only its part of their slots (`docs/explanation/sharded-updates.md`): ``True`` or ``"all"`` for all that
            can be, ``"auto"`` where that makes the predicted step shorter, ``"none"`` for none.
        shard_embeddings: whether each worker has only some rows of embedding tables, and of their slots, which all
            others look up there (`docs/explanation/sharded-embeddings.md`): ``True`` or ``"all"`` for all tables that
            can be divided, ``"auto"`` where that makes the predicted step shorter, ``False`` or ``"none"`` for none.
            ``None`` is ``"auto"`` where a trace and a network are given, and analyzers and policy are not.
        sync_every: number of steps in which every worker trains by itself, before all exchange what they have trained
            (`docs/explanation/local-steps.md`). This is not the training of one device. ``None`` for gradients that
            are all-reduced in every step.
        outer_learning_rate: of the exchange after so many steps; default: 0.7.
        outer_momentum: of that exchange, at least 0 and less than 1; default: 0.5.
        servers: number of parameter servers, which have the parameters and make their updates
            (`caramel.PSModel`); ``None`` for all-reduces of gradients.
        ordering: order in which workers get parameters from servers; see `caramel.PSModel`.
        pulls_in_flight: number of parameters on the way from a server to a worker, by default 2; see
            `caramel.PSModel`.
        server_list: device string of each server; see `caramel.PSModel`.
        trace: measured times of the program's ops (`caramel.trace`), or the file of some.
        policy: ``"optimal"``, ``"paper"`` for Caramel's own batching and packing, ``"bytescheduler"`` or ``"p3"`` for
            gradients in pieces by priority.
        plan: finished Plan, or the file of one, to apply as it is; nothing is analysed, and of the options
            above only the device lists of workers and servers (which may be others) and ``sharding`` go with it.

    Attributes:
        context: the captured program.
        model: single-device Model.
        pipeline: the workers' input pipelines, if a dataset was given at capture.
        plan: Plan of the graph.
        distributed: emitted graph, with all that a session or an export needs.
        facts: facts of the analyzers, by type; empty if a plan was given.
        evaluation: what was declared to evaluate at capture; None if nothing was.
        signature: names of the tensors to feed and fetch, and of the ops to run.

    Raises:
        InputError: an argument does not fit.
        CaptureError: the program cannot be captured or replicated.
        AnalysisError: an analyzer failed.
        PlanError: the plan was made for something else, or breaks an invariant.
        TraceError: the trace is of another program.
        InvariantError: the emitted graph is wrong (a defect of this library).

    Source:
        Caramel, section 5.

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

        >>> model = caramel.ARModel(context, 2)
        >>> with model.session() as session:
        ...     result = session.step([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
        ...     values = session.values()
        >>> result.loss
        2.5
        >>> values["w"]
        array([0.1, 0.2], dtype=float32)
    """

    @known_arguments_only
    def __init__(
        self,
        context: Context,
        number_of_workers: int,
        serialization: bool = True,
        batching: bool = True,
        scheduling: bool = True,
        analyzers: Sequence[Any] | None = None,
        device_list: Sequence[str] | None = None,
        *,
        sharding: str | None = None,
        uneven_batches: str = "weight",
        statistics: str = "local",
        network: NetworkModel | str | os.PathLike[str] | None = None,
        algorithm: str | None = None,
        depth: int | None = None,
        deterministic: bool = False,
        wire: str | None = None,
        postponed: Sequence[str] = (),
        shard_updates: bool | str = False,
        shard_embeddings: bool | str | None = None,
        sync_every: int | None = None,
        outer_learning_rate: float | None = None,
        outer_momentum: float | None = None,
        servers: int | None = None,
        ordering: str | None = None,
        pulls_in_flight: int | None = None,
        server_list: Sequence[str] | None = None,
        trace: Trace | str | os.PathLike[str] | None = None,
        policy: str = "optimal",
        plan: Plan | str | os.PathLike[str] | None = None,
    ) -> None:
        check_context(context)
        options = CompileOptions(
            workers=number_of_workers,
            serialization=serialization,
            batching=batching,
            scheduling=scheduling,
            analyzers=analyzers,
            device_list=device_list,
            sharding=sharding,
            uneven_batches=uneven_batches,
            statistics=statistics,
            network=network,
            algorithm=algorithm,
            depth=depth,
            deterministic=deterministic,
            wire=wire,
            postponed=postponed,
            shard_updates=shard_updates,
            shard_embeddings=shard_embeddings,
            sync_every=sync_every,
            outer_learning_rate=outer_learning_rate,
            outer_momentum=outer_momentum,
            servers=servers,
            ordering=ordering,
            pulls_in_flight=pulls_in_flight,
            server_list=server_list,
            trace=trace,
            policy=policy,
            plan=plan,
        )
        self.context = context
        began_s = time.perf_counter()
        traced = context.for_workers(options.workers, sharding)
        found = as_trace(trace, traced.model_for(options.workers))
        _warn_of_batch(found, traced, options)
        self.distributed, self.facts = compile_model(traced, options, found)
        self.model: Model = self.distributed.model
        self.pipeline: Pipeline | None = self.distributed.pipeline
        self.plan: Plan = self.distributed.plan
        self.evaluation: Evaluation | None = self.distributed.evaluation
        self.signature: Signature = self.distributed.signature
        _logger.info(
            "compiled for %d workers in %.1f s: plan %s, %d transfers",
            self.plan.workers,
            time.perf_counter() - began_s,
            self.plan.digest[:12],
            len(self.plan.transfers),
        )
        for note in self.plan.notes:
            _logger.debug("note of the plan: %s", note)

    @property
    def graph_def(self) -> Any:
        """The distributed GraphDef. It holds no values; do not modify it."""
        return self.distributed.graph_def

    @property
    def roles(self) -> Mapping[str, Role]:
        """Purpose and worker of each node of the graph, by name."""
        return self.distributed.roles

    def _repr_html_(self) -> str:
        """The plan, in a notebook."""
        return self.plan._repr_html_()

    def session(self, cluster: Cluster | None = None, **options: Any) -> Session:
        """Start a cluster and a session on it.

        Args:
            cluster: cluster to run on; default `caramel.InProcess()`.
            options: options of `caramel.Session`.

        Returns:
            A Session; use it in a ``with`` statement.
        """
        return Session(self.distributed, cluster_or_default(cluster), **options)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the graph, initial values, signature, plan and a runner to a directory.

        Args:
            path: path of the directory; an earlier export there is replaced only once all is written.

        Raises:
            ExportError: the directory cannot be written; an earlier export is untouched.
        """
        export(self.distributed, path_text(path, "an export", ExportError))


def what_if(context: Context, number_of_workers: int, **options: Any) -> Plan:
    """The plan of a program for some workers, with the step that it predicts; no graph is emitted.

    A network that was measured with two or more numbers of workers answers for others, too, up to four times the
    largest; such a prediction is marked as extrapolated.

    Args:
        context: captured program, as `caramel.capture` returned it.
        number_of_workers: number of workers N, at least 1.
        options: options of `caramel.ARModel`; without ``network=`` and ``trace=`` nothing is predicted.

    Returns:
        The plan. It has no proofs, and `caramel.ARModel` checks it before it emits a graph.

    Raises:
        InputError: an argument does not fit, or the network says nothing of so many workers.
        CaptureError: the program cannot be captured.
        TraceError: the trace is of another program.

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
        >>> network = caramel.NetworkModel.from_link_rate(125e6)
        >>> plan = caramel.what_if(context, 800, network=network)
        >>> plan.workers, [transfer.algorithm for transfer in plan.transfers]
        (800, ['halving_doubling'])
    """
    check_context(context)
    refuse_unknown(what_if, options, OPTION_NAMES)
    chosen = CompileOptions(workers=number_of_workers, **options, is_what_if=True)
    traced = context.for_workers(chosen.workers, chosen.sharding)
    found = as_trace(chosen.trace, traced.model_for(chosen.workers))
    _warn_of_batch(found, traced, chosen)
    plan, _ = predict_model(traced, chosen, found)
    return plan


def _warn_of_batch(trace: Trace | None, context: Context, options: CompileOptions) -> None:
    """Warn of a trace of another part of a batch than a worker has."""
    examples = context.examples_of_batch
    if trace is not None and examples is not None:
        parts = 1 if options.sharding == "batches" else options.workers
        doubt = trace.doubt_of_batch(examples, max(context.model_for(options.workers).dealing.shares(examples, parts)))
        if doubt is not None:
            _logger.warning("%s", doubt)
