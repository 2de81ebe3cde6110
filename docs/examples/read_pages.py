"""Reads the digits in pictures of pages with two models that are served: one finds them, the other one reads them.

    python read_pages.py page.png other.jpg

finder.py says how the two are served. All pages are asked for at once, and so are all digits of all of them; a file
that is no picture costs itself alone.
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from gpufleet.client import InferenceClient

SIZE, DIGIT = 16, (5, 7)
"""Of the pictures that digits.py reads, and of a digit in them."""


def cut_out(page: bytes, boxes: list[list[int]]) -> list[np.ndarray]:
    """What is in each box, as digits.py wants it: bright on dark, 0 to 1."""
    with Image.open(io.BytesIO(page)) as picture:
        grey = np.asarray(picture.convert("L"), np.float32)
    grey = (grey - grey.min()) / max(1, grey.max() - grey.min())
    paper = Image.fromarray(1 - grey if grey.mean() > 0.5 else grey)
    crops = []
    for left, top, right, bottom in boxes:
        width = max(1, min(DIGIT[0], round((right - left) * DIGIT[1] / (bottom - top))))
        digit = paper.resize((width, DIGIT[1]), Image.Resampling.BOX, (left, top, right, bottom))
        crop = np.zeros((SIZE, SIZE), np.float32)
        begin = (SIZE - width) // 2
        crop[4 : 4 + DIGIT[1], begin : begin + width] = np.asarray(digit)
        crops.append(crop)
    return crops


def read_pages(pages: list[bytes], finder: InferenceClient, reader: InferenceClient) -> list[str]:
    """The digits of each page in their order, or what is wrong with it."""
    found = finder.predict(pages)
    texts = ["" if result.is_ok else f"not read: {result.error.message}" for result in found]
    crops = [
        (number, crop)
        for number, (page, result) in enumerate(zip(pages, found, strict=True))
        if result.is_ok
        for crop in cut_out(page, result.value)
    ]
    read = reader.predict([crop for _, crop in crops])
    for (number, _), result in zip(crops, read, strict=True):
        texts[number] += str(int(result.value["digit"])) if result.is_ok else "?"
    return texts


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]]
    with InferenceClient(model="finder") as finder, InferenceClient(model="digits") as reader:
        for file, text in zip(files, read_pages([each.read_bytes() for each in files], finder, reader), strict=True):
            print(f"{file}: {text}")
