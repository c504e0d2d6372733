"""English that ships with Python: its language reference, as `help()` shows it."""

import re
from pydoc_data.topics import topics

import numpy as np


def characters():
    """(text as numbers, the alphabet): every character of the reference."""
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(text))
    codes = {character: number for number, character in enumerate(alphabet)}
    return np.array([codes[character] for character in text], np.int32), alphabet


def words(size):
    """(text as numbers, the vocabulary): its words, the rarer ones as number 0."""
    found = re.findall(r"[a-z]+", "\n".join(topics[name] for name in sorted(topics)).lower())
    names, counts = np.unique(found, return_counts=True)
    vocabulary = ["?", *names[np.argsort(-counts, kind="stable")][: size - 1]]
    codes = {word: number for number, word in enumerate(vocabulary)}
    return np.array([codes.get(word, 0) for word in found], np.int32), vocabulary
