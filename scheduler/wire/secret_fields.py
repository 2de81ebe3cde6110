"""Secrets on the wire: those that a spec names, and one as its owner sees it."""

import re
from collections.abc import Iterable

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import invalid

from ..state.access import Secret
from ..state.ids import SecretName
from .convert import timestamp

SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
OWN_VARIABLES = ("GPUFLEET_", "GPUCTL_")
SECRETS_OF_JOB_MAX = 32
"""Variables of one job that are given secrets."""
VALUE_BYTES_MAX = 32 * 1024
"""Linux takes 128 KiB for one variable, and a launch is one message with all of them."""


def secret_name(name: str, path: str) -> SecretName:
    """A secret's name, checked."""
    if not SECRET_NAME.fullmatch(name):
        raise invalid(
            path,
            f"{name[:80]!r} is not a secret's name",
            next_step="use 1 to 63 letters, digits, '.', '-' or '_', beginning with a letter or digit",
        )
    return SecretName(name)


def secret_value(value: str, path: str) -> str:
    """A secret's value, checked. No error shows any of it."""
    size_bytes = len(value.encode())
    if not 1 <= size_bytes <= VALUE_BYTES_MAX:
        raise invalid(path, f"has {size_bytes:,} bytes; it must have 1 to {VALUE_BYTES_MAX:,}")
    if "\0" in value:
        raise invalid(path, "holds a NUL byte, which no variable can hold", next_step="encode it, as base64 does")
    return value


def secrets_of(spec: job_pb2.JobSpec, path: str) -> tuple[tuple[str, SecretName], ...]:
    """The checked secrets of a spec, in the order of their variables. Errors: INVALID_ARGUMENT with the path."""
    if len(spec.secrets) > SECRETS_OF_JOB_MAX:
        raise invalid(f"{path}.secrets", f"names {len(spec.secrets):,}; at most {SECRETS_OF_JOB_MAX} go with a job")
    found: list[tuple[str, SecretName]] = []
    for variable, name in sorted(spec.secrets.items()):
        field = f"{path}.secrets[{variable[:80]!r}]"
        if not VARIABLE.fullmatch(variable) or variable.startswith(OWN_VARIABLES):
            step = "use letters, digits and '_': HF_TOKEN; names that begin with GPUFLEET_ or GPUCTL_ are taken"
            raise invalid(field, "is not a variable's name", next_step=step)
        if variable in spec.env:
            raise invalid(field, "is in env, too", next_step="leave one of them out")
        found.append((variable, secret_name(name, field)))
    return tuple(found)


def secret_proto(secret: Secret) -> scheduler_pb2.Secret:
    """A secret on the wire."""
    return scheduler_pb2.Secret(
        name=secret.name, user=secret.user, set_time=timestamp(secret.set_at), set_by=secret.set_by
    )


def secrets_proto(named: Iterable[tuple[str, SecretName]]) -> dict[str, str] | None:
    """What a spec names, on the wire; None for nothing."""
    return dict(named) or None
