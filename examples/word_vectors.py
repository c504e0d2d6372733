"""Word vectors from Python's language reference: each word is guessed from the four around it.

The gradients of both tables are sparse: a batch touches few of their rows, and only these travel.

Run it alone on one device:            python examples/word_vectors.py
The same file on 4 workers:            caramel run examples/word_vectors.py:program --workers 4 --steps 600
"""

import numpy as np
import tensorflow as tf

import text

VOCABULARY, WIDTH, BATCH, NOISE = 4000, 48, 512, 8
AROUND = (-2, -1, 1, 2)
TEST = 4000


def examples(codes):
    """(the four words around, the word) for every word that is in the vocabulary."""
    places = np.arange(2, len(codes) - 2)
    places = places[codes[places] > 0]
    return codes[places[:, None] + AROUND], codes[places]


def batches(around, word, rest):
    """Batches of random words of the text, forever: the words around, the word, and random ones in its place."""
    counts = np.bincount(word[rest], minlength=VOCABULARY).astype(float)
    weight = counts[word[rest]] ** -0.25  # as often as in the text, to the power 0.75 (Mikolov et al. 2013)
    weight /= weight.sum()
    draw = np.random.default_rng(2)
    while True:
        chosen = draw.choice(rest, BATCH)
        noise = word[draw.choice(rest, (BATCH, NOISE), p=weight)]
        yield around[chosen], word[chosen], noise


def middle(vectors, around):
    """What stands between the words: the mean of their vectors."""
    return tf.reduce_mean(tf.gather(vectors, around), 1)


def apply_adagrad(variable, total, gradient, rate=0.3):
    """Adagrad for the rows that the gradient has; rows that are there several times are added up."""
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    total.scatter_add(tf.IndexedSlices(tf.square(values), rows))
    variable.scatter_sub(tf.IndexedSlices(rate * values * tf.math.rsqrt(tf.gather(total, rows)), rows))


def program():
    """The training program for one device."""
    codes, _ = text.words(VOCABULARY)
    around, word = examples(codes)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(word))
    held_out, rest = order[:TEST], order[TEST:]
    vectors = tf.Variable(rng.normal(size=[VOCABULARY, WIDTH]).astype(np.float32) / WIDTH, name="vectors")
    meanings = tf.Variable(np.zeros([VOCABULARY, WIDTH], np.float32), name="meanings")
    tables = [vectors, meanings]
    sums = [tf.Variable(tf.fill(v.shape, 1e-4), name=f"sums_{n}", trainable=False) for n, v in enumerate(tables)]

    def scores(around, candidates):
        """How well each of the candidates fits between the words."""
        return tf.einsum("bw,bcw->bc", middle(vectors, around), tf.gather(meanings, candidates))

    @tf.function
    def step(around, word, noise):
        """Tell the word from random ones."""
        with tf.GradientTape() as tape:
            found = scores(around, tf.concat([word[:, None], noise], 1))
            wanted = tf.concat([tf.ones_like(found[:, :1]), tf.zeros_like(found[:, 1:])], 1)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, found)
            loss = tf.reduce_mean(tf.reduce_sum(losses, 1))
        for variable, total, gradient in zip(tables, sums, tape.gradient(loss, tables)):
            apply_adagrad(variable, total, gradient)
        return loss

    @tf.function
    def evaluate(around, word):
        """How often the word is among the ten best of the vocabulary."""
        best = tf.math.top_k(tf.matmul(middle(vectors, around), meanings, transpose_b=True), 10).indices
        return {"in_best_ten": tf.reduce_mean(tf.cast(tf.reduce_any(best == word[:, None], 1), tf.float32))}

    specs = [
        tf.TensorSpec([None, 4], tf.int32),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None, NOISE], tf.int32),
    ]
    return {
        "step": step,
        "inputs": specs,
        "data": lambda: batches(around, word, rest),
        "evaluation": {"function": evaluate, "inputs": specs[:2], "data": (around[held_out], word[held_out])},
    }


def main(steps=600):
    """Train on one device; returns the losses and how often an unseen word is among the ten best guesses."""
    parts = program()
    losses = [float(parts["step"](*batch)) for batch, _ in zip(parts["data"](), range(steps))]
    return losses, float(parts["evaluation"]["function"](*parts["evaluation"]["data"])["in_best_ten"])


if __name__ == "__main__":
    found, result = main()
    print(f"loss {found[0]:.4f} -> {found[-1]:.4f}, of unseen words {result:.2%} are among the ten best guesses")
