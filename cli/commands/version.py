"""`version`: client and server."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Option

from ..options import Connection, Output


def version(
    output: Output,
    connection: Connection,
    client: Annotated[bool, Option("--client", help="Only this program's own version; nobody is asked.")] = False,
) -> None:
    """Show the versions of client and server, and whether they differ."""
    import json

    from ..settings import resolve
    from ..versions import own_version, skew_in_words

    settings = resolve(connection, output)
    own = own_version()
    answer: dict[str, object] = {"client_version": own, "python_version": sys.version.partition(" ")[0]}
    lines = [f"client  {own} (Python {answer['python_version']})"]
    warning = ""
    if not client:
        from google.protobuf.json_format import MessageToDict
        from gpufleet.v1 import scheduler_pb2

        from ..client import connected

        with connected(settings) as asked:
            server = asked.call(asked.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        answer["server"] = MessageToDict(
            server, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        where = f"{settings.address}, protocol {server.protocol_version}, {server.store_kind}"
        lines.append(f"server  {server.version} (Python {server.python_version}; {where})")
        warning = skew_in_words(own, server.version, "the server")
    if settings.format in ("json", "jsonl"):
        print(json.dumps(answer, indent=2 if settings.format == "json" else None))
    else:
        print("\n".join(lines))
    if warning:
        print(f"gpuctl: {warning}", file=sys.stderr)
