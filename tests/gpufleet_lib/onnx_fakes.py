"""Builds of ONNX Runtime that this machine lacks, as far as gpufleet.onnx sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpufleet.runtimes.probe import PROVIDERS

LONG = {long: name for name, long in PROVIDERS.items()}


class Build:
    """An `onnxruntime` with these providers, each with what its sessions raise, or None where it works.

    A provider whose trouble is "left out" is silently left out of the session, as ONNX Runtime does when its library
    cannot be loaded. `made` are the sessions: their providers with options.
    """

    __version__ = "1.0"
    __spec__ = ModuleSpec("onnxruntime", None)
    __file__ = "/nowhere/onnxruntime/__init__.py"

    def __init__(self, **troubles: str | None) -> None:
        self.troubles: Mapping[str, str | None] = {**troubles, "cpu": troubles.get("cpu")}
        self.made: list[dict[str, dict[str, str]]] = []
        self.settings: list[Any] = []
        self.preloaded = 0
        self.SessionOptions: Callable[[], Any] = SimpleNamespace

    def preload_dlls(self) -> None:
        """Note it, and print as the real one does."""
        self.preloaded += 1
        print("Failed to load libcublas")

    def get_available_providers(self) -> list[str]:
        """What it was built with."""
        return [PROVIDERS[name] for name in self.troubles]

    def InferenceSession(self, model: str | bytes, settings: Any, providers: list[Any]) -> Any:
        """A session that doubles, or what is wrong."""
        named = {LONG[each if isinstance(each, str) else each[0]]: each for each in providers}
        first = next(iter(named))
        trouble = self.troubles[first]
        if trouble is not None and trouble != "left out":
            raise RuntimeError(trouble)
        if model == b"broken" and first == "cpu":
            raise RuntimeError("INVALID_PROTOBUF")
        self.made.append({name: {} if isinstance(each, str) else each[1] for name, each in named.items()})
        self.settings.append(settings)
        loaded = [PROVIDERS[name] for name in named if self.troubles[name] is None]
        return SimpleNamespace(
            get_providers=lambda: loaded,
            get_inputs=lambda: [SimpleNamespace(name="x", shape=["n"], type="tensor(float)")],
            get_outputs=lambda: [SimpleNamespace(name="y", shape=["n"], type="tensor(float)")],
            run=lambda names, given: [np.asarray(given["x"]) * 2 for _ in names or ["y"]],
        )
