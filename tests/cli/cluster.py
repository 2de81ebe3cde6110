"""A small cluster with a bit of everything, for screens."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

NOW = datetime(2026, 3, 4, 15, 0, 0, tzinfo=UTC)
GB = 10**9


def ago(seconds: float) -> Timestamp:
    """So long before NOW."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round((NOW.timestamp() - seconds) * 1e9))
    return stamp


def spec(*argv: str, gpus: int = 0, name: str = "") -> job_pb2.JobSpec:
    """A spec as the server would fill it in."""
    made = job_pb2.JobSpec(argv=argv, name=name, cpus=1, band=job_pb2.BAND_NORMAL, cwd="/home/ada/project")
    if gpus:
        made.devices.add(count=gpus, min_memory_bytes=8 * GB)
    return made


def placed(node: str, *devices: int, number: int = 1, started: float = 600) -> job_pb2.Attempt:
    """A running attempt."""
    rank = job_pb2.PlacedRank(node=node, device_indices=devices, cpus=1)
    return job_pb2.Attempt(number=number, ranks=[rank], place_time=ago(started + 1), start_time=ago(started))


def running() -> job_pb2.Job:
    return job_pb2.Job(
        id=12,
        user="ada",
        spec=spec("python", "train.py", "--epochs", "90", gpus=2, name="resnet"),
        state=job_pb2.JOB_STATE_RUNNING,
        submit_time=ago(4000),
        start_time=ago(3900),
        attempts=[placed("n1", 0, 1, started=3900)],
        attempt_count=1,
        has_stats=True,
    )


def warned() -> job_pb2.Job:
    """It holds two GPUs, uses one of them, and nears its time limit."""
    job = running()
    idle = "GPU 1 of node n1 has been idle, below 5 %, for 15m."
    job.warnings.add(kind="DEVICES_IDLE", sentence=idle, time=ago(3000), attempt=1)
    near = "90 % of its time limit of 1h 12m is over: it is stopped in 7m 12s."
    job.warnings.add(kind="TIME_LIMIT_NEAR", sentence=near, time=ago(12), attempt=1)
    return job


def gang() -> job_pb2.Job:
    """Three ranks, of which one has failed and one was stopped for it."""
    job = running()
    job.spec.node_count = 3
    attempt = job.attempts[0]
    attempt.ranks.add(rank=1, node="n2", device_indices=[0, 1])
    attempt.ranks.add(rank=2, node="n3", device_indices=[2, 3])
    for rank in attempt.ranks:
        rank.start_time.CopyFrom(attempt.start_time)
    attempt.ranks[1].exit.code, attempt.ranks[1].exit_reason = 3, "EXITED"
    attempt.ranks[2].exit.signal, attempt.ranks[2].exit_reason = 15, "SIGNALLED"
    attempt.ranks[2].stop_cause = "GANG"
    return job


def queued() -> job_pb2.Job:
    return job_pb2.Job(
        id=13,
        user="grace",
        spec=spec("python", "-m", "evaluate", gpus=8, name="a-rather-long-name-for-an-evaluation"),
        state=job_pb2.JOB_STATE_QUEUED,
        submit_time=ago(192),
        queue_position=1,
        wait_reason=job_pb2.WaitReason(
            reason="DEVICES_IN_USE",
            sentence="waits for 8 GPUs on one node; n1 has 5 free, n2 has 2 free",
            summary="waits for 8 GPUs on n1",
        ),
        estimated_start_time=ago(-1800),
        latest_start_time=ago(-7200),
    )


def held() -> job_pb2.Job:
    return job_pb2.Job(
        id=14,
        user="ada",
        spec=spec("make", "report"),
        state=job_pb2.JOB_STATE_HELD,
        submit_time=ago(20),
        wait_reason=job_pb2.WaitReason(
            reason="HELD", sentence="held by ada; release it with: gpuctl release 14", summary="held"
        ),
    )


def failed() -> job_pb2.Job:
    first, second = placed("n2", 0, started=3000), placed("n1", 2, number=2, started=2000)
    first.end_time.CopyFrom(ago(2100))
    first.exit_reason = "NODE_LOST"
    first.output_ends.add(stream=job_pb2.STREAM_STDOUT, end_offset=1200)
    second.end_time.CopyFrom(ago(1995))
    second.exit.code = 127
    second.exit_reason = "COMMAND_NOT_FOUND"
    second.output_is_complete = True
    return job_pb2.Job(
        id=9,
        user="ada",
        spec=spec("trian", gpus=1),
        state=job_pb2.JOB_STATE_FAILED,
        submit_time=ago(3100),
        start_time=ago(2000),
        end_time=ago(1995),
        attempts=[first, second],
        attempt_count=2,
        exit=job_pb2.ExitStatus(code=127),
        exit_reason="COMMAND_NOT_FOUND",
        exit_message="there is no program trian in the job's PATH on n1",
        output_is_complete=True,
        requeue_count=1,
    )


def node(name: str, state: node_pb2.NodeState.ValueType, gpus: int, busy: dict[int, int]) -> node_pb2.Node:
    """A node with H200s."""
    made = node_pb2.Node(
        name=name, state=state, address=f"10.0.0.{name[1:]}", is_connected=True, last_heard_time=ago(1), cpus_used=3
    )
    made.info.hostname = name
    made.info.cpus = 64
    made.info.memory_bytes = 512 * GB
    made.info.agent_version = "0.1.0"
    made.info.driver_version = "570.86"
    made.info.platform = "Linux 6.8 x86_64"
    made.info.job_accounts.CopyFrom(node_pb2.JobAccounts(runs_as=node_pb2.RUNS_AS_RANGE, account="root"))
    for index in range(gpus):
        each = made.devices.add(job_id=busy.get(index, 0), is_free=index not in busy)
        each.device.uuid = f"GPU-{index}a5c1e6d"
        each.device.index = index
        each.device.name = "NVIDIA H200"
        each.device.memory_bytes = 143_771 * 10**6
        each.device.is_healthy = each.sample.is_healthy = True
        each.sample.utilization_percent = 97 if index in busy else 0
        each.sample.memory_free_bytes = (20 if index in busy else 143) * GB
    return made


def nodes() -> list[node_pb2.Node]:
    sick = node("n2", node_pb2.NODE_STATE_DRAINING, 3, {})
    sick.is_draining = True
    sick.drain_reason = "fan"
    sick.devices[1].device.is_healthy = False
    sick.devices[1].device.unhealthy_reason = "XID 79"
    sick.devices[1].is_free = False
    plain = node("n3", node_pb2.NODE_STATE_LOST, 0, {})
    plain.info.job_accounts.CopyFrom(node_pb2.JobAccounts(runs_as=node_pb2.RUNS_AS_OWNER, owner="ada", account="lab"))
    return [node("n1", node_pb2.NODE_STATE_READY, 8, {0: 12, 1: 12, 2: 0}), sick, plain]


def shared_nodes() -> list[node_pb2.Node]:
    """A node of which jobs share two GPUs, a half of one is free."""
    made = node("n1", node_pb2.NODE_STATE_READY, 4, {3: 15})
    made.info.labels["zone"] = "east"
    for each, shares in zip(made.devices, ({12: 500, 13: 500}, {14: 500}), strict=False):
        each.is_free = False
        for job, milli in shares.items():
            each.shares.add(job_id=job).share.milli = milli
    for each in made.devices:
        each.free_milli = 0 if each.job_id else 1000 - sum(held.share.milli for held in each.shares)
    return [made]


def queue_answer(*jobs: job_pb2.Job) -> scheduler_pb2.QueueResponse:
    return scheduler_pb2.QueueResponse(
        jobs=jobs, counts=scheduler_pb2.QueueCounts(queued=1, held=1, running=1), view_time=ago(0)
    )
