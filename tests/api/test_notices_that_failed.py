"""What a node could not tell of is kept with the job, once, and only by the node that ran it."""

from __future__ import annotations

import asyncio
from typing import Any

from gpufleet.v1 import job_pb2
from gpufleet.v1 import node_agent_pb2 as agent_pb

from tests.api.asking import forget_node
from tests.api.test_own_node import INFO, agent, announcement, joined
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS


async def test_a_failure_is_kept_once_however_often_it_is_told_and_of_no_other_nodes_job(
    fleet: Fleet, admin: Client
) -> None:
    credential = await joined(fleet, "untold", fleet.scheduler.token("agent"))
    node: dict[str, Any] = {"node": "untold", "incarnation": 2}
    job = await admin.submit("x", nodelist=["untold"], notify="date")
    others = await admin.run("true", notify="true")
    async with agent(fleet, credential) as stub:
        await stub.Register(announcement("untold", incarnation=2), timeout=DEADLINE_SECONDS)
        stream: Any = stub.Heartbeat(timeout=2 * DEADLINE_SECONDS)
        inventory = agent_pb.Inventory(boot_id="b", info=INFO)
        await stream.write(agent_pb.HeartbeatRequest(**node, sequence=1, inventory=inventory))
        running = await admin.wait(job, job_pb2.JOB_STATE_STARTING)
        key = agent_pb.AttemptKey(job_id=job, attempt=1, lineage=running.attempts[-1].lineage)
        foreign = agent_pb.AttemptKey(job_id=others.id, attempt=1, lineage=others.attempts[-1].lineage)
        started = agent_pb.AttemptStarted(key=key)
        await stream.write(agent_pb.HeartbeatRequest(**node, sequence=2, attempt_started=started))
        for sequence, (whose, number) in enumerate([(foreign, 1), (key, 1), (key, 1), (key, 2)], start=3):
            failed = agent_pb.NoticeFailed(key=whose, number=number, notice="start", message=f"{number} {'x' * 2_000}")
            await stream.write(agent_pb.HeartbeatRequest(**node, sequence=sequence, notice_failed=failed))

        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await stream.read()).acked_sequence < 6:
                pass
        shown = (await admin.job(job)).warnings
        assert [(each.kind, each.attempt) for each in shown] == [("NOTICE_FAILED", 1)] * 2
        assert shown[0].sentence.startswith("The notice 'start' was not delivered: 1 xxx")
        assert len(shown[0].sentence) < 1_100
        assert (await admin.kinds(job)).count("NoticeNotDelivered") == 2
        assert "NoticeNotDelivered" not in await admin.kinds(others.id)
        stream.cancel()
        del stream
    await admin.cancel(job, abandon=True)
    await forget_node(admin, "untold")
