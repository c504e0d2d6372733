"""Calls on the same model share a session; each begins as in a new one, and with what is its own."""

import gc
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, arrays, compiled, dataset
from variants import mostly_in_soak

import caramel
from caramel.keras import kept_sessions
from caramel.netmodel.file import save as save_network

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(59)


@pytest.fixture
def opened(monkeypatch):
    """The sessions that are opened."""
    sessions = []
    init = caramel.Session.__init__

    def counted(self, *given, **options):
        sessions.append(weakref.ref(self))
        init(self, *given, **options)

    monkeypatch.setattr(caramel.Session, "__init__", counted)
    return sessions


def fitted(model, *data, **options):
    options = {"workers": 2, "verbose": 0, "cluster": AS_WRITTEN, "shuffle": False, **options}
    return caramel.fit(model, *data, **options)


DATA = dataset(59)
DRAWS = np.random.default_rng(1)

SAME = {
    "the same dataset": (lambda: (DATA,), {}),
    "arrays": (lambda: (X, Y), {"batch_size": 12}),
    "shuffled arrays": (lambda: (X, Y), {"batch_size": 12, "shuffle": True}),
    "weights of classes": (lambda: (X, Y), {"shuffle": True, "class_weight": {0: 0.5, 2: 3.0}}),
    "other arrays": (lambda: (X + DRAWS.normal(size=X.shape), DRAWS.permutation(Y)), {"batch_size": 12}),
    "few other arrays": (lambda: (X[:9] + DRAWS.normal(size=X[:9].shape), DRAWS.permutation(Y[:9])), {"batch_size": 3}),
    "a dataset made again": (lambda: (dataset(59),), {}),
    "Python": (lambda: (InBatches(),), {}),
}


class InBatches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, number):
        return X[12 * number :][:12], Y[12 * number :][:12]


@pytest.mark.filterwarnings("ignore:the batches are made")
@pytest.mark.parametrize("name", mostly_in_soak(list(SAME), "shuffled arrays", "a dataset made again"))
def test_a_second_call_opens_no_other_session(opened, name):
    make, options = SAME[name]
    kept, anew = compiled(), compiled()
    for number in range(3):
        keras.utils.set_random_seed(number)
        data = make()
        got = fitted(kept, *data, **options)
        assert len(opened) == 1 + number  # the other model's are counted, too
        keras.utils.set_random_seed(number)
        want = fitted(anew, *data, **options)
        vars(anew).pop("_caramel_sessions").close()
        assert got.history == want.history
    for one, other in zip(kept.variables, anew.variables):
        np.testing.assert_array_equal(one, other, err_msg=one.path)


def test_arrays_that_were_the_same_once(opened):
    """Inputs that are also the targets are loaded once; later ones that are not are loaded both."""

    def autoencoder():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(5)])
        model.compile("sgd", "mse")
        return model

    model, other = autoencoder(), autoencoder()
    for y in (X, X + 1.0):
        got = fitted(model, X, y).history["loss"]
        want = other.fit(X, y, verbose=0, shuffle=False).history["loss"]
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_what_the_user_changes_in_between(opened):
    histories = []
    for fit in (fitted, lambda model, *data: model.fit(*data, verbose=0, shuffle=False)):
        model, history = compiled(), []
        for value in (0.0, 1.0):
            model.layers[-1].bias.assign([value] * 3)
            model.optimizer.learning_rate.assign(0.1 * (1 + value))
            history += fit(model, X, Y).history["loss"]
        histories.append(history)
    assert len(opened) == 1
    np.testing.assert_allclose(*histories, rtol=1e-9)


CHANGES = {
    "compiled again": (lambda m: m.compile("sgd", m.loss), {}),
    "another number of workers": (lambda m: None, {"workers": 3}),
    "another cluster": (lambda m: None, {"cluster": caramel.InProcess()}),
    "another option": (lambda m: None, {"deterministic": True}),
    "other batches": (lambda m: None, {"batch_size": 10}),
    "weights": (lambda m: None, {"sample_weight": np.ones(59)}),
}


@pytest.mark.parametrize("name", mostly_in_soak(list(CHANGES), "compiled again", "other batches"))
def test_what_needs_another_session(opened, name):
    change, options = CHANGES[name]
    model = compiled()
    fitted(model, X, Y)
    change(model)
    fitted(model, X, Y, **options)
    assert len(opened) == 2
    gc.collect()
    assert opened[0]() is None or opened[0]()._closed


def test_a_network_in_a_file_that_changes(opened, tmp_path):
    model, path = compiled(), tmp_path / "net.json"
    for number, rate in enumerate((1e8, 1e8, 2e8)):
        if number != 1:
            save_network(caramel.NetworkModel.from_link_rate(rate), path)
        history = fitted(model, X, Y, network=path, scheduling=False)
    assert len(opened) == 2 and history.plan is not None


def test_networks_are_the_same_where_they_are_equal(opened):
    model = compiled()
    for rate in (1e8, 1e8, 2e8):
        fitted(model, X, Y, network=caramel.NetworkModel.from_link_rate(rate), scheduling=False)
    assert len(opened) == 2


def test_a_failure_closes_the_session(opened):
    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise ZeroDivisionError

    model = compiled()
    with pytest.raises(ZeroDivisionError):
        fitted(model, X, Y, callbacks=[Fails()])
    assert opened[0]()._closed
    fitted(model, X, Y)
    assert len(opened) == 2


def test_a_session_goes_with_its_model(opened):
    model = compiled()
    fitted(model, X, Y)
    del model
    gc.collect()
    assert opened[0]() is None


@pytest.mark.soak  # as test_other_models_that_a_callback_uses
def test_few_models_keep_theirs(opened):
    models = [compiled() for _ in range(4)]
    for model in models:
        fitted(model, X, Y)
        caramel.predict(model, X, workers=2, verbose=0, cluster=AS_WRITTEN)
    assert [reference()._closed for reference in opened] == [True] * 4 + [False] * 4


class WithServers(caramel.InProcess):
    """A cluster that notes when its servers are stopped."""

    @contextmanager
    def shared(self):
        STOPPED.clear()
        yield self
        STOPPED.append("stopped")


STOPPED = []


def test_nobody_waits_while_sessions_of_other_models_are_closed(opened, monkeypatch):
    """Closing may take long where servers are far away."""
    first, *others = (compiled() for _ in range(1 + kept_sessions._MOST_MODELS))
    free = []
    close = caramel.Session.close

    def another_call():
        free.append(kept_sessions._lock.acquire(timeout=5))
        if free[-1]:
            kept_sessions._lock.release()

    def slow(session):
        thread = threading.Thread(target=another_call)
        thread.start()
        thread.join()
        close(session)

    for model in (first, *others[:-1]):
        fitted(model, dataset())
    monkeypatch.setattr(caramel.Session, "close", slow)
    fitted(others[-1], dataset())
    assert free == [True] and opened[0]()._closed


def test_other_models_that_a_callback_uses(opened):
    """A training that is under way keeps its session and servers."""
    others, stopped = [compiled() for _ in range(3)], []

    class Predicts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            for other in others:
                caramel.predict(other, X, workers=2, verbose=0, cluster=AS_WRITTEN)
            stopped.extend(STOPPED)

    model = compiled()
    history = fitted(model, X, Y, epochs=2, callbacks=[Predicts()], cluster=WithServers(AS_WRITTEN.options))
    assert len(history.history["loss"]) == 2 and not opened[0]()._closed and not stopped
    caramel.predict(others[0], X, workers=2, verbose=0, cluster=AS_WRITTEN)
    caramel.predict(others[1], X, workers=2, verbose=0, cluster=AS_WRITTEN)
    assert STOPPED == ["stopped"]


def test_a_variable_in_the_pipeline_that_changes(opened):
    scale, many = tf.Variable(1.0, dtype=tf.float64), tf.Variable(tf.ones([300, 5], tf.float64))
    data = tf.data.Dataset.from_tensor_slices(X).batch(12).map(lambda x: x * scale * many[0])
    model = compiled()
    for number in range(3):
        scale.assign(10.0 if number > 0 else 1.0)
        many.assign(tf.fill([300, 5], tf.constant(2.0 if number > 1 else 1.0, tf.float64)))
        want = model.predict(data, verbose=0)
        got = caramel.predict(model, data, workers=2, verbose=0, cluster=AS_WRITTEN)
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_compile_with_the_same_optimizer_and_no_loss(opened):
    class Scaled(keras.Model):
        def compile(self, optimizer, scale):
            super().compile(optimizer=optimizer)
            self.scale = scale

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.scale * tf.reduce_mean((self(x, training=True) - x[:, :3]) ** 2)
            self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
            return {"scaled": loss}  # of "loss" Keras gives what its own metric of that name has

    base, optimizer = compiled(), keras.optimizers.SGD(0.0)
    model, losses = Scaled(base.inputs, base.outputs), []
    for scale in (1.0, 100.0):
        model.compile(optimizer, scale)
        losses.append(fitted(model, X[:48], Y[:48], batch_size=48).history["scaled"][0])
    assert losses[0] > 0 and losses[1] == pytest.approx(100 * losses[0])


def test_a_refusal_closes_the_session(opened):
    model = compiled()
    fitted(model, X, Y)
    with pytest.raises(caramel.InputError, match="'nope'"):
        fitted(model, X, Y, callbacks=[keras.callbacks.EarlyStopping("nope")])
    assert opened[0]() is None or opened[0]()._closed


def test_a_model_with_sessions_can_be_copied_and_saved(opened, tmp_path):
    model = compiled()
    fitted(model, X, Y)
    clone = keras.models.clone_model(model)
    assert "_caramel_sessions" not in vars(clone)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


def test_two_threads_have_a_session_each(opened):
    from concurrent.futures import ThreadPoolExecutor

    models = [compiled() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        losses = list(pool.map(lambda model: fitted(model, X, Y, epochs=2).history["loss"], models))
    assert losses[0] == losses[1] and len(opened) == 2


@pytest.mark.processes
def test_servers_stay_from_call_to_call(opened):
    model = compiled()
    cluster = caramel.LocalProcesses()
    fitted(model, X, Y, cluster=cluster)
    before = opened[0]().executor.pids()
    fitted(model, X, Y, cluster=cluster)
    assert len(opened) == 1
    fitted(model, X, Y, cluster=cluster, batch_size=10)  # another session, on the same servers
    assert len(opened) == 2 and opened[1]().executor.pids() == before


def test_a_dataset_that_shuffles_goes_on():
    """Every call takes the next orders of one shuffle, as in Keras."""
    histories = []
    for fit in (fitted, lambda model, data, **o: model.fit(data, verbose=0, **o)):
        tf.random.set_seed(5)
        model, data = compiled(), dataset().unbatch().shuffle(60, seed=1).batch(12)
        history = [fit(model, data, epochs=2).history["loss"] for _ in range(3)]
        histories.append(np.ravel(history))
    np.testing.assert_allclose(*histories, rtol=1e-9)


AT_EXIT = """
import weakref
import caramel.keras.kept_sessions as kept

class Sessions:
    def close(self):
        print("session")

class Server:
    pass

sessions, server = Sessions(), Server()
kept._recent.append(weakref.ref(sessions))
weakref.finalize(server, print, "server")
"""


def test_sessions_are_closed_before_the_drivers_own_server_at_the_end_of_the_process():
    """Closing a session would wait for a server that is gone."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["session", "server"], done.stderr


@pytest.mark.slow
def test_functions_at_the_end_leave_sessions_alone_in_a_fork():
    """TensorFlow's sessions do not survive to be closed there, and the parent needs its own."""
    text = """
import atexit, gc, os
import keras, numpy as np
import caramel

def end_in_a_fork(status):
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

gc.disable()
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones([4, 2])
caramel.fit(model, x, x[:, :1], workers=2, verbose=0)
end_in_a_fork(3)
caramel.fit(model, x, x[:, :1], workers=2, verbose=0)
del model  # with its sessions it is a circle, which is collected some time
end_in_a_fork(4)
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=180)
    assert (ended.stdout.split(), ended.returncode) == (["3", "4"], 0), ended.stderr
