"""The HTTP API: each row of its table, with the JSON of strange messages, or with what is no JSON of any."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message_factory import GetMessageClass

from gateway.api.table import Row
from tests.fuzz.messages import Forge, Steer

ANSWER_SECONDS_MAX = 1.0
ODD: tuple[Any, ...] = (None, True, -1, 2**70, 1.5, "", "\ud800", "NaN", [], {}, [[[]]], {"a": {"b": 1}}, "x" * 3_000)


async def trouble(address: str, row: Row, forge: Forge, steer: Steer | None, secret: str) -> str:
    """One request of a row; answers the status, empty where none came in time."""
    random = forge.random
    verb, target, body = request_of(row, forge, steer)
    token = f"Authorization: Bearer {secret}\r\n" if secret and secret.isprintable() else ""
    kind = random.choice(("application/json",) * 9 + ("text/plain",))
    head = (
        f"{verb} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{token}"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    answer = b""
    host, _, port = address.rpartition(":")
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(head.encode() + body)
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer = await reader.readline()
        finally:
            writer.transport.abort()
    return answer[9:12].decode("latin-1")


def request_of(row: Row, forge: Forge, steer: Steer | None) -> tuple[str, str, bytes]:
    """Verb, target and body. What the path says is steered as the message is."""
    random = forge.random
    forge.density = random.choice((1.0, 0.5, 0.2))
    message: Any = GetMessageClass(row.asked)()
    forge.fill(message, 0, is_first=True)
    if steer is not None:
        steer(message, random)
    path = row.path
    for name, field in row.parameters.items():
        path = path.replace(f"{{{name}}}", quote(_value(message, field), safe="") or "0")
    try:
        said = MessageToDict(message, preserving_proto_field_name=True)
    except (SerializeToJsonError, ValueError):
        said = {}  # a duration that no JSON can say
    for name in list(said):
        if steer is None and random.random() < 0.1:
            said[name] = random.choice(ODD)
    if not row.has_body:
        pairs = [
            f"{quote(name)}={quote(str(value)[:300], errors='surrogatepass')}"
            for name, value in said.items()
            if name not in row.in_path
        ]
        return row.verb, "?".join((path, "&".join(pairs))), b""
    body = json.dumps({name: value for name, value in said.items() if name not in row.in_path}).encode()
    return row.verb, path, forge.mutated(body) if random.random() < 0.15 else body


def _value(message: Any, field: str) -> str:
    for name in field.split("."):
        message = getattr(message, name)
    if not isinstance(message, str | int | float):
        return ",".join(str(each) for each in message)
    return str(message).encode("utf-8", "replace").decode()
