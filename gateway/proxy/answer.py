"""One answer of a replica, read as it comes: its head, and what has come of its body. llhttp does the parsing.

What llhttp takes and this gateway does not is refused here: an answer in another protocol's words, a coding of its body
that is not `chunked`, a head or a trailer that does not end.
"""

from __future__ import annotations

import httptools

from .core.headers import Header

HEAD_BYTES_MAX = 65_536
"""The longest head of an answer, and what may stand between two pieces of its body. Those that are whole in one reading
may be longer, as long as that is."""

STATUS_MAX = 599

MORE = "it says more than it was asked for"

_PROTOCOL = b"HTTP/"
_VERSIONS = ("1.0", "1.1")


class NotHttp(Exception):
    """An answer that is none; the text says why, in a clause."""


class Answer:
    """The answer to one request, on a connection. `is_to_head`: it has no body."""

    def __init__(self, *, is_to_head: bool) -> None:
        self._is_to_head = is_to_head
        self.status = 0
        self.headers: list[Header] | None = None
        """Names in small letters; None until the head has come."""

        self.is_whole = False
        self.is_silent = True
        """Whether nothing of it has come."""

        self.unread_bytes = 0
        """How much of the body has come and was not taken."""

        self._lines: list[Header] = []
        self._pieces: list[bytes] = []
        self._since_bytes = 0
        self._ends_with_connection = False
        self._keeps = False
        self._wrong = ""
        # Until the answer is whole: the two hold each other.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # Programs that were written by hand end lines without a CR, and name a length beside chunks, which say it.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_chunked_length=True)

    @property
    def is_reusable(self) -> bool:
        """Whether another answer may follow on its connection."""
        return self.is_whole and self._keeps and not self._wrong

    def read(self, data: bytes) -> None:
        """More has come. Raises NotHttp."""
        if self.is_silent and data[: len(_PROTOCOL)] != _PROTOCOL[: len(data)]:
            raise NotHttp("it does not begin with HTTP/")
        self.is_silent = False
        if self._parser is None:
            self._wrong = MORE
            return
        self._since_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._wrong = "it changes to another protocol"
        except httptools.HttpParserError as problem:
            self._wrong = self._wrong or str(problem)
        if self.is_whole:
            self._parser = None
            return
        if self._since_bytes > HEAD_BYTES_MAX:
            self._wrong = self._wrong or f"more than {HEAD_BYTES_MAX:,} bytes of it are no body"
        if self._wrong:
            self._parser = None
            raise NotHttp(self._wrong)

    def end(self) -> None:
        """No more comes. Raises NotHttp where more had to."""
        if self._ends_with_connection:
            self.is_whole = True
        elif not self.is_whole:
            raise NotHttp("it closed the connection in the middle")

    def take(self) -> bytes:
        """What has come of the body since the last time."""
        pieces, self._pieces = self._pieces, []
        self.unread_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- what the parser calls

    def on_message_begin(self) -> None:
        """An answer begins: this one, or one that nobody asked for."""
        if self.is_whole:
            self._wrong = MORE

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head, or of what stands behind the body, which nobody needs."""
        if self.headers is None:
            self._lines.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """The head has come; that of a hint is left out."""
        assert self._parser is not None
        if self.is_whole:
            return
        self.status, lines, self._lines = self._parser.get_status_code(), self._lines, []
        if 100 <= self.status < 200:
            return
        version = self._parser.get_http_version()
        codings = [value.lower() for name, value in lines if name == b"transfer-encoding"]
        if not 200 <= self.status <= STATUS_MAX:
            self._wrong = f"it has the status {self.status}"
        elif version not in _VERSIONS:
            self._wrong = "it has another version"
        elif codings and codings != [b"chunked"]:
            self._wrong = "the coding of its body is not chunked"
        else:
            self.headers, self._since_bytes = lines, 0
            has_end = self._is_to_head or self.status in (204, 304) or bool(codings)
            self._ends_with_connection = not (has_end or any(name == b"content-length" for name, _ in lines))
            self._keeps = self._parser.should_keep_alive() and version == "1.1"
            self.is_whole = self._is_to_head

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self.is_whole or self._wrong:
            self._wrong = self._wrong or MORE
            return
        self._since_bytes = 0
        self.unread_bytes += len(data)
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The answer is whole, if it was more than a hint."""
        self.is_whole = self.is_whole or self.headers is not None
