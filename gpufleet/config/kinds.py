"""The kinds of values that settings hold: how each is read from TOML and from text, and written."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gpufleet.errors import GpufleetError, invalid
from gpufleet.net.addresses import Address, addresses_of, addresses_text, parse_addresses
from gpufleet.text.units import exact_duration, exact_size, parse_duration, parse_seconds, parse_size

T = TypeVar("T")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Unreadable(ValueError):
    """A value is of the wrong kind; its text says why, in words that follow the key."""


class Kind(NamedTuple, Generic[T]):
    """Values of one kind: their name, how they are read from TOML and from text, and written as TOML."""

    name: str
    from_toml: Callable[[Any], T]
    from_text: Callable[[str], T]
    to_toml: Callable[[T], str]


def quoted(text: str) -> str:
    """The text as a TOML string."""
    if text.isprintable() and not set(text) & set('"\\'):
        return f'"{text}"'
    import json  # TOML's basic strings have JSON's escapes, except that DEL must be escaped too

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _only(wanted: type, name: str) -> Callable[[Any], Any]:
    def read(raw: Any) -> Any:
        if type(raw) is not wanted:  # isinstance would take true for the number 1
            raise Unreadable(f"{_toml_name(raw)} is not {name}")
        return raw

    return read


def _toml_name(raw: object) -> str:
    names = {str: "a string", bool: "a boolean", int: "a whole number", float: "a number", list: "a list"}
    return names.get(type(raw), "a table" if isinstance(raw, dict) else "a date or time")


def _parsed(parse: Callable[[str], T], name: str) -> Callable[[Any], T]:
    text = _only(str, name)

    def read(raw: Any) -> T:
        try:
            return parse(text(raw))
        except GpufleetError as error:
            raise Unreadable(f"{error.message}. {error.next_step}") from None

    return read


def _kind_of_text(name: str, parse: Callable[[str], T], write: Callable[[T], str], what: str = "") -> Kind[T]:
    """A kind that TOML has as a string; `what` is its name where another kind of value was found."""
    read = _parsed(parse, what or name)
    return Kind(name, read, read, lambda value: quoted(write(value)))


def _number_text(parse: Callable[[str], T], name: str) -> Callable[[str], T]:
    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise Unreadable(f'"{text}" is not {name}') from None

    return read


def _boolean_text(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise Unreadable(f'"{text}" is not true or false')


def _float(raw: Any) -> float:
    if type(raw) not in (int, float):
        raise Unreadable(f"{_toml_name(raw)} is not a number")
    return float(raw)


_WHOLE = "a whole number"
_DURATION = 'a duration such as "30s" or "1h30m"'
_STRING = "a string"
_PATH = "a path"

TEXT: Kind[str] = Kind(_STRING, _only(str, _STRING), str, quoted)
INTEGER: Kind[int] = Kind(_WHOLE, _only(int, _WHOLE), _number_text(int, _WHOLE), str)
NUMBER: Kind[float] = Kind("a number", _float, _number_text(float, "a number"), str)
BOOLEAN: Kind[bool] = Kind(
    "true or false", _only(bool, "true or false"), _boolean_text, lambda value: str(value).lower()
)
DURATION: Kind[timedelta] = _kind_of_text(_DURATION, parse_duration, exact_duration)
_SECONDS = f"{_DURATION}, or a number of seconds"


def _seconds(raw: Any) -> timedelta:
    return _parsed(parse_seconds, _SECONDS)(str(raw) if type(raw) in (int, float) else raw)


SECONDS: Kind[timedelta] = Kind(
    _SECONDS, _seconds, _parsed(parse_seconds, _SECONDS), lambda value: quoted(exact_duration(value))
)
"""A duration of which a number without a unit is seconds."""

SIZE: Kind[int] = _kind_of_text('a size such as "8GB" or "1GiB"', parse_size, exact_size)
PATH: Kind[Path] = Kind(
    _PATH,
    lambda raw: Path(_only(str, _PATH)(raw)).expanduser(),
    lambda text: Path(text).expanduser(),
    lambda path: quoted(str(path)),
)


def _addresses(raw: Any) -> tuple[Address, ...]:
    if isinstance(raw, str):
        return _parsed(parse_addresses, "an address")(raw)
    texts = [_only(str, "an address")(text) for text in _only(list, "a list of addresses")(raw)]
    if not texts:
        raise Unreadable("the list is empty")
    try:
        return addresses_of(texts)
    except GpufleetError as error:
        raise Unreadable(f"{error.message}. {error.next_step}") from None


ADDRESSES: Kind[tuple[Address, ...]] = Kind(
    "a list of HOST:PORT",
    _addresses,
    _addresses,
    lambda value: f"[{', '.join(quoted(str(each)) for each in value)}]",
)
ADDRESS_OR_LIST: Kind[tuple[Address, ...]] = Kind(
    "HOST or HOST:PORT, or a list of them", _addresses, _addresses, lambda value: quoted(addresses_text(value))
)
"""The same, written as one text as it is typed."""


def _http_url(text: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    try:
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_whole = False
    if not is_whole or parts.username is not None or parts.query or parts.fragment:
        raise invalid("URL", f'"{text}" is no address of a web server', next_step="Write it as https://HOST:PORT.")
    return text.rstrip("/")


HTTP_URL: Kind[str] = _kind_of_text("a URL such as https://HOST:PORT", _http_url, str)


def key(name: str) -> str:
    """A key of a TOML table, quoted where it must be."""
    return name if _BARE_KEY.fullmatch(name) else quoted(name)


def table_of(text: str, example: str) -> Any:
    """The table that stands in the text of a flag or variable, as TOML has it; raises Unreadable."""
    import tomllib

    try:
        return tomllib.loads(f"table = {text}")["table"]
    except tomllib.TOMLDecodeError:
        raise Unreadable(f"it is not a table such as {example}") from None


def _strings(raw: Any) -> tuple[str, ...]:
    return tuple(_only(str, _STRING)(each) for each in _only(list, "a list of strings")(raw))


TEXTS: Kind[tuple[str, ...]] = Kind(
    "a list of strings",
    _strings,
    lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
    lambda value: f"[{', '.join(map(quoted, value))}]",
)


def _labels_toml(raw: Any) -> tuple[tuple[str, str], ...]:
    table = _only(dict, 'a table such as { rack = "b2" }')(raw)
    wrong = [key for key, value in table.items() if not isinstance(value, str)]
    if wrong:
        raise Unreadable(f"the value of {wrong[0]} is not a string")
    return tuple(sorted(table.items()))


def _labels_text(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise Unreadable(f'"{text}" is not NAME=VALUE,NAME=VALUE')
    return tuple(sorted((name.strip(), value.strip()) for name, _, value in pairs))


LABELS: Kind[tuple[tuple[str, str], ...]] = Kind(
    "a table of strings",
    _labels_toml,
    _labels_text,
    lambda pairs: f"{{ {', '.join(f'{quoted(k)} = {quoted(v)}' for k, v in pairs)} }}" if pairs else "{}",
)


def one_of(*choices: str) -> Kind[str]:
    """The kind of a string that is one of these words."""
    name = " or ".join(quoted(choice) for choice in choices)

    def read(raw: Any) -> str:
        from gpufleet.text.spelling import did_you_mean

        word: str = _only(str, name)(raw)
        if word not in choices:
            raise Unreadable(f"{quoted(word)} is not {name}{did_you_mean(word, choices)}")
        return word

    return Kind(name, read, read, quoted)


def some_of(*choices: str) -> Kind[tuple[str, ...]]:
    """The kind of a list of these words, each once at most and in this order; it may be empty."""
    each = one_of(*choices)
    name = f"a list of {each.name}"

    def among(words: tuple[str, ...]) -> tuple[str, ...]:
        read = {each.from_toml(word) for word in words}
        return tuple(choice for choice in choices if choice in read)

    def from_toml(raw: Any) -> tuple[str, ...]:
        return among(tuple(_only(list, name)(raw)))

    return Kind(name, from_toml, lambda text: among(TEXTS.from_text(text)), TEXTS.to_toml)
