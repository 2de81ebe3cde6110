"""A real S3 server for tests, moto's, in this process: it asks for keys, can be stopped and started, fails as told."""

from __future__ import annotations

import itertools
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

KEY, SECRET = "AKIDTESTTESTTESTTEST", "secret-of-the-test"
_CREDENTIAL = re.compile(r"Credential=([^/]+)/")
_DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>InvalidAccessKeyId</Code>'
    b"<Message>The keys do not exist in our records.</Message></Error>"
)

Fault = Callable[[str, str], str]
"""From a request's method and path with query to a status that it gets in place of an answer; empty for an answer."""


class ObjectServer:
    """What is stored stays over a stop, and nothing of it after the process."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._numbers = itertools.count(1)
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self.port = 0
        self.fault: Fault = lambda method, path: ""
        self.requests: list[str] = []
        self._putting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve; after a stop on the port of before."""
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Silent(WSGIRequestHandler):
            def log(self, type: str, message: str, *args: Any) -> None:
                pass

        self._server = make_server("127.0.0.1", self.port, self, threaded=True, request_handler=Silent)
        # A thread of a request ends with it; the stop waits for all of them.
        self._server.daemon_threads = False
        self.port = self._server.port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="object-server")
        self._thread.start()

    def stop(self) -> None:
        """Refuse every connection from now on."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def new_bucket(self, name: str = "") -> str:
        """The name of a fresh, empty bucket."""
        name = name or f"fleet-{next(self._numbers)}"
        self._backend.create_bucket(name, "us-east-1")
        return name

    def drop_bucket(self, name: str) -> None:
        """With all that is in it."""
        for key in self.keys(name):
            self._backend.delete_object(name, key)
        self._backend.delete_bucket(name)

    def drop_buckets(self) -> None:
        """All of them: what is large of them is in files that are open."""
        for name in list(self._backend.buckets):
            for each in self.unfinished(name):
                each.dispose()
            self.drop_bucket(name)

    def keys(self, bucket: str) -> list[str]:
        """The names of all objects."""
        return sorted(self._backend.buckets[bucket].keys.keys())

    def unfinished(self, bucket: str) -> list[Any]:
        """Files that go in parts, and are no objects."""
        return list(self._backend.buckets[bucket].multiparts.values())

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Fail as told, for so long."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = lambda method, path: ""

    @property
    def _backend(self) -> Any:
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        query = environ.get("QUERY_STRING", "")
        path = environ["PATH_INFO"] + (f"?{query}" if query else "")
        self.requests.append(f"{environ['REQUEST_METHOD']} {path}")
        found = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        if found is None or found[1] != KEY:
            _read_all(environ)
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else _DENIED]
        if status := self.fault(environ["REQUEST_METHOD"], path):
            _read_all(environ)
            start_response(status, [("Content-Length", "0")])
            return [b""]
        if environ["REQUEST_METHOD"] != "PUT":
            return self._app(environ, start_response)
        with self._putting[path]:  # moto closes what the one stores while it still reads the other
            return self._app(environ, start_response)


def _read_all(environ: dict[str, Any]) -> None:
    with suppress(OSError, ValueError):
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


@contextmanager
def object_server(long_lived: Callable[[str], Any]) -> Iterator[ObjectServer]:
    """One that serves, and the loop that fsspec has for all of a process."""
    server = ObjectServer()
    with long_lived("object server"):
        from fsspec import asyn

        loop, pool = asyn.get_loop(), ThreadPoolExecutor(1)
        loop.call_soon_threadsafe(loop.set_default_executor, pool)
        pool.submit(int).result()  # it has its thread from now on
        server.start()
    yield server
    server.stop()
    loop.call_soon_threadsafe(loop.stop)
    asyn.iothread[0].join()
    loop.close()
    asyn.iothread[0] = asyn.loop[0] = None
    pool.shutdown()
