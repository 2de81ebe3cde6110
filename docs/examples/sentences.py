"""A model that answers requests: sentences become vectors, of which those that mean alike lie near. It needs NumPy.

    gpuctl serve sentences:Sentences --predict --model-arg texts=~/notes
    python sentences.py "a GPU is free" "a device is idle" "the page is closed"

It learns what words mean from those that stand beside them, in the .md and .txt files of a folder, in seconds when it
is loaded (positive pointwise mutual information, its first singular vectors, and sentences as sums of rare words). A
large model of yours has the same two methods, and loads its weights instead.
"""

import re
import sys
from pathlib import Path

import numpy as np

from gpufleet.predict import TensorSpec

SIZE = 64
WORDS_MAX = 4_000
BESIDE = 6
COMMON = 1e-3
"""A word with this share of a text weighs half of a rare one."""


def words_of(text: str) -> list[str]:
    """Its words in small letters, without the s of many."""
    words = re.findall(r"[^\W\d_]{2,}", text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words]


def learned(texts: list[str]) -> tuple[dict[str, int], np.ndarray]:
    """The words of the texts with their numbers, and a vector for each, weighed by how rare it is."""
    counts: dict[str, int] = {}
    listed = [words_of(text) for text in texts]
    for word in (word for words in listed for word in words):
        counts[word] = counts.get(word, 0) + 1
    known = sorted((word for word in counts if counts[word] > 1), key=lambda word: (-counts[word], word))[:WORDS_MAX]
    numbers = {word: number for number, word in enumerate(known)}
    beside = np.zeros((len(known), len(known)), np.float32)
    for words in listed:
        line = np.array([numbers[word] for word in words if word in numbers])
        for distance in range(1, BESIDE + 1):
            np.add.at(beside, (line[:-distance], line[distance:]), 1 / distance)
    beside += beside.T
    sums = np.maximum(beside.sum(1), 1e-9)
    smooth = sums**0.75
    expected = sums[:, None] * (smooth / smooth.sum())
    association = np.log(np.maximum(beside / expected, 1))
    # The first singular vectors, by what the matrix makes of chance.
    chance = np.random.default_rng(0).standard_normal((len(known), SIZE + 16), np.float32)
    for _ in range(3):
        chance = np.linalg.qr(association @ chance)[0]
    left, strength, _ = np.linalg.svd(chance.T @ association, full_matrices=False)
    kept = min(SIZE, len(known) // 4)  # the last ones of few words are chance
    vectors = np.zeros((len(known), SIZE), np.float32)
    vectors[:, :kept] = (chance @ left)[:, :kept] * np.sqrt(strength[:kept])
    share = np.array([counts[word] for word in known]) / sum(counts.values())
    return numbers, vectors * (COMMON / (COMMON + share))[:, None]


class Sentences:
    """A vector of length 1 for each sentence: the product of two is 1 where they mean the same."""

    inputs = (TensorSpec("sentence", "BYTES"),)
    outputs = (TensorSpec("vector", "FP32", (SIZE,)),)

    def load(self, texts: str) -> None:
        """Learn from the files of a folder."""
        folder = Path(texts).expanduser()
        files = sorted(file for file in folder.rglob("*") if file.suffix in (".md", ".txt"))
        if not files:
            raise ValueError(f"there is no .md or .txt file in {folder}")
        self.numbers, self.vectors = learned([file.read_text(errors="replace") for file in files])
        self.middle = self.vectors.mean(0)

    def predict(self, items):
        """A vector for each; a sentence of which it knows no word gets an error of its own."""
        return [self.vector(item) for item in items]

    def vector(self, sentence: bytes):
        """The vector of one."""
        known = [self.numbers[word] for word in words_of(sentence.decode(errors="replace")) if word in self.numbers]
        if not known:
            return ValueError("none of its words is in the texts that were learned from")
        summed = self.vectors[known].mean(0) - self.middle
        return (summed / np.linalg.norm(summed)).astype(np.float32)


def nearest(sentences: list[str], client) -> list[tuple[float, str]]:
    """How near the others are to the first sentence, the nearest one first; without those that have no vector."""
    first, *others = client.predict([sentence.encode() for sentence in sentences])
    found = [(result, text) for result, text in zip(others, sentences[1:], strict=True) if result.is_ok]
    return sorted(((float(np.dot(first.unwrap(), result.value)), text) for result, text in found), reverse=True)


if __name__ == "__main__":
    from gpufleet.client import InferenceClient

    with InferenceClient(model="Sentences") as client:
        for nearness, text in nearest(sys.argv[1:], client):
            print(f"{nearness:5.2f}  {text}")
