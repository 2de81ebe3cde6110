"""Two models that answer requests: where texts are in a picture, and what they say.

    pip install 'gpufleet[examples]'
    gpuctl serve texts:Finder --predict --gpu-share 0.25
    gpuctl serve texts:Reader --predict --gpu-share 0.25
    python search_pictures.py "who waits in line" ../images/page-*.png

Both networks (PP-OCRv6, small) come with the package rapidocr. An item of the Finder is the content of a picture's
file, its answer a list of texts, line by line, each as its four corners [x, y] in pixels, from the upper left one on
clockwise. An item of the Reader is a file with one such text cut out, its answer what it says and how sure that is.
"""

import io
from importlib.metadata import distribution
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from gpufleet.onnx import OnnxSession, session
from gpufleet.predict import TensorSpec

PIXELS_MAX = 50_000_000
SIDE_MAX = 1280
"""A larger picture is looked at in this size."""

TEXTS_MAX = 1_000
TEXT_MIN, BOX_MIN = 0.3, 0.5
"""How sure a pixel is of a text, and the pixels of a box together."""

MARGIN = 1.6
"""What is found is the middle of a text; its box is wider at each side by so much of its area over its girth."""

HEIGHT, WIDTH_STEP, WIDTH_MAX = 48, 160, 1920
"""Of a text that is read, in pixels; it is filled up to whole steps, so that texts of about one length are alike."""


def network(name: str, device: str) -> OnnxSession:
    """One of the networks in rapidocr's package, on the best that `device` has."""
    folder = Path(str(distribution("rapidocr").locate_file("rapidocr/models")))
    return session(next(folder.glob(f"*_{name}_*.onnx")), device)


def opened(file: bytes) -> Image.Image | ValueError:
    """The picture in a file, or what is wrong with it."""
    try:
        with Image.open(io.BytesIO(file)) as picture:
            if picture.width * picture.height > PIXELS_MAX:
                return ValueError(f"the picture has more than {PIXELS_MAX:,} pixels")
            return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return ValueError("this is no picture that can be read")


def as_input(picture: Image.Image, width: int, height: int) -> np.ndarray:
    """What the networks take: blue, green and red, -1 to 1, float32 of the shape (3, height, width)."""
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    return pixels[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1


def computed(net: OnnxSession, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What the network makes of each; those of one shape are computed together."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, each in enumerate(inputs):
        alike.setdefault(each.shape, []).append(number)
    found = {}
    for numbers in alike.values():
        (values,) = net.run({"x": np.stack([inputs[number] for number in numbers])}).values()
        found.update(zip(numbers, values, strict=True))
    return [found[number] for number in range(len(inputs))]


def answered(items, answer):
    """What `answer` says of the pictures among the items, and what is wrong with the others, in their order."""
    pictures = [opened(item) for item in items]
    answers = iter(answer([each for each in pictures if isinstance(each, Image.Image)]))
    return [next(answers) if isinstance(each, Image.Image) else each for each in pictures]


def corners_in(sure: np.ndarray, scale: np.ndarray) -> list[list[list[float]]]:
    """The texts on a map of how sure each pixel is of a text; `scale` makes its places those of the picture."""
    found = []
    outlines, _ = cv2.findContours((sure > TEXT_MIN).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    for outline in outlines[:TEXTS_MAX]:
        middle, (width, height), turned = cv2.minAreaRect(outline)
        left, top, across, down = cv2.boundingRect(outline)
        inside = cv2.drawContours(np.zeros((down, across), np.uint8), [outline - (left, top)], -1, 1, -1)
        if min(width, height) < 3 or sure[top : top + down, left : left + across][inside > 0].mean() < BOX_MIN:
            continue
        margin = MARGIN * width * height / (width + height)
        box = cv2.boxPoints((middle, (width + margin, height + margin), turned)) * scale
        first = int(box.sum(1).argmin())  # OpenCV goes clockwise, too
        found.append(np.roll(box, -first, 0).round(1).tolist())
    # A text is in the line of the one before if it begins above the middle of that.
    lines: list[list[list[list[float]]]] = []
    for corners in sorted(found, key=lambda corners: corners[0][1]):
        if lines and corners[0][1] < (lines[-1][0][0][1] + lines[-1][0][3][1]) / 2:
            lines[-1].append(corners)
        else:
            lines.append([corners])
    return [corners for line in lines for corners in sorted(line)]


class Finder:
    """Where texts are."""

    inputs = (TensorSpec("file", "BYTES"),)
    outputs = (TensorSpec("texts", "JSON"),)
    max_batch = 8

    def load(self, device: str) -> None:
        """Load the network."""
        self.net = network("det", device)

    def predict(self, items):
        """The texts of each file; one that is no picture gets an error of its own."""
        return answered(items, self.found)

    def found(self, pictures):
        """The texts of each picture."""
        sizes = [np.array(each.size) for each in pictures]
        smaller = [np.maximum(1, np.ceil(size * min(1, SIDE_MAX / size.max()) / 32)).astype(int) * 32 for size in sizes]
        maps = computed(self.net, [as_input(*each) for each in zip(pictures, *np.transpose(smaller), strict=True)])
        return [corners_in(each[0], size / seen) for each, size, seen in zip(maps, sizes, smaller, strict=True)]


class Reader:
    """What a text says that was cut out of a picture."""

    inputs = (TensorSpec("file", "BYTES"),)
    outputs = (TensorSpec("text", "BYTES"), TensorSpec("sure", "FP32"))
    max_batch = 16

    def load(self, device: str) -> None:
        """Load the network, and the letters that it knows."""
        self.net = network("rec", device)
        known = self.net.raw.get_modelmeta().custom_metadata_map["character"].split("\n")
        self.letters = np.array(["", *known, " "])

    def predict(self, items):
        """The text of each file; one that is no picture gets an error of its own."""
        return answered(items, self.read)

    def read(self, pictures):
        """What each picture says."""
        inputs = []
        for picture in pictures:
            width = min(WIDTH_MAX, max(1, round(picture.width * HEIGHT / picture.height)))
            seen = as_input(picture, width, HEIGHT)
            inputs.append(np.pad(seen, ((0, 0), (0, 0), (0, -width % WIDTH_STEP))))
        return [self.text(each) for each in computed(self.net, inputs)]

    def text(self, shares):
        """Of the shares of each letter at each place: the likeliest ones, of which several in a row are one."""
        best = shares.argmax(1)
        is_letter = (best > 0) & (best != np.roll(best, 1))
        is_letter[0] = best[0] > 0
        sure = shares.max(1)[is_letter]
        return {"text": "".join(self.letters[best[is_letter]]), "sure": sure.mean() if len(sure) else 0.0}
