"""How a command imports grpc: silent, and without asyncio until something of asyncio is used.

What grpc's C core logs is told again, in words, by the error of the call. It reads GRPC_VERBOSITY once, while it is
imported. So the variable is set for that moment alone, and neither a job with `--env-all` nor a program that is started
from here inherits it.

`import grpc` imports grpc.aio, and that asyncio: together more than all else of grpc, and a command that only asks
something needs neither. While grpc is imported, `_Later` modules stand in their places; afterwards whoever imports
asyncio or grpc.aio gets the real one, and what grpc itself holds becomes the real one at its first use.
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

LATER = ("asyncio", "grpc.aio")


def import_grpc_lightly() -> None:
    """From the next import of grpc on; silent unless GRPC_VERBOSITY or GRPC_TRACE is set. Comes too late behind it."""
    if "grpc" not in sys.modules and not any(isinstance(each, _GrpcFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _GrpcFinder())


class _GrpcFinder:
    # Not derived from importlib.abc, which brings tempfile and random along.
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "grpc":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _LightLoader(spec.loader))
        return spec


class _LightLoader:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _silent(), _without(*LATER):
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@contextmanager
def _silent() -> Iterator[None]:
    if any(os.environ.get(name) for name in ASKED_BY):
        yield
        return
    os.environ["GRPC_VERBOSITY"] = "NONE"
    try:
        yield
    finally:
        os.environ.pop("GRPC_VERBOSITY", None)


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
