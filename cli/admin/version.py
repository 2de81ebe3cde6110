"""`version`: client and server."""

from __future__ import annotations

import sys
from typing import Annotated

from ..declaring import Option
from ..options import Printing


def version(
    options: Printing,
    client: Annotated[bool, Option("--client", help="Only this program's own version; nobody is asked.")] = False,
) -> None:
    """Show the versions of client and server, and whether they differ."""
    import json

    settings = options.settings()
    own = own_version()
    answer: dict[str, object] = {"client_version": own, "python_version": sys.version.partition(" ")[0]}
    lines = [f"client  {own} (Python {answer['python_version']})"]
    warning = ""
    if not client:
        from gpufleet.v1 import scheduler_pb2

        from gpufleet.fleet.client import connected

        from ..printing import message_object

        with connected(settings) as asked:
            server = asked.call(asked.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        answer["server"] = message_object(server)
        where = f"{settings.where}, protocol {server.protocol_version}, {server.store_kind}"
        python = f"Python {server.python_version}" + (f", {server.event_loop}" if server.event_loop else "")
        lines.append(f"server  {server.version} ({python}; {where})")
        warning = skew_in_words(own, server.version, "the server")
    if settings.format in ("json", "jsonl"):
        print(json.dumps(answer, indent=2 if settings.format == "json" else None))
    else:
        print("\n".join(lines))
    if warning:
        print(f"gpuctl: {warning}", file=sys.stderr)


def own_version() -> str:
    """The version of this installation; `unknown` in a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpufleet")
    except PackageNotFoundError:
        return "unknown"


def skew_in_words(own: str, other: str, what: str) -> str:
    """A sentence when the versions differ; empty when they do not."""
    if own == other or "unknown" in (own, other):
        return ""
    return f"{what} has version {other}, and this gpuctl {own}: install the same on both"
