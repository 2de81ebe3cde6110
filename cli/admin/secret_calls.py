"""What `secret` asks and shows."""

from __future__ import annotations

import sys
from pathlib import Path

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.client import all_pages, connected
from gpufleet.fleet.settings import Settings

from .. import screen
from ..printing import print_answer, print_list
from ..render import words
from ..render.table import Column, draw

VALUE_BYTES_MAX = 32 * 1024
"""What is longer the scheduler refuses; so much, and a little, is read of it."""


def set_secret(settings: Settings, name: str, from_file: Path | None, user: str) -> None:
    """Read a value and set it; nothing of it is printed, in an error neither."""
    request = scheduler_pb2.SetSecretRequest(name=name, value=_value(name, from_file), user=user)
    with connected(settings) as client:
        answer = client.call_again(client.scheduler.SetSecret, request)
    line = f"secret {answer.secret.name} of {answer.secret.user} is {'set' if answer.is_new else 'replaced'}"
    print_answer(settings.format, answer.secret, answer.secret.name, lambda _: [line])
    screen.tell(f"Jobs are given it with: gpuctl submit --secret {answer.secret.name} -- COMMAND")


def list_secrets(settings: Settings, user: str) -> None:
    """Print all secrets of a user."""
    whole = scheduler_pb2.ListSecretsResponse()
    with connected(settings) as client:
        request = scheduler_pb2.ListSecretsRequest(user=user, page_size=1000)
        for page in all_pages(client, client.scheduler.ListSecrets, request):
            whole.secrets.extend(page.secrets)
    now = screen.local_now()
    columns: list[Column[scheduler_pb2.Secret]] = [
        Column("NAME", lambda each: each.name),
        Column("SET", lambda each: words.clock(each.set_time, now)),
        Column("BY", lambda each: each.set_by, least=8),
    ]
    empty = ["No secrets. Set one with: gpuctl secret set NAME"]
    print_list(
        settings.format,
        whole.secrets,
        whole=whole,
        name=lambda each: each.name,
        lines=lambda look: draw(columns, whole.secrets, look) if whole.secrets else empty,
    )


def remove_secret(settings: Settings, name: str, user: str) -> None:
    """Remove a secret."""
    with connected(settings) as client:
        request = scheduler_pb2.RemoveSecretRequest(name=name, user=user)
        answer = client.call(client.scheduler.RemoveSecret, request)
    line = f"secret {answer.secret.name} of {answer.secret.user} is removed; jobs that run keep it"
    print_answer(settings.format, answer.secret, answer.secret.name, lambda _: [line])


def _value(name: str, from_file: Path | None) -> str:
    if from_file is not None:
        try:
            with from_file.expanduser().open("rb") as file:
                data = file.read(VALUE_BYTES_MAX + 1)
        except OSError as problem:
            why = f"--from-file: {from_file} cannot be read: {problem.strerror}"
            raise GpufleetError(Reason.FILE_NOT_FOUND, why) from None
        return _text(data, "--from-file")
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass(f"Value of {name} (it is not shown): ")
    data = sys.stdin.buffer.read(VALUE_BYTES_MAX + 3)
    return _text(data.removesuffix(b"\n").removesuffix(b"\r"), "stdin")


def _text(data: bytes, where: str) -> str:
    if not data:
        raise invalid(where, "is empty", next_step="Give the value: printf %s VALUE | gpuctl secret set NAME")
    try:
        return data.decode()
    except UnicodeDecodeError:
        step = "A variable holds text: encode it, as base64 does, and let the job decode it."
        raise invalid(where, "is no text in UTF-8", next_step=step) from None
