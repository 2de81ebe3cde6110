"""Reads the head of a request that has nothing odd about it, in the one way in which every server reads it.

Most requests are like that, and are read here in a few microseconds. Whatever else comes, and whatever has not come
whole, is no plain request: uvicorn and h11 read it then, and say what is wrong with it. So nothing here needs to be
lenient, and nothing is refused. What is plain, h11 reads in the same way: tests/gateway/proxy/test_plain_requests.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .headers import Header, is_host

HEAD_BYTES_MAX = 16_384
"""A longer head is not plain."""

_FIRST_LINE = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) (/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))? HTTP/1\.1\r\n")
_LINE = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[!-~\x80-\xff][\t -~\x80-\xff]*)?)\r\n"
_HEADER = re.compile(_LINE)
_HEADERS = re.compile(rb"(?:" + _LINE + rb")+\r\n")

_NEVER = frozenset(b"transfer-encoding upgrade expect http2-settings".split())
"""Headers of requests that are not plain."""

_LENGTH = re.compile(rb"[0-9]{1,15}")


class PlainRequest(NamedTuple):
    """A request as ASGI has it. `size_bytes` is the length of the head, `body_bytes` that of what follows it."""

    method: str
    path: bytes
    query: bytes
    headers: list[Header]
    host: str
    size_bytes: int
    body_bytes: int
    is_last: bool
    """Whether the client wants the connection closed behind the answer."""


def plain_request(data: bytes) -> PlainRequest | None:
    """The request that begins here; None for one that is not plain, or not whole."""
    first = _FIRST_LINE.match(data)
    if first is None:
        return None
    head = _HEADERS.match(data, first.end(), HEAD_BYTES_MAX)
    if head is None:
        return None
    headers = [(name.lower(), value.rstrip(b" \t")) for name, value in _HEADER.findall(data, first.end(), head.end())]
    found = dict(headers)
    if not _NEVER.isdisjoint(found):
        return None
    host = found.get(b"host")
    length = found.get(b"content-length")
    if host is None or not is_host(host) or (len(found) < len(headers) and not _are_single(headers)):
        return None
    if length is not None and _LENGTH.fullmatch(length) is None:
        return None
    connection = found.get(b"connection", b"keep-alive").lower()
    if connection not in (b"keep-alive", b"close"):
        return None
    method, path, query = first.groups()
    return PlainRequest(
        method=method.decode("ascii"),
        path=path,
        query=query or b"",
        headers=headers,
        host=host.decode("latin-1"),
        size_bytes=head.end(),
        body_bytes=int(length or 0),
        is_last=connection == b"close",
    )


def _are_single(headers: list[Header]) -> bool:
    """Whether what says where a request goes, and where it ends, is said once."""
    names = [name for name, _ in headers]
    return all(names.count(name) <= 1 for name in (b"host", b"content-length", b"connection"))
