"""The schedulers of a store, and the gateways that are connected, as they are answered."""

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import scheduler_pb2

from ...session_links import GatewayLink
from ...state.units import SECOND
from ...wire.convert import timestamp
from ..server_facts import ShownScheduler


def scheduler_run(shown: ShownScheduler) -> scheduler_pb2.SchedulerRun:
    """One of them."""
    seconds, rest_us = divmod(shown.silence, SECOND)
    return scheduler_pb2.SchedulerRun(
        host=shown.host,
        address=shown.address,
        process_id=shown.process_id,
        version=shown.version,
        role=scheduler_pb2.SchedulerRole.Value(f"SCHEDULER_ROLE_{shown.role.upper().replace(' ', '_')}"),
        term=shown.term,
        since_time=timestamp(shown.since),
        silence=Duration(seconds=seconds, nanos=rest_us * 1_000),
        records_behind=shown.records_behind,
        problem=shown.problem,
    )


def connected_gateway(link: GatewayLink) -> scheduler_pb2.ConnectedGateway:
    """One whose stream is open."""
    return scheduler_pb2.ConnectedGateway(
        gateway=link.name,
        address=link.address,
        gateway_version=link.version,
        connect_time=timestamp(link.since),
    )
