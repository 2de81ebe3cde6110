"""What the worker's command line says."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpufleet.config.paths import state_dir
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.addresses import Address, parse_addresses
from gpufleet.security.tickets import SECRET_BYTES, make_secret
from gpufleet.security.tokens import find_token

from .loading import SHIPPED, Wanted

DEVICE = re.compile(r"(?:(?:cuda:)?(\d{1,3})|cpu|[a-z]+(?::\d{1,3})?)")
SECRET_VARIABLE = "GPUFLEET_TICKET_SECRET"
"""In the environment of a worker that an agent starts: the secret of its tickets, in hexadecimal digits."""

SECRET_FILE_BYTES_MAX = 4_096


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = argparse.ArgumentParser(
        prog="gpuctl worker",
        description="Serve live sessions with a model. Stop it with Ctrl-C or SIGTERM: its turns end then.",
    )
    flags.add_argument(
        "model", metavar="MODEL", help=f"package.module:Class (see docs/write-a-model.md), {', '.join(SHIPPED)}"
    )
    flags.add_argument("--name", metavar="NAME", default="", help="the model's name; default: the class's")
    flags.add_argument(
        "--device", metavar="N|cpu", default="", help="GPU for the model; default: the first, or the CPU"
    )
    flags.add_argument(
        "--model-arg", metavar="K=V", action="append", default=[], help="argument of the model; repeatable"
    )
    flags.set_defaults(http_service=False)
    add_joining_flags(flags, port="default: 8001 + the device's number, or the next free one; 0: any")
    return flags


def add_joining_flags(flags: argparse.ArgumentParser, *, port: str) -> None:
    """Those that any worker has, whatever it serves; `port` is the help of --port."""
    flags.add_argument(
        "--host", default=_setting("WORKER_HOST", "127.0.0.1"), help="where to listen (default 127.0.0.1)"
    )
    flags.add_argument("--port", type=_port, metavar="PORT", help=port)
    flags.add_argument(
        "--advertise",
        metavar="HOST[:PORT]",
        default=_setting("WORKER_ADVERTISE"),
        help="where gateways reach this worker; default: --host",
    )
    flags.add_argument("--scheduler", metavar="HOST:PORT[,…]", help="where the scheduler is; several are tried in turn")
    flags.add_argument(
        "--standalone", action="store_true", help="no scheduler: admit whoever has a ticket of --ticket-secret-file"
    )
    files = {
        "--ticket-secret-file": (None, "64 hexadecimal digits; made where it is missing"),
        "--token-file": (None, "file with the worker's token"),
        "--ca-file": (_setting("CA_FILE"), "authority that signed the scheduler's certificate"),
        "--client-cert-file": (
            _setting("CLIENT_CERT_FILE"),
            "this worker's certificate with its key, where the scheduler asks for one",
        ),
        "--tls-cert": (
            _setting("TLS_CERT"),
            "this worker's certificate; default: beyond this machine, one of its own that gateways are told",
        ),
        "--tls-key": (_setting("TLS_KEY"), "the private key of the certificate"),
    }
    for name, (default, help_) in files.items():
        flags.add_argument(name, metavar="FILE", type=Path, default=default, help=help_)
    flags.add_argument(
        "--worker-id",
        metavar="NAME",
        help="the name that it joins under, by a token that is traded for a credential; default: HOST-MODEL-DEVICE",
    )
    flags.add_argument(
        "--insecure", action="store_true", default=bool(_setting("INSECURE")), help="no TLS beyond this machine"
    )
    flags.add_argument("--verbose", action="store_true", help="the same as --log-level debug")
    flags.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    flags.add_argument("--log-format", choices=("text", "json"), default="text")


def _setting(name: str, otherwise: str | None = None) -> str | None:
    """What the agent said to a worker that it started, or the person with --env; of one by hand only the defaults."""
    is_launched = SECRET_VARIABLE in os.environ
    return os.environ.get(f"GPUFLEET_{name}", otherwise) if is_launched else otherwise


def wanted_of(given: argparse.Namespace) -> Wanted:
    """The model to load. Raises INVALID_ARGUMENT."""
    device = given.device
    found = DEVICE.fullmatch(device)
    if device and found is None:
        raise invalid("--device", f'"{device}" is neither a number nor cpu')
    if found is not None and found[1] is not None:
        device = f"cuda:{found[1]}"
    return Wanted(entry_point=given.model, arguments=_arguments(given.model_arg), device=device)


def device_number(wanted: Wanted) -> int:
    """The number of the GPU; 0 without one."""
    number = wanted.device.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def schedulers_of(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> tuple[Address, ...]:
    """Where the scheduler is; none for a worker that stands alone. Raises ADDRESS_INVALID, INVALID_ARGUMENT."""
    text = given.scheduler or ("" if given.standalone else environment.get("GPUCTL_SCHEDULER", ""))
    if given.standalone:
        if given.scheduler:
            raise invalid("--standalone", "has no --scheduler; choose one")
        return ()
    if not text:
        raise invalid(
            "--scheduler", "is missing", next_step="Give --scheduler HOST:PORT, or --standalone to do without one."
        )
    return parse_addresses(text)


def secret_of(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> tuple[bytes, bool]:
    """The secret of the tickets, and whether the scheduler has it already from the launch.

    Raises CONFIG_INVALID for a secret of another form, TOKEN_FILE_EXPOSED for a file that other accounts can read.
    """
    if (text := environment.get(SECRET_VARIABLE)) is not None:
        return _secret(text, SECRET_VARIABLE), True
    if given.standalone or given.ticket_secret_file is not None:
        return _secret_in(given.ticket_secret_file or state_dir("worker") / "ticket.secret"), False
    return make_secret(), False


def token_of(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """The worker's token: --token-file or GPUCTL_TOKEN. Raises TOKEN_MISSING and what is wrong with the one named."""
    found = find_token(given.token_file, environment, None)
    if found is None:
        raise GpufleetError(
            Reason.TOKEN_MISSING,
            "a worker needs a token of role worker",
            next_step="Make one with: gpuctl token create USER --role worker · then give --token-file FILE or set "
            "GPUCTL_TOKEN.",
        )
    return found.token


def _arguments(pairs: Sequence[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (equals and name.isidentifier()):
            raise invalid("--model-arg", f'"{pair}" is not NAME=VALUE')
        arguments[name] = value
    return arguments


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f'"{text}" is not a number from 0 to 65535')
    return int(text)


def _secret_in(file: Path) -> bytes:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made and opened in one step, so that nobody else can have made it meanwhile.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            secret = make_secret()
            made.write(secret.hex() + "\n")
            return secret
    except FileExistsError:
        pass
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{file} cannot be made: {problem.strerror}") from None
    try:
        with file.open("rb") as opened:
            if os.name == "posix" and os.fstat(opened.fileno()).st_mode & 0o077:
                raise GpufleetError(Reason.TOKEN_FILE_EXPOSED, f"other accounts can read {file}")
            return _secret(opened.read(SECRET_FILE_BYTES_MAX).decode("ascii", "replace"), str(file))
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{file} cannot be read: {problem.strerror}") from None


def _secret(text: str, where: str) -> bytes:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"{where} does not hold {2 * SECRET_BYTES} hexadecimal digits",
            next_step="Remove it: the worker makes one where the file is missing.",
        )
    return secret
