"""Tells one notice: runs a shell line, or posts JSON to a URL. Everything here ends within a bound that has a name."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from .core.launch import Isolation
from .local_addresses import LocalAddress, connect_beyond, refuse_local_host
from .notice_command import order_of

COMMAND_SECONDS_MAX = 60.0
"""A command that runs longer is killed, and with it what it has started in its process group."""

COMMAND_OUTPUT_BYTES_MAX = 4_096
"""So much of what a command prints goes to the agent's log."""

POST_SECONDS_MAX = 10.0
"""A server that has not answered by then, redirections and all, has not answered."""

PROGRAM = f"{__package__}.notice_command"
"""What runs a command where users are kept apart."""

TRIES_MAX = 4
RETRY_SECONDS = 1.0
"""A URL is tried so often; the pauses between begin with this and double."""


class NoticeNotDelivered(Exception):
    """A notice was not delivered; the text says why, without what is secret in a URL."""


async def run_command(line: str, cwd: str, env: Mapping[str, str]) -> str:
    """Run a line with /bin/sh, as this account, and answer the beginning of what it prints.

    It is over when the shell has ended: what it leaves in the background goes on, without an output. Errors:
    NoticeNotDelivered when it fails or takes too long.
    """
    return await _run(("/bin/sh", "-c", line), cwd, env)


async def run_isolated(line: str, cwd: str, env: Mapping[str, str], isolation: Isolation, spaces: Path) -> str:
    """Run a line where the job ran: as its user, and out of reach of all else; the rest as `run_command`.

    It sees the job's files where the job does. What it leaves ends with it. Below `spaces` it has a folder meanwhile.
    """
    try:
        folder = await asyncio.to_thread(_space_below, spaces)
    except OSError as problem:
        raise NoticeNotDelivered(f"it cannot be run: {problem}") from None
    try:
        return await _run(
            (sys.executable, "-P", "-m", PROGRAM), "/", os.environ, order_of(line, cwd, env, isolation, folder)
        )
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _space_below(spaces: Path) -> Path:
    spaces.mkdir(mode=0o700, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=spaces))


async def _run(argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes | None = None) -> str:
    loop = asyncio.get_running_loop()
    ours, its = os.pipe()
    os.set_blocking(ours, False)
    printed = bytearray()
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=dict(env),  # uvloop takes no other mapping
                stdin=DEVNULL if stdin is None else PIPE,
                stdout=its,
                stderr=its,
                start_new_session=True,
            )
        except (OSError, ValueError) as problem:
            raise NoticeNotDelivered(f"it cannot be run: {problem}") from None
        finally:
            os.close(its)
        loop.add_reader(ours, _read, loop, ours, printed)
        code = await _end_of(process, stdin)
        _read(loop, ours, printed)
    finally:
        loop.remove_reader(ours)
        os.close(ours)
    said = printed.decode(errors="replace").strip()
    if code != 0:
        raise NoticeNotDelivered(f"it ended with code {code}" + (f": {said!r}" if said else ""))
    return said


async def _end_of(process: Process, stdin: bytes | None) -> int:
    try:
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            if stdin is not None and process.stdin is not None:
                with contextlib.suppress(ConnectionError):  # it has ended, which is seen next
                    process.stdin.write(stdin)
                    await process.stdin.drain()
                process.stdin.close()
            return await process.wait()
    except TimeoutError:
        raise NoticeNotDelivered(f"it had not ended after {COMMAND_SECONDS_MAX:.0f} s, and was killed") from None
    finally:
        if process.returncode is None:
            # Not reaped yet, so that the number still is its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _read(loop: asyncio.AbstractEventLoop, fd: int, printed: bytearray) -> None:
    """Take what is there, keep the first of it: a full pipe would hold the command up."""
    try:
        data = os.read(fd, 65_536)
    except BlockingIOError:
        return
    if not data:
        loop.remove_reader(fd)
    printed += data[: COMMAND_OUTPUT_BYTES_MAX - len(printed)]


async def post(url: str, fields: Mapping[str, str | int | bool], *, allows_local: bool = False) -> None:
    """Post the fields as JSON, again after a while where that may help. NoticeNotDelivered when it never worked.

    With `allows_local` the server may be on this machine, or on its link: see `local_addresses.py`.
    """
    pause_s = RETRY_SECONDS
    problem = ""
    for left in reversed(range(TRIES_MAX)):
        try:
            status = await post_once(url, json.dumps(fields).encode(), POST_SECONDS_MAX, allows_local=allows_local)
        except TimeoutError:
            problem = f"there was no answer within {POST_SECONDS_MAX:.0f} s"
        except PostFailed as error:
            problem = str(error)
        except PostRefused as error:
            raise NoticeNotDelivered(str(error)) from None
        else:
            if 200 <= status < 300:
                return
            problem = f"the answer was {status}"
            if status < 500 and status not in (408, 429):
                raise NoticeNotDelivered(problem)
        if left:
            await asyncio.sleep(pause_s)
            pause_s *= 2
    raise NoticeNotDelivered(f"{problem}, {TRIES_MAX} times")


def shown(url: str) -> str:
    """A URL for a log: what follows the host may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


REDIRECTS_MAX = 5
"""So many redirections of one request are followed."""

THREADS_MAX = 16
"""Requests under way, with those whose answer nobody waits for any more: a name that is looked up cannot be let go."""

PROBLEM_CHARS_MAX = 200
"""So much of an error is told: a proxy may have written it."""

_KEEPING_METHOD = (301, 302, 307, 308)
_SEE_OTHER = 303

_places = threading.BoundedSemaphore(THREADS_MAX)


class PostFailed(Exception):
    """There was no answer; the text says why, and a later try may have one."""


class PostRefused(Exception):
    """The answer leads nowhere; the text says why, and another try would not help."""


async def post_once(url: str, body: bytes, timeout_s: float, *, allows_local: bool = False) -> int:
    """Post JSON; the status of the last answer. A redirection repeats the POST; 303 is followed with a GET.

    By the standard library's client, on a thread of its own, with a wait that can be given up at any time. Proxies are
    those of the agent's environment (`http_proxy`, `https_proxy`, `no_proxy`). Redirections are followed by hand, so
    that none leads from https to http, and no answer's body is ever read. What follows the host of a URL may be a
    secret: no error here holds any of it.

    Unless it `allows_local`, no connection is made to this machine or its link, whatever a name is resolved to at that
    moment and wherever a redirection leads. A proxy of the agent's may be there: it is not the user's choice; it
    resolves names itself, so that of what goes through one only addresses are refused here.

    Whoever stops waiting ends the connection, and with it the thread; a look-up of a name, or an attempt to connect,
    ends by itself within the system's time. Errors: TimeoutError, PostFailed, PostRefused.
    """
    if not _places.acquire(blocking=False):
        raise PostFailed(f"{THREADS_MAX} requests are under way already, and none of them ends")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[int] = loop.create_future()
    exchange = _Exchange(url, body, timeout_s, allows_local=allows_local)

    def work() -> None:
        try:
            result = exchange.run()
        except Exception as error:
            settle = functools.partial(_settle, answer, 0, error)
        else:
            settle = functools.partial(_settle, answer, result, None)
        finally:
            _places.release()
        with suppress(RuntimeError):  # the loop has gone
            loop.call_soon_threadsafe(settle)

    try:
        threading.Thread(target=work, name="notice-post", daemon=True).start()
    except RuntimeError:
        _places.release()
        raise PostFailed("the system gives no further thread") from None
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    finally:
        exchange.abort()


def _settle(answer: asyncio.Future[int], status: int, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(status)
    else:
        answer.set_exception(error)


class _Exchange:
    """One request with its redirections. `run` blocks its thread; `abort` is for any other one."""

    def __init__(self, url: str, body: bytes, timeout_s: float, *, allows_local: bool) -> None:
        self.allows_local = allows_local
        self._url = url
        self._body = body
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._is_aborted = False

    def run(self) -> int:
        """The last answer's status. Errors: TimeoutError, PostFailed, PostRefused."""
        url, body = self._url, self._body
        method = "POST"
        for _ in range(REDIRECTS_MAX + 1):
            status, location = self._ask(method, url, body)
            if not location or status not in (*_KEEPING_METHOD, _SEE_OTHER):
                return status
            if status == _SEE_OTHER:
                method, body = "GET", b""
            url = _redirected(url, location)
        raise PostRefused(f"it was redirected more than {REDIRECTS_MAX} times")

    def abort(self) -> None:
        """Nobody waits any more: end the connection, and let none be made."""
        with self._lock:
            self._is_aborted = True
            if self._connection is not None:
                _shut_down(self._connection)

    def hold(self, connection: socket.socket) -> None:
        """This connection is used from now on. The handle is our own: TLS takes the other one over."""
        with self._lock:
            self._connection = connection.dup()
            if self._is_aborted:
                _shut_down(self._connection)

    def _let_go(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _ask(self, method: str, url: str, body: bytes) -> tuple[int, str]:
        """The answer's status, and where it redirects to, if anywhere."""
        if self._is_aborted:
            raise PostFailed("it was given up")
        headers = {"User-Agent": "gpufleet", **({"Content-Type": "application/json"} if method == "POST" else {})}
        opener = OpenerDirector()
        for handler in (ProxyHandler(), _Http(self), _Https(self)):
            opener.add_handler(handler)
        try:
            request = Request(url, data=body if method == "POST" else None, headers=headers, method=method)
            if not self.allows_local:
                refuse_local_host(urlsplit(url).hostname or "")
            answer: Any = opener.open(request, timeout=self._timeout_s)
            if answer is None:
                raise PostRefused("it is no http:// or https:// URL")
            with answer:
                return answer.status, answer.headers.get("Location", "")
        except OSError as error:
            raise _without_secrets(error) from None
        except LocalAddress as error:
            raise PostRefused(str(error)) from None
        except (http.client.InvalidURL, ValueError) as error:
            raise PostRefused(f"the URL cannot be used ({type(error).__name__})") from None
        except http.client.HTTPException as error:
            raise PostFailed(f"the answer is not HTTP ({type(error).__name__})") from None
        finally:
            self._let_go()


class _WatchedConnection(http.client.HTTPConnection):
    """Shows its exchange the socket as soon as it is connected."""

    exchange: _Exchange
    _create_connection: Any

    def connect(self) -> None:
        super().connect()
        self.exchange.hold(self.sock)


class _WatchedTlsConnection(http.client.HTTPSConnection, _WatchedConnection):
    """The same: TLS begins behind what connects."""


class _Http(HTTPHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def http_open(self, req: Request) -> Any:
        return self.do_open(functools.partial(_watched, _WatchedConnection, self._exchange, req), req)


class _Https(HTTPSHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def https_open(self, req: Request) -> Any:
        make = functools.partial(_watched, _WatchedTlsConnection, self._exchange, req)
        return self.do_open(make, req, context=ssl.create_default_context())


def _watched(kind: type[_WatchedConnection], exchange: _Exchange, request: Request, host: str, **given: Any) -> Any:
    connection = kind(host, **given)
    connection.exchange = exchange
    is_by_proxy = request.has_proxy() or getattr(request, "_tunnel_host", None)
    if not (exchange.allows_local or is_by_proxy):
        connection._create_connection = connect_beyond  # the one place where http.client connects
    return connection


def _redirected(url: str, location: str) -> str:
    """Where a redirection leads. Errors: PostRefused."""
    try:
        target = urljoin(url, quote(location, safe="!#$%&'()*+,/:;=?@[]~", encoding="iso-8859-1"))
        parts = urlsplit(target)
        scheme, is_usable = parts.scheme.lower(), bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        target, scheme, is_usable = "", "", False
    if not is_usable or scheme not in ("http", "https"):
        raise PostRefused("it redirects to what is no http:// or https:// URL of a host")
    if scheme == "http" and urlsplit(url).scheme.lower() == "https":
        raise PostRefused("it redirects from https to http, which is not followed")
    return target


def _without_secrets(error: OSError) -> Exception:
    """What went wrong below HTTP; the system's words name hosts at most."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, TimeoutError):
        return TimeoutError()
    if isinstance(reason, OSError):
        return PostFailed(f"{type(reason).__name__}: {str(reason)[:PROBLEM_CHARS_MAX]}")
    return PostFailed("no request could be made of it")


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)
