"""The process that forks programs: `python -P server.py DESCRIPTOR`, a socket of the test's process.

It has one thread and no event loop, and gRPC is imported but not initialised: a child starts in the state that an exec
would leave. A request names a module. The server imports that program once (`PROGRAMS`) and forks; the child runs the
module as `python -m` does. Requests come one at a time; the answer is the pid. The server ends when its socket closes.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import runpy
import socket
import sys
import threading
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (pathlib is what a program may not have)
HEADER_BYTES = 8
DESCRIPTORS_MAX = 64

PROGRAMS: dict[str, tuple[str, ...]] = {
    "gpufleet.scheduler": ("sqlalchemy.dialects.sqlite", "alembic.command"),
    "gpufleet.node_agent": (),
    "gpufleet.gateway": ("uvicorn", "websockets.asyncio.server"),
    "gpufleet.inference": ("numpy", "PIL.Image", "simplejpeg"),
    "gpufleet.cli": (),
}
"""By the module that is run: what its program imports late beside its own package."""

FOR_THEMSELVES = frozenset({"gpufleet.cli"})
"""Programs whose way to import gRPC differs: they have a server of their own."""


def main() -> None:
    """Serve; a child returns from here as the program that was asked for."""
    image = _process_image()
    connection = socket.socket(fileno=int(sys.argv[1]))
    thread_ids = image.thread_id_addresses()
    thread_ids = thread_ids if len(thread_ids) == 1 else []
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, HEADER_BYTES, DESCRIPTORS_MAX)
        if not header:
            return
        request = json.loads(_received(connection, int.from_bytes(header, "big")))
        try:
            _import_program(request["module"])
            pid = image.fork_sibling(thread_ids) if _has_one_thread() else -errno.EDEADLK
        except OSError as problem:
            pid = -(problem.errno or 1)
        if pid == 0:
            _become(image, request, descriptors)
            return
        for number in descriptors:
            os.close(number)
        connection.sendall(pid.to_bytes(HEADER_BYTES, "big", signed=True))


def _has_one_thread() -> bool:
    """Whether no library has started a thread, which a child would wait for in vain."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _process_image() -> Any:
    """`process_image.py` beside this file, which no path leads to."""
    path = os.path.join(_FOLDER, "process_image.py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location("tests_fork_server_process_image", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _received(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            sys.exit(0)
        parts += part
    return bytes(parts)


def _import_program(name: str) -> None:
    """Import all of a program but its `__main__`, once; what is not installed is left out, as the program would."""
    if name in _imported:
        return
    _imported.add(name)
    if name in FOR_THEMSELVES:
        importlib.import_module("gpufleet.net.grpc_import").import_grpc_lightly()
    else:
        for before_grpc in ("gpufleet.host.grpc_forks", "gpufleet.host.grpc_names"):
            importlib.import_module(before_grpc)
    package = importlib.import_module(name)
    within = (found.name for found in pkgutil.walk_packages(package.__path__, f"{name}."))
    for module in (*within, *PROGRAMS.get(name, ())):
        if module.endswith(".__main__") or ".migrations" in module:
            continue
        try:
            importlib.import_module(module)
        except ImportError:
            continue
    gc.collect()
    gc.freeze()


_imported: set[str] = set()


def _become(image: Any, request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the program, up to its first line."""
    image.take_descriptors(descriptors, request["descriptors"])
    if request["is_session"]:
        os.setsid()
    elif request["process_group"] >= 0:
        os.setpgid(0, request["process_group"])
    os.umask(request["umask"])
    image.set_limits(request["limits"])
    os.chdir(request["folder"])
    image.set_environment(request["variables"])
    image.set_strings(request["words"], request["variables"])
    image.open_streams()
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    sys.orig_argv[:] = request["words"]
    sys.argv[:] = ["-m", *request["arguments"]]
    sys.modules["__main__"] = type(sys)("__main__")
    sys.modules["__main__"].__dict__["__builtins__"] = __builtins__
    global _module
    _module = request["module"]


_module = ""


def _run(module: str) -> int:
    """Run a module by the function that `python -m` uses; answer the exit code.

    KeyboardInterrupt goes on to the interpreter, which ends itself by SIGINT.
    """
    try:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> None:
    """End as the interpreter does, but leave the memory as it is: to clear modules would copy each of its pages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
    if _module:
        _end(_run(_module))
