"""A real Prometheus, Debian's package, that scrapes what a test says and answers queries."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import DEADLINE_SECONDS, tail_of, until
from tests.ports import kept_port


def must_be_installed() -> None:
    """Skip where there is none; with CI=true that fails."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is not installed")


class Prometheus:
    """One server with its own folder."""

    def __init__(self, folder: Path, config: str, port: int) -> None:
        folder.mkdir()
        (folder / "prometheus.yml").write_text(config)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._log = folder / "prometheus.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
            )

    async def ask(self, what: str, **parameters: str) -> Any:
        """The data of an answer of its API; None while it does not answer."""

        def get() -> Any:
            assert self.process.poll() is None, tail_of(self._log)
            try:
                url = f"{self._url}/{what}?{urllib.parse.urlencode(parameters)}"
                with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
                    return json.load(answer)["data"]
            except (urllib.error.URLError, ConnectionError):
                return None

        return await asyncio.to_thread(get)

    async def query(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The series that a query answers now: labels and value."""
        data = await self.ask("query", query=query) or {"result": []}
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    async def is_scraping(self, targets: int) -> bool:
        """Whether so many targets were scraped, and well."""
        data = await self.ask("targets") or {"activeTargets": []}
        return len([each for each in data["activeTargets"] if each["health"] == "up"]) == targets

    async def trouble(self) -> str:
        """What the targets say that were not scraped, for a failed test."""
        data = await self.ask("targets") or {"activeTargets": []}
        return "; ".join(f"{each['scrapeUrl']}: {each['lastError']}" for each in data["activeTargets"])

    async def end(self) -> None:
        self.process.terminate()
        await until("prometheus has left", lambda: self.process.poll() is not None)


@asynccontextmanager
async def scraping_with(folder: Path, config: str) -> AsyncIterator[Prometheus]:
    """A Prometheus with this configuration, until the end."""
    server = Prometheus(folder, config, kept_port())
    try:
        yield server
    finally:
        await server.end()
