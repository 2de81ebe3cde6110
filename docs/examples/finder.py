"""A model that answers requests: where the digits are in a picture of a page. It needs torch and Pillow.

    gpuctl serve finder:Finder --predict --name finder
    gpuctl serve digits:Digits --predict --name digits --gpus 1 --model-arg steps=300
    python read_pages.py page.png other.jpg

The first model finds, the second one reads what was found; read_pages.py asks one after the other. An item is the
content of a picture's file, its answer a list of boxes: [left, top, right, bottom] in pixels, line by line.
"""

import io

import torch
from PIL import Image
from torch.nn.functional import max_pool2d

from gpufleet.predict import TensorSpec

PIXELS_MAX = 1_000_000
BOXES_MAX = 1_000
CONTRAST_MIN = 0.2


def boxes_in(page: torch.Tensor) -> list[list[int]]:
    """What is written on a page, in boxes: float32 of the shape (height, width), 0 to 1."""
    if page.max() - page.min() < CONTRAST_MIN:
        return []
    ink = (page > (page.min() + page.max()) / 2).float()[None, None]
    if ink.mean() > 0.5:  # of paper there is more than of ink, whichever is the brighter
        ink = 1 - ink
    # Each pixel begins with a number of its own; the largest one spreads through all ink that touches.
    numbers = torch.arange(1.0, ink.numel() + 1, device=ink.device, dtype=torch.float64).reshape(ink.shape) * ink
    while not torch.equal(spread := max_pool2d(numbers, 3, 1, 1) * ink, numbers):
        numbers = spread
    boxes = []
    for number in numbers.unique()[1 : BOXES_MAX + 1]:
        rows, columns = (numbers[0, 0] == number).nonzero(as_tuple=True)
        boxes.append([int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1])
    lines: list[list[list[int]]] = []
    for box in sorted(boxes, key=lambda box: box[1]):
        if lines and box[1] < lines[-1][0][3]:  # it begins above the foot of the line's first one
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line)]


class Finder:
    """Boxes of what is written in a picture."""

    inputs = (TensorSpec("file", "BYTES"),)
    outputs = (TensorSpec("boxes", "JSON"),)

    def load(self, device: str) -> None:
        """Nothing is learned here; note where to compute."""
        self.device = device

    def predict(self, items):
        """A list of boxes for each file; one that is no picture gets an error of its own."""
        return [self.found(item) for item in items]

    def found(self, file: bytes):
        """The boxes of one file, or what is wrong with it."""
        try:
            with Image.open(io.BytesIO(file)) as picture:
                if picture.width * picture.height > PIXELS_MAX:
                    return ValueError(f"the picture has more than {PIXELS_MAX:,} pixels")
                grey = picture.convert("L")
        except (OSError, SyntaxError, Image.DecompressionBombError):
            return ValueError("this is no picture that can be read")
        page = torch.frombuffer(bytearray(grey.tobytes()), dtype=torch.uint8)
        return boxes_in(page.reshape(grey.height, grey.width).to(self.device) / 255)
