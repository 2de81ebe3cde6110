"""gRPC's own log, silent unless somebody asks for it: what it says is told again, in words, by the error of the call.

Its C core reads GRPC_VERBOSITY once, while it is imported. So the variable is set for that moment alone, and neither a
job with `--env-all` nor a program that is started from here inherits it. Imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

ASKED_BY = ("GRPC_VERBOSITY", "GRPC_TRACE")
"""Who sets one of these wants to read it."""


def keep_grpc_silent() -> None:
    """From the next import of grpc on, unless GRPC_VERBOSITY or GRPC_TRACE is set. Comes too late behind it."""
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
            spec.loader = cast("Loader", _SilentLoader(spec.loader))
        return spec


class _SilentLoader:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        is_asked_for = any(os.environ.get(name) for name in ASKED_BY)
        if not is_asked_for:
            os.environ["GRPC_VERBOSITY"] = "NONE"
        try:
            self._loader.exec_module(module)
        finally:
            if not is_asked_for:
                os.environ.pop("GRPC_VERBOSITY", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
