"""How a value of the state becomes text in the store, and comes back equal.

A frozen dataclass is a JSON object of its fields. What is left out: a field that equals its default, if that
default is empty (None, False, 0, "", an empty collection). A default that says something (a grace of 30 s) is
always written, so that changing it in the code later never changes what an old payload means. A member of a
union of dataclasses names its class under "$"; an enum is written by its member's name, bytes as base64, a
mapping as an object (as pairs where its keys are not strings), a set in a fixed order. The outermost object
says under "v" in which format it was written.

Changing a stored class: a new field with a default needs nothing. Anything else (another name, another
meaning, a field less) raises FORMAT by one and adds to UPGRADES what an object of that class, written in the
old format, looks like in the new one; it is applied wherever the class occurs. Where the name of a class in a
union changes, the old name's upgrade puts the new name under "$". tests/store/golden pins every format and says
what to do when one has changed.
"""

import json
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..state.specs import Resources
from .decoding import DecodeError, Decoders, Upgrades
from .encoding import Encoders
from .shapes import FORMAT_KEY

FORMAT = 1
"""The format in which payloads are written now."""

UPGRADES: Upgrades = {}
"""(class name, format) → what an object of that class, written in that format, looks like in the next one."""

SHARED = frozenset({Resources})
"""What many stored values have in common: equal ones that are read are one object."""

T = TypeVar("T")


class PayloadTooNew(Exception):
    """A payload was written in a format that only a newer version of this program knows."""


class Codec:
    """Writes and reads the dataclasses of one format and its upgrades. Several threads may share it."""

    def __init__(self, current_format: int = FORMAT, upgrades: Upgrades = UPGRADES) -> None:
        self._format = current_format
        self._encoders = Encoders()
        self._decoders = Decoders(current_format, upgrades, SHARED)
        self._from_json = json.JSONDecoder().decode

    def encode(self, value: object) -> str:
        """The payload of a dataclass value. Errors: NotStorable, EncodeError (mistakes in the code)."""
        members = self._encoders.of_class(type(value))(value)
        begin = f'{{"{FORMAT_KEY}":{self._format}'
        return f"{begin},{members}}}" if members else begin + "}"

    def each_once(self) -> AbstractContextManager[None]:
        """Within it this thread encodes no value twice, such as those of one commit."""
        return self._encoders.each_once()

    def decode(self, cls: type[T], payload: str) -> T:
        """The value of that class in a payload. Errors: DecodeError, PayloadTooNew."""
        try:
            node: Any = self._from_json(payload)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{cls.__name__}: not JSON: {error}") from None
        written_format = node.pop(FORMAT_KEY, None) if type(node) is dict else None
        if type(written_format) is not int or written_format < 1:
            raise DecodeError(f"{cls.__name__}: the payload does not say its format under {FORMAT_KEY!r}")
        if written_format > self._format:
            raise PayloadTooNew(f"{cls.__name__} is of format {written_format}, this program knows {self._format}")
        value: T = self._decoders.of_class(cls, written_format)(node)
        return value
