"""Each call of the contract has a path or a reason not to, and a request becomes exactly what it says, or a refusal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from google.protobuf.message import Message
from gpufleet.v1 import scheduler_pb2

from gateway.api.openapi import document
from gateway.api.requests import asked_of
from gateway.api.table import LEFT_OUT, NOT_BY_COOKIE, PREFIX, ROWS, Row
from gateway.dashboard.calls import CALLS, STREAMS
from gpufleet.errors import GpufleetError
from gpufleet.net.json_messages import json_object
from scheduler.api.roles import ROLES_OF
from scheduler.state.access import Role

METHODS = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"].methods_by_name
PEOPLE = {Role.ADMIN, Role.USER, Role.VIEWER}


def row_of(verb: str, written: str) -> Row:
    (found,) = (row for row in ROWS if (row.verb, row.path) == (verb, PREFIX + written))
    return found


def asked(
    verb: str, path: str, said: str = "", key: str | None = None, query: tuple[tuple[str, str], ...] = (), **values: str
) -> Message:
    return asked_of(row_of(verb, path), values, query, json_object("body", said), key)


def refused(*words: Any, **values: Any) -> str:
    """The field that a request is refused for."""
    with pytest.raises(GpufleetError) as problem:
        asked(*words, **values)
    (violation,) = problem.value.violations
    assert problem.value.next_step
    return violation.field


def test_each_call_has_a_path_or_a_reason_not_to_have_one() -> None:
    in_table = {row.rpc for row in ROWS}
    assert in_table | LEFT_OUT.keys() == set(METHODS)
    assert not in_table & LEFT_OUT.keys()
    for rpc in in_table:
        assert ROLES_OF[f"Scheduler/{rpc}"] & PEOPLE, f"nobody may ask for {rpc}"


def test_no_path_stands_twice_and_no_stream_is_told_as_an_object() -> None:
    places = [(row.verb, re.sub(r"\{\w+\}", "{}", row.path)) for row in ROWS]
    assert len(set(places)) == len(places)
    for row in ROWS:
        assert not row.method.client_streaming
        assert (row.form.name == "OBJECT") is not row.method.server_streaming, row


def test_what_changes_something_is_no_get() -> None:
    words = "Submit|Ingest|Update|Cancel|Signal|Requeue|Forget|Serve|Stop|Close|Drain|Create|Approve|Revoke|Set"
    words += "|Remove|Rename"
    changing = re.compile(words)
    for row in ROWS:
        assert (row.verb == "GET") is not bool(
            changing.match(row.rpc) or row.rpc in ("Estimate", "CheckCapacity", "FindMissingBlobs", "KeepFiles")
        )


def test_the_page_makes_its_calls_by_the_same_table() -> None:
    assert CALLS.keys() | STREAMS.keys() | NOT_BY_COOKIE == {row.rpc for row in ROWS}
    assert not (CALLS.keys() | STREAMS.keys()) & NOT_BY_COOKIE


def test_each_path_and_field_stands_in_openapi_with_what_the_protos_say_of_it() -> None:
    told = json.loads(document())
    schemas = told["components"]["schemas"]
    assert told["openapi"] == "3.1.0"
    for row in ROWS:
        operation = told["paths"][row.path][row.verb.lower()]
        assert operation["description"].startswith(row.rpc)
        body = operation.get("requestBody", {"content": {"application/json": {"schema": {"properties": {}}}}})
        in_body = body["content"]["application/json"]["schema"]["properties"].keys()
        named = {each["name"] for each in operation["parameters"] if each["in"] == "query"} | in_body
        assert named | row.in_path == {field.name for field in row.asked.fields}, row
        assert {"200", "400", "401", "403", "404"} <= operation["responses"].keys()
        for each in operation["parameters"]:
            assert each["description"], (row, each)
    for name, schema in schemas.items():
        for field, of_field in schema.get("properties", {}).items():
            assert name == "Error" or of_field["description"], (name, field)
    for name in re.findall(r'"#/components/schemas/(\w+)"', document().decode()):
        assert name in schemas
    ids = [operation["operationId"] for path in told["paths"].values() for operation in path.values()]
    assert len(set(ids)) == len(ids)


def test_path_query_body_and_key_become_one_request() -> None:
    queue: Any = asked(
        "GET",
        "/jobs",
        query=(
            ("states", "JOB_STATE_RUNNING"),
            ("states", "JOB_STATE_HELD"),
            ("include_finished", "true"),
            ("page_size", "7"),
            ("labels", "team=a=b"),
            ("labels", "run=1"),
            ("user", ""),
        ),
    )
    assert (list(queue.states), queue.include_finished, queue.page_size) == ([4, 2], True, 7)
    assert dict(queue.labels) == {"team": "a=b", "run": "1"}
    submit: Any = asked("POST", "/jobs", '{"specs": [{"argv": ["true"], "time_limit": "90s"}]}', key="once")
    assert (submit.specs[0].time_limit.seconds, submit.request_id) == (90, "once")
    cancel: Any = asked("POST", "/jobs/{job_id}/cancel", '{"reason": "late"}', job_id="41")
    assert (list(cancel.jobs.job_ids), cancel.reason) == ([41], "late")
    serve: Any = asked("PUT", "/models/{name}", '{"model": {"limits": {}}, "in_place": true}', name="chat")
    assert (serve.model.name, serve.in_place, serve.model.HasField("limits")) == ("chat", True, True)
    log: Any = asked("GET", "/logs/{program}/{node}", query=(("follow", "true"),), program="agent", node="n1")
    assert (log.program.program, log.program.node, log.follow) == ("agent", "n1", True)
    positions = '[{"attempt": 1, "rank": 0, "stream": "STREAM_STDOUT", "offset": "9007199254740993"}]'
    output: Any = asked("GET", "/jobs/{job_id}/output", query=(("positions", positions),), job_id="1")
    assert output.positions[0].offset == 9007199254740993


def test_what_a_change_does_not_name_stays_as_it_is() -> None:
    change: Any = asked("PATCH", "/jobs/{job_id}", '{"band": "BAND_HIGH", "time_limit": null}', job_id="41")
    assert list(change.update_mask.paths) == ["band", "time_limit"] and not change.HasField("time_limit")
    named: Any = asked("PATCH", "/jobs", '{"jobs": {"all_mine": true}, "update_mask": "isHeld", "is_held": false}')
    assert list(named.update_mask.paths) == ["is_held"] and named.jobs.all_mine
    whole: Any = asked("PUT", "/models/{name}", '{"model": {}}', name="chat")
    assert not whole.HasField("update_mask"), "a PUT says how all of it is to be"
    # Nothing said of it is not false: another reason would resume a node that drains.
    for said in ("", '{"reason": "new disks"}', '{"is_draining": null, "reason": "new disks"}'):
        assert refused("PATCH", "/nodes/{node}", said, node="n1") == "is_draining"
    drain: Any = asked("PATCH", "/nodes/{node}", '{"is_draining": true, "reason": "new disks"}', node="n1")
    assert (drain.node, drain.is_draining, drain.reason) == ("n1", True, "new disks")


def test_a_key_as_the_docs_show_it_is_one_as_openapi_tells_it() -> None:
    told = json.loads(document())["paths"][f"{PREFIX}/jobs"]["post"]["parameters"]
    (key,) = (each["schema"] for each in told if each["name"] == "idempotency-key")
    for text in ("k", "first try", "a  b~"):
        assert re.search(key["pattern"], text), text
    for text in ("", " k", "k ", "k\n", "\u00e9"):
        assert not re.fullmatch(key["pattern"], text), text


HUGE = "9" * 30


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ((("nonsense", "1"),), "nonsense"),
        ((("page_size", "1"), ("page_size", "2")), "page_size"),
        ((("page_size", ""),), "page_size"),
        ((("page_size", "1.5"),), "page_size"),
        ((("page_size", "٣"),), "page_size"),
        ((("page_size", HUGE),), "page_size"),
        ((("page_size", str(2**31)),), "page_size"),
        ((("omit_env", "yes"),), "omit_env"),
        ((("states", "RUNNING"),), "states[0]"),
        ((("labels", "team"),), "labels"),
        ((("labels", "a=1"), ("labels", "a=2")), "labels"),
        ((("__class__", "x"),), "__class__"),
    ],
)
def test_a_wrong_query_is_refused_by_the_name_of_its_field(query: tuple[tuple[str, str], ...], field: str) -> None:
    assert refused("GET", "/jobs", query=query) == field


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ('{"specs": [{"argv": ["true"], "cwdd": "/"}]}', "specs[0].cwdd"),
        ('{"specs": {}}', "specs"),
        ('{"specs": [null]}', "specs[0]"),
        ('{"count": "many"}', "count"),
        ('{"count": 1.5}', "count"),
        ('{"count": true}', "count"),
        (f'{{"count": {HUGE}}}', "count"),
        ('{"dry_run": 1}', "dry_run"),
        ('{"specs": [{"argv": [1]}]}', "specs[0].argv[0]"),
        ('{"specs": [{"argv": ["\\ud800"]}]}', "specs[0].argv[0]"),
        ('{"specs": [{"env": {"A": 1}}]}', "specs[0].env.A"),
        ('{"specs": [{"time_limit": "1h"}]}', "specs[0].time_limit"),
        ('{"specs": [{"begin_time": "tomorrow"}]}', "specs[0].begin_time"),
        ('{"specs": [{"band": "HIGH"}]}', "specs[0].band"),
        ('{"specs": [], "specs": []}', "body"),
        ('{"count": NaN}', "body"),
        ("[" * 100_000, "body"),
        ("[]", "body"),
        ('{"request_id": "other"}', "request_id"),
    ],
)
def test_a_wrong_body_is_refused_by_the_path_of_its_field(said: str, field: str) -> None:
    assert refused("POST", "/jobs", said, "key") == field


def test_half_a_character_is_no_name() -> None:
    for path, values in (("/jobs", {}), ("/jobs/{job_id}", {"job_id": "1"})):
        assert refused("PATCH", path, '{"\\ud800": 1}', **values) == "?"


def test_what_the_path_says_is_said_once() -> None:
    assert refused("POST", "/jobs/{job_id}/cancel", '{"jobs": {"all_mine": true}}', job_id="41") == "jobs"
    assert refused("GET", "/jobs/{job_id}", query=(("job_id", "42"),), job_id="41") == "job_id"
    assert refused("PUT", "/models/{name}", '{"model": {"name": "b"}}', name="a") == "model.name"
    assert refused("PUT", "/models/{name}", '{"model": 1}', name="a") == "model"
    assert refused("GET", "/jobs/{job_id}/output", query=(("program", "{}"),), job_id="41") == "job_id"
    for wrong in ("x", "1x", "-", "41.3", HUGE, "٤", " 1"):
        assert refused("GET", "/jobs/{job_id}", job_id=wrong) == "job_id"
    assert refused("POST", "/jobs/{job_id}/cancel", job_id="x") == "jobs.job_ids"
    assert refused("POST", "/jobs", query=(("dry_run", "true"),)) == "dry_run"
    assert refused("POST", "/jobs/{job_id}/cancel", key="k", job_id="41") == "idempotency-key"
