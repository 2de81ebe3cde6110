"""What an answer says of its tokens, however it comes, and what is not believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.proxy.core import token_counts
from gateway.proxy.core.token_counts import TOKENS_MAX, TokenReader, Tokens

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"


def told(answer: bytes, media_type: str = JSON, coding: str = "", step: int = 0) -> Tokens | None:
    """What is read of an answer that passes in pieces of so many bytes."""
    reader = TokenReader(media_type, coding)
    for at in range(0, len(answer), step or max(1, len(answer))):
        reader.read(answer[at : at + step] if step else answer)
    return reader.tokens()


def usage(prompt: Any = 5, completion: Any = 7) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def events(*said: object) -> bytes:
    return "".join(f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n" for each in said).encode()


@pytest.mark.parametrize("step", [0, 1, 7])
def test_an_answer_and_a_stream_say_it_however_they_are_cut(step: int) -> None:
    found = Tokens(5, 7)
    assert told(json.dumps({"id": 1, **usage(), "choices": []}).encode(), step=step) == found
    chunk = {"choices": [{"delta": {"content": 'a "usage": {"prompt_tokens": 9}\n'}}], "usage": None}
    for end in (["[DONE]"], []):
        assert told(events(chunk, chunk, {"choices": [], **usage()}, *end), EVENTS, step=step) == found
    assert told(events(chunk, {**chunk, **usage(5, 1)}, {**chunk, **usage()}), EVENTS, step=step) == found
    windows = events(chunk, {"choices": [], **usage()}).replace(b"\n", b"\r\n")
    assert told(windows, EVENTS, step=step) == found


def test_other_apis_of_the_same_servers_name_them_otherwise() -> None:
    of_responses = {"usage": {"input_tokens": 5, "output_tokens": 7}}
    assert told(json.dumps(of_responses).encode()) == Tokens(5, 7)
    completed = {"type": "response.completed", "response": of_responses}
    assert told(b"event: response.completed\n" + events(completed), EVENTS) == Tokens(5, 7)
    begun = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    assert told(events(begun, {"type": "message_delta", "usage": {"output_tokens": 7}}), EVENTS) == Tokens(5, 7)
    assert told(b'{"data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}}') == Tokens(5, 0)


@pytest.mark.parametrize("wrong", [-1, TOKENS_MAX + 1, 1.5, "5", True, [5], {"a": 1}, "9" * 5_000])
def test_a_number_that_cannot_be_is_none(wrong: Any) -> None:
    huge = json.dumps(usage(wrong))
    if len(huge) > 5_000:
        huge = huge.replace('"9', "9").replace('9"', "9")  # a number of so many digits
    assert told(huge.encode()) is None
    assert told(f"data: {huge}\n\n".encode(), EVENTS) is None


@pytest.mark.parametrize(
    ("answer", "media_type"),
    [
        (b"", JSON),
        (b'{"usage": ', JSON),
        (b'{"usage": null}', JSON),
        (b'{"usage": {}}', JSON),
        (b'[{"usage": {"prompt_tokens": 1}}]', JSON),
        (b'{"choices": [{"usage": {"prompt_tokens": 1}}]}', JSON),
        (b"[" * 100_000, JSON),
        (b'{"usage": {"prompt_tokens": 1}}', "text/plain"),
        (b'data: {"usage": {"prompt_tokens": 1\n\n', EVENTS),
        (b'event: {"usage": {"prompt_tokens": 1}}\n\n', EVENTS),
        (b'data: {"usage": {"prompt_tokens": 1}}', EVENTS),
        (b"\n" * 100_000, EVENTS),
    ],
)
def test_what_says_nothing_is_not_known(answer: bytes, media_type: str) -> None:
    assert told(answer, media_type) is None
    assert told(answer, media_type, step=max(1, len(answer) // 3)) is None


def test_what_is_compressed_is_not_looked_into() -> None:
    assert told(json.dumps(usage()).encode(), coding="gzip") is None
    assert told(json.dumps(usage()).encode(), coding="identity") == Tokens(5, 7)


def test_of_a_long_answer_the_end_is_read_and_never_more_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "KEPT_BYTES_MAX", 1_000)
    monkeypatch.setattr(token_counts, "TAIL_BYTES", 200)
    long = {"data": ["x" * 5_000]}
    reader = TokenReader(JSON, "")
    for byte in json.dumps({**long, **usage(), "id": "1"}).encode():
        reader.read(bytes([byte]))
        assert len(reader._kept) <= 1_000
    assert reader.tokens() == Tokens(5, 7)
    assert told(json.dumps({**usage(), **long}).encode(), step=50) is None, "it stood before"
    inner = {"data": ["x" * 5_000], "choices": [usage()]}
    assert told(json.dumps(inner).encode(), step=50) is None, "it was of something else"
    line = events({**long, **usage()}, {"choices": [], **usage(1, 2)})
    assert told(line, EVENTS, step=50) == Tokens(1, 2), "a line that is too long is passed over"
    assert told(events({**long, **usage()}), EVENTS, step=50) is None
