"""Everything of Keras that a compiled model may have, by name: layers, losses, metrics, optimizers, callbacks.

`test_fit_sweep.py` trains with each by Keras' own fit on one device and by `caramel.fit`.
"""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

layers, losses, metrics, optimizers = keras.layers, keras.losses, keras.metrics, keras.optimizers

CLASSES, WIDTH, STEPS, SIDE, WORDS = 3, 4, 5, 6, 9
COUNT, BATCH = 26, 10  # the last batch has 6 examples


# -- layers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerCase:
    """A layer between others.

    Attributes:
        layer: makes the layer, or a list of layers, or (if `calls`) applies them to a tensor.
        shape: shape of an example.
        calls: whether `layer` takes a tensor and returns one.
        own: whether each worker draws numbers, has statistics of its own or rounds: exact on one worker only.
    """

    layer: object
    shape: tuple = (WIDTH,)
    calls: bool = False
    own: bool = False


SERIES, IMAGE, VOLUME = (STEPS, WIDTH), (SIDE, SIDE, 3), (4, 4, 4, 2)


def itself(layer, **options):
    return lambda x: layer(x, x, **options)


class Counting(layers.Layer):
    """A layer that counts its calls, and scales by the count."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x / (1.0 + self.calls)


class RunningMean(layers.Layer):
    """A layer that keeps a moving average of what it gets, and takes it off."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, 0))
        return x - keras.ops.stop_gradient(self.mean)


class Sampling(layers.Layer):
    """Draws from a normal distribution, and adds its divergence to the loss."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seed, dtype=x.dtype)


class AddLoss(layers.Layer):
    def call(self, x):
        self.add_loss(0.3 * keras.ops.mean(keras.ops.square(x)))
        return x


class OfTraining(layers.Layer):
    def call(self, x, training=None):
        return 2.0 * x if training else x


class OldNoise(layers.Layer):
    """Noise from TensorFlow's generator of the graph."""

    def call(self, x, training=None):
        return x + tf.random.normal(tf.shape(x), seed=3, dtype=x.dtype) if training else x


class OldGenerator(layers.Layer):
    """Noise from a tf.random.Generator."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, x, training=None):
        return x + self.generator.normal(tf.shape(x), dtype=x.dtype) if training else x


def lora():
    dense = layers.Dense(WIDTH, "tanh")
    dense.build((None, WIDTH))
    dense.enable_lora(2)
    return dense


def frozen(layer):
    layer.trainable = False
    return layer


def adapted():
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(2.0, 3.0, (50, WIDTH)))
    return layer


def case(layer, shape=(WIDTH,), **options):
    return LayerCase(layer, shape, **options)


def drawn(layer, shape=(WIDTH,), **options):
    return LayerCase(layer, shape, own=True, **options)


LAYERS = {
    # what draws random numbers
    "Dropout": drawn(lambda: layers.Dropout(0.3)),
    "Dropout seeded": drawn(lambda: layers.Dropout(0.3, seed=3)),
    "Dropout noise_shape": drawn(lambda: layers.Dropout(0.3, noise_shape=(None, 1))),
    "SpatialDropout1D": drawn(lambda: layers.SpatialDropout1D(0.3), SERIES),
    "SpatialDropout2D": drawn(lambda: layers.SpatialDropout2D(0.3), IMAGE),
    "SpatialDropout3D": drawn(lambda: layers.SpatialDropout3D(0.3), VOLUME),
    "AlphaDropout": drawn(lambda: layers.AlphaDropout(0.3)),
    "GaussianDropout": drawn(lambda: layers.GaussianDropout(0.3)),
    "GaussianNoise": drawn(lambda: layers.GaussianNoise(0.3)),
    "LSTM dropout": drawn(lambda: layers.LSTM(WIDTH, dropout=0.3, recurrent_dropout=0.3), SERIES),
    "GRU dropout": drawn(lambda: layers.GRU(WIDTH, dropout=0.3, recurrent_dropout=0.3), SERIES),
    "SimpleRNN dropout": drawn(lambda: layers.SimpleRNN(WIDTH, dropout=0.3, recurrent_dropout=0.3), SERIES),
    "Bidirectional dropout": drawn(lambda: layers.Bidirectional(layers.LSTM(WIDTH, dropout=0.3)), SERIES),
    "ConvLSTM1D dropout": drawn(lambda: layers.ConvLSTM1D(2, 3, dropout=0.3, recurrent_dropout=0.2), (3, 5, 2)),
    "stacked cells dropout": drawn(
        lambda: layers.RNN([layers.LSTMCell(WIDTH, dropout=0.2), layers.GRUCell(WIDTH, dropout=0.2)]), SERIES
    ),
    "TimeDistributed dropout": drawn(lambda: layers.TimeDistributed(layers.Dropout(0.3)), SERIES),
    "MultiHeadAttention dropout": drawn(
        lambda: itself(layers.MultiHeadAttention(2, 3, dropout=0.3)), SERIES, calls=True
    ),
    "GroupQueryAttention dropout": drawn(
        lambda: itself(layers.GroupQueryAttention(4, 4, 2, dropout=0.3)), SERIES, calls=True
    ),
    "Attention dropout": drawn(
        lambda: lambda x: layers.Attention(use_scale=True, dropout=0.3)([x, x]), SERIES, calls=True
    ),
    "AdditiveAttention dropout": drawn(
        lambda: lambda x: layers.AdditiveAttention(dropout=0.3)([x, x]), SERIES, calls=True
    ),
    "Sampling add_loss": drawn(Sampling),
    "tf.random": drawn(OldNoise),
    "tf.random.Generator": drawn(OldGenerator),
    "RandomFlip": drawn(layers.RandomFlip, IMAGE),
    "RandomZoom": drawn(lambda: layers.RandomZoom(0.2), IMAGE),
    "RandomTranslation": drawn(lambda: layers.RandomTranslation(0.2, 0.2), IMAGE),
    "RandomCrop": drawn(lambda: layers.RandomCrop(4, 4), IMAGE),
    "RandomContrast": drawn(lambda: layers.RandomContrast(0.3), IMAGE),
    "RandomBrightness": drawn(lambda: layers.RandomBrightness(0.3, value_range=(-1, 1)), IMAGE),
    "RandomColorDegeneration": drawn(lambda: layers.RandomColorDegeneration(0.4, value_range=(-1, 1)), IMAGE),
    "RandomColorJitter": drawn(lambda: layers.RandomColorJitter((-1, 1), 0.2, 0.2, (0.4, 0.6), 0.1), IMAGE),
    "RandomErasing": drawn(lambda: layers.RandomErasing(0.8, value_range=(-1, 1)), IMAGE),
    "RandomGaussianBlur": drawn(lambda: layers.RandomGaussianBlur(0.8, value_range=(-1, 1)), IMAGE),
    "RandomGrayscale": drawn(lambda: layers.RandomGrayscale(0.5), IMAGE),
    "RandomHue": drawn(lambda: layers.RandomHue(0.3, value_range=(0, 1)), IMAGE),
    "RandomInvert": drawn(lambda: layers.RandomInvert(0.5, value_range=(-1, 1)), IMAGE),
    "RandomPerspective": drawn(lambda: layers.RandomPerspective(0.8, 0.4), IMAGE),
    "RandomPosterization": drawn(lambda: layers.RandomPosterization(4, value_range=(0, 1)), IMAGE),
    "RandomSaturation": drawn(lambda: layers.RandomSaturation((0.3, 0.7), value_range=(0, 1)), IMAGE),
    "RandomSharpness": drawn(lambda: layers.RandomSharpness(0.4, value_range=(-1, 1)), IMAGE),
    "RandomShear": drawn(lambda: layers.RandomShear(0.2, 0.2), IMAGE),
    "RandomElasticTransform": drawn(lambda: layers.RandomElasticTransform(0.8, value_range=(-1, 1)), IMAGE),
    # what rounds to less than float64, so that sums in another order differ by more
    "mixed_bfloat16": drawn(lambda: layers.Dense(WIDTH, dtype="mixed_bfloat16")),
    "float16": drawn(lambda: layers.Dense(WIDTH, dtype="float16")),
    "lora": drawn(lora),
    "Resizing": drawn(lambda: layers.Resizing(4, 4), IMAGE),
    # what has state
    "BatchNormalization": drawn(layers.BatchNormalization),
    "BatchNormalization of images": drawn(layers.BatchNormalization, IMAGE),
    "BatchNormalization frozen": case(lambda: frozen(layers.BatchNormalization())),
    "BatchNormalization synchronized": case(lambda: layers.BatchNormalization(synchronized=True, name="together")),
    "SpectralNormalization": case(lambda: layers.SpectralNormalization(layers.Dense(WIDTH))),
    "Normalization": case(adapted),
    "Counting": case(Counting),
    "RunningMean": drawn(RunningMean),
    # what adds to the loss
    "ActivityRegularization": case(lambda: layers.ActivityRegularization(0.01, 0.02)),
    "activity_regularizer": case(lambda: layers.Dense(WIDTH, activity_regularizer="l2")),
    "add_loss": case(AddLoss),
    "kernel_regularizer": case(lambda: layers.Dense(WIDTH, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02))),
    "constraints": case(lambda: layers.Dense(WIDTH, kernel_constraint="max_norm", bias_constraint="non_neg")),
    # what treats each example by itself
    "LayerNormalization": case(layers.LayerNormalization),
    "RMSNormalization": case(layers.RMSNormalization),
    "GroupNormalization": case(lambda: layers.GroupNormalization(2)),
    "UnitNormalization": case(layers.UnitNormalization),
    "LSTM": case(lambda: layers.LSTM(WIDTH), SERIES),
    "GRU": case(lambda: layers.GRU(WIDTH, return_sequences=True, go_backwards=True), SERIES),
    "Bidirectional": case(lambda: layers.Bidirectional(layers.GRU(WIDTH)), SERIES),
    "ConvLSTM2D": case(lambda: layers.ConvLSTM2D(2, 2), (3, 4, 4, 2)),
    "TimeDistributed": case(lambda: layers.TimeDistributed(layers.Dense(WIDTH, "tanh")), SERIES),
    "MultiHeadAttention": case(lambda: itself(layers.MultiHeadAttention(2, 3)), SERIES, calls=True),
    "MultiHeadAttention causal": case(
        lambda: itself(layers.MultiHeadAttention(2, 3), use_causal_mask=True), SERIES, calls=True
    ),
    "GroupQueryAttention": case(lambda: itself(layers.GroupQueryAttention(4, 4, 2)), SERIES, calls=True),
    "Attention": case(lambda: lambda x: layers.Attention(use_scale=True)([x, x]), SERIES, calls=True),
    "AdditiveAttention": case(lambda: lambda x: layers.AdditiveAttention()([x, x]), SERIES, calls=True),
    "Conv1D": case(lambda: layers.Conv1D(3, 2, padding="causal"), SERIES),
    "Conv2D": case(lambda: layers.Conv2D(3, 2, padding="same"), IMAGE),
    "Conv2D in groups": case(lambda: layers.Conv2D(4, 2, groups=2), (4, 4, 2)),
    "Conv2D of single channels": case(lambda: layers.Conv2D(2, 2, groups=2), (4, 4, 2)),
    "Conv2DTranspose": case(lambda: layers.Conv2DTranspose(3, 2, strides=2), IMAGE),
    "Conv3D": case(lambda: layers.Conv3D(3, 2), VOLUME),
    "DepthwiseConv2D": case(lambda: layers.DepthwiseConv2D(2, depth_multiplier=2), IMAGE),
    "SeparableConv1D": case(lambda: layers.SeparableConv1D(3, 2), SERIES),
    "SeparableConv2D": case(lambda: layers.SeparableConv2D(3, 2), IMAGE),
    "EinsumDense": case(lambda: layers.EinsumDense("abc,cd->abd", (STEPS, 3), bias_axes="d"), SERIES),
    "PReLU": case(layers.PReLU),
    "Softmax": case(layers.Softmax),
    "AveragePooling2D": case(lambda: layers.AveragePooling2D(2), IMAGE),
    "MaxPooling1D": case(layers.MaxPooling1D, SERIES),
    "AdaptiveAveragePooling2D": case(lambda: layers.AdaptiveAveragePooling2D(2), IMAGE),
    "AdaptiveMaxPooling1D": case(lambda: layers.AdaptiveMaxPooling1D(2), SERIES),
    "GlobalMaxPooling2D": case(layers.GlobalMaxPooling2D, IMAGE),
    "GlobalAveragePooling1D": case(layers.GlobalAveragePooling1D, SERIES),
    "UpSampling2D": case(lambda: layers.UpSampling2D(), IMAGE),
    "CenterCrop": case(lambda: layers.CenterCrop(4, 4), IMAGE),
    "Rescaling": case(lambda: layers.Rescaling(0.5, 0.1)),
    "ZeroPadding2D": case(layers.ZeroPadding2D, IMAGE),
    "Permute": case(lambda: layers.Permute((2, 1)), SERIES),
    "RepeatVector": case(lambda: layers.RepeatVector(2)),
    "Dot": case(lambda: lambda x: layers.Dot(1)([x, x]), calls=True),
    "STFTSpectrogram": case(  # its logarithm of nearly 0 would make 4e-7 of a difference in the last bit
        lambda: layers.STFTSpectrogram(mode="psd", frame_length=8, frame_step=4, fft_length=8), (32, 1)
    ),
    "Solarization": case(lambda: layers.Solarization(value_range=(0, 1)), IMAGE),
    "AutoContrast": case(lambda: layers.AutoContrast(value_range=(0, 1)), IMAGE),
    "Discretization": case(
        lambda: lambda x: layers.Discretization([-1.0, 0.0, 1.0], output_mode="one_hot")(x[:, :1]), calls=True
    ),
    "OfTraining": case(OfTraining),
    "shared": case(lambda: (lambda dense: lambda x: dense(dense(x)))(layers.Dense(WIDTH, "tanh")), calls=True),
}


def with_layer(name):
    """A model of this layer, between two others, and its data."""
    one = LAYERS[name]

    def make():
        inputs = keras.Input(one.shape)
        hidden = layers.Dense(one.shape[-1])(inputs)
        layer = one.layer()
        hidden = layer(hidden)
        hidden = layers.Flatten()(hidden)
        model = keras.Model(inputs, layers.Dense(CLASSES)(hidden))
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"], jit_compile=False)
        return model

    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 1, (COUNT, *one.shape)), rng.integers(0, CLASSES, COUNT)
    return make, tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


# -- losses --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of targets, and a layer that ends in predictions of them.

    Attributes:
        targets: function of a random generator and a shape without the last axis.
        units: number of predictions of an example.
        activation: the last layer's.
    """

    targets: object
    units: int
    activation: str | None = None


def _one_hot(rng, shape):
    return np.eye(CLASSES)[rng.integers(0, CLASSES, shape)]


KINDS = {
    "numbers": Kind(lambda rng, shape: rng.normal(size=(*shape, 2)), 2),
    "positive": Kind(lambda rng, shape: rng.uniform(0.1, 2, (*shape, 2)), 2, "softplus"),
    "shares": Kind(lambda rng, shape: rng.dirichlet([1, 1, 1], shape), CLASSES, "softmax"),
    "flags": Kind(lambda rng, shape: rng.integers(0, 2, (*shape, 2)).astype(float), 2, "sigmoid"),
    "flag": Kind(lambda rng, shape: rng.integers(0, 2, (*shape, 1)).astype(float), 1, "sigmoid"),
    "signs": Kind(lambda rng, shape: 2.0 * rng.integers(0, 2, (*shape, 2)) - 1, 2, "tanh"),
    "one-hot": Kind(_one_hot, CLASSES, "softmax"),
    "one-hot logits": Kind(_one_hot, CLASSES),
    "class": Kind(lambda rng, shape: rng.integers(0, CLASSES, shape), CLASSES, "softmax"),
    "class logits": Kind(lambda rng, shape: rng.integers(0, CLASSES, shape), CLASSES),
}

LOSSES = {
    "BinaryCrossentropy": ("flags", losses.BinaryCrossentropy, {}),
    "BinaryCrossentropy smoothed": ("flags", losses.BinaryCrossentropy, {"label_smoothing": 0.1}),
    "BinaryFocalCrossentropy": ("flags", losses.BinaryFocalCrossentropy, {"apply_class_balancing": True}),
    "CategoricalCrossentropy": ("one-hot", losses.CategoricalCrossentropy, {}),
    "CategoricalCrossentropy logits": (
        "one-hot logits",
        losses.CategoricalCrossentropy,
        {"from_logits": True, "label_smoothing": 0.1},
    ),
    "CategoricalFocalCrossentropy": ("one-hot", losses.CategoricalFocalCrossentropy, {}),
    "CategoricalGeneralizedCrossEntropy": ("class", losses.CategoricalGeneralizedCrossEntropy, {}),
    "CategoricalHinge": ("one-hot", losses.CategoricalHinge, {}),
    "Circle": ("class", losses.Circle, {}),
    "CosineSimilarity": ("numbers", losses.CosineSimilarity, {}),
    "Dice": ("flags", losses.Dice, {}),
    "Dice axis": ("flags", losses.Dice, {"axis": -1}),
    "Hinge": ("signs", losses.Hinge, {}),
    "Huber": ("numbers", losses.Huber, {"delta": 0.5}),
    "KLDivergence": ("shares", losses.KLDivergence, {}),
    "LogCosh": ("numbers", losses.LogCosh, {}),
    "MeanAbsoluteError": ("numbers", losses.MeanAbsoluteError, {}),
    "MeanAbsolutePercentageError": ("positive", losses.MeanAbsolutePercentageError, {}),
    "MeanSquaredError": ("numbers", losses.MeanSquaredError, {}),
    "MeanSquaredLogarithmicError": ("positive", losses.MeanSquaredLogarithmicError, {}),
    "Poisson": ("positive", losses.Poisson, {}),
    "SparseCategoricalCrossentropy": ("class", losses.SparseCategoricalCrossentropy, {}),
    "SparseCategoricalCrossentropy logits": (
        "class logits",
        losses.SparseCategoricalCrossentropy,
        {"from_logits": True},
    ),
    "SparseCategoricalCrossentropy ignore_class": (
        "class logits",
        losses.SparseCategoricalCrossentropy,
        {"from_logits": True, "ignore_class": 1},
    ),
    "SquaredHinge": ("signs", losses.SquaredHinge, {}),
    "Tversky": ("flags", losses.Tversky, {}),
}

WEIGHTS = {
    "no weights": lambda rng, shape: None,
    "weights": lambda rng, shape: rng.uniform(0.2, 2, shape[0]),
    "zeros": lambda rng, shape: rng.integers(0, 3, shape[0]).astype(float),
    "weights of steps": lambda rng, shape: rng.uniform(0.2, 2, shape),
}

REDUCTIONS = ["sum_over_batch_size", "sum", "mean_with_sample_weight", "mean"]


def _data(kind, shape, weights):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(*shape, WIDTH)), kind.targets(rng, shape), weights(rng, shape)]
    return tf.data.Dataset.from_tensor_slices(tuple(p for p in parts if p is not None)).batch(BATCH)


def _model(kind, shape, seen=layers.Identity):
    inputs = keras.Input((*shape[1:], WIDTH))
    hidden = layers.Dense(WIDTH, "tanh")(seen()(inputs))
    return keras.Model(inputs, layers.Dense(kind.units, kind.activation)(hidden))


def with_loss(name, weights="no weights", reduction="sum_over_batch_size", sequences=False, **options):
    """A model that is trained with this loss, and its data."""
    kind_name, loss, loss_options = LOSSES[name]
    kind = KINDS[kind_name]
    shape = (COUNT, STEPS) if sequences else (COUNT,)

    def make():
        model = _model(kind, shape)
        model.compile(optimizers.SGD(0.02, momentum=0.5), loss(reduction=reduction, **loss_options), jit_compile=False)
        return model

    return make, _data(kind, shape, WEIGHTS[weights])


# -- metrics -------------------------------------------------------------------------------------


def per_batch(targets, predictions):
    """A metric of one's own that is no mean over the examples."""
    return keras.ops.max(keras.ops.abs(keras.ops.cast(targets, predictions.dtype) - predictions))


class Worst(metrics.Metric):
    """A metric of one's own with state that is no sum."""

    def __init__(self, name="worst"):
        super().__init__(name=name)
        self.most = self.add_weight(shape=(), initializer="zeros", name="most")

    def update_state(self, targets, predictions, sample_weight=None):
        targets = keras.ops.cast(targets, predictions.dtype)
        worst = keras.ops.max(keras.ops.abs(targets - predictions))
        self.most.assign(keras.ops.maximum(self.most, keras.ops.cast(worst, self.most.dtype)))

    def result(self):
        return self.most


METRICS = {  # not those of the top k, which Keras cannot compute in float64
    "AUC": ("flag", lambda: metrics.AUC(num_thresholds=20)),
    "AUC PR": ("flag", lambda: metrics.AUC(num_thresholds=20, curve="PR", summation_method="minoring")),
    "AUC multi_label": ("flags", lambda: metrics.AUC(num_thresholds=20, multi_label=True, num_labels=2)),
    "Accuracy": ("flags", metrics.Accuracy),
    "accuracy": ("class", lambda: "accuracy"),
    "mse": ("numbers", lambda: "mse"),
    "BinaryAccuracy": ("flags", lambda: metrics.BinaryAccuracy(threshold=0.4)),
    "BinaryCrossentropy": ("flags", metrics.BinaryCrossentropy),
    "BinaryIoU": ("flag", lambda: metrics.BinaryIoU(target_class_ids=[0, 1], threshold=0.5)),
    "CategoricalAccuracy": ("one-hot", metrics.CategoricalAccuracy),
    "CategoricalCrossentropy": ("one-hot", metrics.CategoricalCrossentropy),
    "CategoricalHinge": ("one-hot", metrics.CategoricalHinge),
    "ConcordanceCorrelation": ("numbers", metrics.ConcordanceCorrelation),
    "CosineSimilarity": ("numbers", metrics.CosineSimilarity),
    "F1Score": ("one-hot", metrics.F1Score),
    "FBetaScore": ("one-hot", lambda: metrics.FBetaScore(average="macro", beta=2.0, threshold=0.4)),
    "FalseNegatives": ("flags", metrics.FalseNegatives),
    "FalsePositives": ("flags", lambda: metrics.FalsePositives(thresholds=[0.3, 0.6])),
    "Hinge": ("signs", metrics.Hinge),
    "IoU": ("class", lambda: metrics.IoU(CLASSES, [0, 2], sparse_y_pred=False)),
    "KLDivergence": ("shares", metrics.KLDivergence),
    "LogCoshError": ("numbers", metrics.LogCoshError),
    "MeanAbsoluteError": ("numbers", metrics.MeanAbsoluteError),
    "MeanAbsolutePercentageError": ("positive", metrics.MeanAbsolutePercentageError),
    "MeanIoU": ("class", lambda: metrics.MeanIoU(CLASSES, sparse_y_pred=False)),
    "MeanMetricWrapper": ("numbers", lambda: metrics.MeanMetricWrapper(losses.mean_absolute_error, "wrapped")),
    "MeanMetricWrapper of one's own": ("numbers", lambda: metrics.MeanMetricWrapper(per_batch, "wrapped")),
    "MeanSquaredError": ("numbers", metrics.MeanSquaredError),
    "MeanSquaredLogarithmicError": ("positive", metrics.MeanSquaredLogarithmicError),
    "OneHotIoU": ("one-hot", lambda: metrics.OneHotIoU(CLASSES, [1])),
    "OneHotMeanIoU": ("one-hot", lambda: metrics.OneHotMeanIoU(CLASSES)),
    "PearsonCorrelation": ("numbers", metrics.PearsonCorrelation),
    "Poisson": ("positive", metrics.Poisson),
    "Precision": ("flags", metrics.Precision),
    "Precision top_k": ("one-hot", lambda: metrics.Precision(top_k=2, class_id=1)),
    "PrecisionAtRecall": ("flags", lambda: metrics.PrecisionAtRecall(0.5, num_thresholds=20)),
    "R2Score": ("numbers", metrics.R2Score),
    "Recall": ("flags", metrics.Recall),
    "RecallAtPrecision": ("flags", lambda: metrics.RecallAtPrecision(0.5, num_thresholds=20)),
    "RootMeanSquaredError": ("numbers", metrics.RootMeanSquaredError),
    "SensitivityAtSpecificity": ("flags", lambda: metrics.SensitivityAtSpecificity(0.5, num_thresholds=20)),
    "SparseCategoricalAccuracy": ("class", metrics.SparseCategoricalAccuracy),
    "SparseCategoricalCrossentropy": ("class", metrics.SparseCategoricalCrossentropy),
    "SpecificityAtSensitivity": ("flags", lambda: metrics.SpecificityAtSensitivity(0.5, num_thresholds=20)),
    "SquaredHinge": ("signs", metrics.SquaredHinge),
    "TrueNegatives": ("flags", metrics.TrueNegatives),
    "TruePositives": ("flags", metrics.TruePositives),
    "function": ("numbers", lambda: per_batch),
    "Worst": ("numbers", Worst),
}
LOSS_OF_KIND = {
    "numbers": "mse",
    "positive": "mse",
    "shares": "mse",
    "flags": "binary_crossentropy",
    "flag": "binary_crossentropy",
    "signs": "hinge",
    "one-hot": "categorical_crossentropy",
    "class": "sparse_categorical_crossentropy",
}


def with_metric(name, weights="weights", is_weighted=True):
    """A model that is trained with this metric, and its data."""
    kind_name, metric = METRICS[name]
    kind = KINDS[kind_name]

    def make():
        model = _model(kind, (COUNT,))
        places = {"weighted_metrics": [metric()]} if is_weighted else {"metrics": [metric()]}
        model.compile(optimizers.SGD(0.1), LOSS_OF_KIND[kind_name], jit_compile=False, **places)
        return model

    return make, _data(kind, (COUNT,), WEIGHTS[weights])


# -- optimizers ----------------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": lambda **o: optimizers.SGD(0.1, **o),
    "SGD momentum": lambda **o: optimizers.SGD(0.05, momentum=0.9, **o),
    "SGD nesterov": lambda **o: optimizers.SGD(0.05, momentum=0.9, nesterov=True, **o),
    "RMSprop": lambda **o: optimizers.RMSprop(0.01, **o),
    "RMSprop centered": lambda **o: optimizers.RMSprop(0.01, momentum=0.5, centered=True, **o),
    "Adam": lambda **o: optimizers.Adam(0.01, **o),
    "Adam amsgrad": lambda **o: optimizers.Adam(0.01, amsgrad=True, **o),
    "AdamW": lambda **o: optimizers.AdamW(0.01, **o),
    "Adadelta": lambda **o: optimizers.Adadelta(1.0, **o),
    "Adagrad": lambda **o: optimizers.Adagrad(0.05, **o),
    "Adamax": lambda **o: optimizers.Adamax(0.01, **o),
    "Adafactor": lambda **o: optimizers.Adafactor(0.05, **o),
    "Nadam": lambda **o: optimizers.Nadam(0.01, **o),
    "Ftrl": lambda **o: optimizers.Ftrl(0.05, l1_regularization_strength=0.01, **o),
    "Lion": lambda **o: optimizers.Lion(0.01, **o),
    "Lamb": lambda **o: optimizers.Lamb(0.01, **o),
    "Muon": lambda **o: optimizers.Muon(0.01, **o),
    "ScheduleFreeAdamW": lambda **o: optimizers.ScheduleFreeAdamW(0.01, warmup_steps=2, **o),
}

OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "clipvalue": {"clipvalue": 0.01},
    "use_ema": {"use_ema": True, "ema_momentum": 0.8},
    "ema_overwrite_frequency": {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
    "weight_decay": {"weight_decay": 0.02},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
    "schedule": {"learning_rate": lambda: optimizers.schedules.CosineDecay(0.05, 4, 0.1)},
    "accumulation and clipping and ema": {
        "gradient_accumulation_steps": 2, "global_clipnorm": 0.1, "use_ema": True, "ema_overwrite_frequency": 1
    },
}  # fmt: skip

WRAPPED = {
    "LossScaleOptimizer": lambda inner: optimizers.LossScaleOptimizer(inner, 2.0**10, 3),
    "MultiOptimizer": lambda inner: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(inner, {".*first.*": optimizers.SGD(0.1)})
    ),
}


def optimizer(name, option="plain", wrapped=None):
    """A new optimizer."""
    options = {k: v() if callable(v) else v for k, v in OPTIONS[option].items()}
    rate = options.pop("learning_rate", None)
    made = OPTIMIZERS[name](**options)
    if rate is not None:
        made.learning_rate = rate
        made = type(made).from_config({**made.get_config(), "learning_rate": rate})
    return WRAPPED[wrapped](made) if wrapped else made


def words_model(is_sparse=True):
    """Words, which have sparse gradients or not, matrices, vectors, and a constraint."""
    inputs = keras.Input((STEPS,), dtype="int32")
    if is_sparse:
        hidden = layers.Embedding(WORDS, WIDTH, name="words")(inputs)
    else:
        hidden = layers.Dense(WIDTH, name="words")(keras.ops.one_hot(inputs, WORDS, dtype="float64"))
    hidden = layers.Flatten()(hidden)
    hidden = layers.Dense(WIDTH, "tanh", name="first", kernel_constraint="max_norm")(hidden)
    return keras.Model(inputs, layers.Dense(CLASSES, name="last")(hidden))


def words_data():
    rng = np.random.default_rng(1)
    x = rng.integers(0, WORDS, (COUNT, STEPS))
    return tf.data.Dataset.from_tensor_slices((x, x.sum(1) % CLASSES)).batch(BATCH)


def with_optimizer(name, option="plain", wrapped=None):
    """A model that is trained by this optimizer, and its data."""

    def make():
        # Keras cannot scale sparse gradients, and its centered RMSprop fails on one device with words that are new.
        model = words_model(option != "loss_scale_factor" and name != "RMSprop centered")
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(name, option, wrapped), loss, jit_compile=False)
        return model

    return make, words_data()


# -- callbacks -----------------------------------------------------------------------------------


class Freezing(keras.callbacks.Callback):
    """Freezes a layer after an epoch, without compiling the model."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.get_layer("first").trainable = False


class Every(keras.callbacks.Callback):
    """Calls a function of model and epoch, or model and batch, at one of the hooks."""

    def __init__(self, hook, change):
        super().__init__()
        setattr(self, hook, lambda number, logs=None: change(self.model, number))


def halve(model, number):
    model.get_layer("first").kernel.assign(0.5 * model.get_layer("first").kernel)


def set_rate(model, number):
    model.optimizer.learning_rate = 0.05 / (1 + number)


def assign_rate(model, number):
    model.optimizer.learning_rate.assign(0.05 / (1 + number))


def set_weights(model, number):
    model.set_weights([0.9 * w for w in model.get_weights()])


def stop(model, number):
    model.stop_training = number == 1


def forget(model, number):
    for variable in model.optimizer.variables[2:]:
        variable.assign(keras.ops.zeros_like(variable))


HOOKS = ["on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end"]
CHANGES = {
    "weights": halve,
    "all weights": set_weights,
    "rate": set_rate,
    "assigned rate": assign_rate,
    "stop": stop,
    "optimizer": forget,
}
CALLBACKS = {
    **{
        f"{change} {hook}": (lambda hook=hook, change=change: [Every(hook, CHANGES[change])])
        for change in CHANGES
        for hook in HOOKS
    },
    "LearningRateScheduler": lambda: [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch))],
    "ReduceLROnPlateau": lambda: [keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=1.0)],
    "EarlyStopping": lambda: [
        keras.callbacks.EarlyStopping("loss", min_delta=1.0, patience=1, restore_best_weights=True)
    ],
    "SwapEMAWeights of batches": lambda: [keras.callbacks.SwapEMAWeights()],
    "SwapEMAWeights of epochs": lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    "TerminateOnNaN": lambda: [keras.callbacks.TerminateOnNaN()],
    "freezing": lambda: [Freezing()],
}


def with_callback(name):
    """A model, its data, and this callback."""
    is_mean = name.startswith("SwapEMA")

    def make():
        model = words_model()
        options = {"use_ema": True, "ema_momentum": 0.8} if is_mean else {}
        model.compile(
            optimizers.Adam(0.02, **options), losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
        )
        return model

    return make, words_data(), {"callbacks": CALLBACKS[name], "epochs": 3, "validation_data": words_data()}
