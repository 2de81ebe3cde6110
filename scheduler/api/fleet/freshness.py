"""Fresh samples on request: agents are asked to read their devices anew, and the answer waits for them a moment."""

import asyncio
from collections.abc import Iterable

from ...clock import is_set_within
from ...engine import Engine
from ...links import Links
from ...state.ids import NodeName
from ...state.units import Instant

FRESH_SECONDS_MAX = 5.0
"""What an agent has not sent by then stays as it was: a driver that hangs holds nobody up."""


class Freshness:
    """Asks agents for fresh samples, down the streams of their heartbeats."""

    def __init__(self, engine: Engine, links: Links) -> None:
        self._engine = engine
        self._links = links

    async def of(self, names: Iterable[NodeName]) -> None:
        """Return when every sample of these nodes was read after now, or FRESH_SECONDS_MAX later.

        Nodes without a connection are not waited for.
        """
        since = self._engine.now()
        missing = {name for name in names if self._links.refresh(name)}
        if not missing:
            return
        all_there = asyncio.Event()

        def beaten(name: NodeName) -> None:
            if name in missing and self._is_fresh(name, since):
                missing.discard(name)
                if not missing:
                    all_there.set()

        self._links.beat_listeners.add(beaten)
        try:
            await is_set_within(all_there, FRESH_SECONDS_MAX)
        finally:
            self._links.beat_listeners.discard(beaten)

    def _is_fresh(self, name: NodeName, since: Instant) -> bool:
        live, node = self._engine.view.live.nodes.get(name), self._engine.view.durable.nodes.get(name)
        if live is None or node is None:
            return True  # it is gone, and nobody will say more of it
        gone = {mark.uuid for mark in node.unhealthy if mark.is_gone}
        samples = (live.samples.get(device.uuid) for device in node.info.devices if device.uuid not in gone)
        return all(sample is not None and sample.taken_at >= since for sample in samples)
