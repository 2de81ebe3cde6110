"""What a client tells OpenTelemetry, by the SDK's own reader; and that it loads nothing where nobody measures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gpufleet.client import AsyncInferenceClient
from gpufleet.client.meter import NAMES
from tests.client.servers import MODEL, says, serving


def points(reader: Any) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """The labels and the value or count of each point, by the metric's name."""
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "gpufleet.client"
            for metric in scope.metrics:
                found[metric.name] = [
                    (dict(each.attributes), getattr(each, "count", getattr(each, "value", None)))
                    for each in metric.data.data_points
                ]
    return found


async def test_a_client_tells_what_became_of_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = pytest.importorskip("opentelemetry.metrics")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    async with serving(says(503)) as server:
        async with AsyncInferenceClient(
            model=MODEL, addresses=[server.address], batch_size=4, backoff_first_s=0.001
        ) as client:
            results = await client.predict([1, 2, "text"])
            assert [each.is_ok for each in results] == [True, True, False]
            told = points(reader)
        assert set(told) == {each.name for each in NAMES} - {"gpufleet.client.fallbacks"}
    of = {"model": MODEL, "backend": "gpu"}
    items = {labels["outcome"]: value for labels, value in told["gpufleet.client.items"]}
    assert items == {"answered": 2, "failed": 1}
    assert told["gpufleet.client.workers"] == [(of | {"circuit": "closed"}, 1)]
    assert told["gpufleet.client.retries"][0][1] >= 1
    durations = {labels["outcome"]: value for labels, value in told["gpufleet.client.request.duration"]}
    assert durations["answered"] >= 1 and durations["failed"] >= 1
    assert sum(value for _, value in told["gpufleet.client.request.items"]) == sum(durations.values())
    provider.shutdown()


def test_where_nobody_measures_nothing_of_opentelemetry_is_loaded() -> None:
    code = (
        "import sys; from gpufleet.client import InferenceClient\n"
        "with InferenceClient(model='m', address='127.0.0.1:1', start_wait_s=0, deadline_s=1) as client:\n"
        "    assert not client.predict([1])[0].is_ok\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
