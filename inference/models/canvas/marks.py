"""Marks: what inputs put into the water. Strokes and stamps are fields of distances, letters come from a font."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .network import CHANNELS, INK, PRESSURE, VELOCITY

STROKE = 0.011
"""Half the width of a stroke, as a share of the picture's height; a stamp is three times as wide."""

LETTER = 0.11
"""The height of a line of letters, likewise."""

MARKS_AT_ONCE = 32
"""So many marks are computed together: a flood of clicks must not need a flood of memory."""

_PIGMENTS = (
    (1.90, 1.10, 0.25),  # indigo
    (1.70, 0.35, 0.60),  # viridian
    (0.20, 0.65, 1.90),  # ochre
    (0.15, 1.75, 1.70),  # vermilion
    (0.55, 1.90, 0.60),  # magenta
)
"""How much red, green and blue light each takes away."""


def pigment(phase: float) -> tuple[float, float, float]:
    """The ink at a place on the round of pigments; a whole number is a pure one."""
    low = math.floor(phase)
    share = phase - low
    share = share * share * (3 - 2 * share)
    one, other = _PIGMENTS[low % len(_PIGMENTS)], _PIGMENTS[(low + 1) % len(_PIGMENTS)]
    red, green, blue = (a + (b - a) * share for a, b in zip(one, other, strict=True))
    return red, green, blue


@dataclass(frozen=True, slots=True)
class Mark:
    """From one point to another (0 to 1), as wide as `size` strokes; how much ink, of which colour; its push and
    press.
    """

    begin: tuple[float, float]
    end: tuple[float, float]
    size: float
    amount: float
    colour: float
    push: tuple[float, float] = (0.0, 0.0)
    press: float = 0.0


class Grid:
    """Where the points of the state are, on the device; x is in units of the height, too, so that circles are round."""

    def __init__(self, height: int, width: int, device: str) -> None:
        self.height, self.width, self.device = height, width, device
        self.aspect = width / height
        ys = (torch.arange(height, device=device) + 0.5) / height
        xs = (torch.arange(width, device=device) + 0.5) / height
        self.y, self.x = ys[:, None], xs[None, :]

    def add(self, state: Tensor, marks: Sequence[Mark]) -> Tensor:
        """The state, (CHANNELS, height, width), with the marks in it."""
        for first in range(0, len(marks), MARKS_AT_ONCE):
            state = state + self._of(marks[first : first + MARKS_AT_ONCE])
        return state

    def write(self, state: Tensor, letter: str, at: tuple[float, float], colour: float) -> tuple[Tensor, float]:
        """The state with a letter whose upper left corner is at the point, and how far the letter advances, 0 to 1."""
        mask, advance = glyph(letter, max(6, round(LETTER * self.height)))
        top, left = round(at[1] * self.height), round(at[0] * self.width)
        rows, columns = min(mask.shape[0], self.height - top), min(mask.shape[1], self.width - left)
        if rows > 0 and columns > 0 and top >= 0 and left >= 0:
            ink = torch.tensor(pigment(colour), device=self.device)[:, None, None]
            points = torch.from_numpy(mask[:rows, :columns]).to(self.device)
            state = state.clone()
            state[INK, top : top + rows, left : left + columns] += 1.6 * ink * points
        return state, advance / self.width

    def _of(self, marks: Sequence[Mark]) -> Tensor:
        values = [
            [
                *(*each.begin, *each.end, each.size),
                *(each.amount * part for part in pigment(each.colour)),
                *(*each.push, each.press),
            ]
            for each in marks
        ]
        table = torch.tensor(values, dtype=torch.float32).to(self.device)[:, :, None, None]
        x0, y0, x1, y1, size = (
            table[:, 0] * self.aspect,
            table[:, 1],
            table[:, 2] * self.aspect,
            table[:, 3],
            table[:, 4],
        )
        dx, dy = x1 - x0, y1 - y0
        along = ((self.x - x0) * dx + (self.y - y0) * dy) / (dx * dx + dy * dy + 1e-9)
        along = along.clamp(0.0, 1.0)
        squared = (self.x - x0 - along * dx) ** 2 + (self.y - y0 - along * dy) ** 2
        field = torch.exp(-squared / (2 * (size * STROKE) ** 2))
        amounts = torch.zeros(len(marks), CHANNELS, device=self.device)
        amounts[:, INK], amounts[:, VELOCITY] = table[:, 5:8, 0, 0], table[:, 8:10, 0, 0]
        amounts[:, PRESSURE] = table[:, 10, 0, 0]
        return torch.einsum("mc,mhw->chw", amounts, field)


@lru_cache(maxsize=512)
def glyph(letter: str, height: int) -> tuple[np.ndarray, float]:
    """A letter's mask, 0 to 1, (rows, columns), and its advance in points."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=round(0.8 * height))
    advance = font.getlength(letter)
    image = Image.new("L", (max(1, math.ceil(advance) + 2), height))
    ImageDraw.Draw(image).text((0, 0), letter, font=font, fill=255)
    return np.asarray(image, np.float32) / 255.0, float(advance)
