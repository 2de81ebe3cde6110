"""What a browser brings back from a provider's page: heard at a port of loopback, by one address with the right state.

Whatever else comes is answered and forgotten, so that no page of another tab ends the login, or takes its place.
"""

from __future__ import annotations

import hmac
import socket
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.code_login import checked_code

PATH = "/callback"
REQUESTS_MAX = 100
"""So much may come that is not it."""

REQUEST_S_MAX = 5.0
ADDRESS_CHARS_MAX = 16_000

DONE = "Logged in. You may close this window and go back to the terminal."
NOT_DONE = "The provider did not log you in. Go back to the terminal."
NOT_IT = "This is not the answer that is waited for."


class Loopback:
    """A port that hears one answer, until `close`."""

    def __init__(self, state: str) -> None:
        self.code = ""
        self.error = ""
        self._state = state
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S_MAX

            def do_GET(self) -> None:
                said = loopback._take(self.path)
                self.send_response(200 if said == DONE else 400)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(said.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the code is in what would be told."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends the browser."""
        return f"http://127.0.0.1:{self._server.server_port}{PATH}"

    def wait(self, wait_s: float) -> str:
        """The code. Raises LOGIN_FAILED where the provider says no, DEADLINE."""
        ends_at = time.monotonic() + wait_s
        for _ in range(REQUESTS_MAX):
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                break
            self._server.timeout = left_s
            self._server.handle_request()
            if self.code or self.error:
                return checked_code(self.code, self.error)
        raise GpufleetError(
            Reason.DEADLINE,
            f"nobody logged in within {wait_s:g} s",
            next_step="Try again; without a browser on this machine: gpuctl login --no-browser",
        )

    def close(self) -> None:
        """Let go of the port."""
        self._server.server_close()

    def _take(self, path: str) -> str:
        answer = answer_in(path, self._state)
        if answer is None:
            return NOT_IT
        self.code, self.error = answer
        return DONE if self.code else NOT_DONE


def answer_in(address: str, state: str) -> tuple[str, str] | None:
    """The code and the error in the address that a browser was sent to; None for that of another login."""
    if len(address) > ADDRESS_CHARS_MAX:
        return None
    try:
        parts = urlsplit(address)
        said = parse_qs(parts.query, max_num_fields=50)
    except ValueError:
        return None
    told = said.get("state", [""])[0]
    if parts.path != PATH or not hmac.compare_digest(told.encode(), state.encode()):
        return None
    code, error = said.get("code", [""])[0], said.get("error", [""])[0]
    return (code, error) if code or error else None


def can_listen() -> bool:
    """Whether this machine has a loopback address to listen at."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return True
    except OSError:
        return False
