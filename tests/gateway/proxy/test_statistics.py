"""Statistics of a program: sums over its replicas, of which some are slow, silent, or say something else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy import statistics as statistics_module
from gateway.proxy.core.statistics import (
    NUMBER_MAX,
    Statistics,
    added,
    asks_for_statistics,
    body_of,
    count_of,
    statistics_in,
)
from gateway.proxy.upstream import ASKED_BESIDE_MAX
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Answer, Call, asked, program, stage
from tests.rings.choosing import examples

PATH = "/m/m/v2/models/m/stats"


def times(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def told(last: int, items: int, batches: dict[int, int], **more: Any) -> bytes:
    """A replica's answer: when it computed last, how many items, and how many batches there were of each size."""
    every = sum(batches.values())
    model = {
        "name": "m",
        "version": "1",
        "last_inference": last,
        "inference_count": items,
        "execution_count": every,
        "inference_stats": {"success": times(items, 7 * items), "compute_infer": times(every, 5 * every)},
        "batch_stats": [
            {"batch_size": size, "compute_infer": times(count, 5 * count)} for size, count in batches.items()
        ],
    }
    return json.dumps({"model_stats": [model | more]}).encode()


def says(body: bytes, status: str = "200 OK") -> Answer:
    async def answer(call: Call) -> None:
        await call.body()
        await call.reply(body, status, {"Content-Type": "text/x-own"})

    return answer


async def silent(call: Call) -> None:
    await call.is_left()


async def test_the_answer_is_the_sum_over_all_replicas_that_are_ready() -> None:
    one, other = says(told(20, 5, {1: 3, 2: 1})), says(told(10, 6, {2: 1, 4: 1}, memory_usage=[{"gpu": 1}]))
    async with stage() as at, program("r1", one) as first, program("r2", other) as second:
        await at.serve("m", first, second, concurrency=1)
        token = at.person("ann")
        status, headers, body = await asked(at, PATH, headers={"Authorization": f"Bearer {token}", "X-Own": "1"})
        assert (status, headers["gpufleet-replicas"], headers["content-type"]) == (200, "2/2", "application/json")
        (model,) = json.loads(body)["model_stats"]
        assert model == {
            "name": "m",
            "version": "1",
            "last_inference": 20,
            "inference_count": 11,
            "execution_count": 6,
            "inference_stats": {"success": times(11, 77), "compute_infer": times(6, 30)},
            "batch_stats": [
                {"batch_size": 1, "compute_infer": times(3, 15)},
                {"batch_size": 2, "compute_infer": times(2, 10)},
                {"batch_size": 4, "compute_infer": times(1, 5)},
            ],
        }
        for replica in (first, second):
            (call,) = replica.calls
            assert (call.target, call["x-own"], call["gpufleet-user"]) == ("/v2/models/m/stats", "1", "ann")
            assert token.encode() not in call.text
        # It was one request of hers, and holds nothing any more.
        await until("it is counted", lambda: at.scheduler.count("m", "ann") == 1)
        assert at.scheduler.reported("m")[1] == 0
        assert (await asked(at, PATH))[0] == 200


@pytest.mark.parametrize(
    "answer",
    [
        silent,
        says(b"broken", "500 Internal Server Error"),
        says(b"{}"),
        says(told(1, 1, {1: 1}) + b" " * statistics_module.TOLD_BYTES_MAX),
    ],
    ids=["silent", "failing", "something-else", "endless"],
)
async def test_a_replica_that_does_not_tell_is_left_out_and_the_answer_says_so(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_module, "REPLICA_S_MAX", 0.2 if answer is silent else DEADLINE_SECONDS)
    async with stage() as at, program("r1", says(told(1, 3, {1: 3}))) as first, program("r2", answer) as second:
        await at.serve("m", first, second)
        for _ in range(2):  # whichever of them the request itself has
            status, headers, body = await asked(at, PATH)
            assert (status, headers["gpufleet-replicas"]) == (200, "1/2")
            assert json.loads(body)["model_stats"][0]["inference_count"] == 3


async def test_a_replica_whose_machine_is_gone_is_left_out() -> None:
    async with stage() as at, program("r1", says(told(1, 3, {1: 3}))) as first:
        async with program("r2", silent) as gone:
            pass
        await at.serve("m", first, gone)
        status, headers, _ = await asked(at, PATH)
        assert (status, headers["gpufleet-replicas"], len(first.calls)) == (200, "1/2", 1)


async def test_where_none_tells_in_time_the_request_is_refused_and_the_replicas_are_not_thought_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics_module, "REPLICA_S_MAX", 0.1)

    async def only_statistics_hang(call: Call) -> None:
        await (silent(call) if call.head.target.endswith("/stats") else call.reply(b"hello"))

    hangs = only_statistics_hang
    async with stage() as at, program("r1", hangs) as first, program("r2", hangs) as second:
        await at.serve("m", first, second, concurrency=1)
        status, _, body = await asked(at, PATH)
        error = json.loads(body)["error"]
        assert (status, error["reason"]) == (503, "REPLICA_FAILED") and "within 0.1 s" in error["message"]
        assert len(first.calls) == len(second.calls) == 1
        # None is passed over: each has a seat, and both are taken at once.
        assert [body for _, _, body in await asyncio.gather(*(asked(at, "/m/m/") for _ in range(2)))] == [b"hello"] * 2
        assert len(first.calls) == len(second.calls) == 2


async def test_a_program_that_speaks_another_protocol_is_answered_for_as_it_answers() -> None:
    own = says(b"a page of its own", "404 Not Found")
    async with stage() as at, program("r1", own) as first, program("r2", own) as second:
        await at.serve("m", first, second)
        status, headers, body = await asked(at, PATH)
        assert (status, headers["content-type"], body) == (404, "text/x-own", b"a page of its own")
        assert "gpufleet-replicas" not in headers
        # With another method or path, or with a body, it is any request: one replica has it.
        for method, path, body in (
            ("POST", PATH, b""),
            ("GET", PATH + "/", b""),
            ("GET", "/m/m/stats", b""),
            ("GET", PATH, b"x"),
        ):
            before = len(first.calls) + len(second.calls)
            await asked(at, path, method, body)
            assert len(first.calls) + len(second.calls) == before + 1


async def test_a_replica_has_a_few_such_requests_at_a_time_and_the_others_follow() -> None:
    under_way, most = 0, 0
    has_most = asyncio.Event()

    async def held(call: Call) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if most >= ASKED_BESIDE_MAX:
            has_most.set()
        await has_most.wait()
        under_way -= 1
        await call.reply(told(1, 1, {1: 1}))

    async with stage() as at, program("r1", held) as replica:
        await at.serve("m", replica)
        found = await asyncio.gather(*(asked(at, PATH) for _ in range(5 * ASKED_BESIDE_MAX)))
        assert {(status, headers["gpufleet-replicas"]) for status, headers, _ in found} == {(200, "1/1")}
        assert most == ASKED_BESIDE_MAX


async def test_a_client_that_leaves_is_told_to_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_module, "REPLICA_S_MAX", 10 * DEADLINE_SECONDS)
    async with stage() as at, program("r1", silent) as first, program("r2", silent) as second:
        await at.serve("m", first, second)
        async with at.asking(PATH):
            await until("both are asked", lambda: len(first.calls) == len(second.calls) == 1)
        await until("nobody asks any more", lambda: first.open == second.open == 0)


@pytest.mark.parametrize(
    ("method", "path", "asks"),
    [
        ("GET", b"/v2/models/m/stats", True),
        ("GET", b"/v2/models/m%20m/versions/1/stats", True),
        ("GET", b"/v2/models/stats", True),
        ("HEAD", b"/v2/models/m/stats", False),
        ("GET", b"/v2/models/m/stats/", False),
        ("GET", b"/v2/models/a/b/stats", False),
        ("GET", b"/x/v2/models/m/stats", False),
    ],
)
def test_which_requests_ask_for_statistics(method: str, path: bytes, *, asks: bool) -> None:
    assert asks_for_statistics(method, path) is asks


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(["name", "version", "last_inference", "batch_stats", "batch_size", "count", "x"])
ODD = st.dictionaries(NAMES, JSON | st.lists(st.dictionaries(NAMES, JSON, max_size=3), max_size=3), max_size=5)


@settings(max_examples=examples(60))
@given(st.lists(ODD.map(lambda each: {"name": "m"} | each), max_size=4), st.lists(ODD, max_size=4))
def test_whatever_programs_say_the_sum_is_an_answer_that_reads_as_itself(some: list[Any], others: list[Any]) -> None:
    total: Statistics = {}
    for models in (some, others):
        total = added(total, statistics_in(json.dumps({"model_stats": models}).encode()) or {})
    read = statistics_in(body_of(total))
    assert read is not None and read == total and count_of(read) == count_of(total)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"model_stats": {}}', b'{"model_stats": [1]}', b"[" * 100_000, b"\xff", b"1" * 9_000]
)
def test_what_is_no_statistics_is_told_apart(body: bytes) -> None:
    assert statistics_in(body) is None


def test_a_sum_stays_a_number_of_the_protocol() -> None:
    most = statistics_in(told(1, NUMBER_MAX, {}, deep={"a": {"b": {"c": {"d": {"e": 1}}}}}, below=-1, beyond=2**64))
    assert most is not None
    (model,) = json.loads(body_of(added(most, most)))["model_stats"]
    assert (model["inference_count"], model["last_inference"]) == (NUMBER_MAX, 1)
    assert model["deep"] == {"a": {"b": {"c": {}}}} and not model.keys() & {"below", "beyond"}


async def test_a_sum_with_too_many_numbers_has_no_more_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_module, "NUMBERS_MAX", 30)
    many: Callable[[int], Answer] = lambda first: says(told(1, 1, {first + each: 1 for each in range(5)}))  # noqa: E731
    async with stage() as at, program("r1", many(0)) as first, program("r2", many(10)) as second:
        await at.serve("m", first, second)
        assert (await asked(at, PATH))[1]["gpufleet-replicas"] == "1/2"
