"""An answer of a replica as it is read: what h11 has of it, or nothing."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.proxy import answer as answer_module
from gateway.proxy.answer import Answer, NotHttp

Read = tuple[int, list[tuple[bytes, bytes]], bytes]


def read(data: bytes, step: int = 1_000_000, *, is_to_head: bool = False) -> Read:
    """The whole answer of a replica that says this, so many bytes at a time, and closes. Raises NotHttp."""
    answer = Answer(is_to_head=is_to_head)
    for at in range(0, len(data), step):
        answer.read(data[at : at + step])
    answer.end()
    assert answer.headers is not None and answer.is_whole
    return answer.status, answer.headers, answer.take()


def by_h11(data: bytes, *, is_to_head: bool = False) -> Read:
    """The same by h11. Raises h11.RemoteProtocolError."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="HEAD" if is_to_head else "GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    status, headers, body = 0, [], b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError(str(event))
    return status, headers, body


ODD = {
    "another protocol": b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a third one": b"ICE/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a later version": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a line before": b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a status of nothing": b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",
    "a coding beside chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nabc",
    "chunks twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a size that is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n",
    "a size beyond all": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\r\n0\r\n\r\n",
    "a chunk that goes on": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length with a sign": b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
    "a CR alone": b"HTTP/1.1 200 OK\r\nA: 1\rB: 2\r\nContent-Length: 0\r\n\r\n",
    "a NUL": b"HTTP/1.1 200 OK\r\nA: 1\0\r\nContent-Length: 0\r\n\r\n",
    "a space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
    "a body that is too short": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
    "chunks without an end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("step", [1_000_000, 1])
def test_an_answer_that_is_odd_is_refused(data: bytes, step: int) -> None:
    with pytest.raises(NotHttp):
        read(data, step)


HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
ENDLESS = {
    "hints": HINTS * 4_000,
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 20_000,
    "one trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"b" * 100_000,
    "words beside a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"b" * 100_000,
    "a head": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
}


@pytest.mark.parametrize("data", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_is_no_body_has_a_bound(data: bytes) -> None:
    assert len(data) > answer_module.HEAD_BYTES_MAX
    with pytest.raises(NotHttp, match="are no body"):
        read(data, 1_000)


@pytest.mark.parametrize(
    "more", [b"HTTP/1.1 200 OK\r\n\r\n", b"x", b"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]
)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_connection_that_says_more_than_was_asked_takes_no_other_request(more: bytes, is_at_once: bool) -> None:
    answer, said = Answer(is_to_head=False), b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
    answer.read(said + more if is_at_once else said)
    assert answer.is_whole and answer.is_reusable is not is_at_once and answer.take() == b"a"
    if not is_at_once:
        answer.read(more)
        assert not answer.is_reusable


def test_an_answer_to_head_has_no_body_and_one_that_comes_all_the_same_is_nobodys() -> None:
    answer = Answer(is_to_head=True)
    answer.read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
    assert answer.is_whole and answer.is_reusable
    answer.read(b"ab")
    assert answer.take() == b"" and not answer.is_reusable


NAMES = st.sampled_from([b"A", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Trailer"]) | st.binary(
    max_size=4
)
VALUES = st.sampled_from([b"2", b"0", b"chunked", b"close", b"gzip", b"x  "]) | st.binary(max_size=6)
LINES = st.lists(
    st.tuples(
        NAMES, st.sampled_from([b": ", b":", b" :"]), VALUES, st.sampled_from([b"\r\n", b"\r\n", b"\n", b"\r"])
    ).map(b"".join),
    max_size=3,
).map(b"".join)
BODIES = st.sampled_from(
    [b"", b"ab", b"abc", b"2\r\nab\r\n0\r\n\r\n", b"2;x=y\r\nab\r\n0\r\nT: 1\r\n\r\n", b"0\r\n\r\n", b"2\r\nab\r\n"]
) | st.binary(max_size=6)
FIRSTS = st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 404 Not\r\n", b"HTTP/1.1 204 \r\n", b"HTTP/1.1 304\r\n", HINTS]
)


@given(FIRSTS, LINES, BODIES, st.booleans(), st.integers(1, 7))
@example(b"HTTP/1.1 200 OK\r\n", b"Content-Length: 2\r\n", b"ab", False, 3)
def test_what_is_taken_for_an_answer_is_the_same_to_h11(
    first: bytes, lines: bytes, body: bytes, is_to_head: bool, step: int
) -> None:
    data = first + lines + b"\r\n" + body
    try:
        found = read(data, step, is_to_head=is_to_head)
    except NotHttp:
        return
    assert found == by_h11(data, is_to_head=is_to_head)
