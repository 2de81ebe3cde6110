"""Programs that the fleet serves, through the contract: what is refused, who is told the keys, what requests bring."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import field_mask_pb2
from gpufleet.v1 import inference_pb2, job_pb2, scheduler_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import Reason
from gpufleet.security.pass_phrases import hash_pass_phrase
from scheduler.wire.validate_models import ARGUMENT_CHARS_MAX
from tests.api.sessions.test_models import SLEEPS, served, shown
from tests.e2e.client import Client, dial, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until


def program(admin: Client, name: str, *, min_workers: int = 0, **http: Any) -> dict[str, Any]:
    """A program that never listens, as `served` takes it."""
    said = {"argv": ["serve", "--port", "$PORT"], **http}
    worker = admin.spec(*SLEEPS)
    return {"entry_point": "", "worker": worker, "min_workers": min_workers, "http": sessions_pb2.HttpService(**said)}


async def test_a_replica_is_a_job_that_runs_the_program_beside_what_tells_of_it(admin: Client) -> None:
    asked = program(admin, "told", min_workers=1, ready_path="/health", port_env="LISTEN", concurrency=3)
    async with served(admin, "told", **asked) as model:
        job = await admin.job(model.workers[0].job_id)
        flags = ["--http-service", "--name", "told", "--port-env", "LISTEN", "--concurrency", "3", "--ready", "/health"]
        assert list(job.spec.argv) == [*SLEEPS, *flags, "--", "serve", "--port", "$PORT"]
        assert (model.http.concurrency, model.http.target_concurrency) == (3, 3), "no more than it takes"
        assert (model.http.target_wait.seconds, model.http.idle.seconds) == (2, 600)
        assert model.limits.access == sessions_pb2.MODEL_ACCESS_LOGIN, "who has no token does not reach it"


@pytest.mark.parametrize(
    ("http", "field", "said"),
    [
        ({"argv": []}, "model.http.argv", "must be a program"),
        ({"argv": ["serve", "a\0b"]}, "model.http.argv", "no NUL"),
        ({"argv": ["serve", "x" * (ARGUMENT_CHARS_MAX + 1)]}, "model.http.argv", "at most 10,000 characters"),
        ({"port_env": "1PORT"}, "model.http.port_env", "not a variable's name"),
        ({"port_env": "GPUFLEET_TICKET_SECRET"}, "model.http.port_env", "not a variable's name"),
        ({"ready_path": "health"}, "model.http.ready_path", "not a path"),
        ({"ready_path": "/a b"}, "model.http.ready_path", "not a path"),
        ({"ready_path": "/a\r\nX: y"}, "model.http.ready_path", "not a path"),
        ({"concurrency": -1}, "model.http.concurrency", "1 to 10,000"),
        ({"concurrency": 4, "target_concurrency": 5}, "model.http.target_concurrency", "1 to 4"),
        ({"idle": -1}, "model.http.idle", "must be 0 to 86,400 s"),
    ],
)
async def test_bad_input_names_the_field(admin: Client, http: dict[str, Any], field: str, said: str) -> None:
    idle = http.pop("idle", None)
    model = sessions_pb2.Model(name="bad", **program(admin, "bad", **http))
    if idle is not None:
        model.http.idle.FromSeconds(idle)
    error = await refusal(admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model)))
    assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, field)
    assert said in error.message


@pytest.mark.parametrize(
    ("http", "worker", "field", "said"),
    [
        ({"port": 8000}, None, "model.http.port", "the worker has none"),
        ({"argv": []}, None, "model.http.argv", "must be a program"),
        ({"port": 65_536}, {}, "model.http.port", "1 to 65,535"),
        ({"port": -1}, {}, "model.http.port", "1 to 65,535"),
        ({"argv": ["", "x"]}, {}, "model.http.argv", "must be a program"),
        ({}, {"argv": ["sh"]}, "model.worker.argv", "does not go with a container"),
        ({}, {"output_file": "log"}, "model.worker.output_file", "does not have"),
        ({}, {"secret": "nobodys"}, "model.worker.container.image_secret", "has no secret 'nobodys'"),
        (None, {}, "model.worker.container", "does not fit a class"),
    ],
)
async def test_bad_input_about_an_image_names_the_field(
    admin: Client, http: dict[str, Any] | None, worker: dict[str, Any] | None, field: str, said: str
) -> None:
    model = sessions_pb2.Model(name="bad", **program(admin, "bad", **(http or {})))
    if worker is not None:
        secret = worker.pop("secret", "")
        container = job_pb2.ContainerSettings(image="web:1", image_secret=secret)
        model.worker.CopyFrom(job_pb2.JobSpec(container=container, **worker))
    if http is None:
        model.ClearField("http")
        model.entry_point = "models:Class"
    error = await refusal(admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model)))
    assert error.violations[0].field == field, error
    assert said in error.message and error.next_step


async def test_an_image_where_no_node_has_an_engine_is_refused_and_so_is_one_for_a_process(admin: Client) -> None:
    container = job_pb2.ContainerSettings(image="web:1")
    model = sessions_pb2.Model(
        name="image", worker=job_pb2.JobSpec(container=container), http=sessions_pb2.HttpService(port=8000)
    )
    error = await refusal(admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model)))
    assert error.violations[0].field == "model.worker" and "runs no containers" in error.message
    async with served(admin, "process", **program(admin, "process")):
        model.name = "process"
        mask = field_mask_pb2.FieldMask(paths=["worker.container.image"])
        error = await refusal(admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model, update_mask=mask)))
        assert (error.violations[0].field, error.reason) == ("update_mask", Reason.INVALID_ARGUMENT)
        assert "does not run in a container" in error.message and "serve it again" in error.next_step


@pytest.mark.parametrize(
    ("beside", "field"),
    [
        ({"entry_point": "models:Class"}, "model.entry_point"),
        ({"arguments": {"steps": "3"}}, "model.arguments"),
        ({"limits": sessions_pb2.SessionLimits(line_length=5)}, "model.limits"),
        ({"limits": sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_PASS_PHRASE)}, "model.limits"),
    ],
)
async def test_what_is_of_a_class_does_not_go_with_a_program(admin: Client, beside: dict[str, Any], field: str) -> None:
    asked = {**program(admin, "mixed"), **beside}
    request = sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="mixed", **asked))
    error = await refusal(admin.stub.ServeModel(request))
    assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, field)


async def test_a_program_is_in_its_owners_group_until_it_is_served_without_one(fleet: Fleet, admin: Client) -> None:
    async def serve(client: Client, name: str, **asked: Any) -> sessions_pb2.Model:
        model = sessions_pb2.Model(name=name, **{**program(client, name), **asked})
        return (await client.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))).model

    made = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="bob", role=scheduler_pb2.ROLE_USER))
    in_group = {"exclusive_group": "shared"}
    async with (
        served(admin, "grouped", **program(admin, "grouped"), **in_group) as model,
        fleet.client(made.secret) as bob,
        served(bob, "bobs", **program(bob, "bobs"), **in_group),
    ):
        assert (model.exclusive_group, model.in_group.state) == ("shared", sessions_pb2.GROUP_STATE_ASLEEP)
        for wrong, field in (
            ({"exclusive_group": "no group"}, "model.exclusive_group"),
            ({"min_workers": 1, **in_group}, "model.min_workers"),
        ):
            error = await refusal(serve(admin, "grouped", **wrong))
            assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, field)
            assert error.next_step
        alone = await serve(admin, "grouped")
        assert (alone.exclusive_group, alone.HasField("in_group"), alone.revision) == ("", False, 1)
        named = sessions_pb2.Model(name="grouped", exclusive_group="shared")
        error = await refusal(admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=named)))
        assert error.violations[0].field == "model.exclusive_group"


async def test_an_update_keeps_what_it_does_not_name(fleet: Fleet, admin: Client) -> None:
    asked = program(admin, "kept", ready_path="/health", port_env="LISTEN", concurrency=3)
    worker: job_pb2.JobSpec = asked["worker"]
    worker.env["KEPT"] = "1"
    worker.labels["a"] = "b"
    del worker.devices[:]
    worker.devices.add(count=1, allow_busy=True, share=job_pb2.DeviceShare(milli=500))
    asked |= {"max_workers": 4, "exclusive_group": "kept"}

    async def update(client: Client, *paths: str, name: str = "kept", **said: Any) -> sessions_pb2.Model:
        request = sessions_pb2.ServeModelRequest(
            model=sessions_pb2.Model(name=name, **said), update_mask=field_mask_pb2.FieldMask(paths=paths)
        )
        return (await client.stub.ServeModel(request)).model

    async with served(admin, "kept", **asked) as model:
        # A number makes no revision: all else is what it was, to the last variable.
        changed = await update(admin, "max_workers", max_workers=7)
        assert (changed.max_workers, changed.revision, changed.exclusive_group) == (7, 1, "kept")
        assert (changed.worker, changed.http, changed.limits) == (model.worker, model.http, model.limits)
        said = sessions_pb2.HttpService(argv=["serve", "--better"], ready_path="/not-named")
        changed = await update(admin, "http.argv", http=said)
        assert (changed.revision, changed.http.ready_path, list(changed.http.argv)) == (2, "/health", list(said.argv))
        devices = [job_pb2.DeviceRequest(share=job_pb2.DeviceShare(milli=250))]
        more = job_pb2.JobSpec(env={"MORE": "2"}, devices=devices, cwd="/not-named")
        changed = await update(admin, "worker.env", "worker.devices", worker=more)
        (had,) = changed.worker.devices
        assert (had.count, had.allow_busy, had.share.milli, changed.worker.cwd) == (1, True, 250, model.worker.cwd)
        # Said again it changes nothing, so that the variables are KEPT and MORE now.
        both = job_pb2.JobSpec(env={"KEPT": "1", "MORE": "2"})
        assert (await update(admin, "worker.env", worker=both)).revision == changed.revision
        assert (await update(admin, "exclusive_group")).exclusive_group == ""

        # Its CPU model is a number as well, and what decides between the two is told to gateways.
        mode = job_pb2.GPU_MODE_PREFERRED
        said = sessions_pb2.HttpService(cpu_model="slow", gpu_mode=mode)
        changed = await update(admin, "http.cpu_model", "http.gpu_mode", http=said)
        assert (changed.http.cpu_model, changed.http.gpu_mode, changed.revision) == ("slow", mode, 3)
        watching: Any = admin.stub.WatchWorkers(sessions_pb2.WatchWorkersRequest(model="kept"))
        news = await watching.read()
        watching.cancel()
        assert (
            news.routing.content_types["image/*"] == mode and news.routing.content_types["*"] == job_pb2.GPU_MODE_NEVER
        )
        assert (news.routing.gpu_wait.seconds, news.routing.gpu_queue_limit) == (60, 10)
        for wrong, field in (
            (sessions_pb2.HttpService(cpu_model="kept", gpu_mode=mode), "model.http.cpu_model"),
            (sessions_pb2.HttpService(cpu_model="no name", gpu_mode=mode), "model.http.cpu_model"),
            (sessions_pb2.HttpService(gpu_mode=mode), "model.http.cpu_model"),
        ):
            error = await refusal(update(admin, "http.cpu_model", "http.gpu_mode", http=wrong))
            assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, field)

        error = await refusal(update(admin, "max_workers", name="typed-wrong", max_workers=2))
        assert error.reason == Reason.MODEL_NOT_FOUND
        for paths in ((), ("owner",), ("worker.time_limit",)):
            error = await refusal(update(admin, *paths))
            assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "update_mask")
        made = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="eve", role=scheduler_pb2.ROLE_USER))
        async with fleet.client(made.secret) as eve:
            assert (await refusal(update(eve, "max_workers", max_workers=1))).reason == Reason.PERMISSION_DENIED
        assert (await shown(admin, "kept")).max_workers == 7


async def test_who_may_use_a_program_changes_alone_and_nothing_else_of_people_does(admin: Client) -> None:
    async with served(admin, "changed", **program(admin, "changed")):

        async def update(limits: sessions_pb2.SessionLimits) -> sessions_pb2.Model:
            model = sessions_pb2.Model(name="changed", limits=limits)
            return (await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))).model

        for access in (sessions_pb2.MODEL_ACCESS_OPEN, sessions_pb2.MODEL_ACCESS_LOGIN):
            changed = await update(sessions_pb2.SessionLimits(access=access))
            assert (changed.limits.access, list(changed.http.argv)) == (access, ["serve", "--port", "$PORT"])
        phrase = hash_pass_phrase("correct horse")
        for limits in (sessions_pb2.SessionLimits(line_length=3), sessions_pb2.SessionLimits(pass_phrase_hash=phrase)):
            error = await refusal(update(limits))
            assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "model.limits")
        assert (await shown(admin, "changed")).limits.access == sessions_pb2.MODEL_ACCESS_LOGIN


async def test_what_a_replica_is_started_with_makes_a_revision_and_numbers_do_not(admin: Client) -> None:
    async with served(admin, "revised", **program(admin, "revised")) as model:
        assert (model.revision, model.former_revision, model.HasField("update")) == (1, 0, False)

        async def serve(**request: Any) -> sessions_pb2.Model:
            return (await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(**request))).model

        def again(**http: Any) -> sessions_pb2.Model:
            return sessions_pb2.Model(name="revised", **program(admin, "revised", **http))

        error = await refusal(serve(model=sessions_pb2.Model(name="revised"), rollback=True))
        assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "rollback")
        error = await refusal(serve(model=sessions_pb2.Model(name="revised"), in_place=True))
        assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "in_place")
        assert (await serve(model=again(target_concurrency=3))).revision == 1
        changed = await serve(model=again(argv=["serve", "--better"], target_concurrency=3))
        assert (changed.revision, changed.former_revision, changed.update.in_place) == (2, 1, False)
        assert (await serve(model=sessions_pb2.Model(name="revised"), in_place=True)).update.in_place

        # Back: the former program with the numbers of now.
        error = await refusal(serve(model=again(), rollback=True))
        assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "model.worker")
        back = await serve(model=sessions_pb2.Model(name="revised"), rollback=True)
        assert (back.revision, back.former_revision) == (1, 2)
        assert (list(back.http.argv), back.http.target_concurrency) == (["serve", "--port", "$PORT"], 3)
        newest = await serve(model=again(argv=["serve", "--best"]))
        assert (newest.revision, newest.http.target_concurrency) == (3, 8)


async def test_only_its_owner_and_administrators_change_or_stop_a_program(fleet: Fleet, admin: Client) -> None:
    made = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="mallory", role=scheduler_pb2.ROLE_USER))
    async with served(admin, "owned", **program(admin, "owned")), fleet.client(made.secret) as mallory:
        again = sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="owned", **program(admin, "owned")))
        access = sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_OPEN)
        opened = sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="owned", limits=access))
        stop = sessions_pb2.StopModelRequest(name="owned")
        for call in (mallory.stub.ServeModel(again), mallory.stub.ServeModel(opened), mallory.stub.StopModel(stop)):
            assert (await refusal(call)).reason is Reason.PERMISSION_DENIED
        reports: Any = mallory.stub.ReportRequests(iter([sessions_pb2.ReportRequestsRequest()]))
        assert (await refusal(reports)).reason is Reason.PERMISSION_DENIED


async def test_nobody_elses_worker_becomes_a_replica_by_hand(fleet: Fleet, admin: Client) -> None:
    role = scheduler_pb2.ROLE_WORKER
    made = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="mallory", role=role))
    async with served(admin, "private", **program(admin, "private")), fleet.client(made.secret) as mallory:
        hello = sessions_pb2.WorkerHello(
            model="private", endpoint="127.0.0.1:1", worker_start="by-mallory", ticket_secret=b"s" * 32
        )
        call = mallory.stub.ConnectWorker(iter([sessions_pb2.ConnectWorkerRequest(hello=hello)]))
        assert (await refusal(call)).reason is Reason.PERMISSION_DENIED
        assert not (await shown(admin, "private")).workers


async def test_only_gateways_are_told_the_key_of_a_replica(fleet: Fleet, admin: Client) -> None:
    async with (
        served(admin, "keyed", **program(admin, "keyed")),
        dial(fleet.scheduler.address, fleet.scheduler.token("admin")) as channel,
    ):
        call: Any = scheduler_pb2_grpc.SchedulerStub(channel).ConnectWorker()
        hello = sessions_pb2.WorkerHello(
            model="keyed", endpoint="127.0.0.1:1", worker_start="by-hand", ticket_secret=b"s" * 32
        )
        await call.write(sessions_pb2.ConnectWorkerRequest(hello=hello))
        report = sessions_pb2.WorkerReport(state=inference_pb2.WORKER_STATE_READY, seats=64)
        await call.write(sessions_pb2.ConnectWorkerRequest(report=report))
        await call.read()

        async def keys_for(role: str) -> list[bytes]:
            async with dial(fleet.scheduler.address, fleet.scheduler.token(role)) as own:
                request = sessions_pb2.WatchWorkersRequest(model="keyed")
                watching: Any = scheduler_pb2_grpc.SchedulerStub(own).WatchWorkers(request)
                try:
                    while not (workers := (await watching.read()).workers):
                        pass
                    return [each.connect_key for each in workers]
                finally:
                    watching.cancel()

        assert [len(key) for key in await keys_for("gateway")] == [32]
        assert await keys_for("admin") == [b""], "not even an administrator needs it"
        call.cancel()


async def test_requests_of_a_gateway_start_replicas_until_its_stream_ends(fleet: Fleet, admin: Client) -> None:
    async with served(admin, "asked", **program(admin, "asked", target_concurrency=2), max_workers=3):

        async def count(number: int) -> bool:
            return len((await shown(admin, "asked")).workers) == number

        assert await count(0), "nobody asks"
        async with dial(fleet.scheduler.address, fleet.scheduler.token("gateway")) as channel:
            call: Any = scheduler_pb2_grpc.SchedulerStub(channel).ReportRequests()
            mine = sessions_pb2.ServedRequests(model="asked", under_way=2, waiting=1)
            others = sessions_pb2.ServedRequests(model="no-such-program", waiting=9)
            await call.write(sessions_pb2.ReportRequestsRequest(models=[mine, others]))
            await until("two replicas are there for three requests", lambda: count(2))
            assert (await shown(admin, "asked")).request_count == 3
            call.cancel()

        async def is_forgotten() -> bool:
            return (await shown(admin, "asked")).request_count == 0

        await until("what the gateway had is forgotten with its stream", is_forgotten)
