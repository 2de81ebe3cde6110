"""How far the pull of an image is, in few words: from the steps of an engine to what is told of them. Pure.

At most FAR_TOLD_MAX lines are told between the beginning and the end, whatever an engine says and however slow it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gpufleet.text.units import format_duration, format_size

PARTS = 4
"""A line is told behind each fourth of the bytes that are known to come."""

QUIET_SECONDS_MAX = 60.0
"""So long nothing is told while bytes come; then how many came so far."""

FAR_TOLD_MAX = 64
"""More than an hour of these, and all fourths."""

LAYERS_MAX = 1_000
"""Layers of an image whose sizes are summed up; no image has so many."""


@dataclass(slots=True, kw_only=True)
class Pull:
    """One pull since `begun_at`, in seconds of a clock that only goes forward. Bytes are as they are sent: packed."""

    begun_at: float
    _layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    _told_part: int = 0
    _told_at: float = field(init=False)
    _told_count: int = 0

    def __post_init__(self) -> None:
        self._told_at = self.begun_at

    def take(self, step: Mapping[str, Any], now: float) -> str:
        """Take in a step; answers what is to be told of it, mostly nothing."""
        self._note(step)
        come, known = self._bytes()
        part = PARTS * come // known if known else 0
        is_quiet = now - self._told_at >= QUIET_SECONDS_MAX
        is_further = self._told_part < part < PARTS
        if not come or self._told_count >= FAR_TOLD_MAX or not (is_quiet or is_further):
            return ""
        self._told_part, self._told_at = max(part, self._told_part), now
        self._told_count += 1
        return f"{format_size(come)} of {format_size(known)} have come"

    def end(self, size_bytes: int, now: float) -> str:
        """What is told at its end: `size_bytes` is that of the image, unpacked."""
        return f"{format_size(size_bytes)}, in {format_duration(timedelta(seconds=max(1, round(now - self.begun_at))))}"

    def _note(self, step: Mapping[str, Any]) -> None:
        layer, status, progress = step.get("id"), step.get("status"), step.get("progressDetail")
        if not isinstance(layer, str):
            return
        if status == "Download complete" and layer in self._layers:
            _, total = self._layers[layer]
            self._layers[layer] = total, total
        if status != "Downloading" or not isinstance(progress, Mapping):
            return
        come, size = progress.get("current"), progress.get("total")
        if not isinstance(come, int) or not isinstance(size, int) or not 0 <= come <= size:
            return
        if layer in self._layers or len(self._layers) < LAYERS_MAX:
            self._layers[layer] = come, size

    def _bytes(self) -> tuple[int, int]:
        """How many have come, and how many are known to come in all."""
        return sum(come for come, _ in self._layers.values()), sum(total for _, total in self._layers.values())
