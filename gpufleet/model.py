"""What a model author implements, and what the model is given. docs/write-a-model.md shows one in 40 lines.

A model is a class; a worker makes one instance of it, on one device, and holds one or several sessions with it. Nothing
has to be inherited and nothing here imports torch: any object with the methods of `InteractiveModel` is a model.

    class Lamp:
        width, height = 512, 384                             # of the frames, in pixels; may be left out

        def __init__(self, *, device: str = "cpu", brightness: int = 200): ...
        def open(self, session: Session) -> State: ...       # a person comes
        def step(self, state: State, inputs: Inputs) -> Frame: ...
        def close(self, state: State) -> None: ...           # the person has gone

**Calls.** All methods are called on one thread, one at a time, the constructor and `warm_up` too. So a model needs no
lock, and a CUDA context belongs to one thread. A call that takes longer than 10 s costs the worker its life, the
loading excepted.

**The constructor** is given, by keyword, each `--model-arg NAME=VALUE`, read as what the parameter is annotated with
(int, float, bool or str); `device`, if it has such a parameter: "cpu" or as torch writes it, "cuda:0"; and
`progress`, if it has such a parameter: a function to call with the share that is loaded, 0 to 1, and a few words.

**A frame** is uint8 of the shape (height, width, 3), red first, the top row first: a NumPy array, a torch tensor on any
device, or anything that NumPy can read. It is encoded on another thread while the next step runs, so a model gives a
new one with each step and does not write to it afterwards. None says that nothing has changed. A frame of another
type or shape ends the session.

**Errors.** Whatever a method raises, running out of memory too, ends that session with the reason MODEL_FAILED and
the last line of its traceback; the worker and its other sessions go on. What the constructor or `warm_up` raises ends
the worker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from .sessions.inputs import KEY_CHARS_MAX

State = TypeVar("State")

Frame: TypeAlias = Any
"""uint8 of the shape (height, width, 3): a NumPy array, a torch tensor on any device; or None for no change."""

Progress: TypeAlias = Callable[[float, str], None]
"""Tells how far the loading is: the share, 0 to 1, and a few words for people."""

LEFT, RIGHT, MIDDLE = 1, 2, 4
"""Bits of `Pointer.buttons`."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where the pointer is, or, among `Inputs.events`, a button that went down or up there.

    `x` runs from 0 at the left edge to 1 at the right, `y` from 0 at the top to 1 at the bottom. `buttons` are those
    that are down, a mask of LEFT, RIGHT and MIDDLE. `sequence` is the input's number in its stream.
    """

    x: float
    y: float
    buttons: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Key:
    """A key that went down or up; `key` as in the web's KeyboardEvent.key: "a", "A", "Enter", "ArrowLeft".

    Keys that are down when a person's connection is lost come up by themselves, and so do buttons.
    """

    key: str
    is_down: bool
    is_repeat: bool = False
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Text:
    """Text that was typed, entered or pasted, 1,000 characters at most.

    A key that writes something comes as a `Key` that goes down, then as `Text`: read whichever of the two is meant.
    """

    text: str
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """The room that the client has for the picture: `width` and `height` in pixels of its screen.

    `density` is how many of them are one of the page, such as 2 on a phone. All are 0 where they are unsaid.
    """

    width: int = 0
    height: int = 0
    density: float = 0.0


@dataclass(frozen=True, slots=True)
class Wheel:
    """A turn of the wheel, in pixels; `delta_y` is positive downwards. `x` and `y` as of a Pointer."""

    delta_x: float
    delta_y: float
    x: float = 0.0
    y: float = 0.0
    sequence: int = 0


Event: TypeAlias = Pointer | Key | Text | Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What one step is given.

    `events` are all buttons, keys, texts and turns of the wheel since the step before, in their order; none is ever
    left out. `pointer` is the newest position, None until there was one; moves in between are left out. `elapsed_s`
    are the seconds since the session's step before, 0 at its first. `coalesced` is how many moves gave way. `newest`
    is the number of the newest input that is in here or was in an earlier step.

    The same read in other ways: `typed` is the text, `keys` what was pressed and released, `held` the keys that are
    down behind all of it. `path` are the positions of the pointer since the step before, in their order, buttons among
    them: the newest 1,024. `size` is the room that the client has for the picture, as it is now.
    """

    events: tuple[Event, ...] = ()
    pointer: Pointer | None = None
    elapsed_s: float = 0.0
    coalesced: int = 0
    newest: int = 0
    held: frozenset[str] = frozenset()
    path: tuple[Pointer, ...] = ()
    size: Size = Size()

    @property
    def typed(self) -> str:
        """The text since the step before, in one piece."""
        return "".join(event.text for event in self.events if isinstance(event, Text))

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys that went down or up since the step before."""
        return tuple(event for event in self.events if isinstance(event, Key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Who comes: an id that names the session in logs, and the size that the client shows at most, 0 where it is
    unsaid. `density` is how many pixels of the screen are one of the page. `Inputs.size` tells what becomes of these.
    """

    id: str
    width: int = 0
    height: int = 0
    density: float = 0.0


@runtime_checkable
class InteractiveModel(Protocol[State]):
    """What every model has.

    What else it may have, as an attribute or a method (`Traits` reads them):

    * `ticks_per_second` (float, default 0): how often `step` is called without inputs. With 0 the model runs on input
      only, and once when a session opens.
    * `seats` (int, default 1): how many sessions one worker holds at once.
    * `takes_one_input` (bool, default False): a step is given one of `events` at most, and is called again for the
      next.
    * `width`, `height` (int): the size of its frames in pixels, told to clients before the first one.
    * `title`, `about`, `controls` (str): its name for people, what it is, and how it is used, for the page; 80, 400 and
      300 characters at most.
    * `keys` (list of str): keys that it is played with, as in `Key.key`, 24 at most: a phone shows a button for each.
    * `picture` (str): a file beside its module that shows what it does: JPEG, PNG or WebP of 200,000 bytes at most.
    * `warm_up()`: called once after the constructor; the worker is ready when it returns.
    * `step_many(states, inputs) -> frames`: steps several sessions together; lists of equal length, in one order.
      When it raises, every session of that step is stepped alone with the same inputs, to find the one at fault.
    """

    def open(self, session: Session) -> State:
        """A new session's state; it may live on the device. It is dropped after `close`."""
        ...

    def step(self, state: State, inputs: Inputs) -> Frame:
        """Take the inputs into the state, and give the picture as it is now."""
        ...

    def close(self, state: State) -> None:
        """The session has ended; free what the garbage collector does not."""
        ...


@runtime_checkable
class StepsTogether(Protocol):
    """A model that steps several sessions at once."""

    def step_many(self, states: Sequence[Any], inputs: Sequence[Inputs]) -> Sequence[Frame]:
        """One frame for each state, in the same order."""
        ...


TEXTS = {"title": 80, "about": 400, "controls": 300}
"""What a model says of itself in words, and the most characters of each."""

KEYS_MAX = 24
PICTURE_BYTES_MAX = 200_000
TICKS_PER_SECOND_MAX = 10_000.0
SEATS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What people are shown of a model before they try it; empty where it says nothing."""

    title: str = ""
    about: str = ""
    controls: str = ""
    keys: tuple[str, ...] = ()
    picture: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a model says of itself, checked."""

    card: Card = Card()

    ticks_per_second: float = 0.0
    seats: int = 1
    takes_one_input: bool = False
    width: int = 0
    height: int = 0
    steps_together: bool = False


def traits_of(model: object) -> Traits:
    """Read what a model says of itself. Raises TypeError that names what is missing or has a wrong value."""
    for name in ("open", "step", "close"):
        if not callable(getattr(model, name, None)):
            raise TypeError(f"{type(model).__name__} has no method {name}: see gpufleet/model.py")
    ticks = _number(model, "ticks_per_second", 0.0, 0.0, TICKS_PER_SECOND_MAX)
    return Traits(
        card=_card_of(model),
        ticks_per_second=ticks,
        seats=int(_number(model, "seats", 1, 1, SEATS_MAX)),
        takes_one_input=bool(getattr(model, "takes_one_input", False)),
        width=int(_number(model, "width", 0, 0, 65_535)),
        height=int(_number(model, "height", 0, 0, 65_535)),
        steps_together=isinstance(model, StepsTogether),
    )


def _number(model: object, name: str, default: float, low: float, high: float) -> float:
    value = getattr(model, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise TypeError(f"{type(model).__name__}.{name} is {value!r}, and should be a number from {low:g} to {high:g}")
    return float(value)


def _card_of(model: object) -> Card:
    texts = {name: _text(model, name, most) for name, most in TEXTS.items()}
    keys = getattr(model, "keys", ())
    if callable(keys):
        keys = ()  # a method of its own
    fits = isinstance(keys, list | tuple) and len(keys) <= KEYS_MAX
    if not fits or not all(isinstance(key, str) and 1 <= len(key) <= KEY_CHARS_MAX for key in keys):
        raise TypeError(f"{type(model).__name__}.keys should be a list of at most {KEYS_MAX} keys such as 'ArrowLeft'")
    return Card(keys=tuple(keys), picture=_picture_of(model), **texts)


def _text(model: object, name: str, most: int) -> str:
    value = getattr(model, name, "")
    if callable(value):
        return ""
    if not isinstance(value, str) or len(value) > most:
        raise TypeError(f"{type(model).__name__}.{name} should be a text of at most {most} characters")
    return " ".join(value.split())


def _picture_of(model: object) -> bytes:
    name = getattr(model, "picture", "")
    if not name or callable(name):
        return b""
    if not isinstance(name, str):
        raise TypeError(f"{type(model).__name__}.picture should be the name of a file")
    module = sys.modules.get(type(model).__module__)
    data = (Path(getattr(module, "__file__", None) or ".").parent / name).read_bytes()
    if len(data) > PICTURE_BYTES_MAX or media_type_of(data) is None:
        raise TypeError(
            f"{type(model).__name__}.picture should be a JPEG, PNG or WebP of at most {PICTURE_BYTES_MAX:,} bytes"
        )
    return data


def media_type_of(picture: bytes) -> str | None:
    """What kind of picture these bytes are, by how they begin; None for another one."""
    if picture.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if picture.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    return "image/webp" if picture[:4] == b"RIFF" and picture[8:12] == b"WEBP" else None
