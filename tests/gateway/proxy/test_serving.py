"""Who may use a program, which replica answers, who waits, and what the scheduler is told of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.proxy import watching as watching_module
from gateway.proxy.core import choice as choice_module
from gateway.proxy.core import waiting as waiting_module
from gateway.proxy.service import RETRY_S_MAX, Busy
from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.tokens import make_token
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Call, asked, program, stage

LOGIN = sessions_pb2.MODEL_ACCESS_LOGIN


async def who(call: Call) -> None:
    await call.reply(
        json.dumps({name: call.head[name] for name in ("gpufleet-user", "authorization", "cookie")}).encode()
    )


async def test_a_program_is_for_people_and_never_gets_what_they_came_in_with() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica, access=LOGIN)
        ann = at.person("ann")
        cookie = at.cookie(ann)
        by_token = await asked(at, "/m/chat/", headers={"Authorization": f"Bearer {ann}"})
        assert (by_token[0], json.loads(by_token[2])) == (
            200,
            {"gpufleet-user": "ann", "authorization": "", "cookie": ""},
        )
        by_cookie = await asked(at, "/m/chat/", headers={"Cookie": f"{cookie}; own=1", "Authorization": "Bearer sk-1"})
        assert json.loads(by_cookie[2]) == {"gpufleet-user": "ann", "authorization": "Bearer sk-1", "cookie": "own=1"}
        assert at.scheduler.calls["GetServerInfo"] == 1
        refused: list[tuple[dict[str, str], str]] = [
            ({}, "LOGIN_NEEDED"),
            ({"Authorization": "Bearer sk-1"}, "LOGIN_NEEDED"),
            ({"Authorization": f"Bearer {make_token()}"}, "TOKEN_INVALID"),
            ({"Authorization": "Bearer gf_cut"}, "TOKEN_INVALID"),
            ({"Cookie": cookie[:-4]}, "LOGIN_NEEDED"),
            ({"Cookie": cookie, "Origin": "null"}, "LOGIN_NEEDED"),
            ({"Cookie": cookie, "Sec-Fetch-Site": "cross-site"}, "LOGIN_NEEDED"),
        ]
        for headers, reason in refused:
            status, _, body = await asked(at, "/m/chat/", "POST", headers=headers)
            assert (status, json.loads(body)["error"]["reason"]) == (401, reason), headers
        assert len(replica.calls) == 2


async def test_a_running_job_asks_programs_in_its_owners_name_and_gets_nothing_else() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica, access=LOGIN)
        job, worker = at.person("job ann"), at.person("worker ann")
        status, _, body = await asked(at, "/m/chat/", headers={"Authorization": f"Bearer {job}"})
        assert (status, json.loads(body)["gpufleet-user"]) == (200, "ann")
        for token, path in ((job, "/api/v1/me"), (worker, "/m/chat/")):
            status, _, body = await asked(at, path, headers={"Authorization": f"Bearer {token}"})
            assert (status, json.loads(body)["error"]["reason"]) == (403, "PERMISSION_DENIED"), path
        assert len(replica.calls) == 1


async def test_who_may_use_a_program_with_a_pass_phrase_is_who_is_logged_in() -> None:
    async with stage() as at, program("r1", who) as replica:
        for access in (sessions_pb2.MODEL_ACCESS_PASS_PHRASE, sessions_pb2.MODEL_ACCESS_UNSPECIFIED):
            await at.serve(f"chat{access}", replica, access=access)
            assert (await asked(at, f"/m/chat{access}/"))[0] == 401


async def test_an_open_program_is_for_everybody_and_knows_who_is_logged_in() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica)
        assert json.loads((await asked(at, "/m/chat/"))[2])["gpufleet-user"] == ""
        token = at.person("ann")
        assert (
            json.loads((await asked(at, "/m/chat/", headers={"Authorization": f"Bearer {token}"}))[2])["gpufleet-user"]
            == "ann"
        )
        wrong = await asked(at, "/m/chat/", headers={"Authorization": f"Bearer {make_token()}"})
        assert json.loads(wrong[2]) == {"gpufleet-user": "", "authorization": "", "cookie": ""}


@pytest.mark.parametrize("path", ["/m/nobody/", "/m/nobody", "/m/%2e%2e/", "/m/a%2fb/", "/m//", "/m/class/"])
async def test_what_is_no_program_is_not_found(path: str) -> None:
    async with stage() as at:
        at.scheduler.models["class"] = sessions_pb2.WatchWorkersResponse()
        status, _, body = await asked(at, path)
        assert (status, json.loads(body)["error"]["reason"]) == (404, "MODEL_NOT_FOUND")
        assert ("first page" in body.decode()) == (path == "/m/class/")


async def test_a_name_that_is_none_is_asked_about_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "MISSING_S", 1_000.0)
    async with stage() as at:
        for _ in range(5):
            assert (await asked(at, "/m/nobody/"))[0] == 404
        assert at.scheduler.calls["WatchWorkers"] == 1


async def test_a_program_that_is_stopped_and_served_again_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "MISSING_S", 1_000.0)
    async with stage() as at, program("r1", who) as one, program("r2", who) as two:
        await at.serve("chat", one)
        assert (await asked(at, "/m/chat/"))[0] == 200
        del at.scheduler.models["chat"]
        await at.scheduler.changed()
        await until("it is watched no longer", lambda: not at.readings()["gpufleet.program.underway"])
        await at.serve("chat", two)
        assert (await asked(at, "/m/chat/"))[0] == 200
        assert (len(one.calls), len(two.calls)) == (1, 1)


async def test_requests_go_to_the_replica_with_the_fewest_and_those_of_a_session_to_one() -> None:
    goes_on = asyncio.Event()

    async def waits(call: Call) -> None:
        if call.head.target == "/wait":
            await goes_on.wait()
        await call.reply()

    async with stage() as at, program("r1", waits) as one, program("r2", waits) as two:
        await at.serve("chat", one, two)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(asked(at, "/m/chat/wait")) for _ in range(6)]
            await until("all are there", lambda: len(one.calls) + len(two.calls) == 6)
            assert len(one.calls) == len(two.calls) == 3
            goes_on.set()
            assert {each[0] for each in await asyncio.gather(*waiting)} == {200}
        before = len(one.calls), len(two.calls)
        for _ in range(6):
            await asked(at, "/m/chat/", headers={"Gpufleet-Session": "s1"})
        assert sorted((len(one.calls) - before[0], len(two.calls) - before[1])) == [0, 6]


async def test_a_request_waits_for_the_first_replica_and_the_scheduler_hears_of_it() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat")
        request = asyncio.create_task(asked(at, "/m/chat/"))
        await until("it is told", lambda: at.scheduler.reported("chat") == (0, 1))
        await at.serve("chat", replica)
        assert (await request)[0] == 200
        await until("it is told", lambda: not at.scheduler.reports[-1].models)


async def test_a_replica_gets_no_more_than_it_takes_and_the_others_wait_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on = asyncio.Event()

    async def waits(call: Call) -> None:
        await goes_on.wait()
        await call.reply()

    monkeypatch.setattr(waiting_module, "WAITING_MAX", 3)
    async with stage() as at, program("r1", waits) as replica:
        await at.serve("chat", replica, concurrency=2)
        requests = [asyncio.create_task(asked(at, f"/m/chat/{number}")) for number in range(5)]
        await until("it is told", lambda: at.scheduler.reported("chat") == (2, 3))
        assert replica.open == 2
        status, headers, body = await asked(at, "/m/chat/6")
        said = json.loads(body)
        assert (status, said["error"]["reason"], said["place"], said["estimate_s"]) == (503, "LINE_FULL", 4, None)
        assert headers["retry-after"] == "1"
        goes_on.set()
        assert {each[0] for each in await asyncio.gather(*requests)} == {200}


async def test_a_request_that_waited_too_long_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.serving.WAIT_S_MAX", 0.2)
    async with stage() as at:
        await at.serve("chat")
        at.scheduler.models["chat"].waits_for = "no GPU is free"
        status, headers, body = await asked(at, "/m/chat/", "POST", b"x")
        said: dict[str, Any] = json.loads(body)
        error = said["error"]
        assert (status, error["reason"], said["place"], said["estimate_s"]) == (503, "WORKER_NOT_READY", 1, None)
        assert "no GPU is free" in error["message"] and int(headers["retry-after"]) >= 1


async def test_who_waits_for_a_program_that_is_stopped_is_told_at_once() -> None:
    async with stage() as at:
        await at.serve("chat")
        waiting = [asyncio.create_task(asked(at, "/m/chat/", "POST", b"x")) for _ in range(2)]
        await until("they wait", lambda: at.scheduler.reported("chat") == (0, 2))
        del at.scheduler.models["chat"]
        await at.scheduler.changed()
        for status, _, body in await asyncio.gather(*waiting):
            assert (status, json.loads(body)["error"]["reason"]) == (404, "MODEL_NOT_FOUND")


async def test_a_program_that_has_failed_is_told_at_once_and_so_is_who_waits_for_it() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat")
        ann = {"Authorization": f"Bearer {at.person('ann')}"}
        waiting = [asyncio.create_task(asked(at, "/m/chat/", "POST", b"x", ann)) for _ in range(2)]
        await until("they wait", lambda: at.scheduler.reported("chat") == (0, 2))
        failure = sessions_pb2.ModelFailure(message="it ended with exit code 3")
        at.scheduler.models["chat"].failure.CopyFrom(failure)
        await at.scheduler.changed()
        for status, headers, body in [*await asyncio.gather(*waiting), await asked(at, "/m/chat/x", headers=ann)]:
            error = json.loads(body)["error"]
            assert (status, error["reason"]) == (503, "MODEL_DOWN") and "retry-after" not in headers
            assert "it ended with exit code 3" in error["message"] and "--model chat" in error["next_step"]
        stranger = json.loads((await asked(at, "/m/chat/"))[2])["error"]
        assert stranger["message"] == "'chat' has failed", "its words may name folders"
        body = json.dumps({"model": "chat"}).encode()
        json_of_ann = {"Content-Type": "application/json", **ann}
        status, headers, body = await asked(at, "/v1/completions", "POST", body, json_of_ann)
        error = json.loads(body)["error"]
        assert (status, error["code"], "retry-after" in headers) == (503, "model_down", False)
        assert "it ended with exit code 3" in error["message"]
        # Those that run go on, and one that still loads is waited for.
        await at.serve("chat", replica)
        at.scheduler.models["chat"].failure.CopyFrom(failure)
        await at.scheduler.changed()

        async def is_answered() -> bool:
            return (await asked(at, "/m/chat/"))[0] == 200

        await until("its replica is known", is_answered)
        replica.state = inference_pb2.WORKER_STATE_LOADING
        await at.serve("loads", replica)
        at.scheduler.models["loads"].failure.CopyFrom(failure)
        waits = asyncio.create_task(asked(at, "/m/loads/"))
        await until("it waits", lambda: at.scheduler.reported("loads") == (0, 1))
        replica.state = inference_pb2.WORKER_STATE_READY
        await at.serve("loads", replica)
        assert (await waits)[0] == 200


async def test_who_leaves_while_waiting_waits_no_longer() -> None:
    async with stage() as at:
        await at.serve("chat")
        async with at.asking("/m/chat/", "POST", body=b"x"):
            await until("it is told", lambda: at.scheduler.reported("chat") == (0, 1))
        await until("it is told", lambda: at.scheduler.reported("chat") == (0, 0))


async def closes(call: Call) -> None:
    call.keeps = False


async def test_a_request_that_changes_nothing_is_tried_at_another_replica_and_no_other_one() -> None:
    async with stage() as at, program("bad", closes) as bad, program("good", who) as good:
        await at.serve("chat", bad, good)
        for _ in range(2):
            assert (await asked(at, "/m/chat/"))[0] == 200
        # It is passed over now; the other one is at work.
        assert len(bad.calls) == 1
        await at.serve("alone", bad)
        for method, tries in (("GET", 2), ("PUT", 2), ("POST", 1)):
            before = len(bad.calls)
            status, _, body = await asked(at, "/m/alone/", method)
            assert (status, json.loads(body)["error"]["reason"], len(bad.calls) - before) == (
                502,
                "REPLICA_FAILED",
                tries,
            )


async def test_a_request_with_a_body_goes_to_another_replica_only_if_none_of_it_has_left() -> None:
    async with stage() as at, program("gone", who) as gone, program("good", who) as good:
        await at.serve("chat", gone, good)
        gone.port = 1  # Nobody listens there.
        await at.serve("chat", gone, good)
        for _ in range(4):
            assert (await asked(at, "/m/chat/", "POST", b"x"))[0] == 200
        assert len(good.calls) == 4


async def test_who_had_a_request_that_was_broken_off_is_told_and_whether_it_had_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_two = asyncio.Event()

    async def closes_on_two(call: Call) -> None:
        if len(replica.calls) == 2:
            has_two.set()
        await has_two.wait()
        call.keeps = False

    async with stage() as at, program("r1", closes_on_two) as replica, program("gone", who) as gone:
        await at.serve("chat", replica)
        both = await asyncio.gather(*(asked(at, "/m/chat/", "POST", b"x") for _ in range(2)))
        said = [json.loads(body) for _, _, body in both]
        assert [each["shared"] for each in said] == [True, True]
        monkeypatch.setattr(choice_module, "TOGETHER_S", -1.0)  # as if that was long ago
        _, _, body = await asked(at, "/m/chat/", "POST", b"x")
        alone = json.loads(body)
        assert (alone["shared"], alone["replica"]) == (False, said[0]["replica"]) and alone["replica"] != "r1"
        gone.port = 1  # Nobody listens there, and nobody had it.
        await at.serve("away", gone)
        status, _, body = await asked(at, "/m/away/", "POST", b"x")
        assert status == 502 and "replica" not in json.loads(body)


async def test_a_connection_that_was_kept_and_closed_meanwhile_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def once(call: Call) -> None:
        await call.reply(b"ok")
        if len(replica.calls) % 2:
            # Behind the answer, so that the gateway keeps it: then the next request meets its end.
            call.keeps = False

    async with stage() as at, program("r1", once) as replica:
        await at.serve("chat", replica)
        for _ in range(10):
            assert (await asked(at, "/m/chat/"))[0] == 200


async def test_a_replica_that_drains_gets_no_new_requests_and_ends_those_it_has() -> None:
    goes_on = asyncio.Event()

    async def waits(call: Call) -> None:
        await goes_on.wait()
        await call.reply(call.head.target.encode())

    async with stage() as at, program("old", waits) as old, program("new", waits) as new:
        await at.serve("chat", old, concurrency=1)
        first = asyncio.create_task(asked(at, "/m/chat/first"))
        await until("it is there", lambda: old.calls)
        old.state = inference_pb2.WORKER_STATE_DRAINING
        await at.serve("chat", old, new, concurrency=1)
        second = asyncio.create_task(asked(at, "/m/chat/second"))
        await until("it is at the other one", lambda: new.calls)
        goes_on.set()
        assert [(await each)[2] for each in (first, second)] == [b"/first", b"/second"]
        await until("nothing holds it any more", lambda: old.open == 0)
        assert len(old.calls) == 1


async def test_a_program_is_watched_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "UNUSED_S_MAX", 0.3)
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica)
        for _ in range(3):
            assert (await asked(at, "/m/chat/"))[0] == 200
        await until("it is watched no longer", lambda: at.scheduler.watched["chat"] == 0)
        assert (await asked(at, "/m/chat/"))[0] == 200


async def test_programs_that_nobody_uses_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "WATCHED_MAX", 2)
    async with stage() as at, program("r1", who) as replica:
        for number in range(4):
            await at.serve(f"chat{number}", replica)
            assert (await asked(at, f"/m/chat{number}/"))[0] == 200
        await until("two are watched", lambda: sum(at.scheduler.watched.values()) == 2)


async def test_replicas_answer_while_the_scheduler_is_away() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica, access=LOGIN)
        token = at.person("ann")
        assert (await asked(at, "/m/chat/", headers={"Authorization": f"Bearer {token}"}))[0] == 200
        await at.stop_scheduler()
        async with asyncio.timeout(DEADLINE_SECONDS):
            for _ in range(3):
                assert (await asked(at, "/m/chat/", headers={"Authorization": f"Bearer {token}"}))[0] == 200
        status, _, body = await asked(at, "/m/unknown/")
        assert (status, json.loads(body)["error"]["reason"]) == (503, "SCHEDULER_UNREACHABLE")


def test_retry_after_has_bounds() -> None:
    busy = Busy(GpufleetError(Reason.LINE_FULL), 1, 1e9)
    assert busy.retry_after_s == RETRY_S_MAX
