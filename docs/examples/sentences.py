"""A model that answers requests: sentences become vectors, of which those that mean alike lie near.

    pip install 'gpufleet[examples]'
    gpuctl serve sentences:Sentences --predict
    python sentences.py "a kitten naps on the couch" "the cat sleeps on the sofa" "trains leave the station"

Its weights come with the package wordllama: a vector for each part of a word, taken from large language models and
trained so that the mean of a sentence's parts says what it means. It needs no GPU.
"""

import sys
from pathlib import Path

import numpy as np
import wordllama

from gpufleet.predict import TensorSpec

SIZE = 256
CHARS_MAX = 10_000


class Sentences:
    """A vector of length 1 for each sentence: the product of two is 1 where they mean the same."""

    inputs = (TensorSpec("sentence", "BYTES"),)
    outputs = (TensorSpec("vector", "FP32", (SIZE,)),)

    def load(self) -> None:
        """Load the weights that lie in the package."""
        own = Path(wordllama.__file__).parent
        self.model = wordllama.WordLlama.load(dim=SIZE, cache_dir=own, disable_download=True)

    def predict(self, items):
        """A vector for each; an empty sentence, or one that is too long, gets an error of its own."""
        texts = [item.decode(errors="replace") for item in items]
        fits = [text if text.strip() and len(text) <= CHARS_MAX else "." for text in texts]
        vectors = self.model.embed(fits, norm=True)
        found = zip(vectors, texts, fits, strict=True)
        return [vector if text == fit else self.problem(text) for vector, text, fit in found]

    def problem(self, text: str):
        """What is wrong with one that has no vector."""
        return ValueError(f"it has more than {CHARS_MAX:,} characters" if text.strip() else "the sentence is empty")


def nearest(wanted: str, sentences: list[str], client) -> list[tuple[float, str]]:
    """How near each is to the one that is wanted, the nearest one first; without those that have no vector."""
    first, *others = client.predict([sentence.encode() for sentence in (wanted, *sentences)])
    found = [(result.value, text) for result, text in zip(others, sentences, strict=True) if result.is_ok]
    return sorted(((float(np.dot(first.unwrap(), vector)), text) for vector, text in found), reverse=True)


if __name__ == "__main__":
    from gpufleet.client import InferenceClient

    with InferenceClient(model="Sentences") as client:
        for nearness, text in nearest(sys.argv[1], sys.argv[2:], client):
            print(f"{nearness:5.2f}  {text}")
