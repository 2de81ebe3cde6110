"""What is taken for a plain request is read as h11 reads it, and what h11 refuses is never taken for one."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.proxy.core.plain_request import HEAD_BYTES_MAX, plain_request

SEND = b"POST /m/chat/v1?a=%20b HTTP/1.1\r\nHost: gpus:8080\r\nContent-Length: 3\r\nAccept: */* \r\n\r\nabcGET / HTTP"


def by_h11(data: bytes) -> h11.Request | None:
    """The request as h11 has it; None where it refuses, or waits for more."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


def test_a_plain_request_is_read_as_it_stands() -> None:
    found = plain_request(SEND)
    assert found is not None
    assert (found.method, found.path, found.query, found.host) == ("POST", b"/m/chat/v1", b"a=%20b", "gpus:8080")
    assert found.headers == [(b"host", b"gpus:8080"), (b"content-length", b"3"), (b"accept", b"*/*")]
    assert SEND[found.size_bytes :][: found.body_bytes] == b"abc" and not found.is_last


LINES = {
    "a method of one's own": b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute target": b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "no path": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "a fragment": b"GET /#a HTTP/1.1\r\nHost: x\r\n\r\n",
    "an older version": b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
    "a newer one": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    "lines without a CR": b"GET / HTTP/1.1\nHost: x\n\n",
    "an empty line before": b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\nA: x\r\n\r\n",
    "no headers": b"GET / HTTP/1.1\r\n\r\n",
    "a host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost: x\r\nA : 1\r\n\r\n",
    "a name of nothing": b"GET / HTTP/1.1\r\nHost: x\r\n: 1\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\n 2\r\n\r\n",
    "a folded first line": b"GET / HTTP/1.1\r\n Host: x\r\nHost: x\r\n\r\n",
    "a NUL": b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\0\r\n\r\n",
    "a CR alone": b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\rB: 2\r\n\r\n",
    "an LF alone": b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\nB: 2\r\n\r\n",
    "chunks": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks and a length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\ncontent-length: 4\r\n\r\n",
    "the same length twice": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\n",
    "a length with a sign": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n",
    "a length in hexadecimal": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\n",
    "a length of nothing": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n",
    "a length beyond all": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999999999\r\n\r\n",
    "an upgrade": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "an expectation": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
    "headers of the connection": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close, X-A\r\n\r\n",
    "two of those": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nConnection: x\r\n\r\n",
    "a long head": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * HEAD_BYTES_MAX + b"\r\n\r\n",
    "half a head": b"GET / HTTP/1.1\r\nHost: x\r\n",
    "half an end": b"GET / HTTP/1.1\r\nHost: x\r\n\r",
}


@pytest.mark.parametrize("data", LINES.values(), ids=LINES.keys())
def test_what_is_odd_is_not_taken_for_plain(data: bytes) -> None:
    assert plain_request(data) is None


NAMES = st.sampled_from(
    [b"Host", b"hOST", b"Content-Length", b"content-length", b"Transfer-Encoding", b"Connection", b"Expect", b"Upgrade"]
) | st.binary(max_size=6)
VALUES = st.sampled_from([b"x", b"3", b"03", b"3, 3", b"chunked", b"close", b"keep-alive", b" \t", b""]) | st.binary(
    max_size=9
)
COLONS = st.sampled_from([b":", b": ", b" :", b":\t", b""])
ENDS = st.sampled_from([b"\r\n", b"\n", b"\r", b"\r\n "])
PLAIN_LINE = st.sampled_from(
    [
        b"A: 1 2\r\n",
        b"A:\r\n",
        b"b_c:\xe9\t \r\n",
        b"Content-Length: 03\r\n",
        b"Connection: CLOSE\r\n",
        b"Cookie: a\r\n",
    ]
)
LINE = st.tuples(NAMES, COLONS, VALUES, ENDS).map(b"".join) | PLAIN_LINE
FIRST = st.tuples(
    st.sampled_from([b"GET", b"POST", b"get", b"QUERY", b"G\xe9T"]),
    st.sampled_from([b" ", b"  ", b"\t"]),
    st.sampled_from([b"/", b"/m/chat/", b"/?a=1?2", b"http://x/", b"*", b"/a#b", b"//x", b"/\xff", b"/a b"])
    | st.binary(max_size=5),
    st.sampled_from([b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/1.1 \r\n", b" http/1.1\r\n", b" HTTP/1.1\n", b"\r\n"]),
).map(b"".join)
PLAIN_FIRST = st.sampled_from([b"GET /m/a?b=c HTTP/1.1\r\nHost: x\r\n", b"POST /m/a HTTP/1.1\r\nHost: x\r\n"])
ODD = st.tuples(FIRST | PLAIN_FIRST, st.lists(LINE, max_size=3).map(b"".join), st.sampled_from([b"\r\n", b"", b"\n"]))
PLAIN = st.tuples(PLAIN_FIRST, st.lists(PLAIN_LINE, max_size=3).map(b"".join), LINE, st.just(b"\r\n"))


@given(ODD.map(b"".join) | PLAIN.map(b"".join), st.binary(max_size=8))
@example(SEND, b"")
def test_what_is_plain_is_the_same_to_h11(head: bytes, rest: bytes) -> None:
    found = plain_request(head + rest)
    if found is None:
        return
    said = by_h11(head + rest)
    assert said is not None, "h11 refuses it"
    target = found.path + b"?" + found.query if b"?" in said.target else found.path
    assert (found.method.encode(), target, found.headers) == (said.method, said.target, list(said.headers))
    assert said.http_version == b"1.1"
    lengths = [value for name, value in said.headers if name == b"content-length"]
    assert found.body_bytes == int(lengths[0] if lengths else 0)
    assert not any(name == b"transfer-encoding" for name, _ in said.headers)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=3))
def test_a_head_is_plain_however_its_lines_are_written_only_if_h11_takes_it(lines: list[tuple[bytes, bytes]]) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"%b: %b\r\n" % line for line in lines) + b"\r\n"
    if plain_request(head) is not None:
        assert by_h11(head) is not None
