"""Which pictures say something near to a sentence: three served models, asked one after the other.

    pip install 'gpufleet[examples]'
    gpuctl serve texts:Finder --predict --gpu-share 0.25
    gpuctl serve texts:Reader --predict --gpu-share 0.25
    gpuctl serve sentences:Sentences --predict --gpu-share 0.25
    python search_pictures.py "who waits in line" ../images/page-*.png

The first model finds texts, the second one reads what is cut out there, and the third one says which of them mean
what is looked for. Pictures that cannot be read, and texts that are none, cost themselves alone.
"""

import io
import sys
from pathlib import Path

from PIL import Image
from sentences import nearest

from gpufleet.client import InferenceClient

SURE_MIN = 0.8
SHOWN = 5


def cut_out(file: bytes, texts: list[list[list[float]]]) -> list[bytes]:
    """A file for each text, from its four corners, turned upright."""
    cuts = []
    with Image.open(io.BytesIO(file)) as opened:
        picture = opened.convert("RGB")
    for corners in texts:
        (left, top), (right, beside), _, (under, bottom) = corners
        width = max(1, round(((right - left) ** 2 + (beside - top) ** 2) ** 0.5))
        height = max(1, round(((under - left) ** 2 + (bottom - top) ** 2) ** 0.5))
        counter_clockwise = [place for number in (0, 3, 2, 1) for place in corners[number]]
        how = (Image.Transform.QUAD, counter_clockwise, Image.Resampling.BICUBIC)
        cut = io.BytesIO()
        picture.transform((width, height), *how).save(cut, "PNG", compress_level=1)
        cuts.append(cut.getvalue())
    return cuts


def read_pictures(files: list[bytes], finder: InferenceClient, reader: InferenceClient) -> list[list[str] | str]:
    """For each file the texts in it, in their order, or what is wrong with it."""
    found = finder.predict(files)
    pages: list[list[str] | str] = [[] if result.is_ok else result.error.message for result in found]
    cuts = [
        (number, cut)
        for number, (file, result) in enumerate(zip(files, found, strict=True))
        if result.is_ok
        for cut in cut_out(file, result.value)
    ]
    read = reader.predict([cut for _, cut in cuts])
    for (number, _), result in zip(cuts, read, strict=True):
        if result.is_ok and result.value["sure"] >= SURE_MIN:
            pages[number].append(result.value["text"].decode())
    return pages


if __name__ == "__main__":
    wanted, *names = sys.argv[1:]
    with InferenceClient(model="Finder") as finder, InferenceClient(model="Reader") as reader:
        pages = read_pictures([Path(name).read_bytes() for name in names], finder, reader)
    where: dict[str, str] = {}
    for name, page in zip(names, pages, strict=True):
        if isinstance(page, str):
            print(f"{name}: {page}", file=sys.stderr)
        else:
            where.update({text: name for text in page if text not in where})
    with InferenceClient(model="Sentences") as client:
        for nearness, text in nearest(wanted, list(where), client)[:SHOWN]:
            print(f"{nearness:5.2f}  {where[text]}: {text}")
