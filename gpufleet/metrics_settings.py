"""The settings of metrics for Prometheus, the same for scheduler and gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.kinds import INTEGER, TEXT
from gpufleet.listening_settings import host_conflicts
from gpufleet.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where Prometheus finds /metrics."""

    port: int | None = setting(
        None,
        "The port on which /metrics is served; 0 takes any free one. Reading it wants a token, a viewer's suffices.",
        INTEGER,
        low=0,
        high=65_535,
        default_text="no metrics are served",
    )
    host: str = setting("127.0.0.1", "Where /metrics is served; beyond this machine as host.", TEXT)

    def conflicts(self, *, has_tls: bool, is_insecure: bool) -> Iterator[tuple[str, str]]:
        """Values that do not fit together."""
        if self.port is not None:
            yield from host_conflicts("metrics.host", self.host, has_tls=has_tls, is_insecure=is_insecure)
