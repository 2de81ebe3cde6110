"""A model that answers requests: a small network that reads a digit in a picture of 16 by 16 pixels. It needs torch.

    gpuctl serve digits:Digits --predict --gpus 1

It learns when it is loaded, in seconds, from pictures that it draws itself: its digits are those of a small display,
moved, in noise. docs/predict.md asks it.
"""

import torch
from torch import nn

from gpufleet.predict import TensorSpec

SIZE = 16
FONT = """
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""
DIGITS = torch.tensor([[[dot == "#" for dot in line] for line in FONT.split()[digit::10]] for digit in range(10)])
"""7 rows of 5 dots each."""


def drawn(digit: int, left: int = 5, top: int = 4) -> torch.Tensor:
    """A digit in white on black: float32 of the shape (16, 16), 0 to 1."""
    picture = torch.zeros(SIZE, SIZE)
    picture[top : top + 7, left : left + 5] = DIGITS[digit]
    return picture


def examples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many pictures, and the digits that they show."""
    chance = torch.Generator().manual_seed(seed)
    digits = torch.randint(10, (count,), generator=chance)
    places = torch.randint(2, 8, (count, 2), generator=chance)
    pictures = [drawn(int(digit), int(left), int(top)) for digit, (left, top) in zip(digits, places, strict=True)]
    return torch.stack(pictures) + 0.2 * torch.randn(count, SIZE, SIZE, generator=chance), digits


class Digits:
    """What digit a picture shows, and how sure that is."""

    inputs = (TensorSpec("picture", "FP32", (SIZE, SIZE)),)
    outputs = (TensorSpec("digit", "INT64"), TensorSpec("sure", "FP32"))

    def load(self, device: str, steps: int = 150) -> None:
        """Learn, `steps` times from 64 pictures."""
        self.device = device
        torch.manual_seed(0)
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
        ).to(device)
        optimizer = torch.optim.Adam(self.network.parameters(), 4e-3)
        for step in range(steps):
            pictures, digits = examples(64, seed=step)
            loss = nn.functional.cross_entropy(self.network(pictures[:, None].to(device)), digits.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.network.eval()

    @torch.inference_mode()
    def predict(self, items):
        """Each picture's digit; one of other numbers than pictures have is refused."""
        pictures = torch.stack([torch.tensor(item) for item in items])
        sure, digits = self.network(pictures[:, None].to(self.device)).softmax(1).max(1)
        found = zip(pictures, digits.tolist(), sure.tolist(), strict=True)
        return [
            {"digit": digit, "sure": share} if picture.isfinite().all() else ValueError("holds no finite numbers")
            for picture, digit, share in found
        ]


if __name__ == "__main__":  # a request for the digit 7, as docs/predict.md asks it
    import json

    tensor = {"name": "picture", "datatype": "FP32", "shape": [1, SIZE, SIZE], "data": drawn(7).flatten().tolist()}
    print(json.dumps({"inputs": [tensor]}))
