"""`gpuctl forward`: stay until the job has ended or somebody leaves, whatever else goes away meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.fleet.async_client import connected_async
from gpufleet.fleet.following.job_updates import Ends
from gpufleet.fleet.following.shell import follow
from gpufleet.fleet.inside.forwarding import Forwarding, check_may_forward, leads_to
from gpufleet.fleet.inside.ports import Listening, Pair, listening
from gpufleet.fleet.outcome import end_in_words
from gpufleet.fleet.settings import Settings

from ..errors import INTERRUPTED
from ..quitting import Left, until_told_to_leave
from ..screen import say
from .showing import showing


async def forward_ports(settings: Settings, job_id: int, pairs: Sequence[Pair], *, rank: int, opens: bool) -> int:
    """Forward these ports; answers the exit code, 0 at the job's end and where Ctrl-C ends it."""
    ended: list[job_pb2.Job] = []
    async with connected_async(settings) as client:
        job = (await client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id))).job
        await check_may_forward(client, job)
        ends = Ends(client, [job_id], ended.append)
        forwarding = Forwarding(client, job_id, rank, say)

        async def stay(ports: Sequence[Listening]) -> None:
            async with showing(forwarding, ports[0], "", say, opens=True) if opens else contextlib.nullcontext():
                await follow(ends.feed, settings.time_outs.without_end(), client.translated, on_cut_off=_tell_cut_off)

        with listening(pairs) as ports:
            async with forwarding.serve(ports):
                for each in ports:
                    say(f"{leads_to(each, job_id)}; Ctrl-C ends it, and the job goes on")
                try:
                    await until_told_to_leave(stay(ports))
                except Left as left:
                    return 0 if left.code == INTERRUPTED else left.code
    say(end_in_words(ended[0]) if ended else f"job {job_id} has ended")
    return 0


def _tell_cut_off(is_cut_off: bool) -> None:
    say("the scheduler is away; the ports here stay" if is_cut_off else "the scheduler is back")
