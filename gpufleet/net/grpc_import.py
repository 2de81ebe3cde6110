"""How a command imports grpc: silent, with the system's resolver, and without asyncio until something of it is used.

The error of a call says in words what grpc's C core logs; why names are the system's to resolve stands
in gpufleet/host/grpc_names.py. The core reads GRPC_VERBOSITY and GRPC_DNS_RESOLVER once, while it is imported. So they
are set for that moment alone, and neither a job with `--env-all` nor a program that is started from here inherits them.

`import grpc` imports grpc.aio, and that asyncio: together more than all else of grpc, and a command that only asks
something needs neither. Protobuf imports its messages in pure Python, which nobody uses where it has compiled ones: a
tenth of a short command; and asyncio its TLS, where gRPC has its own. While these are imported, `_Later` modules stand
in the places of what is mostly not used; afterwards whoever imports such a module gets the real one, and what others
hold becomes the real one at its first use.
Imports nothing heavy.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

ASKED_BY = ("GRPC_VERBOSITY", "GRPC_TRACE")
"""Who sets one of these wants to read it."""

RESOLVER_VARIABLE, BY_SYSTEM = "GRPC_DNS_RESOLVER", "native"
"""Names are resolved by getaddrinfo(3)."""

_MESSAGES_IN_PYTHON = ("google.protobuf.internal.python_message",)
_TLS_OF_ASYNCIO = ("ssl", "asyncio.sslproto")
LATER = {
    "grpc": ("asyncio", "grpc.aio"),
    "google.protobuf.descriptor_pool": _MESSAGES_IN_PYTHON,
    "google.protobuf.internal.builder": _MESSAGES_IN_PYTHON,
    "asyncio.base_events": _TLS_OF_ASYNCIO,
    "asyncio.selector_events": _TLS_OF_ASYNCIO,
}
"""By the module that is imported: what it imports at the top and mostly never uses."""


def import_grpc_lightly() -> None:
    """From the next import of grpc on; silent unless GRPC_VERBOSITY or GRPC_TRACE is set. Comes too late behind it."""
    if "grpc" not in sys.modules and not any(isinstance(each, _LightFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _LightFinder())


class _LightFinder:
    # Not derived from importlib.abc, which brings tempfile and random along.
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LATER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _LightLoader(spec.loader, LATER[name]))
        return spec


class _LightLoader:
    def __init__(self, loader: Loader, later: Sequence[str]) -> None:
        self._loader = loader
        self._later = later

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _variables(), _without(*self._later):
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@contextmanager
def _variables() -> Iterator[None]:
    wanted = {RESOLVER_VARIABLE: BY_SYSTEM}
    if not any(os.environ.get(name) for name in ASKED_BY):
        wanted["GRPC_VERBOSITY"] = "NONE"
    set_here = {name: value for name, value in wanted.items() if not os.environ.get(name)}
    os.environ.update(set_here)
    try:
        yield
    finally:
        for name in set_here:
            os.environ.pop(name, None)


@contextmanager
def _without(*names: str) -> Iterator[None]:
    stand_ins = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for stand_in in stand_ins.values():
            stand_in.step_aside()


class _Later(ModuleType):
    """Stands for a module, and has what that has from the first use on, which imports it."""

    def step_aside(self) -> None:
        """Let the next import of this name find the real module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]

    def __getattr__(self, name: str) -> Any:
        self.step_aside()
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found
