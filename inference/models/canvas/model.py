"""The canvas model: what a session holds, and how inputs and the network make a frame of it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpufleet.model import LEFT, Inputs, Key, Pointer, Progress, Session, Text, Wheel

from .marks import LETTER, Grid, Mark
from .network import CHANNELS, INK, Network, ink_of, picture

STEPS_GPU, STEPS_CPU = 32, 2
STEPS_MAX = 4_096
SIDE_MIN, SIDE_MAX = 32, 4_096
RATE = 30.0
COLOUR_A_WIDTH = 0.35
"""How far along the pigments a stroke as long as the picture is high goes."""

LETTERS_A_STEP_MAX = 64
"""Of a long text so many are written with each step; the rest waits in the session."""

LETTERS_WAITING_MAX = 2_000
MARGIN = 0.04


@dataclass(slots=True)
class Sheet:
    """One session. `water` is (CHANNELS, height, width) on the device; points are 0 to 1."""

    water: Tensor
    pointer: tuple[float, float] | None = None
    buttons: int = 0
    colour: float = 0.0
    cursor: tuple[float, float] | None = None
    letters: str = ""


class Canvas:
    """Ink in water.

    `width` and `height` of the frames in pixels; `steps` of the network for each frame (0: 32 on a GPU, 2 on a CPU);
    `recurrent` off makes each frame from the last frame alone, without the water's motion; `rate` in frames a second,
    0 for frames on input only; `scale` pixels of the frame for one point of the state (0: 1 on a GPU, 2 on a CPU).
    """

    title = "Canvas"
    about = "Ink in water: what you draw spreads and mixes, and a network on the GPU computes every frame of it."
    controls = "Draw with the pointer, turn the wheel for another colour, type to write, Escape for an empty sheet."
    picture = "picture.jpg"

    def __init__(
        self,
        *,
        device: str = "cpu",
        width: int = 512,
        height: int = 384,
        steps: int = 0,
        recurrent: bool = True,
        rate: float = RATE,
        scale: int = 0,
        seats: int = 4,
        progress: Progress = lambda share, words: None,
    ) -> None:
        is_cpu = device == "cpu"
        if is_cpu:
            _spare_the_cpu()
        steps, scale = steps or (STEPS_CPU if is_cpu else STEPS_GPU), scale or (2 if is_cpu else 1)
        if not (SIDE_MIN <= width <= SIDE_MAX and SIDE_MIN <= height <= SIDE_MAX):
            raise ValueError(f"{width}×{height}: both sides are {SIDE_MIN} to {SIDE_MAX} pixels")
        if not (1 <= steps <= STEPS_MAX and 1 <= scale <= SIDE_MIN // 4):
            raise ValueError(
                f"steps={steps}, scale={scale}: 1 to {STEPS_MAX} steps, and a scale of 1 to {SIDE_MIN // 4}"
            )
        self.width, self.height, self.seats, self.ticks_per_second = width, height, seats, rate
        self.is_recurrent, self.device = recurrent, device
        progress(0.2, f"making the network on {device}")
        self.grid = Grid(height // scale, width // scale, device)
        self.network = Network(steps).to(device)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compute a frame of one session and of all together, so that the first person waits for no kernel."""
        for count in {1, self.seats}:
            self._frames([self.open(Session(id="warm-up")) for _ in range(count)])

    @torch.inference_mode()
    def open(self, session: Session) -> Sheet:
        """An empty sheet."""
        return Sheet(torch.zeros(CHANNELS, self.grid.height, self.grid.width, device=self.device))

    def step(self, state: Sheet, inputs: Inputs) -> Tensor:
        """One frame."""
        return self.step_many([state], [inputs])[0]

    @torch.inference_mode()
    def step_many(self, states: Sequence[Sheet], inputs: Sequence[Inputs]) -> list[Tensor]:
        """A frame of each: inputs into the water, the network over all, and what it looks like."""
        for sheet, each in zip(states, inputs, strict=True):
            self._take(sheet, each)
        return self._frames(states)

    def close(self, state: Sheet) -> None:
        """The sheet goes with the last one who holds it."""

    def _frames(self, sheets: Sequence[Sheet]) -> list[Tensor]:
        # A wave of one session must not fill the memory of a batch when the others have gone: hence the clones.
        water = self.network(torch.stack([sheet.water for sheet in sheets]))
        frames = picture(water, (self.height, self.width))
        if not self.is_recurrent:
            inks = ink_of(frames, (self.grid.height, self.grid.width))
            water = torch.zeros_like(water)
            water[:, INK] = inks
        many = len(sheets) > 1
        for number, sheet in enumerate(sheets):
            sheet.water = water[number].clone() if many else water[number]
        return [frame.clone() if many else frame for frame in frames]

    def _take(self, sheet: Sheet, inputs: Inputs) -> None:
        marks: list[Mark] = []
        for event in inputs.events:
            match event:
                case Pointer() if event.buttons & ~sheet.buttons:
                    # A tap may come from anywhere: nothing is drawn on the way to it.
                    sheet.pointer, sheet.buttons = (event.x, event.y), event.buttons
                    marks.append(self._stamp(sheet, event))
                case Pointer():
                    marks += self._stroke(sheet, event)
                    sheet.buttons = event.buttons
                case Wheel():
                    sheet.colour += event.delta_y / 500
                case Text():
                    sheet.letters = (sheet.letters + event.text)[:LETTERS_WAITING_MAX]
                case Key() if event.is_down:
                    self._press(sheet, event.key)
                case _:
                    pass
        if inputs.pointer is not None:
            marks += self._stroke(sheet, inputs.pointer)
        sheet.water = self.grid.add(sheet.water, marks)
        self._write(sheet)

    def _stroke(self, sheet: Sheet, to: Pointer) -> list[Mark]:
        """From where the pointer was to where it is; a button down draws, none stirs."""
        before, sheet.pointer = sheet.pointer, (to.x, to.y)
        if before is None or before == sheet.pointer:
            return []
        dx, dy = (to.x - before[0]) * self.grid.aspect, to.y - before[1]
        length = math.hypot(dx, dy)
        sheet.colour += COLOUR_A_WIDTH * length
        is_drawing = bool(sheet.buttons)
        # Water goes with the pointer; how far it moved in one step is how fast it is.
        speed = min(1.0, 8.0 * length) * 1.6 / (length + 1e-6)
        return [
            Mark(
                before,
                sheet.pointer,
                size=1.0 if is_drawing else 1.4,
                amount=0.9 if is_drawing else 0.22,
                colour=sheet.colour,
                push=(dx * speed, dy * speed),
            )
        ]

    def _stamp(self, sheet: Sheet, at: Pointer) -> Mark:
        """A drop that falls in: ink, and a ring of waves. Another button takes the next pigment."""
        sheet.colour = math.floor(sheet.colour) + 1.0
        sheet.cursor = None
        is_left = bool(at.buttons & LEFT)
        here = (at.x, at.y)
        return Mark(here, here, size=3.0 if is_left else 5.0, amount=0.8, colour=sheet.colour, press=2.5)

    def _press(self, sheet: Sheet, key: str) -> None:
        # What a key writes comes as text.
        if key == "Enter":
            sheet.letters = (sheet.letters + "\n")[:LETTERS_WAITING_MAX]
        elif key == "Escape":
            sheet.water = torch.zeros_like(sheet.water)

    def _write(self, sheet: Sheet) -> None:
        """Letters begin where the pointer is, and go on from there until the next click."""
        now, sheet.letters = sheet.letters[:LETTERS_A_STEP_MAX], sheet.letters[LETTERS_A_STEP_MAX:]
        for letter in now:
            x, y = sheet.cursor or sheet.pointer or (MARGIN, MARGIN)
            if letter == "\n" or x > 1 - MARGIN - LETTER / 2:
                x, y = MARGIN, y + LETTER
            if y > 1 - LETTER:
                y = MARGIN
            advance = 0.0
            if letter.isprintable():
                sheet.water, advance = self.grid.write(sheet.water, letter, (x, y), sheet.colour)
            sheet.cursor = (x + advance, y)


def _spare_the_cpu() -> None:
    """Water that comes to rest is made of ever smaller numbers, which CPUs compute many times slower: they count as 0.

    And half of the cores are left to what encodes and sends: threads that wait for each other lose more than they win.
    """
    torch.set_flush_denormal(True)
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
