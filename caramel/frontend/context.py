"""`capture` and the Context that it returns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.util import nest

from caramel.data.components import bind_by_name_or_order, bind_by_position
from caramel.data.dataset import TrainingData, training_data
from caramel.errors import CaptureError, InputError, UnsupportedError
from caramel.facts import Trace
from caramel.frontend.attributes import without_capture_attributes
from caramel.frontend.capture_options import CaptureOptions
from caramel.frontend.captured import Gather, RawProgram
from caramel.frontend.programs.files import graph_from, is_graph_proto, read_file
from caramel.frontend.programs.function_program import capture_evaluation
from caramel.frontend.programs.graph_program import capture_graph, nodes_of
from caramel.frontend.programs.iterators import placeholder_of, with_placeholders
from caramel.frontend.programs.naming import Naming
from caramel.frontend.programs.step_inputs import StepInputs, inputs_of, refusal_of_parts
from caramel.frontend.recording.automatic_names import Renaming
from caramel.frontend.recording.recorder import Recorder
from caramel.frontend.recording.watching import recording
from caramel.frontend.rewrites.unroll import loops_to_unroll
from caramel.frontend.roles.assemble import assemble, assemble_alone
from caramel.frontend.roles.dealt import assemble_dealt, assemble_divisible
from caramel.frontend.roles.forward_search import GatherNeeded
from caramel.frontend.roles.refusals import refuse_irreplicable
from caramel.frontend.step_traces import StepTraces
from caramel.graph.functions import Library
from caramel.graph.graph import node_of
from caramel.model import Evaluation, Input, Model
from caramel.util.arguments import known_arguments_only
from caramel.util.tables import fitted, preformatted, wrapped

__all__ = ["Context", "capture"]

_CHANGEABLE = [
    "loss",
    "train_op",
    "loss_reduction",
    "replicated",
    "evaluation",
    "evaluation_inputs",
    "checkpoint",
    "data",
]
"""Arguments of `capture` that are attributes of a Context, which may be set until they are used."""

_MAX_CAPTURES = 12
"""Times that a step is traced, with more examples gathered each time, before it is refused."""


@known_arguments_only
def capture(
    program: Any = None,
    inputs: Sequence[Any] | None = None,
    *,
    loss: Any = None,
    train_op: Any = None,
    loss_reduction: str | None = None,
    replicated: Sequence[Any] = (),
    evaluation: Any = None,
    evaluation_inputs: Sequence[Any] | None = None,
    checkpoint: Any = None,
    data: Any = None,
    gradients: Any = None,
    values: Any = None,
) -> Context:
    """Capture a single-device training program.

    Its ways in::

        with caramel.capture() as context:      # TF1-style code, unmodified
            build_graph()

        context = caramel.capture(graph)        # a finished tf.Graph

        context = caramel.capture(step, inputs=[tf.TensorSpec([None, 8, 8, 1]), ...])
        context = caramel.capture(step, data=dataset)

        context = caramel.capture("training.meta")   # a MetaGraphDef or GraphDef in a file

    Args:
        program: None to capture what the ``with`` block builds; a tf.Graph; a training step, a Python
            function or tf.function that differentiates with tf.GradientTape and updates; or the path of
            a file with a MetaGraphDef or GraphDef (or that itself), binary or text. A GraphDef does not
            say what is what: name its ``train_op`` and ``loss``.
        inputs: tf.TensorSpec of each argument of a step (not needed with an input_signature, or data).
            Arguments of rank 1 or more are split over the workers along axis 0. A fixed number of examples is
            that of the whole batch.
        loss: the tensor to report as the loss (a step: the name of the output); default: what is
            differentiated.
        train_op: the op that is one step, for graphs with several training ops; a list of several that are one step.
        loss_reduction: ``"mean"`` or ``"sum"`` over the batch, where it cannot be concluded from the graph.
        replicated: inputs of rank 1 or more that every worker gets whole (placeholders or names).
        evaluation: a function to evaluate on worker 0's variables (a step), or the tensors or a
            dict of tensors to fetch (a graph).
        evaluation_inputs: tf.TensorSpec of the evaluation function's arguments.
        checkpoint: a tf.train.Checkpoint of the program's objects, to save and restore in the
            single-device program's own object-based format.
        data: a tf.data.Dataset that the workers run themselves; nothing of it goes through this process.
            An element is what one step of the single-device program takes: a tuple has the arguments of
            the step (or the placeholders of a graph in their order), a dict the placeholders by name;
            anything else is the only argument. Or a function (workers, rank) -> tf.data.Dataset that
            makes each worker's own part of the data. A graph that reads from a tf.data iterator needs no
            ``data``.
        gradients: for a graph, the gradient of each parameter by the parameter's name: a tensor, or (values,
            rows) where it is sparse. Default: found in the graph.
        values: for a graph, the initial values: a dict of arrays by the variables' names, or the prefix of
            a checkpoint. Default: what the graph's initialisers give.

    Returns:
        A Context; its Model is built when it is first needed.

    Raises:
        InputError: the arguments do not fit together.
        CaptureError: the program cannot be captured (at the latest when the Model is built).

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

        >>> [gradient.name for gradient in context.model.gradients]
        ['w']
    """
    options = CaptureOptions(
        loss=loss,
        train_op=train_op,
        loss_reduction=loss_reduction,
        replicated=replicated,
        evaluation=evaluation,
        evaluation_inputs=evaluation_inputs,
        checkpoint=checkpoint,
        data=data,
        gradients=gradients,
        values=values,
    )
    return Context(program, inputs, options)


class Context:
    """A captured program. Use as a context manager around TF1-style code, or as it is.

    ``loss``, ``train_op``, ``replicated``, ``evaluation`` and ``data`` may also be set as attributes, inside
    the ``with`` block or after it, until the Model is first used.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> with caramel.capture() as context:
        ...     x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        ...     w = tf.compat.v1.get_variable("w", [2])
        ...     loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        ...     train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        >>> [(variable.name, variable.kind.value) for variable in context.model.variables]
        [('w', 'parameter')]
    """

    def __init__(
        self,
        program: Any,
        inputs: Sequence[Any] | None,
        options: CaptureOptions,
        *,
        rows: tuple[int | None, int] | None = None,
        workers: int = 1,
    ) -> None:
        """Prepare to capture a program.

        Args:
            program: see `capture`.
            inputs: see `capture`.
            options: the other arguments of `capture`.
            rows: see `caramel.frontend.recording.recorder.Recorder`.
            workers: number of workers that have such a part.

        Raises:
            InputError: the arguments do not fit together.
        """
        self._program = program = read_file(program) if isinstance(program, (str, os.PathLike)) else program
        self._specs = inputs
        self._options = options
        self.loss = options.loss
        self.train_op = options.train_op
        self.loss_reduction = options.loss_reduction
        self.replicated = options.replicated
        self.evaluation = options.evaluation
        self.evaluation_inputs = options.evaluation_inputs
        self.checkpoint = options.checkpoint
        self.data = options.data
        self._gathers: frozenset[Gather] = frozenset()
        self._rows = rows
        self._workers = workers
        self._recorder: Recorder | None = None
        self._stack: ExitStack | None = None
        self._block_graph: Any = None
        self._declared: Any = None
        is_graph = program is None or isinstance(program, tf.Graph) or is_graph_proto(program)
        if not is_graph and not callable(program):
            raise InputError(
                "capture takes nothing (as a 'with' block), a tf.Graph, the path of a graph's file or a training step, "
                f"got {type(program).__name__}"
            )
        if not is_graph and (options.gradients is not None or options.values is not None):
            raise InputError("gradients= and values= go with a graph; a step function has both itself")

    # -- the with block ----------------------------------------------------------------------

    def __enter__(self) -> Context:
        if self._program is not None:
            raise InputError("capture(program) needs no 'with' block: use the returned context as it is")
        if self._recorder is not None:
            raise CaptureError("this context has captured a program already: make a new one with caramel.capture()")
        self._stack = ExitStack()
        self._stack.enter_context(self.watching())
        self._block_graph = tf.Graph()
        self._stack.enter_context(self._block_graph.as_default())
        return self

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch code that makes its own tf.Graph, if any; the ``with`` block also gives it one."""
        with recording() as self._recorder:
            yield

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stack is not None
        self._stack.close()

    # -- results -----------------------------------------------------------------------------

    @cached_property
    def graph(self) -> Any:
        """The tf.Graph of TF1-style code; None for a step function."""
        if isinstance(self._program, tf.Graph):
            return self._program
        if is_graph_proto(self._program):
            needs = self._options.values is None
            return graph_from(self._program, loss=self.loss, train_op=self.train_op, needs_initializers=needs)
        if self._program is not None:
            return None
        if self._recorder is None:
            raise CaptureError("nothing was captured: build the program inside 'with caramel.capture() as context:'")
        owners: dict[int, Any] = {id(g): g for g in self._recorder.graphs}
        graphs = [g for g in owners.values() if not isinstance(g, FuncGraph)] or [self._block_graph]
        if graphs == [None]:
            raise CaptureError(
                "the captured code built no training program: build a graph with an optimizer, or return the step "
                "and its input specs"
            )
        if len(graphs) > 1:
            raise CaptureError("the captured code differentiates in several tf.Graphs: capture one program at a time")
        return graphs[0]

    @property
    def has_built_graph(self) -> bool:
        """Whether watched code has differentiated in a graph of TensorFlow 1, or put an op into the block's graph."""
        block_ops = [] if self._block_graph is None else self._block_graph.get_operations()
        return bool(block_ops or (self._recorder is not None and self._recorder.graphs))

    @cached_property
    def model(self) -> Model:
        """The captured training step with its roles.

        Raises:
            CaptureError: a role is missing or ambiguous, or something cannot be replicated.
        """
        try:
            return self._of_traces()
        except CaptureError as refusal:
            if not self._has_loops_to_unroll:
                raise
            self._trace_anew(unrolls=True)
            try:
                return self._of_traces()
            except CaptureError:
                self._trace_anew(unrolls=False)
                if isinstance(refusal, UnsupportedError):  # of the loop, which is gone
                    raise
            raise  # of what the program has, and not of its rounds

    def _of_traces(self) -> Model:
        """The captured training step with its roles, traced anew as often as values of all workers are needed."""
        refusal: CaptureError | None = None
        for _ in range(_MAX_CAPTURES):
            try:
                raw = self._raw
                return self._with_data(assemble(raw) if self._gathers else assemble_dealt(raw, self.examples_of_batch))
            except GatherNeeded as needed:
                refusal = refusal or needed.refusal
                if needed.gathers <= self._gathers:
                    break
                self._gathers |= needed.gathers
                del self._raw
            except CaptureError:
                if refusal is None:  # else it is in the way of another way, which was tried instead
                    raise
                break
        assert refusal is not None
        self._gathers = frozenset()
        vars(self).pop("_raw", None)
        return self._with_data(assemble_divisible(self._raw, self.examples_of_batch, refusal))

    @property
    def _has_loops_to_unroll(self) -> bool:
        """Whether the step, as it was traced last, has loops that differentiate and whose rounds can be counted."""
        raw = vars(self).get("_raw")
        return self.graph is None and raw is not None and bool(loops_to_unroll(raw.graph))

    def _trace_anew(self, unrolls: bool) -> None:
        """Trace the step anew when it is needed, with such loops unrolled or as they are."""
        self._traces.unrolls, self._gathers = unrolls, frozenset()
        vars(self).pop("_raw", None)

    def model_for(self, workers: int) -> Model:
        """The captured training step for some number of workers.

        With one there is nothing to combine, so that steps are possible that cannot be divided between several.

        Args:
            workers: number of workers.

        Raises:
            CaptureError: see `model`.
        """
        return self.model if workers > 1 else self._model_alone

    def for_workers(self, workers: int, sharding: str | None = None) -> Context:
        """This context, or one that is traced for the examples of one of so many workers.

        Some programs need the number of examples when they are traced (noise of the shape of a batch). Where all
        batches have the same number, by the dataset or by ``inputs``, that of a worker is known.

        Args:
            workers: number of workers.
            sharding: see `caramel.ARModel`.

        Raises:
            CaptureError: see `model`.
        """
        try:
            self.model_for(workers)
        except CaptureError as error:
            parts = 1 if sharding == "batches" else workers
            refusal = error
            # The program may have the size of a whole batch as a number in it.
            for has_numbers in (False, True):
                traced = self._for_rows(workers, parts, has_numbers)
                if traced is None:
                    break
                try:
                    traced.model_for(workers)
                    return traced
                except CaptureError as refused:
                    # What a step lacks without a number of examples is no reason where it may have one.
                    refusal = refused if refusal.may_pass_later else refusal
            examples = self._inputs.examples if callable(self._program) else None
            raise refusal_of_parts(refusal, examples, parts) from error.__cause__
        return self

    def _for_rows(self, workers: int, parts: int, has_numbers: bool) -> Context | None:
        """A context of the same step for one of so many parts of a batch; None where that has no fixed size.

        Args:
            workers: number of workers.
            parts: number of parts.
            has_numbers: whether to replace the number of examples in a batch, where the program has it in a shape.
        """
        examples = self._inputs.examples if callable(self._program) else None
        if examples is None or examples % parts:
            return None
        own = examples // parts
        # Those that are attributes may have been changed since.
        options = replace(self._options, **{name: getattr(self, name) for name in _CHANGEABLE})
        rows = examples if has_numbers else None, own
        return Context(self._program, self._specs, options, rows=rows, workers=workers)

    @cached_property
    def _model_alone(self) -> Model:
        if "model" in vars(self) and self.model.is_the_same_alone:  # worked out already
            return self.model
        try:
            return self._with_data(assemble_alone(self._raw))
        except GatherNeeded as needed:
            raise needed.refusal from None

    def _with_data(self, model: Model) -> Model:
        if self.graph is None or self.given is None or self._raw.given is not None:
            return model
        return replace(model, inputs=bind_by_name_or_order(model.inputs, model.unused_inputs, self.given.element_spec))

    def _repr_html_(self) -> str:
        """What was captured, in a notebook; before that what it is made of."""
        if "model" not in vars(self):
            return preformatted(repr(self))
        model = self.model
        rows = [("variable", "kind", "shape", "dtype")]
        rows += [(v.name, v.kind.value, str(list(v.shape)), v.dtype) for v in model.variables]
        lines = [
            f"a captured step of {len(model.graph):,} ops, with {len(model.gradients)} gradients; its loss is a "
            f"{model.reduction.kind}: {model.reduction.reason}",
            f"inputs: {', '.join(i.name for i in model.inputs)}",
            *(f"note: {note}" for note in model.notes),
        ]
        return preformatted("\n".join([*map(wrapped, lines), "", fitted(rows)]))

    def to_networkx(self, trace: Trace | None = None) -> Any:
        """The captured step as a networkx.DiGraph; see `caramel.graph.graph.Graph.to_networkx`.

        Args:
            trace: measured times of the step's ops, in seconds, and their bytes, which become attributes of the nodes.
        """
        graph = self.model.graph
        return graph.to_networkx() if trace is None else graph.to_networkx(trace.op_s, trace.op_bytes)

    @cached_property
    def given(self) -> TrainingData | None:
        """The dataset that the workers read their inputs from; None if inputs are fed.

        Raises:
            InputError: ``data`` is no dataset, or there are two.
        """
        read = self._raw.given if self.graph is not None else None
        if self.data is None:
            return read
        if read is not None:
            raise InputError("the graph reads its data from an iterator already: leave out data=")
        return training_data(self.data)

    @cached_property
    def _raw(self) -> RawProgram:
        if self.graph is not None:
            return capture_graph(
                self.graph,
                self._recorder,
                loss=self.loss,
                train_op=self.train_op,
                loss_reduction=self.loss_reduction,
                replicated=self.replicated,
                gradients=self._options.gradients,
                values=self._options.values,
                is_file=is_graph_proto(self._program),
            )
        if self.train_op is not None:
            raise InputError("train_op= goes with a graph; a step function is the training op itself")
        raw = self._traces.traced(self._gathers)
        if self.evaluation is not None:
            self._declared = capture_evaluation(self.evaluation, self.evaluation_inputs, self._naming)
        if self.given is not None:
            raw = replace(raw, inputs=self._bound(raw.inputs, self.given))
        # The evaluation may use variables that the step does not.
        trains = self._options.trains
        naming = self._naming
        raw = replace(raw, variables=naming.variables, values=naming.snapshot(), tables=naming.tables)
        # What trains nothing aggregates nothing: gradients are values like any others.
        return raw if trains else replace(raw, gradients=(), trains=False)

    @property
    def examples_of_batch(self) -> int | None:
        """The number of examples in every batch, of all workers together; None where it is not fixed."""
        return self._inputs.examples if self.graph is None else None

    @cached_property
    def _inputs(self) -> StepInputs:
        """What the step takes."""
        return inputs_of(self._program, self._specs, self.given, self.data, self.replicated)

    @cached_property
    def _traces(self) -> StepTraces:
        """The step, to be traced."""
        of_loss = self.loss, self.loss_reduction, self.replicated
        return StepTraces(self._program, self._inputs, *of_loss, self._rows, self._workers)

    @property
    def _naming(self) -> Naming:
        """The names of what the step uses; none for a graph."""
        return self._traces.naming if callable(self._program) else Naming(Renaming({}))

    def _bound(self, inputs: Sequence[Input], given: TrainingData) -> tuple[Input, ...]:
        if self._inputs.by_name:
            return bind_by_name_or_order(inputs, (), given.element_spec)
        return bind_by_position(inputs, given.components)

    def evaluation_for(self, fetches: Any = None) -> Evaluation:
        """The evaluation of the given tensors, or the declared one.

        Args:
            fetches: tensor, name, or a list or dict of these, for a graph; function, for a step; None for the program's
                own ``evaluation``.

        Raises:
            CaptureError: nothing to evaluate, or it cannot be captured.
        """
        wanted = self.evaluation if fetches is None else fetches
        if wanted is None:
            raise CaptureError("nothing to evaluate: pass evaluation= to caramel.capture, or name what to fetch")
        if self.graph is not None:
            return _graph_evaluation(self.graph, self._raw, wanted)
        variable_count = len(self._raw.variables)
        if fetches is None:
            return self._declared
        naming = self._naming.copy()  # of an evaluation that is refused nothing stays
        evaluation = capture_evaluation(wanted, None, naming)
        new_variables = naming.variables[variable_count:]
        if new_variables:
            raise CaptureError(
                f"the evaluation uses variable {new_variables[0].name!r}, which the captured program does not have: "
                "declare the function as evaluation= of caramel.capture"
            )
        return evaluation

    @property
    def live_variables(self) -> dict[str, Any]:
        """The user's own tf.Variables by name (empty for a graph)."""
        return self._naming.live


def check_context(context: object) -> None:
    """Check that the first argument of a function is a captured program.

    Args:
        context: the argument.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(context, Context):
        raise InputError(f"the first argument must be what caramel.capture returned, got {type(context).__name__}")


def _graph_evaluation(graph: Any, raw: RawProgram, wanted: Any) -> Evaluation:
    outputs = []
    for path, item in nest.flatten_with_joined_string_paths(wanted):
        try:
            element = graph.as_graph_element(item, allow_tensor=True, allow_operation=False)
        except (KeyError, ValueError, TypeError) as error:
            raise CaptureError(
                f"evaluation fetches {item!r}, which is not a tensor of the captured graph: {error}"
            ) from error
        outputs.append((path or element.op.name, element.name))
    nodes, values = nodes_of(graph, [tensor for _, tensor in outputs])
    values = tuple(placeholder_of(t, raw.iterator) for t in values)
    nodes = with_placeholders(nodes, raw.iterator).pruned([node_of(t) for t in values])
    refuse_irreplicable(nodes, Library(nodes), raw)
    inputs = tuple(
        Input(i.name, i.node, i.dtype, i.shape, split=False, optional=i.optional) for i in raw.inputs if i.node in nodes
    )

    def pack(arrays: Sequence[Any]) -> Any:
        return tf.nest.pack_sequence_as(wanted, list(arrays))

    return Evaluation(
        without_capture_attributes(nodes),
        inputs,
        tuple((name, value) for (name, _), value in zip(outputs, values)),
        (),
        pack,
    )
