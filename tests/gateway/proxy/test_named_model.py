"""Which program a body names, and bodies that mean ill."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy.core import named_model
from gateway.proxy.core.named_model import NoName, named_in
from tests.rings.choosing import examples

JSON = "application/json"

VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=examples(40))
@given(st.dictionaries(st.text(), VALUES), st.text(), st.booleans(), st.sampled_from([None, 2]))
def test_what_any_json_names_is_what_a_reader_of_json_finds(
    others: dict[str, object], name: str, is_ascii: bool, indent: int | None
) -> None:
    body = json.dumps({**others, "model": name}, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass")
    assert named_in(body, JSON) == name


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{}", "model_missing"),
        ('{"messages": [{"model": "inner"}], "models": 1}', "model_missing"),
        ('{"a": "\\"model\\": \\"x\\""}', "model_missing"),
        ('{"model": "a", "model": "b"}', "model_ambiguous"),
        ('{"model": "a", "mod\\u0065l": "a"}', "model_ambiguous"),
        ('{"model": 3}', "model_invalid"),
        ('{"model": {"model": "a"}}', "model_invalid"),
        ('{"model": null}', "model_invalid"),
        ("", "invalid_json"),
        ("[]", "invalid_json"),
        ('"model"', "invalid_json"),
        ('{"model": "a"', "invalid_json"),
        ('{"model": "a",}', "invalid_json"),
        ('{"model": "a"} x', "invalid_json"),
        ('{"model": "a" "b": 1}', "invalid_json"),
        ('{"model" "a"}', "invalid_json"),
        ('{"model": }', "invalid_json"),
        ('{"model": "a', "invalid_json"),
        ('{"a": [[[', "invalid_json"),
        ('{"a": ["b]}', "invalid_json"),
        ("{" * 100_000, "invalid_json"),
        ('{"a": ' + "[" * 100_000, "invalid_json"),
        ('{"model": "a\x01"}', "invalid_json"),
    ],
)
def test_a_body_that_names_no_program_says_why(body: str, code: str) -> None:
    with pytest.raises(NoName) as caught:
        named_in(body.encode(), JSON)
    assert caught.value.code == code


@pytest.mark.parametrize("body", ['{"a": [%s 1], "model": "a"}' % ("[]," * 20), "{%s}" % ('"a": 1,' * 20)])
def test_a_body_of_very_many_fields_is_refused_before_it_costs_much(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr(named_model, "STEPS_MAX", 10)
    with pytest.raises(NoName) as caught:
        named_in(body.encode(), JSON)
    assert caught.value.code == "too_many_fields"


def test_what_is_no_utf8_is_said() -> None:
    with pytest.raises(NoName) as caught:
        named_in(b'{"model": "\xff"}', "application/json; charset=utf-8")
    assert caught.value.code == "invalid_json"


def form(*parts: str, boundary: str = "b1") -> bytes:
    return "".join(f"--{boundary}\r\n{part}\r\n" for part in parts).encode() + f"--{boundary}--\r\n".encode()


NAMED = 'Content-Disposition: form-data; name="model"\r\n\r\nwhisper'
FILE = 'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n\0RIFF\r\n--b'


def test_a_form_names_it_in_a_field_before_or_behind_the_file() -> None:
    said = 'multipart/form-data; boundary="b1"'
    assert named_in(form(NAMED, FILE), said) == named_in(form(FILE, NAMED), said) == "whisper"
    assert named_in(form(FILE, NAMED, boundary="--x"), "multipart/form-data; charset=utf-8; boundary=--x") == "whisper"


@pytest.mark.parametrize(
    ("body", "said", "code"),
    [
        (form(FILE), "boundary=b1", "model_missing"),
        (form(NAMED, NAMED), "boundary=b1", "model_ambiguous"),
        (form(NAMED.replace('"model"', '"model"; filename="x"')), "boundary=b1", "model_invalid"),
        (form(NAMED), "", "invalid_form"),
        (form(NAMED), "boundary=b2", "invalid_form"),
        (form(NAMED)[:-4], "boundary=b1", "invalid_form"),
        (form(*["\r\n\r\n"] * 1_001), "boundary=b1", "invalid_form"),
    ],
)
def test_a_form_that_names_no_program_says_why(body: bytes, said: str, code: str) -> None:
    with pytest.raises(NoName) as caught:
        named_in(body, f"multipart/form-data; {said}")
    assert caught.value.code == code
