"""`GET /metrics` of a replica, as Prometheus reads it."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from gpufleet.runtimes.facts import RuntimeFacts, of_cpu
from inference.predict.metrics import Counts, Times, page
from tests.inference.predict.answers import answering, tensor


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values by name and the one label."""
    return {
        (sample.name.removeprefix("gpufleet_predict_"), next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_page_counts_items_by_status_and_batches_by_size() -> None:
    counts = Counts()
    counts.items.update({200: 40, 422: 2})
    counts.batches.update({1: Times(2), 8: Times(5), 9_000: Times(1)})
    for seconds in (0.0, 0.001, 0.3, 99.0):
        counts.waits_s.add(seconds)
    found = samples(page(counts, 3, is_ready=True))
    assert (found["items_total", "200"], found["items_total", "422"]) == (40, 2)
    assert [found["batch_size_bucket", le] for le in ("1", "4", "8", "4096", "+Inf")] == [2, 2, 7, 7, 8]
    assert (found["batch_size_sum", ""], found["batch_size_count", ""]) == (9_042, 8)
    assert [found["wait_seconds_bucket", le] for le in ("0.001", "0.25", "0.5", "10", "+Inf")] == [2, 2, 3, 3, 4]
    assert (found["waiting", ""], found["ready", ""], found["batch_duration_seconds_count", ""]) == (3, 1, 0)


def test_a_page_says_what_computes_and_on_which_device() -> None:
    gpu = RuntimeFacts(name="torch", version="2", provider="cuda", device="cuda:1", device_name='A "B" \\ C')
    limited = replace(gpu, memory_limit_bytes=1 << 30)
    text = page(Counts(), 0, is_ready=True, runtimes=(gpu, limited, of_cpu("onnxruntime", "1")))
    (family,) = (each for each in text_string_to_metric_families(text) if each.name.endswith("runtime_info"))
    first, second = (sample.labels for sample in family.samples)
    assert [sample.value for sample in family.samples] == [1, 1]
    assert first == {
        "device": "cuda:1",
        "backend": "gpu",
        "runtime": "torch",
        "provider": "cuda",
        "device_name": 'A "B" \\ C',
    }
    assert (second["device"], second["backend"], second["provider"]) == ("cpu", "cpu", "cpu")
    assert "runtime_info" not in page(Counts(), 0, is_ready=False)


async def test_a_replica_tells_what_it_has_computed() -> None:
    async with answering("Double") as server:
        assert (await server.infer(tensor([1, 2, 3, 4, 5, 6], width=3))).status == 200
        reply = await server.ask("/metrics")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(reply.body.decode())
    assert found["items_total", "200"] == 2 == found["wait_seconds_count", ""] and found["batch_size_bucket", "2"] == 1
    assert found["batch_duration_seconds_count", ""] == 1 and found["ready", ""] == 1 and found["waiting", ""] == 0
