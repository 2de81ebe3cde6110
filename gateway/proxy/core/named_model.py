"""The name in a request's body that says which program it is for: its field `model`, as in OpenAI's API.

Of a JSON object nothing but its own fields is looked at: what lies within their values is skipped without being built,
so that a body that means ill costs no more memory than it is long. What is wrong in there is the program's to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

FIELD = "model"

PARTS_MAX = 1_000
"""Parts of a form that are looked through."""

STEPS_MAX = 1_000_000
"""Fields, texts and brackets of an object that are looked through, in about a second."""

_FIELD = b'"model"'
_SPACE = re.compile(rb"[ \t\r\n]*+")
_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY = re.compile(_TEXT, re.DOTALL)
_PLAIN = re.compile(rb"[-+.0-9A-Za-z]++")
_NESTED = re.compile(rb'[^"\[\]{}]++|' + _TEXT + rb"|([\[{])|[\]}]", re.DOTALL)
_BOUNDARY = re.compile(r';\s*boundary\s*=\s*(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:\s*form-data\s*(;[^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_PART_NAME = re.compile(rb';\s*name\s*=\s*(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)


class NoName(ValueError):
    """A body that names no model. `code` is a stable word for what is wrong with it."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


def is_json(media_type: str) -> bool:
    """Whether a Content-Type without its parameters is one of JSON."""
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def is_form(media_type: str) -> bool:
    """Whether a Content-Type without its parameters is that of a form with files."""
    return media_type == "multipart/form-data"


def named_in(body: bytes, content_type: str) -> str:
    """The model that a body names. Raises NoName.

    A name that is said twice is refused: the program might take the other one.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    found = list(_of_form(body, content_type) if is_form(media_type) else _of_json(body))
    if not found:
        raise NoName("model_missing", f"the request names no model: its field {FIELD!r} is missing")
    if len(found) > 1:
        raise NoName("model_ambiguous", f"the field {FIELD!r} stands {len(found)} times in the request")
    name = found[0]
    if not isinstance(name, str):
        raise NoName("model_invalid", f"the field {FIELD!r} must be a text")
    return name


def _of_json(body: bytes) -> Iterator[object]:
    """What the object's fields of this name hold; None for what is no text."""
    at = _after_space(body, 0)
    if body[at : at + 1] != b"{":
        raise _broken("must be a JSON object", at)
    at = _after_space(body, at + 1)
    is_first, steps = True, 0
    while body[at : at + 1] != b"}" or not is_first:
        key = _KEY.match(body, at)
        if key is None:
            raise _broken("is no JSON: a field's name in double quotes is wanted", at)
        at = _after_space(body, key.end())
        if body[at : at + 1] != b":":
            raise _broken("is no JSON: ':' is wanted", at)
        at = _after_space(body, at + 1)
        end, steps = _end_of_value(body, at, steps + 1)
        said = key.group()
        if said == _FIELD or (b"\\" in said and _text_of(said, at) == FIELD):
            value = body[at:end]
            yield _text_of(value, at) if value.startswith(b'"') else None
        at = _after_space(body, end)
        is_first = False
        if body[at : at + 1] == b"}":
            break
        if body[at : at + 1] != b",":
            raise _broken("is no JSON: ',' or '}' is wanted", at)
        at = _after_space(body, at + 1)
    if _after_space(body, at + 1) != len(body):
        raise _broken("is no JSON: something stands behind the object", at + 1)


def _end_of_value(body: bytes, at: int, steps: int) -> tuple[int, int]:
    """Where the value ends that begins here, and how many steps there were until then."""
    if steps > STEPS_MAX:
        raise _too_many()
    first = body[at : at + 1]
    if first not in (b"{", b"["):
        found = (_KEY if first == b'"' else _PLAIN).match(body, at)
        if found is None:
            raise _broken("is no JSON: a value is wanted", at)
        return found.end(), steps
    depth, end = 0, at
    for token in _NESTED.finditer(body, at):
        steps += 1
        if steps > STEPS_MAX:
            raise _too_many()
        if token.start() != end:
            break  # a text without an end
        end = token.end()
        if token.lastindex:
            depth += 1
        elif body[token.start()] in b"]}":
            depth -= 1
            if not depth:
                return end, steps
    raise _broken("is no JSON: it ends within a value", end)


def _after_space(body: bytes, at: int) -> int:
    found = _SPACE.match(body, at)
    assert found is not None
    return found.end()


def _text_of(said: bytes, at: int) -> str:
    try:
        text = json.loads(said)
    except ValueError:  # also what is no UTF-8
        raise _broken("is no JSON: a text in it is none", at) from None
    assert isinstance(text, str)
    return text


def _too_many() -> NoName:
    return NoName("too_many_fields", f"the body has more than {STEPS_MAX:,} fields, texts and brackets")


def _broken(why: str, at: int) -> NoName:
    return NoName("invalid_json", f"the body {why}, at byte {at:,}")


def _of_form(body: bytes, content_type: str) -> Iterator[object]:
    """What the form's fields of this name hold; None for a file."""
    said = _BOUNDARY.search(content_type)
    if said is None:
        raise NoName("invalid_form", "the Content-Type of the form names no boundary")
    boundary = b"--" + (said.group(1) or said.group(2)).encode("latin-1", "replace")
    parts = (b"\r\n" + body).split(b"\r\n" + boundary, PARTS_MAX + 1)[1:]
    if len(parts) > PARTS_MAX:
        raise NoName("invalid_form", f"the form has more than {PARTS_MAX:,} parts")
    if not parts or not parts[-1].startswith(b"--"):
        raise NoName("invalid_form", "the form is cut short, or has another boundary than its Content-Type says")
    for part in parts[:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        disposition = _DISPOSITION.search(head)
        name = _PART_NAME.search(disposition.group(1)) if disposition is not None else None
        if disposition is None or name is None or (name.group(1) or name.group(2)) != FIELD.encode():
            continue
        is_file = b"filename" in disposition.group(1).lower()
        yield None if is_file else value.decode("utf-8", "replace").strip()
