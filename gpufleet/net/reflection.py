"""What a server says of itself: its services, and the messages that its errors carry, so that no client needs files."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.rpc import error_details_pb2
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

ERROR_DETAILS = (
    error_details_pb2.ErrorInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    error_details_pb2.Help,
)
"""What `gpufleet.net.status` puts into an error: grpcurl asks for these by name before it can show one."""


def serve_reflection(server: grpc.aio.Server, *services: Any) -> None:
    """Answer reflection with these services, health, reflection itself, and every message of ERROR_DETAILS."""
    pool = error_details_pb2.DESCRIPTOR.pool
    for details in ERROR_DETAILS:
        assert pool.FindMessageTypeByName(details.DESCRIPTOR.full_name)
    names = (*(service.full_name for service in services), health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool)
