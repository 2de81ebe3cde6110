"""The canvas: inputs become marks at their places, the picture goes on by itself, and nothing blows up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpufleet.model import Event, Inputs, Key, Pointer, Session, Text, Wheel

if TYPE_CHECKING:
    from inference.models.canvas.model import Canvas

PAPER = 700
"""The lightest points of an untouched sheet, red, green and blue together."""


def canvas(**arguments: Any) -> Canvas:
    """The model, imported here: it imports torch, for which each process that collects these tests would wait."""
    from inference.models.canvas.model import Canvas

    return Canvas(**{"width": 128, "height": 96, **arguments})


def look(frame: Any) -> np.ndarray:
    seen: np.ndarray = np.asarray(frame.numpy(), int).sum(axis=2)
    return seen


def darkest(frame: Any) -> tuple[float, float]:
    """The place of the darkest point, 0 to 1."""
    seen = look(frame)
    y, x = np.unravel_index(seen.argmin(), seen.shape)
    return float(x / seen.shape[1]), float(y / seen.shape[0])


def test_an_untouched_sheet_is_paper_and_does_not_change() -> None:
    model = canvas()
    sheet = model.open(Session(id="s"))
    first = model.step(sheet, Inputs())
    assert str(first.dtype) == "torch.uint8" and tuple(first.shape) == (96, 128, 3)
    assert look(first).min() >= PAPER
    assert model.step(sheet, Inputs()).equal(first)


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize(("x", "y"), [(0.2, 0.3), (0.75, 0.6)])
def test_a_click_stamps_where_it_is(x: float, y: float, recurrent: bool) -> None:
    model = canvas(recurrent=recurrent)
    sheet = model.open(Session(id="s"))
    frame = model.step(sheet, Inputs(events=(Pointer(x, y, 1),)))
    found = darkest(frame)
    assert abs(found[0] - x) < 0.08 and abs(found[1] - y) < 0.1


def test_a_stroke_follows_the_pointer_and_a_letter_stands_beside_it() -> None:
    model = canvas()
    sheet = model.open(Session(id="s"))
    model.step(sheet, Inputs(events=(Pointer(0.1, 0.5, 1),)))
    frame = model.step(sheet, Inputs(pointer=Pointer(0.9, 0.5, 1)))
    seen = look(frame)
    assert (seen[46:50, 20:110] < PAPER).all() and (seen[:20] >= PAPER - 20).all()
    sheet = model.open(Session(id="t"))
    before = look(model.step(sheet, Inputs(pointer=Pointer(0.1, 0.8))))
    after = look(model.step(sheet, Inputs(events=(Key("W", True), Text("W"), Key("W", False)))))
    changed = np.argwhere(before - after > 40)
    assert len(changed) > 10
    assert changed[:, 0].min() > 60 and changed[:, 1].max() < 40


def test_the_picture_diffuses_by_itself_and_the_state_goes_by_more_than_the_last_frame() -> None:
    pictures = {}
    for recurrent in (True, False):
        model = canvas(recurrent=recurrent)
        sheet = model.open(Session(id="s"))
        first = model.step(sheet, Inputs(events=(Pointer(0.5, 0.5, 1),)))
        for _ in range(10):
            last = model.step(sheet, Inputs())
        assert (look(last) < PAPER).sum() > (look(first) < PAPER).sum(), "it spreads"
        pictures[recurrent] = last
    assert not pictures[True].equal(pictures[False])


def test_sessions_stepped_together_look_as_they_do_alone() -> None:
    model = canvas()
    clicks = [Inputs(events=(Pointer(x, 0.5, 1),)) for x in (0.2, 0.5, 0.8)]
    together = [model.open(Session(id="s")) for _ in clicks]
    alone = [model.open(Session(id="s")) for _ in clicks]
    for inputs in (clicks, [Inputs()] * 3, [Inputs()] * 3):
        frames = model.step_many(together, inputs)
        for frame, sheet, each in zip(frames, alone, inputs, strict=True):
            difference = (frame.int() - model.step(sheet, each).int()).abs()
            assert difference.max() <= 1


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_whatever_is_done_to_it_the_numbers_stay_finite_and_the_water_comes_to_rest(steps: int) -> None:
    model = canvas(width=32, height=32, steps=steps)
    sheet = model.open(Session(id="s"))
    chance = np.random.default_rng(1)
    for number in range(20):
        places = [Pointer(chance.random(), chance.random(), buttons) for buttons in (1, 0, 5, 0) * 10]
        events: tuple[Event, ...] = (
            *places,
            Wheel(0, 1e5),
            Text("ink ☃ \n\t\0" * 30),
            Key("Enter", True),
            Key("Shift", True),
        )
        frame = model.step(sheet, Inputs(events=events if number % 2 else ()))
        assert sheet.water.isfinite().all()
    sheet.letters = ""
    for _ in range(400):
        frame = model.step(sheet, Inputs())
    assert sheet.water[3:].abs().max() < 0.05
    model.step(sheet, Inputs(events=(Key("Escape", True),)))
    assert look(model.step(sheet, Inputs())).min() >= PAPER
    assert frame.shape == (32, 32, 3)


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"width": 8}, {"steps": -1}, {"scale": 99}):
        with pytest.raises(ValueError, match=r"sides|steps"):
            canvas(**wrong)


def test_without_arguments_it_is_512_by_384_with_many_steps_on_a_gpu_and_few_on_a_cpu() -> None:
    from inference.models.canvas.model import STEPS_CPU, STEPS_GPU, Canvas

    model = Canvas()
    frame = model.step(model.open(Session(id="s")), Inputs())
    assert tuple(frame.shape) == (384, 512, 3)
    assert (STEPS_GPU, STEPS_CPU) == (32, 2)
