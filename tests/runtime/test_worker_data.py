"""The workers' pipelines between steps: errors, passes, and what goes through the driver."""

import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_data import model, numbers, seen
from variants import in_soak

import caramel
from caramel.dealing import WHOLE
from caramel.errors import DataError, EndOfData, StepError
from caramel.modifiers.unrolled_elements import TakenElements
from caramel.runtime.checkpoint import read_values, write_values
from caramel.runtime.executor import SessionExecutor
from caramel.runtime.worker_data import WorkerData
from caramel.signature import DataSignature, Signature

FAILS = "good_number"


# -- passes ----------------------------------------------------------------------------------


def test_passes():
    with model(numbers(10).batch(4)).session() as session:
        assert [seen(r) for r in session.run()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert [seen(r) for r in session.run(steps=2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [seen(r) for r in session.run()] == [[8, 9]]  # the rest of the pass
        assert [seen(r) for r in session.run(steps=4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
        session.restart_data()
        assert seen(session.step()) == [0, 1, 2, 3]
        assert len(session.run(steps=2)) == 2
        assert len(session.run()) == 3  # the pass had ended: a whole new one
        assert session.run(steps=0) == []


def test_the_end_of_a_pass_is_raised_once():
    with model(numbers(4).batch(2)).session() as session:
        for _ in range(2):
            session.step()
            session.step()
            count = session.step_count
            with pytest.raises(EndOfData, match="the next step begins another"):
                session.step()
            assert session.step_count == count


def test_on_step():
    found = []
    with model(numbers(10).batch(4)).session() as session:
        session.run(on_step=lambda result: found.append(result.examples), progress=False)
    assert found == [4, 4, 2]


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workers, parallel", [(3, True), *in_soak((2, False), (1, True), (1, False), (2, True), (3, False))]
)
def test_a_batch_that_fails(workers, parallel, tmp_path):
    """The error arises before the step; variables are untouched, and training can go on with what follows."""
    data = numbers(15, bad=[7]).batch(3)
    if parallel:
        data = data.map(lambda *each: each, num_parallel_calls=4).prefetch(2)
    with model(data, workers).session() as session:
        assert [seen(session.step()) for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
        before = session.values()["w"]
        session.save(tmp_path / "saved")
        with pytest.raises(DataError, match=f"(?s)batch 2 of pass 0.*{FAILS}.*No step has run"):
            session.step()
        assert session.step_count == 2
        np.testing.assert_array_equal(session.values()["w"], before)
        assert [seen(r) for r in session.run()] == [[9, 10, 11], [12, 13, 14]]
        session.restore(tmp_path / "saved")
        with pytest.raises(DataError, match="batch 2 of pass 0"):
            session.run()
        assert [seen(r) for r in session.run()] == [[9, 10, 11], [12, 13, 14]]


@pytest.mark.parametrize(
    "bad, workers",
    [
        *(([3, 4, 5, 9], 3), ([0, 11], 1), (list(range(12)), 3)),
        *in_soak(([3, 4, 5, 9], 1), ([4], 1), ([4], 3), ([4, 7], 1), ([4, 7], 3), ([0, 11], 3), (list(range(12)), 1)),
    ],
)
def test_several_batches_that_fail(bad, workers):
    """The batches and errors that iterating over the dataset in Python gives."""
    want, iterator = [], iter(numbers(12, bad).batch(3))
    while True:
        try:
            want.append(next(iterator)[0].numpy().tolist())
        except StopIteration:
            break
        except tf.errors.InvalidArgumentError:
            want.append("failed")
    got = []
    with model(numbers(12, bad).batch(3), workers).session() as session:
        while True:
            try:
                got.append(seen(session.step()))
            except DataError as error:
                got.append("failed")
                assert f"batch {len(got) - 1} of pass 0" in str(error)
            except EndOfData:
                break
    assert got == want


def test_a_pipeline_that_always_fails(tmp_path):
    """Never hangs, never runs a step."""
    data = tf.data.TextLineDataset(str(tmp_path / "missing")).map(
        lambda line: (tf.cast(tf.strings.length(line), tf.int64), tf.cast(tf.strings.length(line), tf.float32))
    )
    with model(data.batch(3), 2).session() as session:
        for number in range(3):
            with pytest.raises(DataError, match=f"batch {number} of pass 0.*missing"):
                session.step()
        assert session.step_count == 0
        (tmp_path / "missing").write_text("a\nbb\nccc\n")
        session.restart_data()
        assert seen(session.step()) == [1, 2, 3]


def test_a_batch_of_a_group_that_fails():
    """With batches, a step takes a group; what is left of one that failed is left out."""
    with model(numbers(24, bad=[7]).batch(3), 2, sharding="batches").session() as session:
        assert seen(session.step()) == list(range(6))
        with pytest.raises(DataError, match="one of the batches 2 to 3 of pass 0"):
            session.step()
        assert [seen(r) for r in session.run()] == [list(range(12, 18)), list(range(18, 24))]


def test_one_worker_that_fails():
    data = lambda workers, rank: numbers(8, bad=[3] if rank == 1 else []).batch(2)  # noqa: E731
    with model(data, 2).session() as session:
        assert seen(session.step()) == [0, 1, 0, 1]
        with pytest.raises(DataError, match="batch 1 of pass 0"):
            session.step()
        assert [seen(r) for r in session.run()] == [[4, 5, 4, 5], [6, 7, 6, 7]]


def test_workers_that_read_different_data(tmp_path):
    """Different lengths, or sizes, are found before the step."""
    with model(numbers(8).batch(4), 2).session() as session:
        session.step()
        for name in session._steps.data._names.advance[1:]:
            session._run_op(name, {})  # behind the session's back
        with pytest.raises(DataError, match="different data.*worker 0 is at batch 1, worker 1 is at the end"):
            session.step()
        assert len(session.run()) == 2  # a new pass


class Workers:
    """Iterators over numbers as a distributed graph would run them; the user interrupts now and then."""

    def __init__(self, count, length, stride, bad, random):
        self.count, self.length, self.stride, self.bad, self.random = count, length, stride, bad, random
        self.next, self.tried = [0] * count, [0] * count
        self.held = [None] * count
        self.several = [[] for _ in range(count)]  # what each has taken for several steps
        self.together = 0  # of how many that are run together

    def run_each(self, runs, steps):
        results = []
        for fetches, targets, feeds in runs:
            if any(f.startswith("tried") for f in fetches):
                results.append([self.tried[int(f.rpartition("_")[2])] for f in fetches])
                continue
            if any(t.startswith("next") for t in targets):
                results.append([self.take_several(rank, self.together) for rank in range(self.count)])
                continue
            if any(t.startswith("move") for t in targets):
                if self.random.random() < 0.1:
                    raise KeyboardInterrupt
                for target in targets:
                    _, step, rank = target.split("_")
                    self.held[int(rank)] = self.several[int(rank)][int(step)]
                results.append([])
                continue
            if any(t.startswith("several") for t in targets):
                if self.random.random() < 0.1:
                    raise KeyboardInterrupt
                taken = self.take_several(int(targets[0].rpartition("_")[2]), steps)
                results.append(taken if isinstance(taken, StepError) else [taken])
                continue
            if any(t.startswith("begin") for t in targets):
                self.next = [int(feeds.get(f"skip_{rank}", 0)) for rank in range(self.count)]
                self.tried = list(self.next)
            ranks = [int(t.rpartition("_")[2]) for t in targets if t.startswith("advance")]
            if len(runs) > 1 and self.random.random() < 0.1:
                raise KeyboardInterrupt
            good = [self.take(rank, int(feeds.get(f"start_{rank}", 0))) for rank in ranks]
            results.append([self.counts(rank) for rank in ranks] if all(good) else StepError("broken"))
        return results

    def take_several(self, rank, steps):
        self.several[rank], counts = [], []
        for _ in range(steps):
            if not self.take(rank, 0):
                return StepError("broken")
            self.several[rank].append(self.held[rank])
            counts.append(self.counts(rank))
        return np.array(counts)

    def take(self, rank, start):
        """One element (or group) from number `start` on; False if it fails on the way."""
        self.held[rank] = None
        try:
            while (first := self.pull(rank)) is not None and first < start:
                pass
            for _ in range(self.stride - 1):
                self.pull(rank)
        except ValueError:
            return False
        self.held[rank] = first
        return True

    def pull(self, rank):
        number = self.next[rank]
        self.tried[rank] += 1
        if number >= self.length:
            return None
        self.next[rank] += 1
        if (rank, number) in self.bad:
            raise ValueError
        return number

    def counts(self, rank):
        held = self.held[rank]
        return np.array([-1, 0, 0] if held is None else [held, 1, self.count], np.int64)


def driver(workers, ahead=False):
    ranks = range(workers.count)
    names = {
        field: tuple(f"{field}_{rank}" for rank in ranks)
        for field in (
            "seed",
            "skip",
            "buffer",
            "start",
            "tried",
            "build",
            "clear",
            "begin",
            "advance",
            "counts",
            "snapshot",
            "forget",
        )
    }
    sharding = "slice" if workers.stride == 1 else "batches"
    data = DataSignature(
        sharding=sharding, anew=False, infinite=False, draws="never", resumes=True, inputs=("x",), split=("x",),
        rows=(None,), load="load", restore="restore", position="position", position_key="position", digest="",
        digest_key="digest", ahead=ahead, **names,
    )  # fmt: skip
    empty = {field: () for field in Signature.__dataclass_fields__ if field not in ("workers", "data")}
    signature = Signature(
        **{**empty, "dealing": WHOLE, "workers": workers.count, "weights": ("w",) * workers.count, "data": data}
    )
    return WorkerData(signature, workers.run_each)


@settings(max_examples=300, deadline=None)
@given(
    count=st.integers(1, 4),
    length=st.integers(1, 12),
    grouped=st.booleans(),
    bad=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 11)), max_size=8),
    together=st.integers(1, 4),
    ahead=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_workers_find_to_each_other_again(count, length, grouped, bad, together, ahead, random):
    """Whatever fails where, and whoever was interrupted: steps run on one element, in order, each at most once."""
    bad = set() if ahead else bad  # only where nothing fails does the run of a step take the next element
    workers = Workers(count, length, count if grouped else 1, bad, random)
    data = driver(workers, ahead)
    ranks, workers.together = range(count), together
    several = TakenElements(
        advance=tuple(f"several_{rank}" for rank in ranks),
        counts=tuple("c" * count),
        advance_ahead=tuple(f"next_{rank}" for rank in ranks),
        move=tuple(tuple(f"move_{step}_{rank}" for rank in ranks) for step in range(together)),
    )
    used, errors, interrupts = [], 0, 0
    while True:
        shares = []
        try:
            if together > 1 and random.random() < 0.8:
                shares = data.advance_several(lambda: several, together)
            if not shares:
                data.advance()
        except KeyboardInterrupt:
            interrupts += 1
            continue
        except DataError as error:
            assert "broken" in str(error) or (interrupts and "empty" in str(error))
            errors += 1
            assert errors <= 2 * length + 1
            continue
        except EndOfData:
            break
        if shares:
            taken = [each[: len(shares)] for each in workers.several]
            assert all(each == taken[0] for each in taken), taken
            used += taken[0]
            if len(shares) == together and random.random() < 0.7:
                counts, advance = data.run_ahead(several)
                assert not advance or ahead
                data.took_ahead(workers.run_each([(counts, advance, {})], 1)[0] if advance else (), several)
            continue
        assert len(set(workers.held)) == 1, workers.held
        used.append(workers.held[0])
        counts, advance = data.run_ahead() if random.random() < 0.7 else ((), ())
        assert not advance or ahead
        data.took_ahead(workers.run_each([(counts, advance, {})], 1)[0] if advance else ())
    assert used == sorted(set(used))
    failing = {number for rank, number in bad if rank < count and number < length}
    assert not set(used) & failing
    lost = set(range(length)) - {n + k for n in used for k in range(workers.stride)}
    assert errors or interrupts or not lost  # nothing is left out in silence
    if not failing and not interrupts:
        assert used == list(range(0, length, workers.stride))
        assert errors == 0


# -- saving ----------------------------------------------------------------------------------


class Reads:
    """A dataset of ten numbers whose reading leaves a file for each; it begins as soon as there is an iterator."""

    def __init__(self, directory):
        self.directory = directory
        options = tf.data.Options()
        options.experimental_warm_start = True
        path = str(directory) + "/"
        self.data = (
            tf.data.Dataset.range(10)
            .map(lambda n: self.element(path, n), num_parallel_calls=2)
            .prefetch(2)
            .batch(4)
            .with_options(options)
        )

    def element(self, path, number):
        name = tf.strings.join([path, tf.strings.as_string(number), ".", tf.strings.as_string(tf.timestamp(), 6)])
        with tf.control_dependencies([tf.io.write_file(name, "read")]):
            return number, tf.cast(number, tf.float32)

    def count(self):
        time.sleep(0.1)
        return len(list(self.directory.iterdir()))


def test_saving_reads_no_data(tmp_path):
    """Neither before the first step nor between passes; nor does restoring what was saved there."""
    (tmp_path / "reads").mkdir()
    reads = Reads(tmp_path / "reads")
    with model(reads.data, 1).session() as session:
        session.save(tmp_path / "first")
        session.restore(tmp_path / "first")
        session.save(tmp_path / "first")
        assert reads.count() == 0
        session.run()
        found = reads.count()
        assert found >= 10
        session.save(tmp_path / "between")
        session.restore(tmp_path / "between")
        session.save(tmp_path / "between")
        assert reads.count() == found
        assert seen(session.step()) == [0, 1, 2, 3]
        assert reads.count() > found


def test_saving_changes_nothing(tmp_path):
    """Where all elements are taken, the end is still to come."""
    with model(numbers(8).batch(4), 2).session() as session:
        session.run(steps=2)
        session.save(tmp_path / "saved")
        for _ in range(2):
            with pytest.raises(EndOfData, match="pass 0"):
                session.step()
            session.restore(tmp_path / "saved")
        session.run(steps=3)
        assert session.run(steps=1)[0].step == 6


def test_a_position_that_cannot_be_restored_is_passed_over_to(tmp_path):
    """As after an update of TensorFlow; the warning names the line that restores."""
    with model(numbers(12).batch(4), 2).session() as session:
        session.step()
        session.save(tmp_path / "saved")
        dtypes = tf.train.load_checkpoint(str(tmp_path / "saved")).get_variable_to_dtype_map()
        saved = read_values(tmp_path / "saved", [key for key, dtype in dtypes.items() if dtype != tf.variant])
        write_values(
            tmp_path / "other", {k: np.array(v, object if isinstance(v, bytes) else None) for k, v in saved.items()}
        )
        with pytest.warns(UserWarning, match="cannot be restored as it was") as warned:
            session.restore(tmp_path / "other")
        assert [warning.filename for warning in warned] == [__file__]
        assert seen(session.step()) == [4, 5, 6, 7]


# -- nothing goes through the driver ---------------------------------------------------------


@pytest.mark.parametrize("sharding", ["slice", "batches"])
def test_no_data_goes_through_the_driver(sharding, monkeypatch):
    """Neither fed nor fetched: what passes is a few numbers for each worker."""
    examples = np.random.default_rng(0).normal(size=(64, 1000)).astype(np.float32)
    variable = tf.Variable(tf.zeros([1000]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, variable) - 1.0))
        variable.assign_sub(0.01 * tape.gradient(loss, variable))
        return loss

    data = tf.data.Dataset.from_tensor_slices(examples).shuffle(64).batch(16)
    compiled = caramel.ARModel(caramel.capture(step, data=data), 2, sharding=sharding)
    assert compiled.signature.feeds == ()
    runs, taking = [], []
    run = SessionExecutor.run

    def spy(self, fetches, targets, feeds, timeout_s):
        values = run(self, fetches, targets, feeds, timeout_s)
        taking.append(not set(compiled.signature.data.advance).isdisjoint(targets))
        runs.append((sum(np.asarray(v).nbytes for v in values), sum(np.asarray(v).nbytes for v in feeds.values())))
        return values

    monkeypatch.setattr(SessionExecutor, "run", spy)
    with compiled.session() as session:
        assert len(session.run(steps=8)) == 8
    passes = {"slice": 2, "batches": 4}[sharding]
    assert sum(taking) == 8 + 2 * passes  # the run of a step takes what the next one needs
    assert max(fetched + fed for fetched, fed in runs) < 200


def sure_numbers(count=14):
    """Numbers of which none can fail."""
    return tf.data.Dataset.range(count).map(lambda n: (n, tf.cast(n, tf.float32)))


def test_elements_taken_ahead(tmp_path):
    """Runs, single steps, unrolled steps, traced ones and new passes: the elements are those of the dataset."""
    numbers_of = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13]]
    want = iter(numbers_of * 8)
    with model(sure_numbers().batch(5), 3).session() as session:
        assert session.distributed.signature.data.ahead

        def check(results):
            assert [seen(r) for r in results] == [next(want) for _ in results]

        check(session.run(steps=2))
        check([session.step()])
        check(session.run(steps=7))
        check(session.steps_together(3))  # the next one is there already
        check(session.steps_together(3))
        check(session.run(steps=2, steps_per_execution=2))
        check(session.run(steps=3, steps_per_execution=2))
        session.trace_next(lambda metadata: None)
        check(session.run(steps=2))
        session.restart_data()
        want = iter(numbers_of * 2)
        check(session.run())
        check(session.run(steps=1))
        session.save(tmp_path / "saved")
        check(session.run(steps=2))
        session.restore(tmp_path / "saved")
        want = iter(numbers_of[1:] + numbers_of)
        check(session.run(steps=5))
    with model(sure_numbers().batch(5), 2).session() as session:
        session.restore(tmp_path / "saved")
        want = iter(numbers_of[1:] + numbers_of)
        check(session.run(steps=5))


def test_elements_of_several_steps_taken_ahead(tmp_path, monkeypatch):
    """The run of several steps takes those of as many next ones, and whatever comes then finds its own."""
    numbers_of = [[*range(first, min(first + 3, 32))] for first in range(0, 32, 3)]  # 11 elements, the last of two
    assert len(numbers_of) == 11
    want = iter(numbers_of * 20)
    with model(sure_numbers(32).batch(3), 2).session() as session:
        data = session._steps.data
        runs_beside = []
        run_each = data._run_each
        monkeypatch.setattr(data, "_run_each", lambda runs, steps: runs_beside.append(runs) or run_each(runs, steps))

        def check(results, beside=None):
            assert [seen(r) for r in results] == [next(want) for _ in results]
            assert beside is None or len(runs_beside) == beside
            runs_beside.clear()
            return len(results)

        assert check(session.steps_together(4)) == 4
        assert check(session.steps_together(4), beside=0) == 4
        assert check(session.steps_together(4), beside=0) == 3  # the pass ends
        with pytest.raises(EndOfData):
            session.steps_together(4)
        assert check(session.steps_together(4), beside=2) == 4  # begins a pass, takes elements
        check([session.step()], beside=1)  # moved to where a single step reads it
        assert check(session.steps_together(4), beside=1) == 1  # so are those that are left
        check(session.run(steps=2), beside=2)
        assert check(session.steps_together(4), beside=1) == 3
        with pytest.raises(EndOfData):
            session.step()
        check(session.steps_together(4))
        assert check(session.steps_together(2)) == 1  # another number of steps
        check(session.run(steps=6, steps_per_execution=2))
        session.restart_data()
        want = iter(numbers_of * 20)
        check(session.run(steps=8, steps_per_execution=4))
        assert data._next is not None
        session.save(tmp_path / "saved")  # with elements that are taken, and not used
        check(session.run(steps=9, steps_per_execution=4))
        session.restore(tmp_path / "saved")
        want = iter((numbers_of * 20)[8:])
        check(session.run(steps=30, steps_per_execution=4))
    for workers, together in ((1, 3), (2, 1)):
        with model(sure_numbers(32).batch(3), workers).session() as session:
            session.restore(tmp_path / "saved")
            want = iter((numbers_of * 20)[8:])
            assert [seen(r) for r in session.run(steps=20, steps_per_execution=together)] == [
                next(want) for _ in range(20)
            ]


def test_a_pass_of_as_many_elements_as_a_run_takes():
    with model(sure_numbers(12).batch(2), 2).session() as session:
        for _ in range(3):
            assert [len(session.steps_together(3)) for _ in range(2)] == [3, 3]
            with pytest.raises(EndOfData):
                session.steps_together(3)


def test_shuffles_whose_elements_are_taken_ahead(tmp_path):
    def shuffled():
        return model(sure_numbers().shuffle(14, seed=3).batch(4), 2)

    with shuffled().session() as session:
        assert session.distributed.signature.data.ahead
        want = [seen(r) for r in session.run(steps=12)]
    alone = tf.data.Dataset.range(14).shuffle(14, seed=3).batch(4)
    assert want == [batch.numpy().tolist() for _ in range(3) for batch in alone]
    with shuffled().session() as session:
        session.run(steps=6)
        session.save(tmp_path / "saved")
    with shuffled().session() as session:
        session.restore(tmp_path / "saved")
        assert [seen(r) for r in session.run(steps=6)] == want[6:]
    with shuffled().session() as session:
        assert [seen(r) for r in session.run(steps=12, steps_per_execution=2)] == want


def test_no_edge_crosses_workers_but_for_collectives_and_state():
    compiled = model(numbers(10).batch(4), 3)
    purposes = set()
    for node in compiled.graph_def.node:
        role = compiled.roles[node.name]
        for text in node.input:
            other = compiled.roles[text.removeprefix("^").partition(":")[0]]
            if other.rank != role.rank:
                purposes.add(role.purpose.value)
    assert purposes == {"collective", "state"}
    placeholders = {n.name for n in compiled.graph_def.node if n.op == "Placeholder"}
    assert {name for name in placeholders if "worker_" in name} == {
        f"caramel/worker_{rank}/input/source/seed" for rank in range(3)
    }


def test_arrays_do_not_travel_in_the_graph():
    """5 MB of examples: the graph stays small, and every worker gets them once at the start."""
    examples = np.random.default_rng(0).integers(0, 255, (5_000, 1024), np.uint8)
    data = tf.data.Dataset.from_tensor_slices(examples).batch(40).map(lambda x: tf.cast(x, tf.float32))
    variable = tf.Variable(tf.zeros([1024]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, variable))
        variable.assign_sub(0.01 * tape.gradient(loss, variable))
        return loss

    compiled = caramel.ARModel(caramel.capture(step, data=data), 3)
    assert compiled.graph_def.ByteSize() < 500_000
    with compiled.session() as session:
        session.step()
        got = session.values()["w"]
    np.testing.assert_allclose(got, -0.01 * examples[:40].mean(axis=0), rtol=1e-5)


def test_arrays_are_not_saved(tmp_path):
    data = tf.data.Dataset.from_tensor_slices(
        (np.arange(30_000, dtype=np.int64), np.arange(30_000, dtype=np.float32))
    ).batch(10)
    with model(data).session() as session:
        session.step()
        session.save(tmp_path / "saved")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 50_000
    names = set(tf.train.load_checkpoint(str(tmp_path / "saved")).get_variable_to_shape_map())
    assert names == {"w", "caramel/steps", "caramel/input/position", "caramel/input/digest", "caramel/worker_0/input"}


def test_the_graph_grows_with_the_workers_alone():
    """Functions are there once, whatever the number of workers."""
    few, many = (model(numbers(10).batch(4), n).graph_def for n in (2, 8))
    assert len(few.library.function) == len(many.library.function)


@pytest.mark.soak  # as test_a_batch_that_fails
@pytest.mark.slow
@pytest.mark.processes
def test_a_batch_that_fails_in_processes():
    with model(numbers(15, bad=[7]).batch(3), 3).session(caramel.LocalProcesses()) as session:
        results, errors = [], []
        while len(results) < 4:
            try:
                results.append(seen(session.step()))
            except DataError as error:
                errors.append(str(error))
    assert results == [[0, 1, 2], [3, 4, 5], [9, 10, 11], [12, 13, 14]]
    assert len(errors) == 1
    assert FAILS in errors[0]
