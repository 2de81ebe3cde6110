"""Real programs join by tokens that are traded: a gateway and a worker by hand, each with a credential of its own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpufleet.v1 import scheduler_pb2, sessions_pb2

from gpufleet.security.tokens import write_token_file
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS, tail_of, until
from tests.gateway.stage import Side, Stage, browser

pb = scheduler_pb2


async def joining(stage: Stage, admin: Client, role: str, **fields: object) -> str:
    """A file with a token that lets one program join."""
    number = pb.Role.Value(f"ROLE_{role.upper()}")
    request = pb.CreateTokenRequest(user="ann", role=number, uses_max=1, **fields)  # type: ignore[arg-type]
    made = await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)
    file = stage.folder / f"joining-{role}.token"
    write_token_file(file, made.secret)
    return str(file)


async def has_joined(side: Side) -> None:
    await until(f"{side.log.stem} has joined", lambda: "has a credential of its own" in side.log.read_text())


async def test_a_gateway_and_a_worker_trade_their_tokens_and_people_hold_sessions(stage: Stage, tmp_path: Path) -> None:
    async with stage.fleet.client() as admin:
        by = await joining(stage, admin, "gateway")
        flags = ("--port", "0", "--data", str(tmp_path / "gateway"), "--token-file", by, "--gateway-id", "edge")
        gateway = stage.side("gateway-edge", "gpufleet.gateway", *flags)
        gateway.start()
        by = await joining(stage, admin, "worker", models="hand-*")
        named = ("test-pattern", "--port", "0", "--device", "cpu", "--name", "hand-1", "--token-file", by)
        worker = stage.side("worker-hand", "gpufleet.inference", *named, "--worker-id", "w1")
        worker.start()
        for side in (gateway, worker):
            await has_joined(side)
        kept = [tmp_path / "gateway" / "credential.token", *stage.folder.rglob("worker/w1.token")]
        assert [stat.S_IMODE(os.stat(file).st_mode) for file in kept] == [0o600, 0o600]  # noqa: PTH116
        address = await gateway.address()
        async with browser(stage, gateway=address) as page:
            await page.hello("hand-1")
            await page.frame()
        listed = (await admin.stub.ListTokens(pb.ListTokensRequest(page_size=1000))).tokens
        own = {each.program: each for each in listed if each.program}
        assert (own["w1"].models, own["w1"].user, own["edge"].role) == ("hand-1", "ann", pb.ROLE_GATEWAY)
        # The worker comes back as itself, with nothing left of its token to trade, and is out once it is revoked.
        worker.end()
        worker.log.write_text("")
        worker.start()
        await worker.is_served()
        await admin.stub.RevokeToken(pb.RevokeTokenRequest(id=own["w1"].id))
        await until("the worker is shut out", lambda: "revoked" in worker.log.read_text())
        assert "Traceback" not in tail_of(worker.log) + tail_of(gateway.log)
        for side in (gateway, worker):
            side.end()
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="hand-1"))
