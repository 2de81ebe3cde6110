"""From the settings to the numbers of the rules: each setting that is such a number arrives there."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

from gpufleet.config.band_settings import BandSettings
from gpufleet.config.scheduler_settings import (
    FileSettings,
    LimitSettings,
    NodeSettings,
    PlacementSettings,
    PolicySettings,
    RoutingSettings,
    SchedulerSettings,
    WarningSettings,
)
from gpufleet.config.session_numbers import SessionNumbers
from scheduler.program import limits_of
from scheduler.state.ids import ModelName, UserName
from scheduler.state.limits import BandRights, GpuRouting, Limits, NodeOrder, ScoreWeights, WarningLimits
from scheduler.state.sessions.session import SessionLimits
from scheduler.state.specs import Band, GpuMode
from scheduler.state.units import GB, MINUTE, SECOND, Span

NO_SETTINGS = {
    *("unreachable_span", "sample_age", "node_losses", "prepare_span", "gang_start_span"),
    "prepare_still_span",
    *("time_outs", "blameless_losses"),
}
"""Numbers of the rules that stay what they are."""

OTHERS = SchedulerSettings(
    nodes=NodeSettings(
        heartbeat=timedelta(seconds=3),
        missed_heartbeats_max=4,
        lease=timedelta(minutes=2),
        requeue_fence=timedelta(minutes=11),
        approve="manual",
    ),
    files=FileSettings(kept_wait=timedelta(minutes=4)),
    limits=LimitSettings(queue_jobs_max=7, request_id_retention=timedelta(hours=2)),
    policy=PolicySettings(
        user_gpus_max=8,
        user_jobs_max=9,
        preemptible_after=timedelta(minutes=7),
        least_awake=timedelta(minutes=1),
        age_limit=timedelta(days=3),
        bands=BandSettings(user=("low",), admin=("high",), users=(("ann", ("low", "urgent")),)),
    ),
    placement=PlacementSettings(
        node_order="idle",
        backlog_depth=5,
        free_memory_weight=0.1,
        idleness_weight=0.9,
        default_min_memory_bytes=16 * GB,
        device_pause=timedelta(seconds=5),
    ),
    warnings=WarningSettings(
        idle_span=timedelta(minutes=1),
        memory_span=timedelta(minutes=2),
        memory_percent=50,
        throttled_span=timedelta(seconds=1),
    ),
    routing=RoutingSettings(content_types=(("model/*", "required"),), gpu_wait=timedelta(minutes=3), gpu_queue_limit=4),
    sessions=(("canvas", SessionNumbers(turn=timedelta(seconds=90), line_length=3)),),
)


def test_the_defaults_of_the_settings_are_those_of_the_rules() -> None:
    assert limits_of(SchedulerSettings()) == Limits()


def test_every_setting_that_is_a_number_of_the_rules_arrives() -> None:
    assert limits_of(OTHERS) == Limits(
        heartbeat_interval=Span(3 * SECOND),
        missed_heartbeats=4,
        node_lease=Span(2 * MINUTE),
        nodes_await_approval=True,
        requeue_fence=Span(11 * MINUTE),
        request_retention=Span(120 * MINUTE),
        queued_jobs=7,
        left_out_span=Span(5 * SECOND),
        default_min_memory_bytes=16 * GB,
        user_gpus_max=8,
        user_jobs_max=9,
        preemptible_after=Span(7 * MINUTE),
        least_awake=Span(1 * MINUTE),
        age_limit=Span(3 * 24 * 60 * MINUTE),
        bands=BandRights(
            user=frozenset({Band.LOW}),
            admin=frozenset({Band.HIGH}),
            users={UserName("ann"): frozenset({Band.LOW, Band.URGENT})},
        ),
        node_order=NodeOrder.IDLE,
        backlog_depth=5,
        kept_wait=Span(4 * MINUTE),
        score_weights=ScoreWeights(free_memory=0.1, idleness=0.9),
        warnings=WarningLimits(
            idle_span=Span(MINUTE), memory_span=Span(2 * MINUTE), memory_percent=50, throttled_span=Span(SECOND)
        ),
        routing=GpuRouting(modes={"model/*": GpuMode.REQUIRED}, gpu_wait=Span(3 * MINUTE), gpu_queue_limit=4),
        sessions={ModelName("canvas"): SessionLimits(turn=Span(90 * SECOND), line_length=3)},
    )


def test_every_number_of_the_rules_is_a_setting_or_named_as_none() -> None:
    differing = {
        each.name for each in fields(Limits) if getattr(limits_of(OTHERS), each.name) != getattr(Limits(), each.name)
    }
    assert differing | NO_SETTINGS == {each.name for each in fields(Limits)}
