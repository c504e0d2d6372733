"""The workers' input pipelines while they run: passes, the end of data, errors, and the position in the input.

Everything here runs between steps, and each worker takes its elements in a run of its own, at the
same time as the others: where one fails, TensorFlow cancels what else is in the same run, and an
iterator that was cancelled is of no use any more. Elements carry their number, so that workers find
to each other again after an error. Where none can fail, the run of a step may take those of the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from caramel.data.template import ELEMENT_INDEX
from caramel.errors import DataError, EndOfData, InputError, StepError
from caramel.modifiers.unrolled_elements import TakenElements
from caramel.runtime.checkpoint import fed_path, open_checkpoint, read_values
from caramel.runtime.data_position import SEED_LIMIT, DataPosition, PassState
from caramel.runtime.example_counts import checked_shares
from caramel.runtime.executor import Run
from caramel.signature import DataSignature, Signature
from caramel.util.user_warnings import warn_user

RunEach = Callable[[Sequence[Run], int], list[list[np.ndarray] | StepError]]
"""A function like `Executor.run_each`, whose second argument is the number of steps in whose time runs must end."""

_PAST_END = 2**62
"""Position that stands for the end of a pass: larger than that of any element."""

_MAX_FAILURES = 1000
"""Number of elements that may fail in a pass that is only read to get at the next one, beyond those that were taken."""


@dataclass(frozen=True)
class _Ahead:
    """Elements that the run of a step, or of several, has taken for the next ones.

    Attributes:
        counts: of each element those of all workers.
        elements: how several were taken; None for the one of a single step.
        used: how many of them were used since.
    """

    counts: Sequence[Sequence[np.ndarray]]
    elements: TakenElements | None
    used: int = 0


class WorkerData:
    """The position of all workers in their data.

    Args:
        signature: signature of the distributed graph.
        run_each: function that runs the graph for several workers at once.
        seed: seed for shuffles without one, a positive number below 2**62; None for one by chance.
    """

    def __init__(self, signature: Signature, run_each: RunEach, seed: int | None = None) -> None:
        assert signature.data is not None
        self._signature = signature
        self._names: DataSignature = signature.data
        self._workers = signature.workers
        self._stride = self._workers if self._names.sharding == "batches" else 1
        self._shared = self._names.sharding != "own"
        self._run_each = run_each
        self._seed = seed or 1 + secrets.randbelow(SEED_LIMIT)
        self._built = False
        self._passes = 0
        self._taken = 0
        self._state = PassState.ENDED
        self._ahead: dict[int, np.ndarray] = {}  # after an error: counts of a worker that is ahead of the others
        self._must_replay = False
        self._is_lost = False  # whether the iterators are somewhere else than after the elements that count as taken
        self._skipped = 0  # how many elements TensorFlow has left out at the start of the pass
        self._restored_at = 0  # how many elements a restored iterator had given before
        self._left: dict[int, int] = {}  # of passes that were left before their end: how many elements were taken
        self._one_by_one = False  # whether the rest of the pass is taken so, as an element of it has failed
        self._has_ended: EndOfData | None = None  # found behind elements that were taken together
        self._next: _Ahead | None = None
        self._has_element = [False] * self._workers
        self._run([*self._names.clear, *self._names.forget], {})

    # -- going on ----------------------------------------------------------------------------

    def restart(self) -> None:
        """Let the next element be the first of a new pass."""
        if self._is_lost:
            self._find_back()  # shuffles may have drawn more than they are to have drawn
        if self._draws_often and self._state != PassState.ENDED and self._has_ended is None:
            self._left[self._passes - 1] = self._taken
        self._state, self._has_ended, self._ahead, self._next = PassState.ENDED, None, {}, None

    @property
    def _draws_often(self) -> bool:
        """Whether it matters for the order of later passes how much of a pass was read."""
        return self._names.draws == "often" and not self._names.anew

    def skip_passes(self, batches_read: Sequence[int | None]) -> None:
        """Begin passes, so that the shuffles draw their seeds, and let the next element be the first of another one.

        Args:
            batches_read: number of elements to read of each pass, where that draws further seeds; None if that is not
                known.

        Raises:
            InputError: it is not known, and draws further seeds.
        """
        if self._names.draws == "often" and None in batches_read:
            raise InputError(
                "the shuffles of the dataset were read for another dataset, too, and draw more than once in a pass "
                "(they are repeated, cached or concatenated): their next order cannot be drawn on the workers. Make "
                "that other dataset from shuffles of its own"
            )
        self.restart()
        if not self._names.anew and self._names.draws != "never":
            for batches in batches_read:
                self._begin(reads_ahead=not self._draws_often)
                if self._draws_often:
                    self._read(batches or 0)
                    self._taken = batches or 0
                self.restart()
        self.restart()

    def advance(self) -> tuple[int, ...]:
        """Take the next element, for the next step.

        Returns:
            The number of examples of each worker; all 0 where no input is split.

        Raises:
            EndOfData: this pass has no further element; the next one begins a new pass.
            DataError: a pipeline failed, or gave what the step cannot take.
        """
        self._get_ready()
        if self._next is not None:
            return self._given(self._next)
        counts = self._take_after_error() if self._state == PassState.AFTER_ERROR else self._take_together()
        return self._checked(counts)

    def _given(self, ahead: _Ahead) -> tuple[int, ...]:
        """What `advance` returns, for the first of the elements that were taken ahead."""
        taken, is_last = self._taken, ahead.used + 1 == len(ahead.counts)
        self._next = None if is_last else replace(ahead, used=ahead.used + 1)  # also where this one does not fit
        shares = self._checked(ahead.counts[ahead.used])
        if ahead.elements is not None:
            try:
                self._run(ahead.elements.move[ahead.used], {})
            except BaseException:  # interrupted: it is moved once more
                self._taken, self._next = taken, ahead
                raise
        return shares

    def run_ahead(self, elements: TakenElements | None = None) -> tuple[Sequence[str], Sequence[str]]:
        """What the run of steps may fetch, and run, to take the next elements; nothing where that is not possible.

        Args:
            elements: how elements are taken where several steps are the run; None for a single step.
        """
        is_going = self._state == PassState.GOING and self._has_ended is None and not self._one_by_one
        if not self._names.ahead or not is_going or self._next is not None:
            return (), ()
        if elements is None:
            return self._names.counts, self._names.advance
        return elements.counts, elements.advance_ahead

    def took_ahead(self, counts: Sequence[np.ndarray], elements: TakenElements | None = None) -> None:
        """Note that the run of steps has taken the next elements.

        Args:
            counts: values of what `run_ahead` says to fetch; none where nothing was taken.
            elements: what `run_ahead` was given.
        """
        if len(counts):
            self._next = _Ahead([list(counts)] if elements is None else _by_step(counts), elements)

    def advance_several(self, elements_of: Callable[[], TakenElements], steps: int) -> list[tuple[int, ...]]:
        """Take the next elements, one for each of several steps.

        Args:
            elements_of: function that says how they are taken.
            steps: number of steps.

        Returns:
            What `advance` returns, for each step; fewer at the end of a pass. An empty list where the next one is
            taken by `advance`: it was taken ahead, or one has failed, and they are taken one by one to the end of the
            pass.

        Raises:
            EndOfData: this pass has no further element; the next one begins a new pass.
            DataError: a pipeline failed.
        """
        self._get_ready()
        if self._one_by_one or self._state == PassState.AFTER_ERROR:
            return []
        if self._next is not None and (self._next.elements is None or self._next.used):
            return []
        elements, ahead, taken = elements_of(), self._next, self._taken
        if ahead is not None and ahead.elements != elements:  # those of another number of steps
            return []
        self._next = None
        self._is_lost = self._one_by_one = True  # until it is known how many were taken
        counts_of_steps = self._take_several(elements, steps) if ahead is None else ahead.counts
        shares: list[tuple[int, ...]] = []
        if not counts_of_steps:
            return shares
        try:
            for counts in counts_of_steps:
                taken = self._taken
                shares.append(self._checked(counts))
        except EndOfData as error:
            if not shares:
                self._is_lost = self._one_by_one = False
                raise
            self._has_ended, self._state = error, PassState.GOING
        except DataError:  # it is found once more when the steps before it have run
            self._taken, self._state = taken, PassState.GOING
            return shares
        self._is_lost = self._one_by_one = False
        return shares

    def _take_several(self, elements: TakenElements, steps: int) -> Sequence[Sequence[np.ndarray]]:
        """The counts of all workers, for each of several steps; none if an element has failed."""
        runs: list[Run] = [([counts], [op], {}) for counts, op in zip(elements.counts, elements.advance)]
        results = [r if isinstance(r, StepError) else r[0] for r in self._run_each(runs, steps)]
        counts = [r for r in results if not isinstance(r, StepError)]
        return _by_step(counts) if len(counts) == len(results) else []

    def _get_ready(self) -> None:
        """Be after what was taken, in a pass.

        Raises:
            EndOfData: the pass has ended, as was found before.
        """
        if self._has_ended is not None:
            ended, self._has_ended = self._has_ended, None
            self._state = PassState.ENDED
            raise ended
        if self._is_lost:
            self._find_back()
        if self._state == PassState.ENDED:
            self._begin()

    def _find_back(self) -> None:
        """Begin the pass again, after elements were taken together in vain, behind what was taken before."""
        passes, taken = self._passes, self._taken
        try:
            self._passed_over_to(passes, taken, PassState.GOING)
        except BaseException:
            self._is_lost, self._passes, self._taken, self._state = True, passes, taken, PassState.GOING
            raise
        self._one_by_one = True

    def _checked(self, counts: Sequence[np.ndarray]) -> tuple[int, ...]:
        """The number of examples of each worker, in an element that all of them have."""
        self._check_position(counts)
        return checked_shares(self._signature, counts, f"batch {self._taken - self._stride} of the data")

    def _build(self) -> None:
        seed = self._seed + (self._passes if self._names.anew else 0)
        with self._explaining("cannot be made"):
            self._run(self._names.build, {name: np.int64(seed) for name in self._names.seed})
        self._built = True

    def _begin(self, skip: int = 0, reads_ahead: bool = True) -> None:
        """Begin a pass.

        Args:
            skip: number of elements that are left out.
            reads_ahead: whether iterators may read elements before they are asked for them.
        """
        if self._must_replay:
            self._replay()
        if not self._built or self._names.anew:
            self._build()
        self._must_replay = self._passes > 0 and not self._names.anew  # if it fails, some workers may have begun
        with self._explaining("cannot begin a pass"):
            feeds = {name: np.int64(skip) for name in self._names.skip} if skip else {}
            feeds |= {} if reads_ahead else {name: np.int64(0) for name in self._names.buffer}
            self._run(self._names.begin, feeds)
        self._must_replay = False
        self._passes += 1
        self._taken = skip
        self._state = PassState.GOING
        self._ahead, self._next = {}, None
        self._is_lost = self._one_by_one = False
        self._skipped, self._restored_at = skip, 0

    def _replay(self) -> None:
        """Bring the shuffles' seeds to the state in which the passes so far have left them."""
        passes = self._passes
        try:
            self._passed_over_to(passes, 0, PassState.ENDED)
        except BaseException:
            self._passes, self._state, self._must_replay = passes, PassState.ENDED, True
            raise

    def _run(self, targets: Sequence[str], feeds: Mapping[str, np.ndarray]) -> None:
        """Run ops of all workers together."""
        (result,) = self._run_each([([], targets, feeds)], 1)
        if isinstance(result, StepError):
            raise result

    def _take(self, ranks: Sequence[int], start: int = 0) -> list[np.ndarray | StepError]:
        """The counts of some workers' next elements from number ``start`` on, or the errors instead."""
        names = self._names
        runs = [
            ([names.counts[r]], [names.advance[r]], {names.start[r]: np.int64(start)} if start else {}) for r in ranks
        ]
        return [r if isinstance(r, StepError) else r[0] for r in self._run_each(runs, 1)]

    def _take_together(self) -> list[np.ndarray]:
        try:
            results = self._take(range(self._workers))
        except BaseException:  # interrupted, or a worker is silent: who took what is not known
            self._taken += self._stride
            self._state = PassState.AFTER_ERROR
            raise
        counts = []
        for rank, result in enumerate(results):  # what one worker has, and another has not, is left out for both
            if not isinstance(result, StepError) and result[ELEMENT_INDEX] >= 0:
                self._has_element[rank] = True
        for result in results:
            if isinstance(result, StepError):
                raise self._missed(result, PassState.GOING if self._stride == 1 else PassState.AFTER_ERROR) from result
            counts.append(result)
        return counts

    def _missed(self, error: StepError, state: PassState) -> DataError:
        """Leave out the failed elements; the pass goes on after them.

        Every worker has tried the same element then; of N elements it is not known how far each has come.
        """
        self._one_by_one = True
        first = self._taken
        self._taken += self._stride
        self._state = state
        batches = f"batch {first}" if self._stride == 1 else f"one of the batches {first} to {self._taken - 1}"
        return DataError(
            f"the input pipeline failed at {batches} of pass {self._passes - 1}: {error}. No step has run and no "
            "variable has changed; the next step goes on with what follows"
        )

    def _take_after_error(self) -> list[np.ndarray]:
        """Move each worker to the first element after the failed ones, and all workers to the same element."""
        start = self._taken
        while True:
            for rank in range(self._workers):
                if rank not in self._ahead or self._ahead[rank][ELEMENT_INDEX] < start:
                    self._search(rank, start)
            positions = [_position(self._ahead[rank]) for rank in range(self._workers)]
            if not self._shared or len(set(positions)) == 1:
                break
            start = max(positions)  # one of them was interrupted when it had taken an element
        counts = [self._ahead[rank] for rank in range(self._workers)]
        self._ahead, self._state = {}, PassState.GOING
        return counts

    def _search(self, rank: int, start: int) -> None:
        """Find one worker's next element from number ``start`` on, over those before it that fail.

        Raises:
            DataError: one from there on has failed.
        """
        while True:
            (result,) = self._take([rank], start)
            if not isinstance(result, StepError):
                self._ahead[rank] = _ended(result) if result[ELEMENT_INDEX] < 0 else result
                return
            if self._tried(rank) > start:
                raise self._missed(result, PassState.AFTER_ERROR) from result

    def _tried(self, rank: int) -> int:
        """How many elements of the pass a worker was asked for; the last one of them is what failed after an error."""
        (result,) = self._run_each([([self._names.tried[rank]], [], {})], 1)
        if isinstance(result, StepError):
            raise result
        return self._restored_at + int(result[0])

    # -- what was taken ----------------------------------------------------------------------

    def _check_position(self, counts: Sequence[np.ndarray]) -> None:
        """Check that there is an element, and the same one for all workers."""
        positions = [_position(c) for c in counts]
        if self._shared and len(set(positions)) > 1:
            where = ", ".join(f"worker {r} " + _position_text(p) for r, p in enumerate(positions))
            self._state = PassState.ENDED
            raise DataError(
                f"the workers read different data: {where}. Their pipelines must give the same batches: do all see the "
                "same files?"
            )
        in_pass = [p for p in positions if p < _PAST_END]
        if not in_pass:
            self._state = PassState.ENDED
            if self._taken == 0:
                raise DataError("the dataset is empty: a pass over it gives no element")
            raise EndOfData(f"pass {self._passes - 1} over the data has ended; the next step begins another")
        self._taken = max(in_pass) + self._stride
        for rank, position in enumerate(positions):
            self._has_element[rank] = self._has_element[rank] or position < _PAST_END
            if not self._has_element[rank]:
                raise DataError(f"the dataset of worker {rank} is empty: each worker needs at least one element")

    # -- saving and restoring ----------------------------------------------------------------

    @contextmanager
    def saved_position(self) -> Iterator[Mapping[str, np.ndarray]]:
        """The arrays to feed to a save, by tensor name; meanwhile the iterators' positions are kept for it.

        Between passes there is no position to keep, and no pass begins: `restore` counts the passes.
        """
        is_behind = self._is_lost or self._next is not None  # of what the iterators have given
        has_state = self._state == PassState.GOING and not is_behind and not self._skipped and self._names.resumes
        if has_state:
            try:
                self._run(self._names.snapshot, {})
            except StepError as error:
                has_state = False
                warn_user(
                    f"the pipeline's position cannot be saved as it is ({error}); restoring will pass over the batches "
                    "that were taken"
                )
        at = DataPosition(self._seed, self._passes, self._taken, self._state, has_state, self._workers, self._left)
        try:
            yield {self._names.position: at.numbers()}
        finally:
            if has_state:
                self._run(self._names.forget, {})

    def restore(self, prefix: str | None) -> None:
        """Go on at the position of a checkpoint, or start the data anew if it has none.

        Args:
            prefix: prefix of the checkpoint; None if it holds the program's objects only.

        Raises:
            CheckpointError: the checkpoint is damaged.
            DataError: a pipeline failed.
        """
        self._built, self._passes, self._taken, self._state = False, 0, 0, PassState.ENDED
        self._ahead, self._must_replay, self._is_lost, self._has_ended, self._next = {}, False, False, None, None
        self._left = {}
        if prefix is None or not open_checkpoint(prefix).has_tensor(self._names.position_key):
            return
        saved = read_values(prefix, [self._names.position_key, self._names.digest_key])
        at = DataPosition.of(saved[self._names.position_key], prefix)
        passes, taken, state = at.passes, at.taken, at.state
        self._seed, self._left = at.seed, dict(at.left)
        draws = not self._names.anew and self._names.draws != "never"
        if state == PassState.ENDED:
            self._passes, self._taken, self._must_replay = passes, taken, passes > 0 and draws
            return
        same = bytes(saved[self._names.digest_key]) == self._names.digest.encode()
        fits = at.has_iterators and self._names.resumes and same
        if not self._shared:
            self._ensure_elements()
            if at.workers != self._workers:  # other datasets: each worker passes over its share of what was seen
                fits, taken = False, taken * at.workers // self._workers
        if not (fits and self._restored_iterators(prefix, passes, taken)):
            self._passed_over_to(passes, taken, state)
            return
        # An iterator that has read its dataset to the end, some elements ahead, does not say any more how far the
        # seeds of its shuffles have come.
        self._must_replay = taken > 0 and draws
        self._passes, self._taken, self._state = passes, taken, state

    def _ensure_elements(self) -> None:
        """Let each worker have an element, in case its dataset ends before the others'."""
        self._begin()
        for rank, result in enumerate(self._take(range(self._workers))):
            self._has_element[rank] = not isinstance(result, StepError) and bool(result[ELEMENT_INDEX] >= 0)
        self._built, self._passes = False, 0

    def _restored_iterators(self, prefix: str, passes: int, taken: int) -> bool:
        self._passes = passes - 1
        self._begin()
        try:
            self._run([self._names.restore], {self._signature.restore_prefix: fed_path(prefix)})
        except StepError as error:
            warn_user(f"the pipeline's position cannot be restored as it was ({error}); passing over")
            return False
        self._restored_at = taken
        return True

    def _passed_over_to(self, passes: int, taken: int, state: PassState) -> None:
        """Begin as many passes, because seeds of shuffles go on from pass to pass; pass over the elements taken.

        TensorFlow leaves them out at once where none of them can fail: where one fails, it leaves out others instead.
        """
        self._built, self._must_replay = False, False
        same = self._names.anew or self._names.draws == "never"
        for number in range(passes - 1 if same else 0, passes):
            self._passes = number
            if number < passes - 1 or state == PassState.ENDED:
                self._begin(reads_ahead=not self._draws_often)
                if self._draws_often:
                    self._read(self._left.get(number))
            else:
                self._begin(taken if self._names.ahead else 0)
        is_to_pass_over = state == PassState.GOING and taken > 0 and not self._names.ahead
        self._passes, self._taken, self._state = passes, taken, PassState.AFTER_ERROR if is_to_pass_over else state

    def _read(self, elements: int | None) -> None:
        """Read so many elements of a pass that has begun, or all of them, over those that fail.

        Raises:
            DataError: too many fail.
        """
        count = _PAST_END if elements is None else elements
        for rank in range(self._workers):
            failed = 0
            while self._tried(rank) < count:
                (result,) = self._take([rank], max(count - self._stride, 0))
                if not isinstance(result, StepError):
                    break
                failed += 1
                if failed > _MAX_FAILURES + (elements or 0):
                    raise DataError(f"the input pipeline of worker {rank} fails again and again") from result

    @contextmanager
    def _explaining(self, event: str) -> Iterator[None]:
        try:
            yield
        except StepError as error:
            raise DataError(f"the input pipeline {event}: {error}. No step has run") from error


def _by_step(counts: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Counts of each worker for several steps, as those of all workers for each step."""
    return [list(of_step) for of_step in zip(*counts)]


def _position(counts: np.ndarray) -> int:
    """Number of the element; `_PAST_END` at the end."""
    return int(counts[ELEMENT_INDEX]) if counts[ELEMENT_INDEX] >= 0 else _PAST_END


def _ended(counts: np.ndarray) -> np.ndarray:
    """Counts of a worker at its end, which no search can pass."""
    ended = counts.copy()
    ended[ELEMENT_INDEX] = _PAST_END
    return ended


def _position_text(position: int) -> str:
    return "is at the end" if position >= _PAST_END else f"is at batch {position}"
