"""Ask a program whether it serves, as a container engine does again and again: exit code 0 or 1, and why.

    python -m gpufleet.net.health_check 127.0.0.1:50051 [CA_FILE]
    python -m gpufleet.net.health_check http://127.0.0.1:7860/healthz

HOST:PORT is asked by gRPC's own service for that, `grpc.health.v1`, with TLS where a file of the authority is named; a
URL has to answer 200. Of https only whether it answers is asked, and nothing told: certificates are for other names
than this machine's own.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ANSWER_S_MAX = 5.0
"""Who has not answered by then does not serve."""


def main(arguments: Sequence[str]) -> int:
    """Say why a program does not serve, if it does not; the exit code."""
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m gpufleet.net.health_check HOST:PORT [CA_FILE] | URL", file=sys.stderr)
        return 2
    where, ca_file = arguments[0], Path(arguments[1]) if len(arguments) > 1 else None
    why = _why_not_http(where) if where.startswith(("http://", "https://")) else _why_not_grpc(where, ca_file)
    if why:
        print(f"{where} does not serve: {why}", file=sys.stderr)
    return 1 if why else 0


def _why_not_http(url: str) -> str:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S_MAX)
    if parts.scheme == "https":
        context = ssl._create_unverified_context()
        connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=ANSWER_S_MAX, context=context)
    try:
        connection.request("GET", parts.path or "/")
        status = connection.getresponse().status
        return "" if status == HTTPStatus.OK else f"it answers {status}"
    except (OSError, HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()


def _why_not_grpc(where: str, ca_file: Path | None) -> str:
    # What is not asked by gRPC must not pay for its import.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from gpufleet.errors import GpufleetError
    from gpufleet.net.addresses import parse_address
    from gpufleet.net.channel import Target, connect

    try:
        channel: Any = connect(Target(address=parse_address(where), ca_file=ca_file))
    except GpufleetError as error:
        return error.message
    with channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            status = stub.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S_MAX).status
        except grpc.RpcError as error:
            failed: Any = error
            return str(failed.details())
    return (
        ""
        if status == health_pb2.HealthCheckResponse.SERVING
        else health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
