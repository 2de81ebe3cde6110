"""Warnings of jobs on a real scheduler and agent: who follows a job is told, and `--notify` hears of them."""

from __future__ import annotations

import json
from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.e2e.client import span
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

GB = 10**9


async def test_a_job_that_nears_its_time_limit_tells_so_to_who_follows_it(fleet: Fleet) -> None:
    await fleet.add_node("n1")
    async with fleet.client() as client:
        # A scheduler that is held up over both moments tells one of them: they are three seconds apart.
        job = await client.submit("sleep", "600", time_limit=span(30))
        messages = await client.messages(job, follow=True)
        counts = [len(each.job.warnings) for each in messages if each.HasField("job")]
        assert {1, 2} <= set(counts)
        ended = await client.job(job)
        assert ended.state == job_pb2.JOB_STATE_TIMED_OUT
        said = [(each.kind, each.attempt, each.sentence[:20]) for each in ended.warnings]
        assert said == [
            ("TIME_LIMIT_NEAR", 1, "80 % of its time lim"),
            ("TIME_LIMIT_NEAR", 1, "90 % of its time lim"),
        ]
        assert [each for each in await client.story(job) if "of its time limit of 30s is over" in each]


LOAD = (
    {"seconds": 0, "gpu": 0, "utilization_percent": 90, "memory_used_bytes": 9 * GB},
    {"seconds": 3600, "gpu": 0},
    {"seconds": 0, "gpu": 1, "memory_used_bytes": GB, "throttle_reasons": ["sw_power_cap", "hw_thermal_slowdown"]},
    {
        "seconds": 0,
        "gpu": 2,
        "utilization_percent": 0,
        "memory_used_bytes": 9 * GB,
        "throttle_reasons": ["sw_power_cap"],
    },
)
SETTINGS = """
[nodes]
heartbeat = "200ms"
[warnings]
idle_span = "2s"
memory_span = "1s"
throttled_span = "2s"
"""


async def test_gpus_that_a_job_leaves_idle_or_that_are_too_hot_are_told_once(tmp_path: Path) -> None:
    load, settings = tmp_path / "load.jsonl", tmp_path / "scheduler.toml"
    load.write_text("".join(json.dumps(line) + "\n" for line in LOAD))
    settings.write_text(SETTINGS)
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as client:
        await fleet.add_node("n1", "--virtual-gpus", "3", "--virtual-load", str(load))
        notify = 'echo "$GPUFLEET_NOTICE $GPUFLEET_WARNING $GPUFLEET_MESSAGE" >> told'
        job = await client.submit("sleep", "600", gpus=3, min_memory_bytes=6 * GB, notify=notify)
        agent = fleet.agents["n1"]

        async def is_warned() -> bool:
            return len((await client.job(job)).warnings) == 2

        await until("the job is warned of each", is_warned)
        # GPU 1 is nearly empty, too, of which virtual GPUs are never warned.
        told = {each.kind: each.sentence for each in (await client.job(job)).warnings}
        assert told == {
            "DEVICES_IDLE": "GPU 2 of node n1 has been idle for 2s, below 5 % all the time: the job holds it unused.",
            "THROTTLED": "GPU 1 of node n1 is slowed down by heat (hw_thermal_slowdown).",
        }
        sentences = sorted(f"warning {kind} {sentence}" for kind, sentence in told.items())
        await until("whom the job names is told", lambda: agent.log_text().count("told 'warning'") == 2)
        assert lines(client.cwd / "told") == ["start", *sentences]
        # Neither a new scheduler nor a new agent tells anything again; the end is told behind what is said once more.
        agent.kill()
        await fleet.scheduler.stop()
        await fleet.scheduler.start()
        agent.spawn()
        await fleet.node_is_ready("n1")
        await client.cancel(job)
        await client.wait(job)
        await until("the end is told", lambda: len(lines(client.cwd / "told")) > 3)
        assert lines(client.cwd / "told") == ["start", *sentences, "end  the command was ended by signal 15"]
        assert len((await client.job(job)).warnings) == 2


def lines(file: Path) -> list[str]:
    """What was told: the start, warnings in the order of their kinds, the end."""
    text = file.read_text().splitlines() if file.exists() else []
    return [each.strip() for each in [*text[:1], *sorted(text[1:3]), *text[3:]]]
