"""The networks of the benchmarks: how they are made, what a training step of them is, and what is published of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CLASSES = 1000
"""Of ImageNet, and of the models of Keras' applications by default."""

TOKENS = 128
"""Length of the sequences, as in most of BERT's pre-training (Devlin et al. 2019, appendix A.2)."""

TRANSFORMER = "BERT"
VGG_LIKE = "VGG-like"


@dataclass(frozen=True)
class Published:
    """Numbers of parameters that others have published.

    Attributes:
        trainable: those that are trained.
        total: with the statistics of batch normalisation; None if only rounded numbers are published.
        source: where, and how what is made here differs.
    """

    trainable: int
    total: int | None
    source: str


@dataclass(frozen=True)
class InPaper:
    """What Caramel, section 5, lists of its model of the same architecture.

    Attributes:
        tensors: number of parameter tensors.
        mebibytes: of all of them.
        fewer_tensors: what of the tensors here the reference implementation does not have (less what it has more).
        fewer_parameters: likewise, elements.
        difference: what these are.
    """

    tensors: int
    mebibytes: float
    fewer_tensors: int = 0
    fewer_parameters: int = 0
    difference: str = "none"


_KERAS_TABLE = "total: the table of keras.io/api/applications, which had exact numbers in earlier versions"
_KERAS_SUMMARY = f"{_KERAS_TABLE}; trainable: `Model.summary()` as others quote it"

PUBLISHED = {
    "VGG16": Published(138_357_544, 138_357_544, f"{_KERAS_TABLE}; all are trainable"),
    "ResNet50": Published(25_583_592, 25_636_712, _KERAS_SUMMARY),
    "ResNet152V2": Published(
        60_236_904,
        60_380_648,
        f"{_KERAS_TABLE}; trainable: tables of TensorFlow's research models in Slim (ResNet V2 152)",
    ),
    "InceptionV3": Published(23_817_352, 23_851_784, _KERAS_SUMMARY),
    "MobileNetV3Large": Published(
        5_483_032,
        None,
        "trainable: torchvision's documentation of mobilenet_v3_large; Keras' documentation says 5.4 million",
    ),
    "MobileNetV3Small": Published(
        2_542_856,
        None,
        "trainable: torchvision's mobilenet_v3_small, as others quote it; Keras' documentation says 2.9 million",
    ),
    "EfficientNetB0": Published(
        5_288_548, 5_330_571, f"{_KERAS_TABLE}; trainable: torchvision's efficientnet_b0, as others quote it"
    ),
    TRANSFORMER: Published(
        109_483_778,
        109_483_778,
        "110 million: Devlin et al. 2019, section 3; exactly 109,482,240 in Hugging Face's `BertModel` "
        "(bert-base-uncased), pooler included; and 768 * 2 + 2 of a classifier of two classes",
    ),
}

IN_PAPER = {
    "VGG16": InPaper(32, 527.8),
    "ResNet50": InPaper(
        108, 97.4, 106, 53_120, "no biases of convolutions, no scales of batch normalisation (53 tensors, 26,560 each)"
    ),
    "ResNet152V2": InPaper(363, 229.5, 151, 71_872, "no scales of batch normalisation (151 tensors)"),
    "InceptionV3": InPaper(
        196,
        103.5,
        -6,
        -(768 * 128 + 128 + 5 * 5 * 128 * 768 + 768 + 768 * 1000 + 1000),
        "an auxiliary classifier more (convolutions of 1x1x768x128, 5x5x128x768 with offsets, a layer of 768x1000)",
    ),
}
"""The fifth, AlexNet-v2 with 16 tensors and 191.9 MiB, is not among Keras' applications."""

NAMES = tuple(PUBLISHED)


@dataclass(frozen=True)
class Network:
    """A network with a training step.

    Attributes:
        model: of Keras.
        step: what `caramel.capture` takes.
        inputs: specs of its arguments.
        batch: makes the arrays of so many examples.
    """

    model: Any
    step: Callable[..., Any]
    inputs: list[Any]
    batch: Callable[[int], tuple[np.ndarray, ...]]


def make(name: str) -> Network:
    """A network with random values and its step: Adam for the Transformer, momentum for the others.

    Args:
        name: one of `NAMES`, or `VGG_LIKE`.
    """
    import keras

    keras.backend.clear_session()  # names, and with them the digest of the program, are those of a new process
    keras.utils.set_random_seed(0)
    if name == TRANSFORMER:
        return _of(transformer(), keras.optimizers.Adam(1e-4))
    if name == VGG_LIKE:
        model = vgg_like()
    else:
        # MobileNets would take images of any size.
        size = {"input_shape": (224, 224, 3)} if name.startswith("MobileNet") else {}
        model = getattr(keras.applications, name)(weights=None, classes=CLASSES, **size)
    return _of(model, keras.optimizers.SGD(0.01, momentum=0.9))


def _of(model: Any, optimizer: Any) -> Network:
    """The step of a classifier, as people write it."""
    import keras
    import tensorflow as tf

    entropy = keras.losses.SparseCategoricalCrossentropy()

    def step(x: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = entropy(label, model(x, training=True))
        trained = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    shape, dtype = model.inputs[0].shape[1:], model.inputs[0].dtype

    def batch(examples: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 255, (examples, *shape)).astype(dtype)
        return x, rng.integers(0, model.output_shape[-1], examples)

    return Network(model, step, [tf.TensorSpec([None, *shape], dtype), tf.TensorSpec([None], tf.int64)], batch)


def vgg_like() -> Any:
    """Three pairs of convolutions and three wide layers, for images of 64x64: its largest gradients are ready first."""
    import keras

    layers = [keras.Input((64, 64, 3)), keras.layers.Rescaling(1 / 255)]
    for width in (32, 64, 128):
        layers += [keras.layers.Conv2D(width, 3, padding="same", activation="relu") for _ in range(2)]
        layers.append(keras.layers.MaxPooling2D())
    layers += [keras.layers.Flatten(), *(keras.layers.Dense(1024, activation="relu") for _ in range(2))]
    return keras.Sequential([*layers, keras.layers.Dense(CLASSES, activation="softmax")], name="vgg_like")


def digits() -> Any:
    """The network of examples/digits_keras.py, for images of 8x8; it gives logits of ten classes."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ],
        name="digits",
    )


def transformer(
    layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 30_522, dropout: float = 0.1
) -> Any:
    """An encoder with the dimensions and the parameters of BERT-base, and a classifier of two classes on its pooler.

    Args:
        layers: number of blocks, each of attention and two dense layers of 4 widths and one.
        width: of what goes from block to block.
        heads: of each attention.
        vocabulary: number of tokens.
        dropout: rate of all of them.
    """
    import keras

    def summed(*terms: Any) -> Any:
        return keras.layers.LayerNormalization(epsilon=1e-12)(keras.layers.Add()(list(terms)))

    tokens = keras.Input((TOKENS,), dtype="int32")
    words = keras.layers.Embedding(vocabulary, width)(tokens)
    hidden = keras.layers.Dropout(dropout)(summed(words, *_places(tokens, width)))
    for _ in range(layers):
        attention = keras.layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(hidden, hidden)
        hidden = summed(hidden, keras.layers.Dropout(dropout)(attention))
        inner = keras.layers.Dense(4 * width, activation="gelu")(hidden)
        hidden = summed(hidden, keras.layers.Dropout(dropout)(keras.layers.Dense(width)(inner)))
    pooled = keras.layers.Dense(width, activation="tanh")(hidden[:, 0])
    return keras.Model(tokens, keras.layers.Dense(2, activation="softmax")(pooled), name="encoder")


def _places(tokens: Any, width: int) -> Sequence[Any]:
    """Embeddings of the positions (of 512) and of the first of two segments."""
    import keras

    positions = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    return (
        keras.layers.Embedding(512, width)(positions),
        keras.layers.Embedding(2, width)(keras.ops.zeros_like(tokens)),
    )
