"""Programs as users write them, on four workers, against one device: the same weights and losses after three steps."""

import gc

import generative_programs as generative
import keras
import own_loop_programs as own
import pytest
import structured_programs as structured
import text_programs as text
import unlabelled_programs as unlabelled
import vision_programs as vision
from program_common import AS_WRITTEN, OneDevice, Workers, assert_same, run

import caramel

PROGRAMS = [
    vision.image_classifier,
    vision.image_files,
    vision.transfer_learning,
    vision.segmentation,
    vision.metric_learning,
    vision.siamese_network,
    vision.augmentation,
    vision.mixup,
    text.text_classifier,
    text.masked_language_model,
    text.translation,
    text.masked_captions,
    text.speech,
    structured.weather,
    structured.series_transformer,
    structured.anomalies,
    structured.frauds,
    structured.patients,
    structured.tickets,
    structured.movie_ratings,
    structured.graph_convolution,
    structured.graph_attention,
    generative.variational_autoencoder,
    generative.vector_quantization,
    generative.dcgan,
    generative.wasserstein_gan,
    generative.adversaries_of_tensorflow_1,
    generative.diffusion,
    unlabelled.distillation,
    unlabelled.simclr,
    unlabelled.nt_xent,
    unlabelled.barlow_twins,
    unlabelled.decorrelated_features,
    unlabelled.byol,
    unlabelled.nearest_neighbours,
    own.accumulated_gradients,
    own.mixed_precision,
    own.own_loop,
    own.penalty_of_activity,
    own.transitions,
    own.actor_critic,
    own.proximal_policy,
    own.deep_q_network,
]

IN_EVERY_RUN = {generative.adversaries_of_tensorflow_1, unlabelled.simclr, own.penalty_of_activity}

TOLERANCES = {own.mixed_precision: 1e-2}  # float16 has 11 bits


def parameter(program):
    marks = [] if program in IN_EVERY_RUN else [pytest.mark.soak]
    return pytest.param(program, marks=marks, id=program.__name__)


@pytest.fixture(autouse=True)
def _double():
    """Rounding hides no difference. Iterators end with their test: see keras/conftest.py."""
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")
    keras.backend.clear_session(free_memory=False)
    gc.collect()


@pytest.fixture
def trained(tmp_path):
    """Function that runs a program on one device, and another that runs it on four workers."""

    def by(kind, **options):
        (tmp_path / kind.__name__).mkdir()
        return lambda program: run(program, kind(tmp_path / kind.__name__, **options))

    return by


@pytest.mark.parametrize("program", [*map(parameter, PROGRAMS)])
def test_it_trains_as_one_device_does(program, trained):
    want = trained(OneDevice)(program)
    assert_same(trained(Workers)(program), want, TOLERANCES.get(program, 1e-6))


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_it_trains_so_over_server_processes(program, trained):
    want = trained(OneDevice)(program)
    place = caramel.LocalProcesses(allow_open_ports=True, options=AS_WRITTEN.options)
    assert_same(trained(Workers, cluster=place)(program), want, TOLERANCES.get(program, 1e-6))


@pytest.mark.soak
def test_other_gradients_are_seen(trained):
    """Each worker compares only its own part of the batch."""
    want = trained(OneDevice)(unlabelled.nt_xent)
    got = trained(Workers, options={"loss_reduction": "mean"})(unlabelled.nt_xent)
    with pytest.raises(AssertionError, match="differs by"):
        assert_same(got, want, 1e-6)
