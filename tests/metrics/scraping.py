"""Reads /metrics as Prometheus does, and its text into values."""

from __future__ import annotations

import asyncio
import gzip
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.processes import until

SAYS = "metrics are served on "


@dataclass(frozen=True)
class Page:
    """An answer of /metrics."""

    status: int
    headers: Mapping[str, str]
    text: str

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of a metric whose labels include these."""
        return [
            sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of each of a metric's values."""
        families = text_string_to_metric_families(self.text)
        return [sample.labels for family in families for sample in family.samples if sample.name == name]


async def where(log: Path) -> str:
    """HOST:PORT of /metrics, once a program says it in its log."""

    def said() -> str:
        return log.read_text() if SAYS in log.read_text() else ""

    await until("metrics are served", said)
    return said().rpartition(SAYS)[2].split()[0]


async def scrape(
    address: str, token: str = "", *, path: str = "/metrics", method: str = "GET", pack: bool = True
) -> Page:
    """One request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Accept-Encoding": "gzip"} if pack else {}

    def ask() -> Page:
        request = urllib.request.Request(f"http://{address}{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return _page(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return _page(refused.code, dict(refused.headers), refused.read())

    return await asyncio.to_thread(ask)


def _page(status: int, headers: dict[str, str], body: bytes) -> Page:
    named = {name.lower(): value for name, value in headers.items()}
    is_packed = named.get("content-encoding") == "gzip" and body
    return Page(status, named, (gzip.decompress(body) if is_packed else body).decode())
