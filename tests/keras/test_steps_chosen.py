"""`fit(steps_per_execution="auto")`: some steps become one run, with the logs and values of as many runs."""

import keras
import numpy as np
import pytest
from fit_common import AS_WRITTEN, arrays, compiled, dataset

import caramel
from caramel.errors import InputError
from caramel.runtime.session import Session


@pytest.fixture
def choices(monkeypatch):
    """What is asked about: seconds of a step, and steps to come. Four steps are always worth being one run."""
    asked = []

    def choose(self, step_s, steps):
        asked.append((step_s, steps))
        return 4

    monkeypatch.setattr(Session, "worthwhile_steps", choose)
    return asked


def trained(steps_per_execution, data=None, callbacks=(), model=None, **options):
    model = model or compiled()
    history = caramel.fit(
        model,
        dataset(78, batch=6) if data is None else data,
        workers=2,
        cluster=AS_WRITTEN,
        steps_per_execution=steps_per_execution,
        callbacks=[*callbacks],
        deterministic=True,
        **{"epochs": 3, "verbose": 2, **options},
    )
    return history.history, model.get_weights()


def check_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name, values in one[0].items():
        np.testing.assert_array_equal(values, other[0][name], err_msg=name)
    for mine, theirs in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_steps_become_one_run(choices, capsys):
    """Epochs of 13 steps: 11 are timed, 28 follow; the last ones of an epoch run one by one."""
    found = trained("auto")
    said = capsys.readouterr().out
    assert "4 steps are one run from now on" in said and len(choices) == 1
    step_s, left = choices[0]
    assert left == 28 and step_s > 0
    check_same(found, trained(None))


@pytest.mark.parametrize("options", [{"steps_per_epoch": 7}, {"validation_data": arrays(20, seed=8)}])
def test_epochs_are_as_long_as_they_were(options, choices):
    check_same(trained("auto", **options, epochs=4), trained(None, **options, epochs=4))
    assert len(choices) == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_data_that_ends_within_a_group(is_known, choices):
    """18 batches for epochs of 20 steps: an epoch is shorter, and the next one begins the data again."""
    data = dataset(108, batch=6)
    given = {"data": data if is_known else data.filter(lambda x, y: True), "steps_per_epoch": 20, "epochs": 3}
    for_each = []
    for chosen in ("auto", None):
        with pytest.warns(UserWarning, match="the data ended before the 20 steps"):
            for_each.append(trained(chosen, **given))
    check_same(*for_each)
    assert len(for_each[0][0]["loss"]) == 3 and len(choices) == 1


def test_a_run_does_not_go_beyond_an_epoch(choices, capsys):
    check_same(trained("auto", dataset(18, batch=6), epochs=8), trained(None, dataset(18, batch=6), epochs=8))
    assert "2 steps are one run from now on" in capsys.readouterr().out  # of 3, which 4 are too many for


def test_data_of_the_driver(choices):
    def batches():
        x, y = arrays(48)
        while True:
            for start in range(0, 48, 6):
                yield x[start : start + 6], y[start : start + 6]

    check_same(
        trained("auto", batches(), steps_per_epoch=16, epochs=2), trained(None, batches(), steps_per_epoch=16, epochs=2)
    )
    assert len(choices) == 1


class Looking(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


def test_callbacks_around_batches_are_asked_as_often(choices, capsys):
    looking = Looking()
    trained("auto", callbacks=[looking])
    assert looking.batches == [*range(13)] * 3 and not choices
    assert "no number of steps in a run is chosen, as Looking may act in each batch" in capsys.readouterr().out


def test_a_number_of_the_model_stays(choices, capsys):
    trained("auto", model=compiled(steps_per_execution=2))
    assert not choices and "the model was compiled with a number" in capsys.readouterr().out


def test_nothing_is_chosen_where_the_number_of_steps_is_not_known(choices, capsys):
    trained("auto", dataset(78, batch=6).filter(lambda x, y: True))
    assert not choices and "it is not known how many steps there are" in capsys.readouterr().out


def test_the_progress_bar_and_callbacks_of_epochs_do_not_count(choices, capsys, tmp_path):
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    trained("auto", callbacks=[keras.callbacks.EarlyStopping("loss", patience=5), saving], verbose=1)
    assert len(choices) == 1 and "13/13" in capsys.readouterr().out


@pytest.mark.parametrize("given", [0, 4, "often", True])
def test_numbers_are_the_models(given):
    with pytest.raises(InputError, match=r"compile\(steps_per_execution=\)"):
        trained(given)


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_a_short_step_is_measured_and_several_are_one_run(capsys):
    """Nothing is replaced: over server processes, running a step that takes next to nothing is most of it."""
    caramel.fit(
        compiled(),
        dataset(600, batch=6),
        workers=2,
        cluster=caramel.LocalProcesses(),
        steps_per_execution="auto",
        epochs=40,
        verbose=2,
    )
    assert "steps are one run from now on" in capsys.readouterr().out
