"""Reading a list to its end, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

import grpc

from .client import Client

PAGES_MAX = 10_000


class PagedRequest(Protocol):
    """A request with a page token."""

    page_token: str


class PagedAnswer(Protocol):
    """An answer that names the next page."""

    @property
    def next_page_token(self) -> str: ...


Q = TypeVar("Q", bound=PagedRequest)
A = TypeVar("A", bound=PagedAnswer)


def all_pages(client: Client, method: grpc.UnaryUnaryMultiCallable[Q, A], request: Q) -> Iterator[A]:
    """Every page; the request's own page token is moved on."""
    for _ in range(PAGES_MAX):
        answer = client.call(method, request)
        yield answer
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token
