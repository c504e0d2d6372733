"""Methods of `keras.Model` that do something else for a while, in this process and for the calls of a user's code."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import signature
from typing import Any, NoReturn

import keras
import tensorflow as tf

from caramel.errors import ProgramError
from caramel.keras.data_passes import note_read

_REFUSED = {
    "train_on_batch": "call fit with a dataset or a keras.utils.PyDataset",
}
"""Methods that train in this process alone, and what to do instead."""


@contextmanager
def wrapped_methods(instead: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let methods of all Keras models do something else; what would train on one device alone is refused.

    What the user reads of a dataset is noted, for the workers' shuffles.

    Calls within such a call, and calls in processes that this one forks, do what they always did.

    Args:
        instead: by the name of a method a function that is called instead, with the model in front. Each has the
            arguments of Keras' method.

    Raises:
        ProgramError: in calls of the user: the model overrides ``fit``, it trains by other methods or eagerly, or
            within the scope of a tf.distribute strategy.
    """
    calls = _Calls()
    with ExitStack() as stack:
        for name, function in instead.items():
            stack.enter_context(
                replaced_attribute(keras.Model, name, calls.replaced(getattr(keras.Model, name), function))
            )
        for name, advice in _REFUSED.items():
            stack.enter_context(
                replaced_attribute(keras.Model, name, calls.refused(getattr(keras.Model, name), name, advice))
            )
        scope = tf.distribute.Strategy.scope
        stack.enter_context(
            replaced_attribute(tf.distribute.Strategy, "scope", calls.replaced(scope, _scope_of_none(scope)))
        )
        read = tf.data.Dataset.__iter__
        stack.enter_context(replaced_attribute(tf.data.Dataset, "__iter__", calls.replaced(read, _noted(read))))
        stack.enter_context(_overrides_refused(calls))
        yield


class _Calls:
    """Tells calls of the user's code from those within them, and from those of processes that this one has forked."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._within = threading.local()

    def replaced(self, original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """A method that calls a function where the user calls it."""
        parameters = signature(original)

        @wraps(original)
        def method(owner: Any, *arguments: Any, **named: Any) -> Any:
            if os.getpid() != self._process or getattr(self._within, "a_call", False):
                return original(owner, *arguments, **named)
            try:
                parameters.bind(owner, *arguments, **named)
            except TypeError as error:  # as Keras would raise it
                raise TypeError(f"{original.__name__}() {error}") from None
            self._within.a_call = True
            try:
                return function(owner, *arguments, **named)
            finally:
                self._within.a_call = False

        return method

    def refused(self, original: Callable[..., Any], name: str, advice: str) -> Callable[..., Any]:
        """A method that the user must not call."""

        def refuse(model: Any, *arguments: Any, **named: Any) -> Any:
            raise ProgramError(f"{name} of model {model.name!r} would train in this process alone: {advice}")

        return self.replaced(original, refuse)


def check_runs_on_workers(model: Any) -> None:
    """Refuse a model that asks for something else than a graph on workers.

    Args:
        model: a Keras model.

    Raises:
        ProgramError: it runs eagerly, or belongs to a tf.distribute strategy.
    """
    if model.run_eagerly:
        raise ProgramError(
            f"model {model.name!r} runs eagerly, which workers cannot: compile it without run_eagerly, and leave out "
            "tf.config.run_functions_eagerly(True)"
        )
    if tf.distribute.has_strategy():
        _refuse_scope(tf.distribute.get_strategy())


def _noted(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that makes an iterator of a dataset, and notes it: its shuffles draw for it."""

    def made(dataset: Any) -> Any:
        iterator = read(dataset)
        note_read(dataset)
        return iterator

    return made


def _scope_of_none(scope: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The scope of TensorFlow's default strategy, which does nothing; that of another one is refused."""

    def enter(strategy: Any) -> Any:
        if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
            _refuse_scope(strategy)
        return scope(strategy)

    return enter


def _refuse_scope(strategy: Any) -> NoReturn:
    raise ProgramError(
        f"the scope of {type(strategy).__name__} would distribute the model in another way: leave the scope out "
        "(`if True:` in its place keeps the indentation); the workers are those of --workers and --cluster"
    )


@contextmanager
def _overrides_refused(calls: _Calls) -> Iterator[None]:
    """Let models of classes that are made meanwhile, and override ``fit``, refuse it."""
    changed: list[tuple[type, Any]] = []
    before = vars(keras.Model).get("__init_subclass__")

    def made(cls: Any, /, **options: Any) -> None:
        inherited = super(keras.Model, cls).__init_subclass__ if before is None else before.__get__(None, cls)
        inherited(**options)  # after Keras' classes there may be others, which register theirs
        if "fit" not in vars(cls):
            return
        changed.append((cls, cls.fit))
        cls.fit = calls.refused(cls.fit, f"the overridden fit ({cls.__name__}.fit)", "override train_step instead")

    with replaced_attribute(keras.Model, "__init_subclass__", classmethod(made)):
        try:
            yield
        finally:
            for cls, fit in changed:
                cls.fit = fit  # type: ignore[attr-defined]


@contextmanager
def replaced_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let a class have another attribute for a while; afterwards it is its own again, or inherited.

    Args:
        owner: the class.
        name: name of the attribute.
        value: what it is meanwhile.
    """
    is_own, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
